// SPDX-License-Identifier: Apache-2.0
//! Determines why the runtime refused a container, and which plugin's change caused it.

use tracing::info;

use crate::clock::now;
use crate::daemon::runtime::error_log::{RuntimeLog, change_behind};
use crate::daemon::shared::Daemon;
use crate::error::Error;
use crate::state::ContainerKey;

/// Records the runtime's refusal for `explain`. If a plugin's change caused the refusal, the
/// daemon's list of failures names the plugin.
pub(crate) async fn note_refusal(
    daemon: &Daemon,
    key: &ContainerKey,
    verb: &str,
    log: Option<&RuntimeLog>,
) {
    let words = match log.cloned() {
        Some(log) => daemon.off_loop(&log.folder(), move || Ok(log.last_error())).await,
        None => Ok(None),
    };
    let Some(record) = daemon.container(key) else { return };
    let Ok(Some(words)) = words else {
        let what = if verb == "start" { "start" } else { "create" };
        let line = format!("the runtime did not {what} it");
        info!("{}: {line}; see the engine's log", key.id);
        return daemon.change(key, |record| record.refuse(line, now()));
    };
    let mut line = format!("the runtime refused it: {words}");
    let behind = change_behind(&record.outcome.changes, &words);
    if let Some(change) = behind {
        line.push_str(&format!(" ({} set {})", change.plugin, change.field));
    }
    let error = Error::new(line).by(behind.map(|change| change.plugin.clone()).unwrap_or_default());
    if let Some(change) = behind {
        let error = error.clone().about(&change.field);
        daemon.report.note_refusal(verb, &key.id, &error);
        daemon.audit_refusal(key, verb, &error);
    } else {
        info!("{verb} {}: {error}", key.id);
    }
    daemon.change(key, |record| record.refuse(error.to_string(), now()));
}
