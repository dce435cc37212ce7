// SPDX-License-Identifier: Apache-2.0
//! NRI messages as JSON, in protobuf's mapping: writes lowerCamelCase, reads either spelling.

use protobuf::reflect::{MessageDescriptor, RuntimeFieldType, RuntimeType};
use protobuf::{MessageDyn, MessageFull};
use serde_json::{Map, Value};

/// Reads a message; `null` is an empty one.
///
/// # Errors
/// Fails on a field that the message does not have, and on a value of another type.
pub fn read<M: MessageFull>(value: &Value) -> Result<M, String> {
    if value.is_null() {
        return Ok(M::default());
    }
    protobuf_json_mapping::parse_from_str(&without_nulls(value, &M::descriptor()).to_string())
        .map_err(|error| format!("{}: {error}", M::descriptor().name()))
}

/// Removes `null` fields, which protobuf's mapping treats as absent. A map entry that is `null`, as
/// Go writes a nil message, becomes an empty message.
fn without_nulls(value: &Value, of: &MessageDescriptor) -> Value {
    let Value::Object(members) = value else { return value.clone() };
    let mut there = Map::new();
    for (key, value) in members {
        let field = of.fields().find(|field| field.name() == key || field.json_name() == key);
        let kept = match field.map(|field| field.runtime_field_type()) {
            Some(_) if value.is_null() => continue,
            Some(RuntimeFieldType::Singular(RuntimeType::Message(of))) => without_nulls(value, &of),
            Some(RuntimeFieldType::Repeated(RuntimeType::Message(of))) if value.is_array() => {
                let items = value.as_array().into_iter().flatten();
                items.map(|item| without_nulls(item, &of)).collect()
            }
            Some(RuntimeFieldType::Map(_, RuntimeType::Message(of))) if value.is_object() => {
                let entries = value.as_object().into_iter().flatten();
                Value::Object(entries.map(|entry| without_null_entry(entry, &of)).collect())
            }
            Some(_) | None => value.clone(),
        };
        there.insert(key.clone(), kept);
    }
    Value::Object(there)
}

fn without_null_entry((key, value): (&String, &Value), of: &MessageDescriptor) -> (String, Value) {
    let is_empty = value.is_null();
    (key.clone(), if is_empty { Value::Object(Map::new()) } else { without_nulls(value, of) })
}

/// Reads a list of messages; `null` is an empty list.
///
/// # Errors
/// Fails as [`read`] does, and on a value that is not a list.
pub fn read_list<M: MessageFull>(value: &Value) -> Result<Vec<M>, String> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    let list = value.as_array();
    let list = list.ok_or_else(|| format!("a list of {} is expected", M::descriptor().name()))?;
    list.iter().map(read).collect()
}

/// Converts a message to JSON.
pub fn show(message: &dyn MessageDyn) -> Value {
    let text = protobuf_json_mapping::print_to_string(message).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Converts a list of messages to JSON.
pub fn show_list<M: MessageFull>(messages: &[M]) -> Value {
    Value::Array(messages.iter().map(|message| show(message)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as api;
    use serde_json::json;

    #[test]
    fn both_spellings_are_read_and_camel_case_is_shown() {
        for text in [
            json!({"podSandboxId": "p", "CDIDevices": [{"name": "a/b=c"}]}),
            json!({"pod_sandbox_id": "p", "CDI_devices": [{"name": "a/b=c"}]}),
        ] {
            let container: api::Container = read(&text).unwrap();
            assert_eq!(container.CDI_devices[0].name, "a/b=c");
            assert_eq!(show(&container)["podSandboxId"], "p");
        }
    }

    #[test]
    fn presence_and_large_numbers_survive_json() {
        let text = json!({"memory": {"limit": {"value": "9007199254740993"}, "swap": {}},
            "cpu": {"shares": {"value": 7}}, "pids": {"limit": -1}});
        let resources: api::LinuxResources = read(&text).unwrap();
        assert_eq!(resources.memory.limit.value, 9_007_199_254_740_993);
        assert!(resources.memory.swap.is_some() && resources.memory.reservation.is_none());
        let again: api::LinuxResources = read(&show(&resources)).unwrap();
        assert_eq!(again, resources);
    }

    #[test]
    fn null_means_an_absent_field() {
        let text = json!({"linux": null, "env": null, "annotations": null, "args": ["x"],
            "mounts": [{"destination": "/a", "options": null}]});
        let adjust: api::ContainerAdjustment = read(&text).unwrap();
        assert!(adjust.linux.is_none() && adjust.env.is_empty());
        assert_eq!((adjust.args.len(), adjust.mounts.len()), (1, 1));
        let text = json!({"linux": {"net_devices": {"-eth1": null}, "resources": null}});
        let adjust: api::ContainerAdjustment = read(&text).unwrap();
        assert!(adjust.linux.net_devices.contains_key("-eth1"), "a marker is not lost");
        assert!(read::<api::ContainerAdjustment>(&json!({"nope": 1})).is_err());
    }

    #[test]
    fn an_invalid_message_is_refused_with_its_name() {
        for text in [json!(5), json!([]), json!({"nope": 1}), json!({"pid": "x"})] {
            let error = read::<api::Container>(&text).unwrap_err();
            assert!(error.starts_with("Container: "), "{error}");
        }
        assert!(read_list::<api::Container>(&json!({})).is_err());
    }
}
