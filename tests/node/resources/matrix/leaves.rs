// SPDX-License-Identifier: Apache-2.0
//! The leaves of an adjustment: those of the schema, and those that a document sets.

use std::collections::BTreeSet;

use nri_runc::plugin::api;
use protobuf::MessageFull;
use protobuf::reflect::{MessageDescriptor, RuntimeFieldType, RuntimeType};
use serde_json::Value;

/// Each member of an adjustment without members, such as `linux.devices.major`.
pub(super) fn of_schema() -> BTreeSet<String> {
    let mut leaves = BTreeSet::new();
    walk(&api::ContainerAdjustment::descriptor(), "", &mut leaves);
    leaves
}

fn walk(message: &MessageDescriptor, path: &str, leaves: &mut BTreeSet<String>) {
    for field in message.fields() {
        let place = format!("{path}.{}", field.json_name());
        let kind = match field.runtime_field_type() {
            RuntimeFieldType::Singular(kind)
            | RuntimeFieldType::Repeated(kind)
            | RuntimeFieldType::Map(_, kind) => kind,
        };
        match kind {
            RuntimeType::Message(inner) => walk(&inner, &place, leaves),
            RuntimeType::I32
            | RuntimeType::I64
            | RuntimeType::U32
            | RuntimeType::U64
            | RuntimeType::F32
            | RuntimeType::F64
            | RuntimeType::Bool
            | RuntimeType::String
            | RuntimeType::VecU8
            | RuntimeType::Enum(_) => {
                leaves.insert(place.trim_start_matches('.').to_owned());
            }
        }
    }
}

/// The leaves that some of the documents set.
pub(super) fn set_by<'v>(documents: impl Iterator<Item = &'v Value>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let known = of_schema();
    for document in documents {
        note(document, "", &known, &mut all);
    }
    all
}

fn note(value: &Value, path: &str, known: &BTreeSet<String>, all: &mut BTreeSet<String>) {
    if known.contains(path) {
        all.insert(path.to_owned());
        return;
    }
    let is_known = |place: &str| {
        let below = format!("{place}.");
        known.contains(place) || known.iter().any(|leaf| leaf.starts_with(&below))
    };
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| {
            let place = format!("{path}.{key}");
            let place = place.trim_start_matches('.');
            // The keys of a map are not part of a leaf's name.
            note(value, if is_known(place) { place } else { path }, known, all);
        }),
        Value::Array(entries) => entries.iter().for_each(|entry| note(entry, path, known, all)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
