// SPDX-License-Identifier: Apache-2.0
//! Plugins that were connected to the program before this one in the same process: they take part
//! at once, know what they knew, and are told nothing of the change. A launched one keeps running.

use std::collections::HashSet;
use std::rc::Rc;

use crate::chain::{ChainedPlugin, SavedCounts};
use crate::daemon::node::Node;
use crate::daemon::plugins::upcalls::{Registration, upcalls};
use crate::daemon::plugins::{admission, origin};
use crate::daemon::registry::connected::Subject;
use crate::daemon::registry::roster::LaunchedBefore;
use crate::error::{Context, Result};
use crate::plugin::{Plugin, PluginFile, ProcessLog, SavedPlugin};

/// Registers a plugin again, with what it knows.
///
/// # Errors
/// Fails when its descriptor cannot be used; its connection is closed then.
pub(crate) async fn resume(
    node: &Rc<Node>,
    saved: SavedPlugin,
    counts: SavedCounts,
    known: HashSet<Subject>,
    launched: Option<(PluginFile, u64)>,
) -> Result<()> {
    let id = saved.id();
    let unregistered = node.registry.roster.enters(None, saved.pid());
    let log = saved.process.is_some().then(|| ProcessLog::new(&id));
    let peer = match log {
        None => {
            let connection = saved.connection().doing(|| format!("going on with {id}"))?;
            Some(origin::peer_of(node, &connection))
        }
        Some(_) => None,
    };
    let registration = Registration::default();
    let upcalls = upcalls(node, &unregistered, &registration);
    let plugin = Plugin::resume(saved, upcalls, log.as_ref()).await;
    drop(unregistered);
    let mut plugin = plugin.doing(|| format!("going on with {id}"))?;
    plugin.count_calls(node.report.metrics.call_meter());
    let settings = node.config().plugin(plugin.index(), plugin.name());
    let chained = ChainedPlugin::new(plugin, log.is_some(), &settings);
    chained.reconfigure(&node.config());
    chained.resume_counts(counts);
    let connected = node.registry.resume(chained, peer, known);
    registration.set(&connected);
    match (launched, log) {
        (Some((file, starts)), Some(log)) => {
            let before = LaunchedBefore { file, starts, log, connected };
            node.registry.roster.note_launched_before(before);
        }
        _ => {
            let node = Rc::clone(node);
            tokio::task::spawn_local(async move { admission::stay(&node, &connected).await });
        }
    }
    Ok(())
}

/// Ends launched plugins whose files went while the programs changed.
pub(crate) async fn end_forgotten(node: &Rc<Node>) {
    for before in node.registry.roster.take_all_launched_before() {
        let LaunchedBefore { connected, .. } = before;
        let stays = Rc::clone(&connected);
        let of_task = Rc::clone(node);
        tokio::task::spawn_local(async move { admission::stay(&of_task, &stays).await });
        node.registry.remove(&connected, "its file is gone");
        connected.chained.plugin.shutdown("its file is gone").await;
    }
}
