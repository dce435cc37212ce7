// SPDX-License-Identifier: Apache-2.0
//! Annotations.
//!
//! runc keeps annotations as `key=value` labels beside its own `bundle=` label, and runtimes give
//! meaning to some keys (systemd properties, CRIU configuration, crun's handlers). A plugin that could set those would
//! reach further than its adjustment says, so they are refused.
//! Reference: `features` of runc and crun, `potentiallyUnsafeConfigAnnotations`.

use std::collections::HashMap;

use oci_document::Object;
use serde_json::Value;

use super::{Changes, PatchError, patch_map, wanted_by_key};

/// Keys to which a runtime gives meaning; those with a final dot stand for all keys beneath.
const UNSAFE: [&str; 6] = [
    "bundle",
    "io.kubernetes.cri.container-type",
    "module.wasm.image/variant",
    "org.criu.config",
    "org.systemd.property.",
    "run.oci.",
];

/// Applies the adjustment's annotations: a `-key` removes, anything else sets.
pub(super) fn patch(
    root: &mut Object<'_>,
    annotations: &HashMap<String, String>,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    if annotations.is_empty() {
        return Ok(());
    }
    let object = root.map("annotations")?;
    let wanted = wanted_by_key(annotations, |value| Value::from(value.as_str()));
    for (key, value) in &wanted {
        let Some(value) = value else { continue };
        let is_there = object.value(key)?.as_ref() == Some(value);
        if !is_there && let Some(problem) = problem_of(key) {
            return Err(PatchError::invalid(format!("Annotations[{key}]"), problem));
        }
    }
    patch_map(object, &wanted, ("annotations", "Annotations"), changes)
}

fn problem_of(key: &str) -> Option<&'static str> {
    let is_unsafe = UNSAFE
        .iter()
        .any(|name| if name.ends_with('.') { key.starts_with(name) } else { key == *name });
    if key.is_empty() {
        Some("an annotation needs a key")
    } else if key.contains('=') {
        Some("runc would read the part before \"=\" as the key")
    } else if is_unsafe {
        Some("the runtime gives this annotation a meaning of its own")
    } else {
        None
    }
}
