// SPDX-License-Identifier: Apache-2.0
//! Keeps the pre-installed plugins running: checks their folders after each event and every ten seconds, or waits until
//! the folder exists; starts new plugins, stops removed ones, and restarts changed ones (D14) and exited ones, with
//! growing pauses until they run steadily. A changed plugin's new process runs beside the old process, which is ended
//! once the new one has replaced it in the chain (D41). `socket.rs` starts this once the daemon is in charge of
//! plugins. This module decides nothing about containers.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::limits;
use crate::plugin::{self, PluginFile, Unusable, UnusableKind};
use crate::presence;

use crate::daemon::connections::launched_run::LaunchedRun;
use crate::daemon::connections::{resumed, socket};
use crate::daemon::registry::process_name;
use crate::daemon::registry::roster::LaunchRecord;
use crate::daemon::shared::Daemon;
use crate::daemon::watch::folders::WatchedFolder;
use crate::daemon::watch::timer::Timer;

/// Interval of the checks of a folder that changes. A change takes effect when two checks agree, so that a file is
/// not executed while it is being copied.
const FOLDER_CHECK: Duration = Duration::from_secs(1);

/// Interval of the checks of a folder without events: a file can become executable, and the target of a link can
/// change, without an event.
const QUIET_CHECK: Duration = Duration::from_secs(10);

/// Interval of checks for an absent folder. The watch of its path is not enough: a link in the path
/// may lead outside the watched folders.
const ABSENT_CHECK: Duration = Duration::from_secs(60);

/// First pause before a plugin is started again after an exit or a failed start; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause before a plugin is started again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Run time after which a plugin's next restart waits only for [`FIRST_PAUSE`].
const STEADY: Duration = Duration::from_secs(60);

/// The plugin files to run, by identity (`NN-name`); a `None` makes a plugin's task stop the plugin.
type WantedPlugins = BTreeMap<String, Sender<Option<PluginFile>>>;

/// Keeps the pre-installed plugins running forever.
pub(crate) async fn keep_running(daemon: Rc<Daemon>) {
    let look = || {
        let config = daemon.config();
        // An unreadable folder is checked again later.
        let _counts_as_before = daemon.registry.pre_installed.look(&config);
        plugin::discover(&config.plugin_path, &config.plugin_config_path)
    };
    let (mut wanted, mut logged) = (WantedPlugins::new(), HashSet::new());
    let timer = Timer::new();
    // Watched before each check, so that no event in between is missed.
    let mut watched = watch(&daemon);
    let mut seen = look();
    let (mut done, mut is_busy) = (None, false);
    loop {
        if done.as_ref() != Some(&seen) {
            log_unusable(&seen.1, &mut logged);
            follow(&daemon, &mut wanted, &seen);
            if done.is_none() {
                let daemon = Rc::clone(&daemon);
                // By then each plugin's task has taken over the process that the previous program launched.
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(FOLDER_CHECK).await;
                    resumed::end_forgotten(&daemon).await;
                });
            }
            done = Some(seen.clone());
        }
        // Plugins that still run must be stopped before anything waits for a folder that has just been removed.
        let is_news = wanted.is_empty() && until_there_is_a_folder(&daemon).await
            || until_a_check(&daemon, &mut watched, &timer).await;
        if is_busy {
            tokio::time::sleep(FOLDER_CHECK).await;
        }
        watched = watch(&daemon);
        loop {
            let before = std::mem::replace(&mut seen, look());
            if seen == before {
                break;
            }
            tokio::time::sleep(FOLDER_CHECK).await;
        }
        // Programs may continuously write other files to this folder; the next check is then delayed.
        is_busy = is_news && done.as_ref() == Some(&seen);
    }
}

/// Waits until the plugin folder exists, or a reload may have named another folder. Returns whether to
/// check the folder now: false if it existed at once, or nothing above it can be watched.
async fn until_there_is_a_folder(daemon: &Daemon) -> bool {
    let path = daemon.config().plugin_path.clone();
    let mut has_waited = false;
    while matches!(presence::exists(&path), Ok(false)) {
        let Some(mut watched) = socket::watch_near(&daemon.watches, &path) else { return false };
        has_waited = true;
        // Checked again under the watch, so that no event in between is missed.
        if !matches!(presence::exists(&path), Ok(false)) {
            break;
        }
        tokio::select! {
            _whatever = watched.next() => tokio::time::sleep(FOLDER_CHECK).await,
            () = daemon.watches.reloaded.notified() => break,
            () = tokio::time::sleep(ABSENT_CHECK) => {}
        }
    }
    has_waited
}

/// Watches the folders of plugins and of their settings.
fn watch(daemon: &Daemon) -> [Option<WatchedFolder>; 2] {
    let config = daemon.config();
    let folders = [&config.plugin_path, &config.plugin_config_path];
    folders.map(|folder| daemon.watches.folders.watch(folder))
}

/// Waits for the next check. Returns whether the folders had an event, or a reload may have named
/// other folders.
async fn until_a_check(
    daemon: &Daemon,
    [plugins, settings]: &mut [Option<WatchedFolder>; 2],
    timer: &Timer,
) -> bool {
    tokio::select! {
        () = socket::something_happens(plugins.as_mut()) => true,
        () = socket::something_happens(settings.as_mut()) => true,
        () = daemon.watches.reloaded.notified() => true,
        () = timer.sleep(QUIET_CHECK) => false,
    }
}

/// Logs the first [`limits::LISTED`] unusable files and how many others there are; repeats a line only
/// if the previous check did not have it.
fn log_unusable(unusable: &[Unusable], logged: &mut HashSet<String>) {
    let what = "in the plugin folder cannot be used";
    let lines = limits::listed(unusable.iter().map(ToString::to_string), "file", what);
    for line in lines.iter().filter(|line| !logged.contains(*line)) {
        warn!("{line}");
    }
    *logged = lines.into_iter().collect();
}

/// Starts, stops and restarts plugins to match the folders.
fn follow(
    daemon: &Rc<Daemon>,
    wanted: &mut WantedPlugins,
    seen: &(Vec<PluginFile>, Vec<Unusable>),
) {
    wanted.retain(|id, sender| {
        let stays = stays(id, seen);
        if !stays {
            info!("the file of {id} was removed");
            sender.send_replace(None);
        }
        stays
    });
    for file in &seen.0 {
        let id = file.id();
        if let Some(sender) = wanted.get(&id) {
            let is_new = sender.borrow().as_ref() != Some(file);
            if is_new {
                info!("{id} or its configuration has changed: starting the new one beside it");
                sender.send_replace(Some(file.clone()));
            }
        } else {
            let (sender, wanted_file) = channel(Some(file.clone()));
            wanted.insert(id, sender);
            let record = daemon.registry.roster.launches(&file.index, &file.name);
            tokio::task::spawn_local(keep_plugin(Rc::clone(daemon), wanted_file, record));
        }
    }
}

/// Whether a plugin keeps running: its file exists, or the folder, the file or its configuration is
/// unreadable now.
fn stays(id: &str, (found, unusable): &(Vec<PluginFile>, Vec<Unusable>)) -> bool {
    let may_be_it = |file: &Unusable| match file.kind {
        UnusableKind::Folder => true,
        UnusableKind::Plugin => file.path.ends_with(id),
        UnusableKind::NotExecutable
        | UnusableKind::Misnamed
        | UnusableKind::Dangling
        | UnusableKind::NoPlugin => false,
    };
    found.iter().any(|file| file.id() == id) || unusable.iter().any(may_be_it)
}

/// Keeps one plugin running until its file is removed or the daemon ends.
async fn keep_plugin(
    daemon: Rc<Daemon>,
    mut wanted_file: Receiver<Option<PluginFile>>,
    record: Rc<LaunchRecord>,
) {
    let mut pauses = Pauses::default();
    let mut current = LaunchedRun::before(&daemon, &record);
    let mut id = String::new();
    loop {
        let Some(file) = wanted_file.borrow_and_update().clone() else { break };
        if daemon.process.is_ending.get() {
            return;
        }
        id = file.id();
        let begun = Instant::now();
        if current.as_ref().is_none_or(|run| run.file != file) {
            let started = LaunchedRun::start(&daemon, &file, &mut wanted_file, &record).await;
            current = which_stays(current, started).await;
            if let Some(run) = &current {
                let is_outdated = run.file != file;
                record.record_file(&run.file, is_outdated);
                if is_outdated {
                    let id = file.id();
                    warn!(
                        plugin = id,
                        "{id} still runs the program and configuration from before its file changed"
                    );
                }
            }
        }
        if let Some(run) = current.as_mut().filter(|run| run.file == file) {
            tokio::select! {
                () = run.wait_until_ended() => current = None,
                _ = wanted_file.changed() => {}
            }
        }
        if daemon.process.is_ending.get() {
            return;
        }
        let is_changed = wanted_file.borrow().as_ref() != Some(&file);
        if is_changed || current.is_none() && give_way(&daemon, &file, &mut wanted_file).await {
            pauses = Pauses::default();
            continue;
        }
        let pause = pauses.after(begun.elapsed());
        record.starts_again_in(pause);
        let (id, seconds) = (file.id(), pause.as_secs());
        match &current {
            Some(_) => info!("starting the changed {id} again in {seconds} s; the old one stays"),
            None => info!("restarting {id} in {seconds} s"),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = end_of(&mut current) => current = None,
            _ = wanted_file.changed() => pauses = Pauses::default(),
        }
    }
    if let Some(run) = current {
        run.end(&daemon, "its file is gone").await;
    }
    daemon.registry.returning.expect_no_longer(&id);
}

/// Waits for the end of a run; without a run, forever.
async fn end_of(run: &mut Option<LaunchedRun>) {
    match run {
        Some(run) => run.wait_until_ended().await,
        None => std::future::pending().await,
    }
}

/// Returns the run that stays: the new one if the old one has ended, or once it has replaced the old one;
/// else the old one if it still runs.
async fn which_stays(
    before: Option<LaunchedRun>,
    started: Option<LaunchedRun>,
) -> Option<LaunchedRun> {
    let before = before.filter(|run| !run.has_ended());
    let Some(mut started) = started else { return before };
    let Some(before) = before else { return Some(started) };
    if started.wait_until_synchronized().await {
        // The old run ends after its last response.
        return Some(started);
    }
    started.wait_until_ended().await;
    Some(before).filter(|run| !run.has_ended())
}

/// Waits while an external process is connected under the name of a plugin with `displace = "any"`:
/// the two would replace each other repeatedly. Returns whether such a process was connected.
async fn give_way(
    daemon: &Daemon,
    file: &PluginFile,
    wanted_file: &mut Receiver<Option<PluginFile>>,
) -> bool {
    let id = file.id();
    if daemon.registry.pre_installed.owns(&id) {
        return false; // The file owns the name, so no external process competes for it.
    }
    let Some(other) = daemon.registry.find(&id) else { return false };
    let name = process_name(other.pid());
    info!("{id} is restarted only after {name}, which took its place, disconnects");
    tokio::select! {
        _why = other.closed() => {}
        _ = wanted_file.changed() => return true,
    }
    daemon.registry.returning.expect(&id, daemon.config().registration_timeout);
    true
}

#[derive(Debug)]
struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl Pauses {
    /// Returns the pause after a run of this length.
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
    fn a_plugin_keeps_running_while_its_folder_is_unreadable() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("folder");
        std::os::unix::fs::symlink("folder", &folder).unwrap();
        assert!(stays("10-a", &plugin::discover(&folder, temp.path())));
        std::os::unix::fs::symlink("10-a", temp.path().join("10-a")).unwrap();
        assert!(stays("10-a", &plugin::discover(temp.path(), temp.path())));
        assert!(!stays("10-b", &plugin::discover(temp.path(), temp.path())));
        std::fs::remove_file(temp.path().join("10-a")).unwrap();
        assert!(!stays("10-a", &plugin::discover(temp.path(), temp.path())));
    }

    #[test]
    fn pauses_double_up_to_a_minute_and_a_steady_run_resets_them() {
        let mut pauses = Pauses::default();
        let short = Duration::from_secs(59);
        let seconds: Vec<u64> = (0..8).map(|_| pauses.after(short).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses.after(Duration::from_secs(60)), FIRST_PAUSE);
        assert_eq!(pauses.after(short).as_secs(), 2);
    }
}
