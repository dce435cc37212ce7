// SPDX-License-Identifier: Apache-2.0
//! Annotations of a pod: which value applies to a container, and how it is parsed.
//!
//! A value is a boolean or a list of names, both written by the pod's author. An invalid value is an error,
//! never a guess. Lists use a subset of YAML: `[a, "b"]` (so JSON too) or `- a` on each line; no comments,
//! anchors, tags, nested lists or folded strings, and in double quotes only JSON's escapes. An unquoted
//! string has letters, digits and `_.+-`, the characters of plugin names. Reference: annotations of NRI's
//! plugins.

use nri_api as api;

use crate::validator::MOST_REQUIRED_PLUGINS;
use nri_api::identity::PLUGIN_NAME;

/// Blanks between the elements of a list.
const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];
/// YAML's spellings of null.
const NOTHING: [&str; 4] = ["~", "null", "Null", "NULL"];

/// Returns the value of annotation `key` for `container`: that of `KEY/container.NAME`, else of
/// `KEY/pod`, else of `KEY`. Values are never merged, so an empty one for a container hides the
/// pod's. Without a container, returns the pod's value.
pub(crate) fn effective<'p>(
    pod: &'p api::PodSandbox,
    key: &str,
    container: Option<&str>,
) -> Option<&'p str> {
    let own = container.map(|container| format!("{key}/container.{container}"));
    let forms = own.into_iter().chain([format!("{key}/pod"), key.to_owned()]);
    forms.filter_map(|form| pod.annotations.get(&form)).map(String::as_str).next()
}

/// Parses a boolean in the spellings that Go accepts.
pub(crate) fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a list of strings; an empty value or YAML's null is an empty list.
pub(crate) fn list(text: &str) -> Result<Vec<String>, &'static str> {
    let whole = text.trim_matches(BLANKS);
    if whole.is_empty() || NOTHING.contains(&whole) {
        return Ok(Vec::new());
    }
    match whole.strip_prefix('[') {
        Some(inside) => flow(inside),
        None => block(text),
    }
}

/// Parses a list of plugin names. A list that is too long is refused, because a shortened one would
/// require fewer plugins.
pub(crate) fn plugin_names(text: &str) -> Result<Vec<String>, String> {
    let names = list(text)?;
    if names.len() > MOST_REQUIRED_PLUGINS {
        let (count, most) = (names.len(), MOST_REQUIRED_PLUGINS);
        return Err(format!("{count} names, and at most {most} are allowed"));
    }
    if names.iter().any(|name| name.len() > PLUGIN_NAME + "NN-".len()) {
        return Err(format!("a name is longer than {PLUGIN_NAME} bytes"));
    }
    Ok(names)
}

/// Parses a list after its opening bracket.
fn flow(inside: &str) -> Result<Vec<String>, &'static str> {
    let mut items = Vec::new();
    let mut rest = inside.trim_start_matches(BLANKS);
    loop {
        if let Some(after) = rest.strip_prefix(']') {
            let is_end = after.trim_matches(BLANKS).is_empty();
            return if is_end { Ok(items) } else { Err("something follows the list") };
        }
        let (item, after) = scalar(rest)?;
        items.push(item);
        rest = after.trim_start_matches(BLANKS);
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start_matches(BLANKS),
            None if rest.starts_with(']') => {}
            None => return Err("a comma or the end of the list is missing"),
        }
    }
}

/// Parses one item per line, all with the same indentation.
fn block(text: &str) -> Result<Vec<String>, &'static str> {
    let mut items = Vec::new();
    let mut margin = None;
    for line in text.lines().filter(|line| !line.trim_matches(BLANKS).is_empty()) {
        let item = line.trim_start_matches(' ');
        let here = line.len() - item.len();
        if *margin.get_or_insert(here) != here {
            return Err("the lines of the list are not equally indented");
        }
        let item = item.strip_prefix("- ").ok_or("expected a list of strings")?;
        let (item, after) = scalar(item.trim_start_matches(BLANKS))?;
        if !after.trim_matches(BLANKS).is_empty() {
            return Err("unexpected characters after a string");
        }
        items.push(item);
    }
    Ok(items)
}

/// Parses one string; also returns what follows it.
fn scalar(text: &str) -> Result<(String, &str), &'static str> {
    match text.as_bytes().first() {
        Some(b'"') => double_quoted(text),
        Some(b'\'') => single_quoted(text),
        _ => plain(text),
    }
}

fn plain(text: &str) -> Result<(String, &str), &'static str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
    let end = text.find(|c| !is_plain(c)).unwrap_or(text.len());
    let (item, after) = text.split_at(end);
    if item.is_empty() || item == "-" || NOTHING.contains(&item) {
        return Err(
            "expected a list of strings; quote those with characters that names do not have",
        );
    }
    Ok((item.to_owned(), after))
}

fn double_quoted(text: &str) -> Result<(String, &str), &'static str> {
    let mut is_escaped = false;
    let closing = |(_, c): &(usize, char)| {
        let is_closing = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        is_closing
    };
    let (end, _) = text.char_indices().skip(1).find(closing).ok_or("a quote is not closed")?;
    let (quoted, after) = text.split_at(end + 1);
    let item = serde_json::from_str(quoted)
        .map_err(|_not_json| "a double-quoted string is not a valid JSON string")?;
    Ok((item, after))
}

fn single_quoted(text: &str) -> Result<(String, &str), &'static str> {
    let mut item = String::new();
    let mut rest = text.strip_prefix('\'').unwrap_or(text);
    loop {
        let (part, after) = rest.split_once('\'').ok_or("a quote is not closed")?;
        if part.contains(char::is_control) {
            return Err("a quoted string contains a control character");
        }
        item.push_str(part);
        match after.strip_prefix('\'') {
            Some(more) => {
                item.push('\'');
                rest = more;
            }
            None => return Ok((item, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_of_a_list_is_read() {
        let forms: [(&str, &[&str]); 18] = [
            ("", &[]),
            (" \n", &[]),
            ("null", &[]),
            ("~", &[]),
            ("[]", &[]),
            ("[ ]\n", &[]),
            ("[a]", &["a"]),
            ("[ a, 10-b ]", &["a", "10-b"]),
            ("[a,b,]", &["a", "b"]),
            ("[\n  a,\n  b\n]", &["a", "b"]),
            (r#"["a","b"]"#, &["a", "b"]),
            (r#"["a\"\\\u0041", 'it''s']"#, &["a\"\\A", "it's"]),
            ("['', \"\"]", &["", ""]),
            ("['null', \"a, b]\"]", &["null", "a, b]"]),
            ("- a", &["a"]),
            ("- a\n- 'b'\n-   \"c d\"\n", &["a", "b", "c d"]),
            ("\n  - a\r\n\n  - b  \n", &["a", "b"]),
            ("[12, true, -a]", &["12", "true", "-a"]),
        ];
        for (text, wanted) in forms {
            assert_eq!(list(text).unwrap(), wanted, "{text:?}");
        }
    }

    #[test]
    fn any_value_but_a_list_of_strings_is_an_error() {
        let wrong = [
            "foo",
            "true",
            "{}",
            "{a: b}",
            "a: b",
            "a, b",
            "[",
            "[a",
            "[a, b",
            "[,]",
            "[,a]",
            "[a,,b]",
            "[a b]",
            "[a: b]",
            "[a] b",
            "[a]]",
            "[[a]]",
            "[{}]",
            "[null]",
            "[~]",
            "[a, ]]",
            "[-]",
            "[\"a]",
            "['a]",
            "['a\nb']",
            "[\"\\q\"]",
            "[\"a\nb\"]",
            "[\"a\" \"b\"]",
            "[*a]",
            "[&a b]",
            "[!t a]",
            "[ä]",
            "[a] # c",
            "-",
            "-a",
            "- ",
            "- - a",
            "- a: b",
            "- [a]",
            "- a b",
            "- a\n b",
            "- a\n  - b",
            "  - a\n- b",
            "- a\nb",
            "- a\n-",
            "---\n- a",
            "\t- a",
            "# a",
            "- null",
            "- 'a' b",
            "- a # b",
            "|\n a",
            "\u{feff}[a]",
            "\0",
        ];
        for text in wrong {
            assert!(list(text).is_err(), "{text:?} was read as {:?}", list(text));
        }
    }

    #[test]
    fn too_many_or_too_long_plugin_names_are_an_error() {
        let longest = "a".repeat("NN-".len() + PLUGIN_NAME);
        let listed = |name: &str, count| format!("[{}]", vec![name; count].join(","));
        let (many, long) = ("names, and at most 64 are allowed", "a name is longer than 64 bytes");
        for (text, wanted) in [
            (listed("a", MOST_REQUIRED_PLUGINS), Ok(MOST_REQUIRED_PLUGINS)),
            (listed("a", MOST_REQUIRED_PLUGINS + 1), Err(format!("65 {many}"))),
            (listed("a", MOST_REQUIRED_PLUGINS + 2), Err(format!("66 {many}"))),
            (listed(&longest, 2), Ok(2)),
            (listed(&format!("{longest}a"), 1), Err(long.to_owned())),
            (listed(&format!("{longest}aa"), 1), Err(long.to_owned())),
        ] {
            assert_eq!(plugin_names(&text).map(|names| names.len()), wanted, "{text}");
        }
    }

    #[test]
    fn booleans_have_the_twelve_spellings_of_go() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(truth(text), Some(true), "{text}");
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(truth(text), Some(false), "{text}");
        }
        for text in ["", "yes", "no", "on", "tRUE", " true", "true ", "2", "\"true\""] {
            assert_eq!(truth(text), None, "{text:?}");
        }
    }

    #[test]
    fn container_keys_override_pod_keys_which_override_plain_keys() {
        let mut pod = api::PodSandbox::new();
        let mut expect = |add: Option<(&str, &str)>, c0: Option<&str>, c1: Option<&str>| {
            if let Some((key, value)) = add {
                pod.annotations.insert(key.to_owned(), value.to_owned());
            }
            assert_eq!(effective(&pod, "k", Some("c0")), c0, "{add:?}");
            assert_eq!(effective(&pod, "k", Some("c1")), c1, "{add:?}");
        };
        expect(None, None, None);
        expect(Some(("k/container.c", "x")), None, None);
        expect(Some(("k", "plain")), Some("plain"), Some("plain"));
        expect(Some(("k/pod", "pod")), Some("pod"), Some("pod"));
        expect(Some(("k/container.c0", "")), Some(""), Some("pod"));
    }

    proptest! {
        #[test]
        fn a_list_of_json_strings_is_parsed_as_json(items: Vec<String>) {
            let text = serde_json::to_string(&items).unwrap();
            prop_assert_eq!(list(&text).unwrap(), items);
        }

        #[test]
        fn no_annotation_text_causes_a_panic(text in "[-\\[\\],'\"\\\\ \n\t\u{0}a:#~ä]{0,40}", any: String) {
            for text in [text, any] {
                let (read, _) = (list(&text), truth(&text));
                prop_assert!(read.is_err() || read.is_ok_and(|items| items.len() <= text.len()));
            }
        }
    }
}
