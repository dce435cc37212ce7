// SPDX-License-Identifier: Apache-2.0
//! Records for `explain` what another wrapper between nri-runc and the runtime changed: the document that the runtime
//! read differs from the one that the daemon wrote. Such changes are never reverted or attributed to plugins.

use tracing::info;

use crate::daemon::bundle::{self, Rewritten};
use crate::daemon::shared::Daemon;
use crate::limits;
use crate::spec::differences::{Difference, differences};
use crate::state::{ChangedMember, Container, Skipped};

/// Removes the temporary files of a successful creation, and records the members of the document that another
/// program between nri-runc and the runtime changed.
pub(crate) async fn note(daemon: &Daemon, record: &Container) {
    let Some(Rewritten { written, there }) = bundle::drop_temporary(daemon, record).await else {
        return;
    };
    let is_large = there.len() > limits::LARGE_DOCUMENT;
    let compare = move || differences(&written, &there);
    let found = match is_large {
        true => tokio::task::spawn_blocking(compare).await.ok().flatten(),
        false => compare(),
    };
    let Some(mut found) = found.filter(|found| !found.is_empty()) else { return };
    let (count, id) = (found.len(), &record.key.id);
    info!("{id}: members of config.json that a wrapper after nri-runc changed: {count}");
    found.truncate(limits::CHANGES);
    let more = count - found.len();
    let member =
        |found: Difference| ChangedMember { field: found.field, change: found.change.to_owned() };
    daemon.change(&record.key, |record| {
        record.outcome.changed_behind = found.into_iter().map(member).collect();
        record.outcome.skipped.extend((more > 0).then(|| Skipped {
            plugin: String::new(),
            reason: format!("{more} more members that a wrapper changed are not listed"),
        }));
    });
}
