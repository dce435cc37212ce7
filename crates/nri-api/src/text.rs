// SPDX-License-Identifier: Apache-2.0
//! Quotes text that the peer chose (names, reasons, error texts) for one line of a message or a
//! log.
//!
//! A plugin chooses its name and its errors, an engine the names of pods. Unquoted, they could
//! split a line, move a terminal's cursor or fill a disk.

use std::borrow::Cow;

/// Quotes text as part of a line: [`cut`] to `most` bytes, without surrounding blanks. Line breaks
/// and tabs become blanks, and other characters that a terminal would interpret or hide become
/// escapes ([`printable`]).
#[must_use]
pub fn one_line(text: &str, most: usize) -> String {
    printable(cut(text, most).replace(['\n', '\r', '\t'], " ").trim())
}

/// Quotes foreign text (names, annotations, error texts) for one cell or one line: control
/// characters, line breaks, direction marks, and invisible characters become escapes such as `\n`
/// and `\u{202e}`.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        push(&mut shown, c);
    }
    shown
}

fn push(shown: &mut String, c: char) {
    // Quotes and backslashes are unchanged; escape_debug would escape them.
    if matches!(c, ' '..='~') {
        shown.push(c);
    } else if is_blank_letter(c) {
        shown.extend(c.escape_unicode());
    } else {
        // This escapes Cc, Cf, Zl, Zp, Zs, private and unassigned characters, and combining marks.
        shown.extend(c.escape_debug());
    }
}

/// Whether fonts show this character as blank although its category is that of letters or symbols.
fn is_blank_letter(c: char) -> bool {
    matches!(c, '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}')
}

/// Returns `text`; if it is longer than `most` bytes, its beginning, cut between characters, and
/// its length. For a text that an earlier call has cut, this is the length before that cut, because
/// texts are cut on receipt and again for a line.
#[must_use]
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return text.into();
    }
    let before = text.rsplit_once("… (").and_then(|(_, end)| end.strip_suffix(" bytes)"));
    let before = before.and_then(|number| number.parse::<usize>().ok());
    // A number below the text's length is part of the text itself.
    let length = before.unwrap_or_default().max(text.len());
    format!("{}… ({length} bytes)", split(text, most).0).into()
}

/// Splits `text` at a character boundary at or before `most` bytes.
#[must_use]
pub fn split(text: &str, most: usize) -> (&str, &str) {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.split_at(end.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_terminals_interpret_or_hide_are_escaped() {
        let hostile = "\u{0}\u{7}\u{8}\t\n\r\u{1b}[2J\u{7f}\u{85}\u{9b}\u{9d}\u{a0}\u{ad}\u{61c}\u{115f}\
                       \u{180e}\u{200b}\u{200d}\u{200e}\u{2028}\u{2029}\u{202a}\u{202e}\u{2060}\
                       \u{2066}\u{2069}\u{2800}\u{3164}\u{e000}\u{fe0f}\u{feff}\u{ffa0}\u{fff9}\
                       \u{301}\u{e0001}\u{e0041}\u{e0100}";
        let shown = printable(hostile);
        assert!(shown.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{shown}");
        assert!(shown.contains("\\u{1b}[2J") && shown.contains("\\u{202e}"), "{shown}");
        assert_eq!(printable("a\tb\nc\r"), "a\\tb\\nc\\r");
    }

    #[test]
    fn readable_text_stays_unchanged() {
        for text in ["web-0", "C:\\x 'y' \"z\"", "größe", "日本語", "ελληνικά", "🦀"]
        {
            assert_eq!(printable(text), text);
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("äöü", 6), "äöü");
        assert_eq!(cut("äöü", 5), "äö… (6 bytes)");
        let once = cut(&"0123456789".repeat(100), 40).into_owned();
        assert_eq!(cut(&format!("10-a: {once}"), 9), "10-a: 012… (1000 bytes)");
    }

    #[test]
    fn a_long_text_that_ends_like_a_cut_one_is_cut_again() {
        let text = |number: &str| format!("{}… ({number} bytes)", "a".repeat(100));
        for number in ["", "7", &"9".repeat(1000), "-1", "x"] {
            let text = text(number);
            let wanted = format!("aaaa… ({} bytes)", text.len());
            assert_eq!(cut(&text, 4), wanted, "{number}");
        }
        assert_eq!(cut(&text("2000"), 4), "aaaa… (2000 bytes)");
        assert_eq!(cut("", 0), "");
    }
}
