// SPDX-License-Identifier: Apache-2.0
//! Hides secrets in the data that `sysdump` collects: values of environment variables, arguments of
//! processes and hooks, values of annotations and labels that look like secrets, and in each line the
//! rest after `KEY=` or another sign of a secret. Names stay. It hides too much rather than too little,
//! because archives are usually sent unread.

use serde_json::{Map, Value};

/// Replaces a hidden value.
const HIDDEN: &str = "(hidden)";

/// Parts of names, in lower case, that suggest that the value is a secret.
const SECRET_NAMES: [&str; 19] = [
    "pass",
    "pwd",
    "accesskey",
    "access-key",
    "access_key",
    "secret",
    "token",
    "credential",
    "apikey",
    "api-key",
    "api_key",
    "auth",
    "private",
    "session",
    "cookie",
    "bearer",
    "webhook",
    "signature",
    "license",
];

/// Endings, in lower case, of the names of annotations and labels whose values are IDs, names or images: a
/// long word with digits in them is no sign of a secret.
const ID_NAMES: [&str; 14] = [
    "uid",
    "-id",
    "sandboxid",
    "containerid",
    "sandbox-name",
    "sandboxname",
    "sandbox-namespace",
    "log-directory",
    "hash",
    "container-name",
    "image",
    "image-name",
    "imagename",
    "imageref",
];

/// Maximum length of an annotation's value, in characters, that is shown: a longer one is probably
/// a document.
const LONGEST_VALUE: usize = 128;

/// Length in characters from which a word with letters and digits makes an annotation or label look
/// like a secret.
const KEY_LENGTH: usize = 16;

/// Redacts a JSON document.
pub(super) fn document(value: &mut Value) {
    match value {
        Value::Object(members) => object(members),
        Value::Array(list) => list.iter_mut().for_each(document),
        Value::String(text) => *text = self::text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn object(members: &mut Map<String, Value>) {
    let field = members.get("field").and_then(Value::as_str).map(str::to_owned);
    for (name, member) in members.iter_mut() {
        match (name.as_str(), &field) {
            ("from" | "to" | "before" | "after", Some(field)) => redact_change(field, member),
            ("env" | "environ" | "environment" | "variables", _) => hide_variables(member),
            ("args" | "argv" | "cmdline" | "command" | "commands", _) => hide_arguments(member),
            ("annotations" | "labels", _) => redact_named_values(member),
            // The settings of a plugin may hold secrets.
            ("config", _) if member.is_string() => *member = HIDDEN.into(),
            _ => document(member),
        }
    }
}

/// Redacts a value before or after a change of a field, by the field's name in config.json.
fn redact_change(field: &str, value: &mut Value) {
    if value.is_null() {
        return;
    }
    let name = field.split_once('[').map_or("", |(_, name)| name.trim_end_matches(']'));
    if field.starts_with("process.env") {
        *value = HIDDEN.into();
    } else if value.is_string() && (field.starts_with("process.args") || field.starts_with("hooks"))
    {
        // The daemon stores only the beginning of a long list's JSON, as a string.
        *value = HIDDEN.into();
    } else if field.starts_with("process.args") {
        hide_arguments(value);
    } else if field.starts_with("annotations") {
        match value.as_str() {
            Some(text) if is_secret(name, text) => *value = HIDDEN.into(),
            Some(_) => {}
            None => redact_named_values(value),
        }
    } else {
        document(value);
    }
}

/// Hides the values of variables in any form: `["NAME=VALUE"]`, `[{"key", "value"}]` or a table by
/// name.
fn hide_variables(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(hide_variable),
        Value::Object(members) => members.values_mut().for_each(|value| *value = HIDDEN.into()),
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) | Value::String(_) => *value = HIDDEN.into(),
    }
}

fn hide_variable(value: &mut Value) {
    if let Some(member) = value.get_mut("value") {
        *member = HIDDEN.into();
        return;
    }
    let name = value.as_str().and_then(|text| text.split_once('=')).map(|(name, _)| name);
    *value = name.map_or_else(|| HIDDEN.to_owned(), |name| format!("{name}={HIDDEN}")).into();
}

/// Hides arguments, except for the first, which is the program.
fn hide_arguments(value: &mut Value) {
    match value {
        Value::Array(list) => {
            for (number, word) in list.iter_mut().enumerate() {
                match word.as_str().filter(|_| number == 0) {
                    Some(program) => *word = text(program).into(),
                    None => *word = HIDDEN.into(),
                }
            }
        }
        Value::String(line) => {
            let program = text(line.split_whitespace().next().unwrap_or_default());
            *line = format!("{program} {HIDDEN}");
        }
        Value::Object(_) => document(value),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn redact_named_values(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members.iter_mut() {
                match value.as_str() {
                    Some(text) if is_secret(name, text) => *value = HIDDEN.into(),
                    Some(_) => {}
                    None => document(value),
                }
            }
        }
        Value::Array(_) | Value::String(_) => document(value),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether the value of an annotation or label looks like a secret.
fn is_secret(name: &str, value: &str) -> bool {
    let lower = name.to_lowercase();
    let is_id = ID_NAMES.iter().any(|end| lower.ends_with(end));
    has_secret_name(&lower)
        || value.chars().count() > LONGEST_VALUE
        || value.contains(['\n', '{', '=', '@'])
        || text(value) != value
        || value.split(|c: char| !is_of_key(c)).any(|word| is_key(word) && !is_id)
}

/// Whether a name or word, in lower case, has a part that suggests a secret.
fn has_secret_name(lower: &str) -> bool {
    SECRET_NAMES.iter().any(|part| {
        // `bypass` contains `pass`, and is in many messages.
        lower
            .match_indices(part)
            .any(|(at, _)| !lower.get(..at).is_some_and(|before| before.ends_with("by")))
    })
}

fn is_of_key(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '_' | '-')
}

/// Whether a word is long and has both letters and digits.
fn is_key(word: &str) -> bool {
    let has = |of: fn(&char) -> bool| word.chars().any(|c| of(&c));
    word.len() >= KEY_LENGTH && has(char::is_ascii_alphabetic) && has(char::is_ascii_digit)
}

/// Number of lines hidden after the first line of a key or certificate; if its end is missing, the
/// rest is shown after these.
const KEY_LINES: usize = 200;

/// Redacts each line of a text, and the whole of keys and certificates in it.
pub(super) fn text(text: &str) -> String {
    let mut of_key = 0;
    let lines = text.split('\n').map(|of_text| {
        let was_in_key = of_key > 0;
        of_key = match () {
            () if of_text.contains("-----END") => 0,
            () if of_text.contains("-----BEGIN") => KEY_LINES,
            () => of_key.saturating_sub(1),
        };
        if was_in_key { HIDDEN.to_owned() } else { line(of_text) }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Hides a line from its first secret or variable's value on; a message code at its end stays.
fn line(line: &str) -> String {
    let Some(at) = secret_from(line) else { return line.to_owned() };
    let code = line.rfind(" [NR").filter(|code| *code >= at && line.ends_with(']'));
    let code = code.and_then(|code| line.get(code..)).unwrap_or_default();
    format!("{}{HIDDEN}{code}", line.get(..at).unwrap_or_default())
}

/// Returns the offset at which a line's first secret or variable's value begins.
fn secret_from(line: &str) -> Option<usize> {
    let after_words = |mark: &str, end: usize| line.find(mark).map(|at| at + end);
    let url = line.match_indices("://").map(|(at, _)| at).find(|at| {
        let host = line.get(at + 3..).unwrap_or_default().split(['/', ' ']).next();
        host.is_some_and(|host| host.contains('@'))
    });
    [
        variable_from(line),
        named_from(line),
        after_words("-----BEGIN", 0),
        after_words("eyJ", 0),
        url.map(|at| at + 3),
    ]
    .into_iter()
    .flatten()
    .min()
}

/// Returns the position after `KEY=`, however the key is quoted.
fn variable_from(line: &str) -> Option<usize> {
    line.match_indices('=').map(|(at, _)| at).find_map(|at| {
        let before = line.get(..at)?.chars().next_back()?;
        let after = line.get(at + 1..)?.chars().next()?;
        let is_name = !before.is_whitespace() && !matches!(before, '=' | '!' | '<' | '>' | ':');
        (is_name && !after.is_whitespace() && after != '=').then_some(at + 1)
    })
}

/// Returns the position of a secret: after a secret's name and `:` or `=`, after an option with
/// such a name, or after `bearer`. Takes linear time, because a tenant chooses the line.
fn named_from(line: &str) -> Option<usize> {
    let lower = line.to_ascii_lowercase();
    let is_of_word = |c: char| is_of_key(c) || c == '"' || c == '\'';
    let (mut at, mut is_option) = (0, false);
    while let Some(rest) = lower.get(at..).filter(|rest| !rest.is_empty()) {
        let word = rest.split(|c| !is_of_word(c)).next().unwrap_or_default();
        let is_first = lower.get(..at)?.chars().next_back().is_none_or(char::is_whitespace);
        is_option = if is_first { word.starts_with('-') } else { is_option };
        let end = at + word.len();
        let after = lower.get(end..)?;
        if has_secret_name(word) {
            let blanks = after.len() - after.trim_start_matches(' ').len();
            if after.get(blanks..)?.starts_with([':', '=']) {
                return Some(end + blanks + 1);
            }
            if after.starts_with(' ') && (is_option || word.ends_with("bearer")) {
                return Some(end + 1);
            }
        }
        at = end + after.chars().next().map_or(0, char::len_utf8);
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redacted(mut value: Value) -> String {
        document(&mut value);
        value.to_string()
    }

    #[test]
    fn secrets_are_hidden_anywhere_in_a_document_and_names_stay() {
        let text = redacted(json!({
            "container": {
                "env": ["TOKEN=s3cret", "s3cret"], "args": ["/bin/sh", "-c", "login s3cret"],
                "annotations": {"example.org/token": "s3cret", "a": "eyJs3cret", "b": "x\ns3cret",
                    "kubectl.kubernetes.io/last-applied-configuration": "{\"env\":\"s3cret\"}",
                    "c": "aGVsbG8s3cret42abcdef", "io.kubernetes.cri.sandbox-name": "web"},
                "hooks": {"prestart": [{"path": "/h", "args": ["h", "s3cret"], "env": ["A=s3cret"]}]},
            },
            "adjust": {"env": [{"key": "KEY", "value": "s3cret"}]},
            "changes": [
                {"field": "process.env[A]", "before": null, "after": "s3cret"},
                {"field": "process.args", "before": ["a", "s3cret"], "after": ["b", "s3cret"]},
                {"field": "annotations[my-password]", "before": null, "after": "s3cret"},
                {"field": "hooks.poststop", "after": [{"args": ["h", "s3cret"]}]},
                {"field": "hooks.prestart", "after": "[{\"args\":[\"h\",\"s3cret\",\"cut off"},
                {"field": "process.args", "before": "[\"a\",\"s3cret\",\"cut off", "after": null},
            ],
            "config": "s3cret",
            "failures": [{"what": "refused: PASS=s3cret with blanks s3cret [NR001]"}],
        }));
        assert!(!text.contains("s3cret"), "{text}");
        for kept in ["TOKEN=", "/bin/sh", "example.org/token", "\"web\"", "KEY", "[NR001]", "/h"] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
    }

    #[test]
    fn lines_lose_the_text_after_a_key_and_others_stay() {
        for (line, wanted) in [
            ("10-x: TOKEN=abc def", "10-x: TOKEN=(hidden)"),
            ("password: hunter2", "password:(hidden)"),
            ("{\"authToken\":\"abc\"}", "{\"authToken\":(hidden)"),
            ("Authorization: Bearer abc", "Authorization:(hidden)"),
            ("\"TOKEN\"=\"abc\"", "\"TOKEN\"=(hidden)"),
            ("password = abc", "password =(hidden)"),
            ("runs x --db-password abc y", "runs x --db-password (hidden)"),
            ("asks https://u:p@host/x", "asks https://(hidden)"),
            ("from http://a/ to https://u:p@host/x", "from http://a/ to https://(hidden)"),
            ("pwd: hunter2", "pwd:(hidden)"),
            ("has db_pass : hunter2", "has db_pass :(hidden)"),
            ("{\"accessKey\":\"abc\"}", "{\"accessKey\":(hidden)"),
            ("aws_access_key_id: abc", "aws_access_key_id:(hidden)"),
            (
                "it has ended; its last line: A=b [NR448]",
                "it has ended; its last line: A=(hidden) [NR448]",
            ),
        ] {
            assert_eq!(text(line), wanted);
        }
        for line in [
            "nri.disable = true keeps plugins disabled",
            "requests wait up to 5.0 s for 10-x",
            "set nri.socket_path, then: nri-runc nri reload",
            "a == b",
            "2 calls were bypassed: see the audit log",
        ] {
            assert_eq!(text(line), line);
        }
        assert_eq!(text("one\nA=b c\nthree"), "one\nA=(hidden)\nthree");
        let key =
            "has -----BEGIN RSA KEY-----\nMIIEabc\n12:00 MIIEdef\n-----END RSA KEY-----\nnext";
        assert_eq!(text(key), "has (hidden)\n(hidden)\n(hidden)\n(hidden)\nnext");
    }

    #[test]
    fn ids_and_short_values_of_annotations_stay() {
        let id = "4f1c0a4f1c0a4f1c0a4f1c0a4f1c0a4f1c0a4f1c0a4f1c0a4f1c0a4f1c0a4f1c";
        for (name, value, is_hidden) in [
            ("io.kubernetes.cri.sandbox-id", id, false),
            ("app", "web", false),
            ("io.kubernetes.cri.image-name", "registry/app@sha256", true),
            ("io.kubernetes.cri-o.ImageName", "registry/app:1234567890abcdef1", false),
            ("controller-uid", id, false),
            ("example.org/image-pull-key", id, true),
            ("example.org/uid-pwd", "abc", true),
            ("example.org/sandbox-access", id, true),
            ("checksum/config", id, true),
            ("x", "a=b", true),
            ("note", &*"long ".repeat(40), true),
        ] {
            assert_eq!(is_secret(name, value), is_hidden, "{name}");
        }
    }

    #[test]
    fn redacting_a_line_takes_linear_time() {
        // If the search for each name read to the end of the line, 4 MB would cost 4 TB of reads.
        let names = "auth".repeat(1 << 20);
        assert_eq!(text(&names), names);
        assert_eq!(text(&format!("{names}: x")), format!("{names}:{HIDDEN}"));
        let words = "auth ".repeat(1 << 18);
        assert_eq!(text(&words), words);
    }
}
