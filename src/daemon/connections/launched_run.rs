// SPDX-License-Identifier: Apache-2.0
//! Handles one run of a pre-installed plugin, from the start of its process to its end. The
//! launcher decides when to start it.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;

use crate::audit::AuditAction;
use crate::plugin::{Launched, Plugin, PluginFile, ProcessLog, Settings};

use crate::daemon::connections::admission;
use crate::daemon::connections::upcalls::{Registration, upcalls};
use crate::daemon::registry::connected::ConnectedPlugin;
use crate::daemon::registry::roster::LaunchRecord;
use crate::daemon::shared::Daemon;
use crate::daemon::watch::pidfd;
use crate::presence::IfThere;

/// Time limit for a stopped plugin's process to exit, including the time after it is killed.
const LEAVING: Duration = Duration::from_secs(3);

/// One run of a pre-installed plugin.
pub(super) struct LaunchedRun {
    /// The file that was executed.
    pub(super) file: PluginFile,
    registration: Registration,
    /// Follows the plugin; ends with the plugin's process, or [`LEAVING`] after its connection.
    task: JoinHandle<()>,
}

impl LaunchedRun {
    /// Returns the run that the previous program of this process started, if it started one.
    pub(super) fn before(daemon: &Rc<Daemon>, record: &LaunchRecord) -> Option<Self> {
        let before = daemon.registry.roster.take_launched_before(&record.id())?;
        record.record_run(&before.file, before.starts, &before.log);
        let registration = Registration::default();
        registration.set(&before.connected);
        let (of_task, connected) = (Rc::clone(daemon), before.connected);
        let process = process_of(connected.connection());
        let task = tokio::task::spawn_local(async move {
            let stays = admission::stay(&of_task, &connected);
            follow_process(stays, process, &connected).await;
        });
        Some(Self { file: before.file, registration, task })
    }

    /// Starts the plugin and waits until it is registered and configured. Returns `None` if the
    /// plugin fails (which is reported) or if its file is changed or removed meanwhile.
    pub(super) async fn start(
        daemon: &Rc<Daemon>,
        file: &PluginFile,
        wanted_file: &mut Receiver<Option<PluginFile>>,
        record: &LaunchRecord,
    ) -> Option<Self> {
        let id = file.id();
        let log = ProcessLog::new(&id);
        record.record_start(file, &log);
        let settings = Settings::of(&daemon.config());
        let identity = (file.index.clone(), file.name.clone());
        let unregistered = daemon.registry.roster.enters(Some(identity), None);
        let registration = Registration::default();
        let upcalls = upcalls(daemon, &unregistered, &registration);
        let started = tokio::select! {
            started = Launched::start(file, &settings, upcalls, &log) => Some(started),
            _ = wanted_file.changed() => None,
        };
        drop(unregistered);
        let plugin = match started {
            Some(Ok(plugin)) => {
                record.note_start(None);
                plugin
            }
            Some(Err(error)) => {
                let why = format!("could not be started: {error}");
                record.note_start(Some(why.clone()));
                daemon.audit_plugin(AuditAction::Rejected, &id, &why);
                daemon.report.note_failure(&format!("{id} {why}"), &id);
                daemon.registry.note_failed(&id);
                return None;
            }
            None => {
                daemon.registry.note_failed(&id);
                return None;
            }
        };
        let task = follow(Rc::clone(daemon), plugin, registration.clone());
        let task = tokio::task::spawn_local(task);
        Some(Self { file: file.clone(), registration, task })
    }

    /// Waits until the plugin is synchronized; false if it disconnects or its process ends before that.
    pub(super) async fn wait_until_synchronized(&mut self) -> bool {
        tokio::select! {
            is_synchronized = self.registration.wait_until_synchronized() => is_synchronized,
            _ended = &mut self.task => false,
        }
    }

    /// Waits until the run has ended.
    pub(super) async fn wait_until_ended(&mut self) {
        if !self.task.is_finished() {
            let _finished = (&mut self.task).await;
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends the plugin: it receives no new request, and has a limited time to answer its pending ones.
    pub(super) async fn end(mut self, daemon: &Daemon, why: &str) {
        match self.registration.connected() {
            Some(connected) => {
                daemon.registry.remove(&connected, why);
                let ended = connected.requests_ended();
                let _in_time = tokio::time::timeout(daemon.config().debug_create_cap, ended).await;
                connected.shutdown(why).await;
            }
            None => self.task.abort(),
        }
        self.wait_until_ended().await;
    }
}

/// Follows a plugin from its synchronization to the end of its process.
async fn follow(daemon: Rc<Daemon>, plugin: Plugin, registration: Registration) {
    let process = process_of(&plugin);
    let registered = admission::admit(&daemon, plugin, None, &registration);
    tokio::pin!(registered);
    tokio::select! {
        () = &mut registered => return wait_until_gone(process.as_ref()).await,
        // A child process of the plugin may keep the connection open after the plugin has exited.
        () = pidfd::wait_if_open(process.as_ref()) => {}
    }
    if let Some(connected) = registration.connected() {
        connected.disconnect("its process has ended");
    }
    registered.await;
    wait_until_gone(process.as_ref()).await;
}

/// Follows a registered plugin like [`follow`]; `stays` ends with the plugin's connection.
async fn follow_process(
    stays: impl Future<Output = ()>,
    process: Option<OwnedFd>,
    connected: &ConnectedPlugin,
) {
    tokio::pin!(stays);
    tokio::select! {
        () = &mut stays => return wait_until_gone(process.as_ref()).await,
        () = pidfd::wait_if_open(process.as_ref()) => {}
    }
    connected.disconnect("its process has ended");
    stays.await;
    wait_until_gone(process.as_ref()).await;
}

fn process_of(plugin: &Plugin) -> Option<OwnedFd> {
    // Without a descriptor of the process, only the connection shows the plugin's end.
    let pid = plugin.pid().and_then(|pid| u32::try_from(pid).ok())?;
    pidfd::open(pid).or_absent()?
}

/// Waits up to a limit until the process is gone, because the plugin's next run may need resources
/// that the process holds.
async fn wait_until_gone(process: Option<&OwnedFd>) {
    if process.is_some() {
        let _killed_by_now = tokio::time::timeout(LEAVING, pidfd::wait_if_open(process)).await;
    }
}
