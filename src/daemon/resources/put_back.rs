// SPDX-License-Identifier: Apache-2.0
//! Restores drifted values of plugins and injections, for the fields that `[drift] reapply` names; the audit log and
//! `explain` show each. Another process may change a value repeatedly, so the number of writes is limited. This module
//! asks no plugin, and sets no other value; a runtime's `update` repeats the values in force.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::audit::{AuditAction, AuditEntry};
use crate::cgroup::{self, Around, Cgroups};
use crate::clock::now;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::host::Point;
use crate::limits;
use crate::spec::owned;
use crate::state::{Change, Container, ContainerKey};

use crate::daemon::resources::apply::run_update;
use crate::daemon::resources::drift::{Drift, Drifts, ResourcePlace};
use crate::daemon::resources::ignored::{SplitUpdate, split};
use crate::daemon::resources::in_force::{Block, in_force, note_changes};
use crate::daemon::shared::Daemon;
use crate::daemon::shared::few_lines::FewOf;

/// The event in `explain` and in the audit log.
const EVENT: &str = "drift";

/// The periods over which writes are counted: of all containers, and of one container.
const ON_NODE: Duration = Duration::from_secs(60);
const OF_CONTAINER: Duration = Duration::from_secs(60 * 60);

/// The fields to restore, and the writes of the last hour.
#[derive(Debug, Default)]
pub(crate) struct PutBacks {
    fields: Vec<String>,
    writes: HashMap<ContainerKey, VecDeque<Instant>>,
}

impl PutBacks {
    /// Begins a round of checks: restores the configured fields from now on, or none while plugins
    /// are disabled.
    pub(super) fn begin(&mut self, config: &Config) {
        self.fields = if config.is_disabled() { Vec::new() } else { config.drift_reapply.clone() };
        let now = Instant::now();
        self.writes.retain(|_, at| {
            at.retain(|at| now.duration_since(*at) < OF_CONTAINER);
            !at.is_empty()
        });
    }

    /// Counts a write to this container and returns true, unless there were too many, to it or on the node.
    fn admit(&mut self, key: &ContainerKey) -> bool {
        let now = Instant::now();
        let is_recent = |at: &&Instant| now.duration_since(**at) < ON_NODE;
        let on_node = self.writes.values().flatten().filter(is_recent).count();
        let own = self.writes.get(key).map_or(0, VecDeque::len);
        let is_admitted = on_node < limits::DRIFT_WRITES && own < limits::DRIFT_WRITES_OF_CONTAINER;
        if is_admitted {
            self.writes.entry(key.clone()).or_default().push_back(now);
        }
        is_admitted
    }

    /// Restores the drifted values whose fields are configured; the caller holds the turn to write.
    pub(super) async fn put_back(
        &mut self,
        daemon: &Rc<Daemon>,
        record: &Container,
        found: &Drifts,
    ) {
        let Some(place) = &found.place else { return };
        let is_due = |drift: &&Drift| {
            let name = drift.field.split('[').next().unwrap_or_default();
            let is_named = !drift.is_of_process() && self.fields.iter().any(|field| field == name);
            // If several values are possible, only the runtime knows which one it writes.
            is_named && (drift.is_certain || !place.is_direct)
        };
        let due: Vec<Drift> = found.rows.iter().filter(is_due).cloned().collect();
        let Some(first) = due.first() else { return };
        let may_log = || daemon.report.few_lines.admit(FewOf::Drift, &first.owner);
        let id = &record.key.id;
        if !self.admit(&record.key) {
            if may_log() {
                warn!(
                    "{id}: {} is not restored: too many values of it or of the node were restored recently",
                    first.field
                );
            }
            return;
        }
        let _active = daemon.process.activity.begin();
        match write(daemon, record, &due, place).await {
            Ok(()) => note(daemon, record, &due),
            Err(why) => {
                if may_log() {
                    warn!("{id}: {} could not be restored: {why}", first.field);
                }
                let entry = || AuditEntry::new(AuditAction::Skipped).at_event(EVENT);
                let why = why.to_string();
                daemon.audit(&record.key, || {
                    entry().by(&first.owner).of_field(&first.field).because(&why)
                });
            }
        }
    }
}

/// Writes the values to the cgroup files if the daemon may do that, else through the runtime, which always
/// writes all resources; values that its `update` ignores are written to the files.
async fn write(
    daemon: &Rc<Daemon>,
    record: &Container,
    due: &[Drift],
    place: &ResourcePlace,
) -> Result<()> {
    let is_due = |path: &str| due.iter().any(|drift| drift.path == path);
    let part = owned::keep_owned(&record.resources.overlay, |member| is_due(&member.path));
    daemon.host.point(Point::DaemonCgroup)?;
    if place.is_direct {
        return write_files(daemon, record, part, &place.cgroups).await;
    }
    let SplitUpdate { mut direct, rest } = split(record, &part, Some(&place.cgroups));
    if !rest.is_empty() {
        // If an update omitted values, such as the CPUs, the runtime's state would lose them.
        let updated = run_update(&daemon.host, record, in_force(record), false).await;
        updated.map_err(|why| Error::new(why.to_string()))?;
        // The update may have just reset the directly written values.
        direct = split(record, &record.resources.overlay, Some(&place.cgroups)).direct;
    }
    if direct.is_empty() {
        return Ok(());
    }
    write_files(daemon, record, direct, &place.cgroups).await
}

async fn write_files(
    daemon: &Daemon,
    record: &Container,
    part: Block,
    cgroups: &Cgroups,
) -> Result<()> {
    let (in_force, cgroups) = (in_force(record), cgroups.clone());
    let dir = cgroups.any_dir().map(|dir| dir.display().to_string()).unwrap_or_default();
    let work = move || {
        let around = Around { before: &in_force, tried: None, after: &in_force };
        let writes = cgroup::plan(cgroups.layout(), &part, around, &cgroups);
        let writes = writes.map_err(|unfit| Error::new(unfit.to_string()))?;
        let written = cgroup::carry_out(&cgroups, &writes);
        written.map(drop).map_err(|failed| Error::new(format!("{}: {}", failed.field, failed.why)))
    };
    daemon.off_loop(&dir, work).await
}

/// Records the restored values for `explain` and the audit log.
fn note(daemon: &Daemon, record: &Container, due: &[Drift]) {
    let changes = due.iter().map(|drift| Change {
        at: now(),
        event: EVENT.to_owned(),
        plugin: drift.owner.clone(),
        field: format!("cgroup:{}", drift.file.rsplit('/').next().unwrap_or_default()),
        before: drift.actual.clone().into(),
        after: drift.expected.clone().into(),
    });
    let changes: Vec<Change> = changes.collect();
    daemon.change(&record.key, |record| note_changes(record, changes.clone()));
    daemon.audit_applied(&record.key, &changes);
}
