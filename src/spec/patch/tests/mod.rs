// SPDX-License-Identifier: Apache-2.0
//! Tests adjusted documents, with helpers to create adjustments.

use serde_json::{Value, json};

use super::{HostFacts, PatchError, PatchedSpec, Result, SpecChange};
use crate::error::RESERVED_PHRASES;
use crate::plugin::api;

mod fields;
mod linux_part;
mod propagation;
mod refusals;
mod resolved;
mod whole;

type Adjustment = api::ContainerAdjustment;

fn patch(document: &[u8], adjustment: &Adjustment) -> Result<PatchedSpec> {
    super::patch_on(document, adjustment, &HostFacts::default())
}

fn adjusted(document: &str, adjustment: &Adjustment) -> (String, Vec<SpecChange>) {
    let PatchedSpec { bytes, changes } = patch(document.as_bytes(), adjustment).unwrap();
    let text = bytes.map_or_else(|| document.to_owned(), |b| String::from_utf8(b).unwrap());
    assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
    (text, changes)
}

fn refused(document: &str, adjustment: &Adjustment) -> PatchError {
    let error = patch(document.as_bytes(), adjustment).unwrap_err();
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    for phrase in RESERVED_PHRASES {
        assert!(!line.to_lowercase().contains(phrase), "{line}");
    }
    error
}

fn invalid_field(adjustment: &Adjustment) -> String {
    match refused(r#"{"process":{},"linux":{}}"#, adjustment) {
        PatchError::Invalid { field, .. } => field,
        error @ (PatchError::SpecDocument(_) | PatchError::NotApplied { .. }) => panic!("{error}"),
    }
}

/// Returns the adjustment that a plugin writes as this JSON.
fn asks(adjustment: &Value) -> Adjustment {
    crate::plugin::json::read(adjustment).unwrap()
}

fn linux(linux: &Value) -> Adjustment {
    asks(&json!({ "linux": linux }))
}

fn resources(resources: &Value) -> Adjustment {
    linux(&json!({ "resources": resources }))
}

fn cpu(cpu: &Value) -> Adjustment {
    resources(&json!({ "cpu": cpu }))
}

fn annotations(entries: &[(&str, &str)]) -> Adjustment {
    asks(&json!({"annotations": object(entries.iter().copied())}))
}

fn net_devices(devices: &[(&str, &str)]) -> Adjustment {
    let named = devices.iter().map(|(host, name)| (*host, json!({ "name": name })));
    linux(&json!({"netDevices": object(named)}))
}

fn object<V: Into<Value>>(entries: impl Iterator<Item = (impl ToString, V)>) -> Value {
    Value::Object(entries.map(|(key, value)| (key.to_string(), value.into())).collect())
}
