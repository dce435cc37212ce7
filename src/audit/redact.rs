// SPDX-License-Identifier: Apache-2.0
//! Hides the values of environment variables of the process and of hooks (D27). Other values stay,
//! because operators read them on the node; in archives, `admin/sysdump/redact.rs` also hides those
//! that look like secrets.

use serde_json::Value;

/// Hides the values of variables in `value`, a value of `field`; their names stay.
pub(crate) fn redact(field: &str, value: &mut Value, instead: &str) {
    if !field.starts_with("process.env") {
        redact_inside(value, instead);
    } else if !value.is_null() {
        *value = Value::from(instead);
    }
}

/// Hides the values in a hook, an object with `"env": ["NAME=value"]`.
fn redact_inside(value: &mut Value, instead: &str) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|item| redact_inside(item, instead)),
        Value::Object(members) => {
            for (name, member) in members {
                match member.as_array_mut().filter(|_| name == "env") {
                    Some(words) => words.iter_mut().for_each(|word| redact_word(word, instead)),
                    None => redact_inside(member, instead),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn redact_word(word: &mut Value, instead: &str) {
    let name = word.as_str().and_then(|word| word.split_once('=')).map(|(name, _)| name);
    *word = Value::from(format!("{}={instead}", name.unwrap_or_default()));
}
