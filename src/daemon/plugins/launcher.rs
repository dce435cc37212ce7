// SPDX-License-Identifier: Apache-2.0
//! Keeps the pre-installed plugins running: checks their folders every second, starts plugins that
//! appeared, stops removed ones, restarts changed ones (decision D14) and those that exited, with a
//! pause that grows until the plugin runs steadily. It decides nothing about containers.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::audit::AuditAction;
use crate::plugin::{self, Launched, Plugin, PluginFile, ProcessLog, Unusable};

use crate::daemon::node::Node;
use crate::daemon::plugins::admission;
use crate::daemon::plugins::resumed;
use crate::daemon::plugins::upcalls::upcalls;
use crate::daemon::registry::roster::LaunchRecord;
use crate::daemon::watch::pidfd;

/// How often the folders are checked. A change is acted upon when two checks see the same: a file
/// that is being copied must not be executed.
const FOLDER_CHECK: Duration = Duration::from_secs(1);

/// The pause before an exited plugin is started again: the first and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A plugin that ran for this long begins with the first pause again.
const STEADY: Duration = Duration::from_secs(60);

/// How long the process of a stopped plugin may take to exit, the kill included.
const LEAVING: Duration = Duration::from_secs(3);

/// The plugin files to run, by name; `None` tells the task of a plugin to end it.
type WantedPlugins = BTreeMap<String, Sender<Option<PluginFile>>>;

/// Keeps the pre-installed plugins running for ever.
pub(crate) async fn keep_running(node: Rc<Node>) {
    let look = || {
        let config = node.config();
        plugin::discover(&config.plugin_path, &config.plugin_config_path)
    };
    let (mut wanted, mut logged) = (WantedPlugins::new(), HashSet::new());
    let mut seen = look();
    let mut done = None;
    loop {
        if done.as_ref() != Some(&seen) {
            log_unusable(&seen.1, &mut logged);
            follow(&node, &mut wanted, &seen);
            if done.is_none() {
                let node = Rc::clone(&node);
                // Each task of a plugin has taken its own by then.
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(FOLDER_CHECK).await;
                    resumed::end_forgotten(&node).await;
                });
            }
            done = Some(seen.clone());
        }
        loop {
            tokio::time::sleep(FOLDER_CHECK).await;
            let before = std::mem::replace(&mut seen, look());
            if seen == before {
                break;
            }
        }
    }
}

/// Logs one line for each file that cannot be used, once as long as nothing changes.
fn log_unusable(unusable: &[Unusable], logged: &mut HashSet<String>) {
    let lines: HashSet<String> = unusable.iter().map(ToString::to_string).collect();
    for line in lines.difference(logged) {
        warn!("{line}");
    }
    *logged = lines;
}

/// Starts, stops and restarts plugins as the folders show.
fn follow(node: &Rc<Node>, wanted: &mut WantedPlugins, seen: &(Vec<PluginFile>, Vec<Unusable>)) {
    let (found, unusable) = seen;
    wanted.retain(|id, sender| {
        // A plugin keeps running while its configuration cannot be read.
        let stays = found.iter().any(|file| file.id() == *id)
            || unusable.iter().any(|file| file.is_plugin && file.path.ends_with(id));
        if !stays {
            info!("the file of {id} was removed");
            sender.send_replace(None);
        }
        stays
    });
    for file in found {
        let id = file.id();
        if let Some(sender) = wanted.get(&id) {
            let is_new = sender.borrow().as_ref() != Some(file);
            if is_new {
                info!("{id} or its configuration has changed: restarting it");
                sender.send_replace(Some(file.clone()));
            }
        } else {
            let (sender, wanted_file) = channel(Some(file.clone()));
            wanted.insert(id, sender);
            let record = node.registry.roster.launches(&file.index, &file.name);
            tokio::task::spawn_local(keep_plugin(Rc::clone(node), wanted_file, record));
        }
    }
}

/// Runs one plugin again and again, until its file is removed.
async fn keep_plugin(
    node: Rc<Node>,
    mut wanted_file: Receiver<Option<PluginFile>>,
    record: Rc<LaunchRecord>,
) {
    let mut pauses = Pauses::default();
    loop {
        let Some(file) = wanted_file.borrow_and_update().clone() else { return };
        let begun = Instant::now();
        run_once(&node, &file, &mut wanted_file, &record).await;
        if node.process.is_ending.get() {
            return;
        }
        if wanted_file.borrow().as_ref() != Some(&file) {
            pauses = Pauses::default();
            continue;
        }
        let pause = pauses.after(begun.elapsed());
        record.starts_again_in(pause);
        info!("restarting {} in {} s", file.id(), pause.as_secs());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = wanted_file.changed() => pauses = Pauses::default(),
        }
    }
}

/// Runs a plugin once, from its start to the end of its process.
async fn run_once(
    node: &Rc<Node>,
    file: &PluginFile,
    wanted_file: &mut Receiver<Option<PluginFile>>,
    record: &LaunchRecord,
) {
    let id = file.id();
    if let Some(before) = node.registry.roster.take_launched_before(&id) {
        record.resumes(&before.file, before.starts, &before.log);
        let is_changed = before.file != *file;
        let plugin = Rc::clone(&before.connected);
        let process = process_of(&plugin.chained.plugin);
        let stays = resumed::follow(node, &plugin);
        return follow_process(node, &id, stays, process, wanted_file, is_changed).await;
    }
    let log = ProcessLog::new(&id);
    record.starts(file, &log);
    let settings = admission::settings(node);
    let unregistered =
        node.registry.roster.enters(Some((file.index.clone(), file.name.clone())), None);
    let started = tokio::select! {
        started = Launched::start(file, &settings, upcalls(node, &unregistered), &log) => started,
        _ = wanted_file.changed() => return,
    };
    drop(unregistered);
    let plugin = match started {
        Ok(plugin) => plugin,
        Err(error) => {
            let why = format!("could not be started: {error}");
            node.audit_plugin(AuditAction::Rejected, &id, &why);
            return node.report.note_failure(&format!("{id} {why}"), &id);
        }
    };
    let process = process_of(&plugin);
    let registered = admission::admit(node, plugin, true);
    follow_process(node, &id, registered, process, wanted_file, false).await;
}

fn process_of(plugin: &Plugin) -> Option<OwnedFd> {
    plugin.pid().and_then(|pid| pidfd::open(u32::try_from(pid).ok()?))
}

/// Follows a plugin until its connection, its process or its file is gone, then ends it.
/// `is_changed`: its file is another one already.
async fn follow_process(
    node: &Rc<Node>,
    id: &str,
    registered: impl Future<Output = ()>,
    process: Option<OwnedFd>,
    wanted_file: &mut Receiver<Option<PluginFile>>,
    is_changed: bool,
) {
    tokio::pin!(registered);
    let is_file_changed = is_changed
        || tokio::select! {
            () = &mut registered => return wait_until_gone(process.as_ref()).await,
            // A process that the plugin started may keep its connection open.
            () = ended(process.as_ref()) => false,
            _ = wanted_file.changed() => true,
        };
    if let Some(plugin) = node.registry.find(id).filter(|plugin| plugin.chained.launched) {
        if is_file_changed {
            let comes_back = wanted_file.borrow().is_some();
            if comes_back {
                node.registry.returning.expect(id, node.config().registration_timeout);
            }
            // Pending requests are answered; no new request reaches it.
            let why = if comes_back { "its file changed" } else { "its file is gone" };
            node.registry.remove(&plugin, why);
            plugin.chained.plugin.shutdown().await;
        } else {
            plugin.chained.plugin.disconnect("its process has ended, or its file is gone");
        }
    }
    registered.await;
    wait_until_gone(process.as_ref()).await;
}

async fn ended(process: Option<&OwnedFd>) {
    match process {
        Some(process) => pidfd::ended(process).await,
        None => std::future::pending().await,
    }
}

/// Waits, bounded, until the process is gone: its successor may need the resources that it holds.
async fn wait_until_gone(process: Option<&OwnedFd>) {
    if process.is_some() {
        let _killed_by_now = tokio::time::timeout(LEAVING, ended(process)).await;
    }
}

/// The pauses between the runs of one plugin.
#[derive(Debug)]
struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl Pauses {
    /// The pause after a run of this length.
    fn after(&mut self, lived: Duration) -> Duration {
        if lived >= STEADY {
            self.0 = FIRST_PAUSE;
        }
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_a_steady_life_resets_them() {
        let mut pauses = Pauses::default();
        let short = Duration::from_secs(59);
        let seconds: Vec<u64> = (0..8).map(|_| pauses.after(short).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses.after(Duration::from_secs(60)), FIRST_PAUSE);
        assert_eq!(pauses.after(short).as_secs(), 2);
    }
}
