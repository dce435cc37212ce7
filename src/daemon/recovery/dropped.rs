// SPDX-License-Identifier: Apache-2.0
//! Notes of commands that bypassed the daemon, and that wrappers did not keep, as notes have a limit of
//! number and bytes: the wrapper counts them. The daemon searches the runtimes' state for their containers.

use crate::daemon::shared::{Daemon, log_failure};
use crate::files;
use crate::link::{BYPASSED_DIR, DROPPED_NOTES};

/// The reason shown for a container that was found, if its note was not kept.
const NO_NOTE: &str =
    "the daemon was away, and its note was not kept, as notes have a limit of number and bytes";

/// Reports that wrappers did not keep notes, and starts a search for their containers (`enabled.rs`);
/// returns whether there were any. The search finds containers that exist, as far as the runtimes' state
/// shows them; it does not find an update of resources.
pub(crate) fn note(daemon: &Daemon) -> bool {
    let file = daemon.config().run_dir.join(BYPASSED_DIR).join(DROPPED_NOTES);
    let Some(count) = files::read_count(&file) else { return false };
    let line = format!(
        "{count} commands ran without plugins and left no note, as notes have a limit of number and bytes: existing containers are recorded, and updates of resources among these commands stay unknown"
    );
    daemon.report.note_failure(&line, "");
    daemon.report.count_bypassed(u64::try_from(count).unwrap_or(u64::MAX));
    // First: a daemon that ends now must not forget the search.
    let due = files::replace(&daemon.config().was_disabled_file(), NO_NOTE.as_bytes());
    log_failure("noting that containers are to be searched for", due);
    let _counted = std::fs::remove_file(file);
    true
}
