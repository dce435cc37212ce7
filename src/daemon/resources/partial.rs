// SPDX-License-Identifier: Apache-2.0
//! Finds the values that a failed `update` left in force: runc and crun write one file after the other, and revert
//! nothing. The cgroup files show which values were written. This module only reads.

use crate::cgroup;
use crate::limits;
use crate::spec::{overlay, owned};
use crate::state::Container;

use crate::daemon::resources::apply::plan;
use crate::daemon::resources::in_force::{Block, in_force};
use crate::daemon::resources::route::{Route, route};
use crate::daemon::shared::Daemon;

/// Fields that share a file, or whose files depend on each other.
const TOGETHER: [(&str, &str); 3] =
    [("cpu.quota", "cpu.period"), ("cpu.period", "cpu.quota"), ("memory.swap", "memory.limit")];

/// Whether the cgroup files may have the values that `after` changes; false only if a file surely
/// has another value. Kernels show some values in another form, and some files cannot be read.
pub(crate) fn has_taken(daemon: &Daemon, record: &Container, after: &Block) -> bool {
    let (Ok(Route::Direct(cgroups)) | Ok(Route::Runtime(Some(cgroups)))) = route(daemon, record)
    else {
        return true;
    };
    let changed = overlay::delta(after, &in_force(record));
    let Ok(writes) = plan(record, &changed, None, &cgroups) else { return true };
    writes.iter().all(|write| cgroup::may_read_as(&cgroups, write))
}

/// Returns the resources of the container after a failed update to `tried`.
pub(crate) fn left_in_force(daemon: &Daemon, record: &Container, tried: &Block) -> Block {
    let mut resources = in_force(record);
    let found = route(daemon, record);
    let (Ok(Route::Direct(cgroups)) | Ok(Route::Runtime(Some(cgroups)))) = found else {
        return resources;
    };
    let changed = overlay::delta(tried, &resources);
    if owned::fields(&changed).len() > limits::ENDS {
        // The search below is quadratic in the number of fields. Above this limit the values in
        // force stay unknown, as with an unreadable file.
        return resources;
    }
    let is_in_file = |path: &str| {
        let is_needed = |other: &str| other == path || TOGETHER.contains(&(path, other));
        let one = owned::keep_owned(&changed, |field| is_needed(&field.path));
        let writes = plan(record, &one, None, &cgroups).unwrap_or_default();
        !writes.is_empty() && writes.iter().all(|write| cgroup::reads_as(&cgroups, write))
    };
    let taken = owned::keep_owned(&changed, |field| is_in_file(&field.path));
    overlay::put_over(&mut resources, &taken);
    resources
}
