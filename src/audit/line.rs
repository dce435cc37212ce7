// SPDX-License-Identifier: Apache-2.0
//! Formats an entry as a line: JSON in ASCII, with a maximum length. Names, reasons and values come
//! from tenants and plugins, so they are escaped: none can end the line, begin another or control a
//! terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::entry::{AuditAction, AuditEntry, AuditValues, ExecutedProcess};
use super::redact;

use crate::limits;

const VERSION: u32 = 1;

const HIDDEN: &str = "(hidden)";

/// Replaces arguments that are left out.
const CUT: &str = "\u{2026}";

/// The members of a line in their order.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Line<'a> {
    /// The version of this format.
    version: u32,
    /// RFC 3339.
    time: String,
    action: AuditAction,
    #[serde(flatten)]
    entry: &'a AuditEntry,
}

/// Formats the line without a line feed. Cuts long texts in `entry`, and hides the values of
/// environment variables and of arguments such as `KEY=VALUE`.
pub(super) fn of(entry: &mut AuditEntry) -> String {
    let AuditEntry { event, plugin, field, rule, reason, subject, .. } = entry;
    for text in [event, plugin, field, rule, reason].into_iter().chain(subject.texts_mut()) {
        cut(text, limits::AUDIT_TEXT);
    }
    if let Some(executed) = &mut entry.executed {
        bound(executed);
    }
    if let Some(AuditValues { from, to }) = &mut entry.values {
        *from = shown(&entry.field, from.take());
        *to = shown(&entry.field, to.take());
    }
    let line = Line {
        version: VERSION,
        time: crate::text::rfc3339_nanos(entry.at).unwrap_or_default(),
        action: entry.action,
        entry,
    };
    ascii(serde_json::to_string(&line).unwrap_or_default())
}

/// Hides the values of environment variables in a value; returns a long value as a text, cut.
fn shown(field: &str, mut value: Value) -> Value {
    redact(field, &mut value, HIDDEN);
    let mut text = match &value {
        Value::String(text) if text.len() > limits::AUDIT_VALUE => text.clone(),
        Value::Array(_) | Value::Object(_) => value.to_string(),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => return value,
    };
    if text.len() <= limits::AUDIT_VALUE {
        return value;
    }
    cut(&mut text, limits::AUDIT_VALUE);
    Value::String(text)
}

/// Hides the values of arguments such as `KEY=VALUE`, and bounds the arguments, callers and user.
fn bound(executed: &mut ExecutedProcess) {
    let mut room = limits::AUDIT_VALUE;
    let mut is_cut = false;
    executed.args.retain_mut(|word| {
        if let Some((name, _)) = word.split_once('=') {
            *word = format!("{name}={HIDDEN}");
        }
        cut(word, limits::AUDIT_TEXT);
        let left = room.checked_sub(word.len());
        room = left.unwrap_or(room);
        is_cut |= left.is_none();
        !is_cut
    });
    if is_cut {
        executed.args.push(CUT.to_owned());
    }
    executed.caller.iter_mut().for_each(|name| cut(name, limits::AUDIT_TEXT / 16));
    executed.user.iter_mut().for_each(|user| cut(user, limits::AUDIT_TEXT));
}

fn cut(text: &mut String, limit: usize) {
    if let Cow::Owned(shorter) = limits::cut(text, limit) {
        *text = shorter;
    }
}

/// Escapes all characters outside ASCII: JSON permits control characters above 0x7e and direction
/// marks. In JSON they occur only in strings.
pub(crate) fn ascii(json: String) -> String {
    if json.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return json;
    }
    let mut ascii = String::with_capacity(json.len());
    for character in json.chars() {
        if matches!(character, ' '..='~') {
            ascii.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _infallible = write!(ascii, "\\u{unit:04x}");
        }
    }
    ascii
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::AuditAction;
    use super::super::entry::AuditSubject;
    use super::*;

    fn entry() -> AuditEntry {
        AuditEntry {
            at: 951_827_696_000_000_042,
            ..AuditEntry::new(AuditAction::Applied).by("10-a").at_event("CreateContainer")
        }
    }

    fn written(mut entry: AuditEntry) -> String {
        of(&mut entry)
    }

    fn read(line: &str) -> Value {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn a_line_has_the_members_that_apply_in_a_fixed_order() {
        let subject = AuditSubject {
            engine: "containerd".to_owned(),
            namespace: "shop".to_owned(),
            pod: "web".to_owned(),
            ..AuditSubject::default()
        };
        let values = Some(AuditValues { from: Value::Null, to: json!(300) });
        let entry =
            AuditEntry { values, subject, ..entry().of_field("linux.resources.cpu.shares") };
        let wanted = "{\"version\":1,\"time\":\"2000-02-29T12:34:56.000000042Z\",\"action\":\"applied\",\
                      \"event\":\"CreateContainer\",\"plugin\":\"10-a\",\"field\":\"linux.resources.cpu.shares\",\
                      \"from\":null,\"to\":300,\"engine\":\"containerd\",\"namespace\":\"shop\",\"pod\":\"web\"}";
        assert_eq!(written(entry), wanted);
    }

    #[test]
    fn a_hostile_name_neither_forges_a_line_nor_controls_a_terminal() {
        let hostile =
            "x\"}\n{\"action\":\"applied\"}\r\u{1b}[2J\u{9b}\u{7f}\u{85}\u{2028}\u{202e}\0🦀\\";
        let mut entry = entry().because(hostile).of_field(hostile);
        entry.rule = hostile.to_owned();
        entry.subject.pod = hostile.to_owned();
        entry.values = Some(AuditValues { from: json!(hostile), to: json!({hostile: [hostile]}) });
        let line = written(entry);
        assert!(line.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{line}");
        let line = read(&line);
        for member in ["reason", "field", "rule", "pod", "from"] {
            assert_eq!(line[member], hostile, "{member} reads back as it was");
        }
        assert_eq!(line["to"][hostile][0], hostile);
    }

    #[test]
    fn no_value_of_a_variable_is_in_a_line() {
        let hook = json!({"path": "/h", "env": ["TOKEN=secret"]});
        for (field, from, to) in [
            ("process.env[TOKEN]", json!("secret"), json!("secret2")),
            ("hooks.prestart", Value::Null, json!([hook])),
        ] {
            let values = Some(AuditValues { from, to });
            let line = written(AuditEntry { values, ..entry().of_field(field) });
            assert!(!line.contains("secret") && line.contains("TOKEN"), "{line}");
            assert!(line.contains(HIDDEN), "{line}");
        }
        let added = Some(AuditValues { from: Value::Null, to: json!("secret") });
        let line =
            read(&written(AuditEntry { values: added, ..entry().of_field("process.env[A]") }));
        assert_eq!((&line["from"], &line["to"]), (&Value::Null, &json!(HIDDEN)));
    }

    #[test]
    fn a_line_is_bounded_whatever_a_plugin_sends() {
        for unit in ["\u{9b}", "\u{1b}", "🦀", "\""] {
            let long = unit.repeat(100_000);
            let mut entry = entry().because(&long).of_field(&long).at_event(&long);
            entry.rule.clone_from(&long);
            entry.subject = AuditSubject {
                engine: long.clone(),
                namespace: long.clone(),
                pod: long.clone(),
                pod_id: long.clone(),
                container: long.clone(),
                container_id: long.clone(),
            };
            entry.values = Some(AuditValues { from: json!(long), to: json!([long]) });
            let line = written(entry);
            assert!(line.len() < limits::AUDIT_LINE, "{}", line.len());
            let line = read(&line);
            assert!(line["reason"].as_str().unwrap().contains(CUT));
            assert!(line["to"].as_str().unwrap().starts_with("[\""), "cut values are text");
        }
    }
}
