// SPDX-License-Identifier: Apache-2.0
//! Finds the byte ranges of members and elements in a JSON text.
//!
//! Except for [`first_value`], the functions check syntax only as far as they need it. They read
//! one level at a time and skip everything below without recursion, so depth does not matter. They
//! never decode a number and never change a byte. Reference: RFC 8259; Go's `encoding/json` for the
//! decoding of odd strings.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::value::RawValue;

/// The member of an object: the ranges of its key (with quotes) and its value.
#[derive(Debug, Clone)]
pub(crate) struct MemberSpan {
    pub(crate) key: Range<usize>,
    pub(crate) value: Range<usize>,
}

/// Returns the first position at or after `at` that is not a blank.
pub(crate) fn skip_blank(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = text.get(at) {
        at += 1;
    }
    at
}

/// Returns the members of the object that starts at `open`; `None` if no object starts there.
pub(crate) fn members(text: &[u8], open: usize) -> Option<Vec<MemberSpan>> {
    let mut places = Vec::new();
    entries(text, open, b"{}", |at| {
        let key = at..string_end(text, at)?;
        let start = value_of(text, key.end)?;
        let end = value_end(text, start)?;
        places.push(MemberSpan { key, value: start..end });
        Some(end)
    })?;
    Some(places)
}

/// Returns the elements of the array that starts at `open`; `None` if no array starts there.
pub(crate) fn elements(text: &[u8], open: usize) -> Option<Vec<Range<usize>>> {
    let mut places = Vec::new();
    entries(text, open, b"[]", |at| {
        let end = value_end(text, at)?;
        places.push(at..end);
        Some(end)
    })?;
    Some(places)
}

/// Passes the start of each entry of the object or array at `open` to `end_of`, which returns the
/// entry's end. Returns the end of the whole; `None` if `end_of` does, or the syntax is wrong.
pub(crate) fn entries(
    text: &[u8],
    open: usize,
    [bracket, close]: &[u8; 2],
    mut end_of: impl FnMut(usize) -> Option<usize>,
) -> Option<usize> {
    if text.get(open) != Some(bracket) {
        return None;
    }
    let mut at = skip_blank(text, open + 1);
    if text.get(at) == Some(close) {
        return Some(at + 1);
    }
    loop {
        let end = skip_blank(text, end_of(at)?);
        match text.get(end)? {
            b',' => at = skip_blank(text, end + 1),
            other if other == close => return Some(end + 1),
            _ => return None,
        }
    }
}

/// Decodes a string literal (with its quotes). A lone surrogate becomes U+FFFD, as in Go.
pub(crate) fn decode(literal: &[u8]) -> Option<String> {
    let inner = literal.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if !inner.contains(&b'\\') {
        return Some(lossy(inner));
    }
    if let Ok(text) = serde_json::from_slice(literal) {
        return Some(text);
    }
    decode_lossily(&lossy(inner))
}

/// Decodes bytes as text. Each byte that is not UTF-8 becomes U+FFFD, as in Go.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}

/// Finds the first JSON value of `text`. Strings may contain bytes that are not UTF-8, and any text
/// may follow: Go's decoder reads the first value and ignores the rest.
pub(crate) fn first_value(text: &[u8]) -> serde_json::Result<Range<usize>> {
    let mut plain = Cow::Borrowed(text);
    if std::str::from_utf8(text).is_err() {
        // Replaces each byte that is not UTF-8 with one ASCII character, so offsets are unchanged.
        let mut same = Vec::with_capacity(text.len());
        for chunk in text.utf8_chunks() {
            same.extend_from_slice(chunk.valid().as_bytes());
            same.extend(chunk.invalid().iter().map(|_| b'?'));
        }
        plain = Cow::Owned(same);
    }
    // serde_json skips raw values without recursion, so nesting has no limit here.
    let mut values = serde_json::Deserializer::from_slice(&plain).into_iter::<&RawValue>();
    let length = match values.next() {
        Some(value) => value?.get().len(),
        None => serde_json::from_slice::<&RawValue>(&plain)?.get().len(),
    };
    let start = skip_blank(text, 0);
    Ok(start..start + length)
}

fn decode_lossily(inner: &str) -> Option<String> {
    let mut decoded = String::with_capacity(inner.len());
    let mut rest = inner.chars();
    // Code units of the escapes read so far; pairs are joined when the run of escapes ends.
    let mut units: Vec<u16> = Vec::new();
    while let Some(c) = rest.next() {
        let escape = if c == '\\' { rest.next() } else { None };
        if escape == Some('u') {
            let digits = rest.as_str().get(..4)?;
            units.push(u16::from_str_radix(digits, 16).ok()?);
            rest = rest.as_str().get(4..)?.chars();
            continue;
        }
        decoded.push_str(&String::from_utf16_lossy(&units));
        units.clear();
        decoded.push(match escape {
            None => c,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some(itself) => itself,
        });
    }
    decoded.push_str(&String::from_utf16_lossy(&units));
    Some(decoded)
}

/// Returns the start of the value of the member whose key ends at `end`.
pub(crate) fn value_of(text: &[u8], end: usize) -> Option<usize> {
    let colon = skip_blank(text, end);
    (text.get(colon) == Some(&b':')).then(|| skip_blank(text, colon + 1))
}

/// Returns the end of the value at `at`, which is not checked.
pub(crate) fn value_end(text: &[u8], at: usize) -> Option<usize> {
    match *text.get(at)? {
        b'"' => string_end(text, at),
        b'{' | b'[' => nested_end(text, at),
        _ => {
            let rest = text.get(at..)?;
            let length = rest
                .iter()
                .position(|b| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r'))
                .unwrap_or(rest.len());
            (length > 0).then_some(at + length)
        }
    }
}

fn nested_end(text: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match *text.get(at)? {
            b'"' => {
                at = string_end(text, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Returns the end of the string at `at`.
pub(crate) fn string_end(text: &[u8], at: usize) -> Option<usize> {
    if text.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        match *text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_whatever_their_strings_contain() {
        let text = br#" { "a" : "}\"{" , "b\\":[1,{"x":"]"}],"c":-1e9 }"#;
        let found: Vec<(&[u8], &[u8])> =
            members(text, 1).unwrap().into_iter().map(|p| (&text[p.key], &text[p.value])).collect();
        assert_eq!(
            found,
            [
                (&br#""a""#[..], &br#""}\"{""#[..]),
                (br#""b\\""#, br#"[1,{"x":"]"}]"#),
                (br#""c""#, b"-1e9"),
            ]
        );
    }

    #[test]
    fn deep_nesting_needs_no_stack() {
        let mut text = b"[".repeat(2_000_000);
        text.extend(b"]".repeat(2_000_000));
        assert_eq!(elements(&text, 0).unwrap(), vec![1..3_999_999]);
    }

    #[test]
    fn invalid_json_yields_none_without_a_panic() {
        for text in
            [&b""[..], b"{", b"{\"a", b"{\"a\"", b"{\"a\":", b"{\"a\":1", b"{\"a\" 1}", b"{1:2}"]
        {
            assert!(members(text, 0).is_none(), "{}", String::from_utf8_lossy(text));
        }
        for text in [&b"{\"a\":1 \"b\":2}"[..], b"{\"a\":1]", b"{\"a\":1:"] {
            assert!(members(text, 0).is_none(), "{}", String::from_utf8_lossy(text));
        }
        for text in
            [&b""[..], b"[", b"[1", b"[1,", b"[\"\\", b"[}", b"[,]", b"[1 2]", b"[1}", b"[\"a\":"]
        {
            assert!(elements(text, 0).is_none(), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn strings_are_decoded_as_go_decodes_them() {
        for (literal, says) in [
            (r#""plain""#, "plain"),
            (r#""pro\u0063ess""#, "process"),
            (r#""\ud83d\ude00\n""#, "\u{1f600}\n"),
            (r#""a\ud800b\"\\\/""#, "a\u{fffd}b\"\\/"),
            (r#""\ud800\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
        ] {
            assert_eq!(decode(literal.as_bytes()).as_deref(), Some(says), "{literal}");
        }
    }
}
