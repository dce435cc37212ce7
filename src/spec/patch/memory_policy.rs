// SPDX-License-Identifier: Apache-2.0
//! Replaces the NUMA memory policy as a whole.
//!
//! The policy cannot be removed: NRI has no request for that, and mode zero is a policy too.
//! Reference: NRI `AdjustMemoryPolicy`, except for BUG-G14; set_mempolicy(2).

use super::{Patch, Result, all_known, known, object_of, values};
use crate::error::quoted;
use crate::plugin::api::{self, MpolFlag as Flag};

const FIELD: &str = "MemoryPolicy";

pub(super) fn patch(
    patch: &mut Patch<'_, '_>,
    policy: Option<&api::LinuxMemoryPolicy>,
) -> Result<()> {
    let Some(policy) = policy else { return Ok(()) };
    let api::LinuxMemoryPolicy { mode, nodes, flags, special_fields: _ } = policy;
    let (mode, name) = known(FIELD, "mode", *mode)?;
    if !is_complete(mode, nodes) {
        let wants = if nodes.is_empty() { "needs" } else { "takes no" };
        let problem = format!("{mode:?} {wants} nodes");
        patch.changes.doubt(FIELD, Err(problem));
    }
    if !nodes.is_empty() && !values::is_id_list(nodes) {
        let problem = format!("\"{}\" is not a list of nodes, such as 0-1,3", quoted(nodes));
        patch.changes.doubt(FIELD, Err(problem));
    }
    let (flag_names, has) = (all_known(FIELD, flags)?, |flag: Flag| flags.contains(&flag.into()));
    if has(Flag::MPOL_F_STATIC_NODES) && has(Flag::MPOL_F_RELATIVE_NODES) {
        let problem = "MPOL_F_STATIC_NODES and MPOL_F_RELATIVE_NODES are mutually exclusive";
        patch.changes.doubt(FIELD, Err(problem));
    }
    let value =
        object_of([("mode", name), ("nodes", nodes.as_str().into()), ("flags", flag_names)]);
    let names = ("linux.memoryPolicy", FIELD);
    Ok(patch.changes.set(patch.root.object("linux")?, "memoryPolicy", value, names)?)
}

/// Whether the kernel accepts the mode with these nodes, or with none.
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
