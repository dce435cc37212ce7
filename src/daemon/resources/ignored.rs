// SPDX-License-Identifier: Apache-2.0
//! Finds values that a runtime's `update` accepts without applying them (`runtime/ignored.rs`), and the
//! part of them that the daemon writes directly in a systemd scope (D48): huge pages, block I/O and v1's
//! other memory settings, whose files systemd does not manage. Device rules are refused: systemd manages
//! those of a scope, and reverts other writes at its next reload. This module only reads.

use serde_json::{Map, Value};

use crate::cgroup::Cgroups;
use crate::host::Host;
use crate::resolve::is_cgroup_v2;
use crate::runtime::RuntimeKind;
use crate::runtime::ignored::is_ignored_in_updates;
use crate::spec::owned;
use crate::state::Container;

use crate::daemon::resources::error::{RefusedField, Result, UpdateError};
use crate::daemon::resources::in_force::{Block, in_force};

/// The field that systemd manages in a scope although a runtime's `update` ignores it: device rules.
const SYSTEMDS: &str = "devices";

/// Fails unless the runtime's `update` applies all of `part`.
pub(super) fn takes(record: &Container, part: &Block) -> Result<()> {
    let mut ignored = owned::fields(&ignored(record, part));
    if ignored.is_empty() {
        return Ok(());
    }
    // An empty list removes limits, so it changes nothing if the container has no such limits.
    let none = Value::Array(Vec::new());
    let now = in_force(record);
    ignored.retain(|field| {
        field.value != none || owned::value(&now, &field.path).is_some_and(|now| now != none)
    });
    match ignored.first() {
        None => Ok(()),
        Some(field) => {
            let why = format!("{} does not change it in a running container", record.call.runtime);
            Err(UpdateError::refused_field(RefusedField::Path(field.path.clone()), why))
        }
    }
}

/// Returns the part that the runtime accepts without applying it.
pub(crate) fn ignored(record: &Container, part: &Block) -> Block {
    if RuntimeKind::of_program(&record.call.runtime) == RuntimeKind::Crun {
        return Map::new();
    }
    let mut found = part.clone();
    found.retain(|section, value| match value.as_object_mut() {
        Some(members) => {
            members.retain(|key, _| is_ignored_in_updates(section, key));
            !members.is_empty()
        }
        None => is_ignored_in_updates(section, ""),
    });
    found
}

/// Removes values that are in force anyway on cgroup v2, because crun refuses an update with them.
/// Values that the engine requests stay.
pub(crate) fn leave_out_idle(host: &Host, resources: &mut Block, engine: &Block) {
    if !is_cgroup_v2(host) {
        return;
    }
    for (section, members) in resources.iter_mut() {
        let is_engines = |key: &str| engine.get(section).is_some_and(|own| own.get(key).is_some());
        if let Value::Object(members) = members {
            members
                .retain(|key, value| !owned::holds_anyway(section, key, value) || is_engines(key));
        }
    }
}

/// An update that goes through the runtime, split in two.
pub(super) struct SplitUpdate {
    /// The part that the daemon writes directly.
    pub(super) direct: Block,
    /// The part that the runtime receives.
    pub(super) rest: Block,
}

/// Splits an update; `scope`: the container's own cgroups, normally a systemd scope. Without them, the
/// runtime receives everything.
pub(super) fn split(record: &Container, part: &Block, scope: Option<&Cgroups>) -> SplitUpdate {
    let mut direct = if scope.is_some() { ignored(record, part) } else { Block::new() };
    direct.remove(SYSTEMDS);
    let mut rest = part.clone();
    for (section, members) in &direct {
        let Value::Object(members) = members else {
            rest.remove(section);
            continue;
        };
        if let Some(Value::Object(kept)) = rest.get_mut(section) {
            kept.retain(|key, _| !members.contains_key(key));
            if kept.is_empty() {
                rest.remove(section);
            }
        }
    }
    SplitUpdate { direct, rest }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::host::Host;

    fn record(runtime: &str) -> Container {
        let json = json!({
            "schema": 1, "boot_id": "", "key": {"root": "/r", "id": "c"}, "incarnation": 1,
            "runtime": runtime, "global_flags": [], "bundle": "/b", "is_sandbox": false,
            "pod": "", "name": "", "state": "running", "pid_file": null, "init_pid": 7,
            "init_start": 1, "engine": "plain", "evidence": [], "variables": [],
            "message": "", "engine_resources": {}, "overlay": {}, "owners": {}, "patched": null,
            "changes": [], "refused": [], "skipped": [], "in_flight": null
        });
        serde_json::from_value(json).unwrap()
    }

    fn block(value: Value) -> Block {
        value.as_object().unwrap().clone()
    }

    /// Returns the cgroups of a scope; the tests do not read them.
    fn scope() -> Cgroups {
        let host = Host::default();
        let mounts = crate::cgroup::Mounts::read(&host).unwrap();
        Cgroups::find(&host, &mounts, std::process::id(), &Default::default()).unwrap()
    }

    #[test]
    fn values_that_runc_ignores_in_a_scope_are_written_directly() {
        let part = block(json!({
            "memory": {"limit": 1, "swappiness": 7},
            "hugepageLimits": [{"pageSize": "2MB", "limit": 0}],
            "blockIO": {"weight": 10, "throttleReadBpsDevice": []},
            "devices": [{"allow": false}],
        }));
        let SplitUpdate { direct, rest } = split(&record("/usr/bin/runc"), &part, Some(&scope()));
        let wanted = json!({
            "memory": {"swappiness": 7},
            "hugepageLimits": [{"pageSize": "2MB", "limit": 0}],
            "blockIO": {"throttleReadBpsDevice": []},
        });
        assert_eq!(Value::Object(direct), wanted);
        let wanted = json!({"memory": {"limit": 1}, "blockIO": {"weight": 10}, "devices": [{"allow": false}]});
        assert_eq!(Value::Object(rest.clone()), wanted);
        let refused = takes(&record("/usr/bin/runc"), &rest).unwrap_err().to_string();
        assert!(refused.starts_with("devices: "), "{refused}");
    }

    #[test]
    fn updates_are_split_only_for_runc_in_a_scope() {
        let part = block(json!({"hugepageLimits": [], "blockIO": {"leafWeight": 10}}));
        for (runtime, scope) in [("/usr/bin/crun", Some(scope())), ("/usr/bin/runc", None)] {
            let SplitUpdate { direct, rest } = split(&record(runtime), &part, scope.as_ref());
            assert_eq!((direct, &rest), (Block::new(), &part), "{runtime}");
        }
    }
}
