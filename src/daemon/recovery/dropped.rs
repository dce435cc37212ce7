// SPDX-License-Identifier: Apache-2.0
//! Commands that bypassed the daemon without a note: the wrappers removed it or did not write it,
//! because the number and size of notes are limited, and counted it. The daemon searches the
//! runtimes' state for their containers.

use crate::daemon::shared::{Daemon, log_failure};
use crate::files;
use crate::link::{BYPASSED_DIR, DROPPED_NOTES};

/// The reason shown for a container that was found without a note.
const NO_NOTE: &str =
    "the daemon was away, and its note was not kept, as notes have a limit of number and bytes";

/// If notes are missing, reports that and starts a search for their containers (`enabled.rs`);
/// returns whether any are missing. The search finds the containers that the runtimes' state shows,
/// but no updates of resources.
pub(crate) fn note(daemon: &Daemon) -> bool {
    let file = daemon.config().run_dir.join(BYPASSED_DIR).join(DROPPED_NOTES);
    let Some(count) = files::read_count(&file) else { return false };
    let line = format!(
        "{count} commands ran without plugins and left no note, as notes have a limit of number and bytes: existing containers are recorded, and updates of resources among these commands stay unknown"
    );
    daemon.report.note_failure(&line, "");
    daemon.report.count_bypassed(u64::try_from(count).unwrap_or(u64::MAX));
    // Written first, so that a daemon that ends now does not lose the search.
    let due = files::replace(&daemon.config().was_disabled_file(), NO_NOTE.as_bytes());
    log_failure("noting that containers are to be searched for", due);
    let _counted = std::fs::remove_file(file);
    true
}
