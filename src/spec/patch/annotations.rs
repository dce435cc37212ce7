// SPDX-License-Identifier: Apache-2.0
//! Applies annotations.
//!
//! runc stores annotations as `key=value` labels beside its own `bundle=` label, and runtimes act
//! on some keys (systemd properties, CRIU configuration, crun's handlers). If a plugin set those,
//! the effect would exceed the adjustment, so they are refused unless the operator permits the key
//! (`bundle` cannot be permitted).
//! Reference: `features` of runc and crun, `potentiallyUnsafeConfigAnnotations`.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::{Patch, PatchError, Result, patch_map, wanted_by_key};

/// runc's own label.
const BUNDLE: &str = "bundle";

/// Keys on which a runtime acts; one with a final dot stands for all keys with that prefix.
const UNSAFE: [&str; 6] = [
    "io.kubernetes.cri.container-type",
    "krun.",
    "module.wasm.image/variant",
    "org.criu.",
    "org.systemd.property.",
    "run.oci.",
];

/// Applies the adjustment's annotations: a `-key` removes, anything else sets. The facts list the
/// annotations that may be set although the runtime acts on them.
pub(super) fn patch(
    patch: &mut Patch<'_, '_>,
    annotations: &HashMap<String, String>,
) -> Result<()> {
    if annotations.is_empty() {
        return Ok(());
    }
    let object = patch.root.map("annotations")?;
    let wanted = wanted_by_key(annotations, |value| Value::from(value.as_str()));
    for (key, value) in &wanted {
        let Some(value) = value else { continue };
        let is_there = object.value(key)?.as_ref() == Some(value);
        if !is_there && let Some(problem) = problem_of(key, &patch.facts.runtime_annotations) {
            return Err(PatchError::invalid(format!("Annotations[{key}]"), problem));
        }
    }
    patch_map(object, &wanted, ("annotations", "Annotations"), &mut patch.changes)
}

/// Whether a runtime acts on the annotation and an operator can permit it. `bundle`, from which
/// runc reads the container's bundle, cannot be permitted.
pub(crate) fn is_acted_on(key: &str) -> bool {
    let is_it =
        |name: &&str| if name.ends_with('.') { key.starts_with(name) } else { key == *name };
    UNSAFE.iter().any(is_it)
}

fn problem_of(key: &str, allowed: &BTreeSet<String>) -> Option<&'static str> {
    if key.is_empty() {
        Some("an annotation needs a key")
    } else if key.contains('=') {
        Some("runc would read the part before \"=\" as the key")
    } else if key == BUNDLE || (is_acted_on(key) && !allowed.contains(key)) {
        Some("the runtime interprets this annotation")
    } else {
        None
    }
}
