// SPDX-License-Identifier: Apache-2.0
//! Resumes, after a re-execution of the daemon, the plugins that were connected before, each with the pods and
//! containers that it knows. They are not notified of the re-execution. Launched plugins keep running.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::chain::{ChainedPlugin, PluginCounts};
use crate::daemon::connections::upcalls::{Registration, upcalls};
use crate::daemon::connections::{admission, origin};
use crate::daemon::registry::connected::Subject;
use crate::daemon::registry::roster::LaunchedBefore;
use crate::daemon::shared::Daemon;
use crate::error::{Context, Result};
use crate::plugin::{Plugin, PluginFile, ProcessLog, SavedPlugin};

/// Registers a resumed plugin, with the pods and containers that it knows.
///
/// # Errors
/// Fails when its descriptor or its saved state is unusable; its connection is then closed.
pub(crate) async fn resume(
    daemon: &Rc<Daemon>,
    saved: SavedPlugin,
    counts: PluginCounts,
    known: BTreeSet<Subject>,
    launched: Option<(PluginFile, u64)>,
) -> Result<()> {
    let id = saved.id();
    let unregistered = daemon.registry.roster.enters(None, saved.pid());
    let log = saved.process.is_some().then(|| ProcessLog::new(&id));
    let peer = match log {
        None => {
            let connection = saved.connection().doing(|| format!("going on with {id}"))?;
            Some(origin::peer_of(daemon, &connection))
        }
        Some(_) => None,
    };
    let registration = Registration::default();
    let upcalls = upcalls(daemon, &unregistered, &registration);
    let plugin = Plugin::resume(saved, upcalls, log.as_ref()).await;
    drop(unregistered);
    let mut plugin = plugin.doing(|| format!("going on with {id}"))?;
    plugin.count_calls(daemon.report.flight.clone());
    let config = daemon.config();
    let settings = config.plugin(plugin.index(), plugin.name());
    let chained = ChainedPlugin::new(plugin, log.is_some(), &settings);
    chained.reconfigure(&config);
    let chained = chained.with_unknown_rights(config.unreliable().as_deref());
    chained.resume_counts(counts);
    let connected = daemon.registry.resume(chained, peer, known);
    registration.set(&connected);
    match (launched, log) {
        (Some((file, starts)), Some(log)) => {
            let before = LaunchedBefore { file, starts, log, connected };
            daemon.registry.roster.note_launched_before(before);
        }
        _ => {
            let daemon = Rc::clone(daemon);
            tokio::task::spawn_local(async move { admission::stay(&daemon, &connected).await });
        }
    }
    Ok(())
}

/// Ends launched plugins whose files were removed during the re-execution.
pub(crate) async fn end_forgotten(daemon: &Rc<Daemon>) {
    for before in daemon.registry.roster.take_all_launched_before() {
        let LaunchedBefore { connected, .. } = before;
        let stays = Rc::clone(&connected);
        let of_task = Rc::clone(daemon);
        tokio::task::spawn_local(async move { admission::stay(&of_task, &stays).await });
        daemon.registry.remove(&connected, "its file is gone");
        connected.shutdown("its file is gone").await;
    }
}
