// SPDX-License-Identifier: Apache-2.0
//! Additions to TOML texts that leave every other byte unchanged, and their removal, also from a
//! text of which other parts were edited since. This module does no I/O. A table is added at the end,
//! where TOML always permits one; an addition that contradicts the text is refused.

use similar::{ChangeTag, DiffOp, TextDiff};
use toml_edit::{Document, Item, TableLike};

use crate::error::{Error, Result, quoted};
use crate::text::printable;

/// Parses a file, with the position of each item.
pub(super) fn parse(path: &str, text: &str) -> Result<Document<String>> {
    Document::parse(text.to_owned()).map_err(|error| {
        let what = error.message().lines().next().unwrap_or_default().to_owned();
        Error::new(format!("{path} is not valid TOML: {}", quoted(&what)))
            .hint("fix this file; nothing was changed")
    })
}

/// Returns the item at `keys`, in any TOML notation.
pub(super) fn at<'d>(root: &'d dyn TableLike, keys: &[&str]) -> Option<&'d Item> {
    let (first, rest) = keys.split_first()?;
    let item = root.get(first).filter(|item| !item.is_none())?;
    if rest.is_empty() { Some(item) } else { at(item.as_table_like()?, rest) }
}

/// Returns the string at `keys`.
pub(super) fn text_at<'d>(root: &'d dyn TableLike, keys: &[&str]) -> Option<&'d str> {
    at(root, keys).and_then(Item::as_str)
}

/// Returns the strings of the list at `keys`.
pub(super) fn list_at(root: &dyn TableLike, keys: &[&str]) -> Option<Vec<String>> {
    let list = at(root, keys)?.as_array()?;
    Some(list.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect())
}

/// Renders a TOML string.
pub(super) fn string(text: &str) -> String {
    toml_edit::Value::from(text).to_string()
}

/// Renders a table header: `[a."b.c".d]`.
pub(super) fn header(keys: &[&str]) -> String {
    format!("[{}]", dotted(keys))
}

/// Renders dotted TOML keys.
pub(super) fn dotted(keys: &[&str]) -> String {
    let is_bare = |key: &str| {
        !key.is_empty() && key.bytes().all(|c| c.is_ascii_alphanumeric() || b"_-".contains(&c))
    };
    let keys = keys.iter().map(|key| if is_bare(key) { (*key).to_owned() } else { string(key) });
    keys.collect::<Vec<_>>().join(".")
}

fn line_end(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

/// Appends the tables of `block` to `text`.
pub(super) fn append(path: &str, text: &str, block: &str) -> Result<String> {
    let end = line_end(text);
    let mut new = text.to_owned();
    if !new.is_empty() && !new.ends_with('\n') {
        new.push_str(end);
    }
    if !new.is_empty() {
        new.push_str(end);
    }
    new.push_str(&block.replace('\n', end));
    understood(path, new, block)
}

/// Sets `key = value` in the table `keys`: replaces the value, else adds a line after the table's
/// header, else adds the table at the end.
pub(super) fn set(path: &str, text: &str, keys: &[&str], key: &str, value: &str) -> Result<String> {
    let document = parse(path, text)?;
    let line = format!("{key} = {value}");
    let table = at(document.as_table(), keys);
    let old = table.and_then(|table| table.as_table_like()?.get(key));
    if let Some(span) = old.and_then(Item::span) {
        let mut new = text.to_owned();
        new.replace_range(span, value);
        return understood(path, new, &line);
    }
    let is_written = |table: &&toml_edit::Table| !table.is_implicit() && !table.is_dotted();
    let header_at =
        table.and_then(Item::as_table).filter(is_written).and_then(|table| table.span());
    let Some(header_at) = header_at else {
        return append(path, text, &format!("{}\n{line}\n", header(keys)));
    };
    let rest = text.get(header_at.start..).unwrap_or_default();
    let Some(line_length) = rest.find('\n') else {
        let end = line_end(text);
        return understood(path, format!("{text}{end}{line}{end}"), &line);
    };
    let indent: String = {
        let start = text.get(..header_at.start).unwrap_or_default();
        let begin = start.rfind('\n').map_or(0, |at| at + 1);
        start.get(begin..).unwrap_or_default().chars().take_while(|c| c.is_whitespace()).collect()
    };
    let mut new = text.to_owned();
    let added = format!("{indent}  {line}{}", line_end(text));
    new.insert_str(header_at.start + line_length + 1, &added);
    understood(path, new, &line)
}

/// Returns `new` if it parses. Otherwise fails, because the addition contradicts the text (a table written as
/// one line, a dotted key): the operator must then add `added` manually.
fn understood(path: &str, new: String, added: &str) -> Result<String> {
    if Document::parse(new.as_str()).is_ok() {
        return Ok(new);
    }
    let added: Vec<&str> = added.lines().map(str::trim).collect();
    Err(Error::new(format!("{path}: `install` cannot add to an inline table or to dotted keys"))
        .hint(format!("add manually: {}", added.join("; "))))
}

/// Reverts in `now` the change from `before` to `after`. `None` if the changed lines were edited
/// since or occur more than once, or if a part of the change only removed lines or added blank ones:
/// its place is then unknown.
pub(super) fn reverse(before: &str, after: &str, now: &str) -> Option<String> {
    if now == after {
        return Some(before.to_owned());
    }
    let diff = TextDiff::from_lines(before, after);
    let mut text = now.to_owned();
    for op in diff.ops().iter().rev().filter(|op| !matches!(op, DiffOp::Equal { .. })) {
        let (mut old, mut new) = (String::new(), String::new());
        for change in diff.iter_changes(op) {
            match change.tag() {
                ChangeTag::Delete => old.push_str(change.value()),
                ChangeTag::Insert => new.push_str(change.value()),
                ChangeTag::Equal => {}
            }
        }
        let place = only_place(&text, &new)?;
        text.replace_range(place..place + new.len(), &old);
    }
    Some(text)
}

/// Returns the offset of these whole lines if they occur exactly once and are not all blank.
fn only_place(text: &str, lines: &str) -> Option<usize> {
    if lines.trim().is_empty() {
        return None;
    }
    let starts_line = |at: &usize| *at == 0 || text.as_bytes().get(*at - 1) == Some(&b'\n');
    let mut places = text.match_indices(lines).map(|(at, _)| at).filter(starts_line);
    let first = places.next()?;
    places.next().is_none().then_some(first)
}

/// Renders the change as `diff -u` does; `None` is a file that does not exist.
pub(super) fn diff(path: &str, before: Option<&str>, after: Option<&str>) -> String {
    let name =
        |text: Option<&str>| text.map_or_else(|| "/dev/null".to_owned(), |_| printable(path));
    TextDiff::from_lines(before.unwrap_or_default(), after.unwrap_or_default())
        .unified_diff()
        .header(&name(before), &name(after))
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_replaced_and_every_other_byte_stays() {
        let text = "a = 1 # one\n[t]\n  k   =  'old' # why\n\tz=2";
        let new = set("f", text, &["t"], "k", "\"new\"").unwrap();
        assert_eq!(new, "a = 1 # one\n[t]\n  k   =  \"new\" # why\n\tz=2");
    }

    #[test]
    fn a_key_is_added_below_its_header_with_the_line_endings() {
        let text = "[a]\r\n  [a.\"b.c\"] # here\r\n    k = 1\r\n";
        let new = set("f", text, &["a", "b.c"], "n", "2").unwrap();
        assert_eq!(new, "[a]\r\n  [a.\"b.c\"] # here\r\n    n = 2\r\n    k = 1\r\n");
        let last = set("f", "[a]", &["a"], "n", "2").unwrap();
        assert_eq!(last, "[a]\nn = 2\n");
    }

    #[test]
    fn an_implicit_table_is_added_at_the_end() {
        let new = set("f", "[a.b.c]\nx = 1", &["a", "b"], "n", "2").unwrap();
        assert_eq!(new, "[a.b.c]\nx = 1\n\n[a.b]\nn = 2\n");
    }

    #[test]
    fn a_file_that_cannot_be_extended_is_left_unchanged() {
        for (text, table) in
            [("a = { b = 1 }\n", "[a.n]"), ("a.b = 1\n", "[a]"), ("a = 3\n", "[a.n]")]
        {
            let error = append("f", text, &format!("{table}\nx = 1\n")).unwrap_err().to_string();
            assert!(error.contains(&format!("add manually: {table}; x = 1")), "{error}");
        }
        // A table of dotted keys may have more tables below it (TOML 1.0, "Table").
        assert!(append("f", "a.b = 1\n", "[a.n]\nx = 1\n").is_ok());
        assert!(parse("f", "a = [").unwrap_err().to_string().contains("f is not valid TOML"));
    }

    #[test]
    fn our_entry_is_removed_from_an_edited_file() {
        let (before, after) = ("a\nb\n", "a\nours\nmore\nb\n");
        assert_eq!(reverse(before, after, after).as_deref(), Some(before));
        assert_eq!(
            reverse(before, after, "x\na\nours\nmore\nb\nc\n").as_deref(),
            Some("x\na\nb\nc\n")
        );
    }

    #[test]
    fn a_change_with_edited_or_repeated_lines_is_not_reverted() {
        let (before, after) = ("a\nb\n", "a\nours\nmore\nb\n");
        assert_eq!(reverse(before, after, "a\nours\nmine\nb\n"), None);
        assert_eq!(reverse(before, after, "ours\nmore\nours\nmore\n"), None);
        assert_eq!(reverse("a\n", "", "a\n"), None, "what was only taken out has no place");
    }
}
