// SPDX-License-Identifier: Apache-2.0
//! The NUMA memory policy, replaced as a whole.
//!
//! It cannot be removed: NRI has no way to ask for it, and mode zero is a policy of its own.
//! Reference: NRI `AdjustMemoryPolicy`, but for BUG-G14; set_mempolicy(2).

use oci_document::Object;
use serde_json::{Map, Value};

use super::{Changes, PatchError, known, values};
use crate::error::quoted;
use crate::plugin::api;

const FIELD: &str = "MemoryPolicy";
const STATIC: &str = "MPOL_F_STATIC_NODES";
const RELATIVE: &str = "MPOL_F_RELATIVE_NODES";

/// Replaces the policy.
pub(super) fn patch(
    root: &mut Object<'_>,
    policy: Option<&api::LinuxMemoryPolicy>,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let Some(policy) = policy else { return Ok(()) };
    let api::LinuxMemoryPolicy { mode, nodes, flags, special_fields: _ } = policy;
    let mode = known(FIELD, "mode", *mode)?;
    if !is_complete(mode, nodes) {
        let wants = if nodes.is_empty() { "needs" } else { "takes no" };
        let problem = format!("{} {wants} nodes", mode_name(mode));
        changes.doubt(FIELD, Err(problem));
    }
    let mut value = Map::new();
    value.insert("mode".to_owned(), Value::from(mode_name(mode)));
    if !nodes.is_empty() {
        if !values::is_id_list(nodes) {
            let problem = format!("\"{}\" is not a list of nodes, such as 0-1,3", quoted(nodes));
            changes.doubt(FIELD, Err(problem));
        }
        value.insert("nodes".to_owned(), Value::from(nodes.as_str()));
    }
    let mut names = Vec::with_capacity(flags.len());
    for flag in flags {
        names.push(Value::from(flag_name(known(FIELD, "flag", *flag)?)));
    }
    if names.iter().any(|name| name == STATIC) && names.iter().any(|name| name == RELATIVE) {
        let problem = format!("{STATIC} and {RELATIVE} exclude each other");
        changes.doubt(FIELD, Err(problem));
    }
    if !names.is_empty() {
        value.insert("flags".to_owned(), Value::Array(names));
    }
    let names = ("linux.memoryPolicy", FIELD);
    Ok(changes.set(root.object("linux")?, "memoryPolicy", Value::Object(value), names)?)
}

/// Whether the kernel takes the mode with these nodes, or with none.
fn is_complete(mode: api::MpolMode, nodes: &str) -> bool {
    use api::MpolMode as Mode;
    match mode {
        Mode::MPOL_DEFAULT | Mode::MPOL_LOCAL => nodes.is_empty(),
        Mode::MPOL_PREFERRED => true,
        Mode::MPOL_BIND
        | Mode::MPOL_INTERLEAVE
        | Mode::MPOL_PREFERRED_MANY
        | Mode::MPOL_WEIGHTED_INTERLEAVE => !nodes.is_empty(),
    }
}

fn mode_name(mode: api::MpolMode) -> &'static str {
    use api::MpolMode as Mode;
    match mode {
        Mode::MPOL_DEFAULT => "MPOL_DEFAULT",
        Mode::MPOL_PREFERRED => "MPOL_PREFERRED",
        Mode::MPOL_BIND => "MPOL_BIND",
        Mode::MPOL_INTERLEAVE => "MPOL_INTERLEAVE",
        Mode::MPOL_LOCAL => "MPOL_LOCAL",
        Mode::MPOL_PREFERRED_MANY => "MPOL_PREFERRED_MANY",
        Mode::MPOL_WEIGHTED_INTERLEAVE => "MPOL_WEIGHTED_INTERLEAVE",
    }
}

fn flag_name(flag: api::MpolFlag) -> &'static str {
    use api::MpolFlag as Flag;
    match flag {
        Flag::MPOL_F_STATIC_NODES => STATIC,
        Flag::MPOL_F_RELATIVE_NODES => RELATIVE,
        Flag::MPOL_F_NUMA_BALANCING => "MPOL_F_NUMA_BALANCING",
    }
}
