// SPDX-License-Identifier: Apache-2.0
//! A JSON document as YAML, in blocks as kubectl prints it. This module does no I/O. Strings that a
//! reader could parse as another type are quoted, by the rules of YAML 1.1 and 1.2. Characters that a
//! terminal interprets or hides are escaped; saphyr, the crate that reads YAML here, would write some
//! of them unescaped.

use std::fmt::Write as _;

use serde_json::{Number, Value};

use crate::text::printable;

/// Words, compared in lower case, that YAML 1.1 or 1.2, or a reader that is laxer about numbers, does not
/// parse as strings.
const RESERVED: [&str; 12] =
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"];

/// Renders the document, with a final line feed.
pub(super) fn yaml(document: &Value) -> String {
    let mut out = String::new();
    match leaf(document) {
        Some(text) => {
            let _infallible = writeln!(out, "{text}");
        }
        None => add_block(&mut out, document, 0),
    }
    out
}

/// Renders a scalar, or an empty list or object; `None` for other values.
fn leaf(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("null".to_owned()),
        Value::Bool(is_so) => Some(is_so.to_string()),
        Value::Number(number) => Some(number_text(number)),
        Value::String(text) => Some(scalar(text)),
        Value::Array(items) => items.is_empty().then(|| "[]".to_owned()),
        Value::Object(members) => members.is_empty().then(|| "{}".to_owned()),
    }
}

/// Adds a non-empty list or object. The caller has written the indentation of its first line.
fn add_block(out: &mut String, value: &Value, indent: usize) {
    let margin = " ".repeat(indent);
    if let Value::Array(items) = value {
        for (at, item) in items.iter().enumerate() {
            let before = if at == 0 { "" } else { &margin };
            let _infallible = write!(out, "{before}- ");
            add_after_dash(out, item, indent + 2);
        }
    }
    if let Value::Object(members) = value {
        for (at, (key, member)) in members.iter().enumerate() {
            let before = if at == 0 { "" } else { &margin };
            let _infallible = write!(out, "{before}{}:", scalar(key));
            match leaf(member) {
                Some(text) => {
                    let _infallible = writeln!(out, " {text}");
                }
                None => {
                    let inner = if member.is_array() { indent } else { indent + 2 };
                    let _infallible = write!(out, "\n{}", " ".repeat(inner));
                    add_block(out, member, inner);
                }
            }
        }
    }
}

fn add_after_dash(out: &mut String, item: &Value, indent: usize) {
    match leaf(item) {
        Some(text) => {
            let _infallible = writeln!(out, "{text}");
        }
        None => add_block(out, item, indent),
    }
}

/// Renders a number without an exponent, because YAML 1.1 parses some numbers with one as strings.
fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(value) if number.is_f64() => {
            let text = value.to_string();
            if text.contains('.') { text } else { format!("{text}.0") }
        }
        _ => number.to_string(),
    }
}

/// Renders a string, quoted unless it is unambiguous without quotes.
fn scalar(text: &str) -> String {
    let is_inner =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-' | '+' | '@' | ' ');
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '/')
        && text.chars().all(is_inner)
        && !text.ends_with(' ')
        && !RESERVED.contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { quoted(text) }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        let _infallible = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            '\n' => write!(out, "\\n"),
            '\t' => write!(out, "\\t"),
            ' '..='~' => write!(out, "{c}"),
            _ if is_shown(c) => write!(out, "{c}"),
            _ if u32::from(c) > 0xffff => write!(out, "\\U{:08x}", u32::from(c)),
            _ => write!(out, "\\u{:04x}", u32::from(c)),
        };
    }
    out.push('"');
    out
}

fn is_shown(c: char) -> bool {
    let mut bytes = [0; 4];
    let text: &str = c.encode_utf8(&mut bytes);
    printable(text) == text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use saphyr::{LoadableYamlNode, Scalar, Yaml};
    use serde_json::json;

    use super::*;

    /// Returns the document as a YAML reader parses it.
    fn read(node: &Yaml<'_>) -> Value {
        match node {
            Yaml::Value(Scalar::Null) => Value::Null,
            Yaml::Value(Scalar::Boolean(is_so)) => json!(is_so),
            Yaml::Value(Scalar::Integer(number)) => json!(number),
            Yaml::Value(Scalar::FloatingPoint(number)) => json!(number.into_inner()),
            Yaml::Value(Scalar::String(text)) => json!(text),
            Yaml::Sequence(items) => items.iter().map(read).collect(),
            Yaml::Mapping(members) => {
                let text = |key: &Yaml<'_>| key.as_str().expect("a key is text").to_owned();
                let members = members.iter().map(|(key, value)| (text(key), read(value)));
                Value::Object(members.collect())
            }
            Yaml::Representation(..) | Yaml::Tagged(..) | Yaml::Alias(_) | Yaml::BadValue => {
                json!({"no document": format!("{node:?}")})
            }
        }
    }

    fn documents() -> impl Strategy<Value = Value> {
        let text = prop_oneof![
            ".*",
            "[-?:,\\[\\]{}#&*!|>'\"%@` \n\t~]{1,4}[a-z: ]{0,5}",
            "[yYnN]|on|No|TRUE|Null|nan|Inf|infinity|~|0x1f|1e3|1_000|-1|[.]inf|2026-11-22|12:30:45|=|<<|---",
            "[ -~]{0,8}",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1.0e15..1.0e15f64).prop_map(Value::from),
            text.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(text.clone(), inner, 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn yaml_is_read_back_equal_and_contains_no_control_characters(
            document in documents()
        ) {
            let text = yaml(&document);
            let read = Yaml::load_from_str(&text).expect(&text);
            prop_assert_eq!(read.iter().map(self::read).collect::<Vec<_>>(), [document], "{}", text);
            prop_assert_eq!(crate::text::printable_page(&text), text);
        }
    }

    #[test]
    fn yaml_has_the_layout_of_kubectl() {
        let document = json!([
            {"id": "b1", "labels": {"app": "web"}, "containers": [{"id": "c1", "pid": 7}], "empty": []},
            {"id": "10-foo", "note": "a: b", "pid": null, "part": 0.0000001},
            [["x"], {}],
            "on",
        ]);
        let wanted = "\
            - id: b1\n  labels:\n    app: web\n  containers:\n  - id: c1\n    pid: 7\n  empty: []\n\
            - id: \"10-foo\"\n  note: \"a: b\"\n  pid: null\n  part: 0.0000001\n\
            - - - x\n  - {}\n\
            - \"on\"\n";
        assert_eq!(yaml(&document), wanted);
        assert_eq!((yaml(&json!({})).as_str(), yaml(&json!(2.0)).as_str()), ("{}\n", "2.0\n"));
        assert_eq!(
            yaml(&json!("\u{1b}[2J\u{202e}\u{e0001}")),
            "\"\\u001b[2J\\u202e\\U000e0001\"\n"
        );
    }
}
