// SPDX-License-Identifier: Apache-2.0
//! Binds the plugin socket as soon as no other process listens at its path, and again once an
//! engine that bound its own socket there has stopped listening (decision D12).
//!
//! The folder is watched by inotify and the other process by its descriptor; other changes are
//! found by slow polling. The daemon never replaces a socket on which a process listens. It never
//! disconnects a plugin because the path was lost.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use crate::daemon::registry::Registry;
use crate::host::Host;
use crate::plugin::socket::{self, Bound, NoPlugins, SocketFile};

use crate::clock::now;
use crate::config::Config;
use crate::daemon::connections::admission;
use crate::daemon::connections::launcher;
use crate::daemon::connections::returning;
use crate::daemon::process::handover;
use crate::daemon::process::sockets::asynchronous;
use crate::daemon::registry::socket::SavedSocket;
use crate::daemon::shared::queues::{PodNews, Watches};
use crate::daemon::shared::{Daemon, log_failure};
use crate::daemon::watch::folders::{FolderEvent, WatchedFolder};
use crate::daemon::watch::pidfd;
use crate::daemon::watch::timer::Timer;
use crate::error::{Error, Result};
use crate::presence::IfThere;

/// Interval at which the path is checked when no event arrives.
const PATH_CHECK: Duration = Duration::from_secs(10);

/// Interval of test connections to the path while the kernel's list of sockets does not show the other process there.
/// The interval is long because an engine logs each connection that registers no plugin.
const CONNECT: Duration = Duration::from_secs(60);

/// Delay before the daemon takes a free path: an engine unlinks the old socket and then binds its
/// own.
const SETTLE: Duration = Duration::from_millis(300);

/// The other process that listens at the path.
struct PathHolder {
    file: Option<SocketFile>,
    process: Option<OwnedFd>,
    pid: Option<i32>,
    is_listed: bool,
    connected: Instant,
}

/// Opens the socket and launches the pre-installed plugins; while another process, such as an engine's
/// own NRI, listens there, the daemon has no plugins.
pub(crate) fn open(daemon: &Rc<Daemon>) {
    let slot = &daemon.registry.socket;
    returning::expect_at_start(daemon);
    slot.since.set(now());
    match socket::for_plugins(&daemon.config()) {
        Ok(bound) => accept(daemon, bound),
        Err(NoPlugins::SwitchedOff) => {
            *slot.problem.borrow_mut() = Some(NoPlugins::SwitchedOff);
            launch(daemon);
            return;
        }
        Err(why) => {
            let and = match &why {
                NoPlugins::Taken(_) => ", and containers are created without plugins",
                NoPlugins::SwitchedOff | NoPlugins::Failed(_) => "",
            };
            warn!("plugins cannot connect{and}: {why}");
            *slot.problem.borrow_mut() = Some(why);
        }
    }
    if daemon.is_bystander() {
        // Plugins connect to the engine now, not to the daemon: no create waits for them, and none
        // is refused without them.
        daemon.registry.returning.expect_none();
        if daemon.config().requires_plugins() {
            warn!("required plugins are not enforced: containers are created without plugins");
        }
    } else {
        launch(daemon);
    }
    keep(daemon);
}

/// Resumes the socket of the previous program.
///
/// # Errors
/// Fails when its descriptor is not open.
pub(crate) fn resume(daemon: &Rc<Daemon>, saved: &SavedSocket) -> Result<()> {
    let slot = &daemon.registry.socket;
    let since = saved.since;
    match (saved.descriptor, saved.file) {
        (Some(descriptor), Some(file)) => {
            accept(daemon, Bound { listener: handover::own(descriptor)?.into(), file });
        }
        _ => match socket::for_plugins(&daemon.config()) {
            Ok(bound) => accept(daemon, bound),
            Err(why) => *slot.problem.borrow_mut() = Some(why),
        },
    }
    slot.since.set(since);
    if saved.was_open {
        launch(daemon);
    }
    if !daemon.config().disable_connections {
        keep(daemon);
    }
    Ok(())
}

/// The change of the plugin socket that another configuration needs.
pub(crate) enum SocketChange {
    /// No change.
    None,
    /// A new mode or group at the same path.
    Mode,
    /// No socket.
    Off,
    /// A socket that is already bound: at another path, or because there was none.
    Bound(Bound),
}

/// Returns the change that the configuration `next` needs. A new socket is already bound; the
/// socket in use stays unchanged.
///
/// # Errors
/// Fails when a socket cannot be opened, or another process listens there.
pub(crate) fn prepare(now: &Config, next: &Config) -> Result<SocketChange> {
    let place = |config: &Config| (!config.disable_connections).then(|| config.socket_path.clone());
    let access = |config: &Config| (config.socket_mode, config.socket_gid);
    match (place(now), place(next)) {
        (Some(before), Some(after)) if before == after && access(now) == access(next) => {
            Ok(SocketChange::None)
        }
        (Some(before), Some(after)) if before == after => Ok(SocketChange::Mode),
        (None, None) => Ok(SocketChange::None),
        (_, None) => Ok(SocketChange::Off),
        (_, Some(_)) => match socket::for_plugins(next) {
            Ok(bound) => Ok(SocketChange::Bound(bound)),
            Err(why) => Err(Error::new(format!("nri.socket_path: {why}"))),
        },
    }
}

/// Drops a prepared socket that is not needed.
pub(crate) fn abandon(change: SocketChange, next: &Config) {
    if let SocketChange::Bound(bound) = change {
        bound.file.remove(&next.socket_path);
    }
}

/// Switches to the prepared socket, once the configuration is in force; `before` is the former
/// path. Connected plugins stay.
pub(crate) fn change(daemon: &Rc<Daemon>, change: SocketChange, before: &Path) {
    let slot = &daemon.registry.socket;
    match change {
        SocketChange::None => {}
        SocketChange::Mode => {
            let config = daemon.config();
            if is_ours(&daemon.registry, &config.socket_path) {
                let set =
                    socket::set_access(&config.socket_path, config.socket_mode, config.socket_gid);
                log_failure("changing the access to the plugin socket", set);
            }
        }
        SocketChange::Off => {
            leave_path(&daemon.registry, before);
            if let Some(task) = slot.keeping.borrow_mut().take() {
                task.abort();
            }
            *slot.problem.borrow_mut() = Some(NoPlugins::SwitchedOff);
            slot.since.set(now());
            launch(daemon);
        }
        SocketChange::Bound(bound) => {
            leave_path(&daemon.registry, before);
            let was_bystander = daemon.is_bystander();
            let was_off = matches!(*slot.problem.borrow(), Some(NoPlugins::SwitchedOff));
            accept(daemon, bound);
            if was_off {
                // Plugins that disconnected meanwhile reconnect, as after a daemon start.
                returning::expect(daemon);
            }
            info!("plugins can connect at {} now", daemon.config().socket_path.display());
            if was_bystander {
                end_standing_by(daemon);
            }
            keep(daemon);
        }
    }
}

/// Stops accepting plugins at the former path.
fn leave_path(registry: &Registry, path: &Path) {
    let slot = &registry.socket;
    if let Some(task) = slot.accepting.borrow_mut().take() {
        task.abort();
    }
    slot.listener.set(None);
    if let Some(file) = slot.file.take() {
        file.remove(path);
    }
}

/// Starts the task that watches the path of the configuration in force.
fn keep(daemon: &Rc<Daemon>) {
    let task = tokio::task::spawn_local(keep_socket(Rc::clone(daemon)));
    if let Some(before) = daemon.registry.socket.keeping.borrow_mut().replace(task) {
        before.abort();
    }
}

fn launch(daemon: &Rc<Daemon>) {
    if daemon.registry.socket.was_open.replace(true) {
        return; // The launcher's tasks already run.
    }
    tokio::task::spawn_local(launcher::keep_running(Rc::clone(daemon)));
}

fn accept(daemon: &Rc<Daemon>, Bound { listener, file }: Bound) {
    let slot = &daemon.registry.socket;
    match asynchronous(listener) {
        Ok(listener) => {
            slot.listener.set(Some(listener.as_raw_fd()));
            let task = tokio::task::spawn_local(admission::serve_all(Rc::clone(daemon), listener));
            if let Some(old) = slot.accepting.borrow_mut().replace(task) {
                old.abort();
            }
            slot.file.set(Some(file));
            *slot.problem.borrow_mut() = None;
        }
        Err(error) => {
            warn!("{error}");
            file.remove(&daemon.config().socket_path);
            *slot.problem.borrow_mut() = Some(NoPlugins::Failed(error.to_string()));
        }
    }
    slot.since.set(now());
}

/// Watches the socket's path, and takes it when no other process listens there. Never ends.
async fn keep_socket(daemon: Rc<Daemon>) {
    let path = daemon.config().socket_path.clone();
    let (mut other, timer) = (None, Timer::new());
    loop {
        // Watched before the check, so that no event in between is missed.
        let mut watched = watch_near(&daemon.watches, &path);
        if !is_ours(&daemon.registry, &path)
            && !still_theirs(&daemon.host, &path, other.as_mut()).await
        {
            other = look_again(&daemon, &path).await;
        }
        let process = other.as_ref().and_then(|other| other.process.as_ref());
        let is_news = tokio::select! {
            () = something_happens(watched.as_mut()) => true,
            () = pidfd::wait_if_open(process) => true,
            () = timer.sleep(PATH_CHECK) => false,
        };
        if is_news {
            tokio::time::sleep(SETTLE).await;
        }
    }
}

/// Watches the folder of the path, else the nearest one above it.
pub(super) fn watch_near(watches: &Watches, path: &Path) -> Option<WatchedFolder> {
    path.ancestors().skip(1).find_map(|folder| watches.folders.watch(folder))
}

/// Waits for an event; without a watch, forever.
pub(super) async fn something_happens(watched: Option<&mut WatchedFolder>) {
    match watched {
        Some(watched) => {
            let _whatever: FolderEvent = watched.next().await;
        }
        None => std::future::pending().await,
    }
}

fn is_ours(registry: &Registry, path: &Path) -> bool {
    // A path that cannot be examined now is not treated as lost.
    registry.socket.file.get().is_some_and(|file| file.is_at(path).unwrap_or(true))
}

/// Whether the other process still listens at the path; also false if only a connection can show that, and the
/// last one was [`CONNECT`] ago.
async fn still_theirs(host: &Host, path: &Path, other: Option<&mut PathHolder>) -> bool {
    let Some(other) = other else { return false };
    let is_there = other.file.is_some_and(|file| file.is_at(path).unwrap_or(true));
    if !is_there || other.process.as_ref().is_some_and(pidfd::has_ended) {
        return false;
    }
    match other.pid.filter(|_| other.is_listed) {
        Some(pid) => is_listed(host, path, pid).await,
        None => other.connected.elapsed() < CONNECT,
    }
}

/// Whether the kernel lists `pid` as a listener at the path. The list may have thousands of lines,
/// so another thread reads it.
async fn is_listed(host: &Host, path: &Path, pid: i32) -> bool {
    let (host, path) = (host.clone(), path.to_owned());
    let listed = tokio::task::spawn_blocking(move || socket::is_listed(&path, pid, &host));
    listed.await.unwrap_or(false)
}

/// Takes the path if no process listens there; else notes why plugins cannot connect.
async fn look_again(daemon: &Rc<Daemon>, path: &Path) -> Option<PathHolder> {
    let file = SocketFile::of(path).or_absent();
    match socket::for_plugins(&daemon.config()) {
        Ok(bound) => {
            take_path(daemon, bound);
            None
        }
        Err(why) => {
            let listener = match &why {
                NoPlugins::Taken(listener) => listener.clone(),
                NoPlugins::SwitchedOff | NoPlugins::Failed(_) => Default::default(),
            };
            note_unavailable(daemon, path, why);
            // Without a descriptor of the process, the path is still checked at intervals.
            let process = listener.pid.and_then(|pid| u32::try_from(pid).ok());
            let process = process.and_then(|pid| pidfd::open(pid).or_absent()?);
            let is_listed = match listener.pid {
                Some(pid) => is_listed(&daemon.host, path, pid).await,
                None => false,
            };
            let (pid, connected) = (listener.pid, Instant::now());
            Some(PathHolder { file, process, pid, is_listed, connected })
        }
    }
}

/// Takes the path, on which no process listens.
fn take_path(daemon: &Rc<Daemon>, bound: Bound) {
    let was_bystander = daemon.is_bystander();
    let config = daemon.config();
    let path = config.socket_path.display();
    accept(daemon, bound);
    if !was_bystander {
        return info!("plugins can connect at {path} again: no other process listened there");
    }
    info!("no process listens on {path} now: plugins can connect, and creates ask them");
    end_standing_by(daemon);
}

/// Ends the bystander mode: from now on plugins connect to the daemon, not to an engine.
fn end_standing_by(daemon: &Rc<Daemon>) {
    // Creates wait for plugins that switch over from the engine, as after a daemon start.
    returning::expect(daemon);
    launch(daemon);
    daemon.notify_crio_watch(PodNews::LookOut);
}

/// Notes why plugins cannot connect to the daemon, and logs the reason if it is new.
fn note_unavailable(daemon: &Daemon, path: &Path, why: NoPlugins) {
    let slot = &daemon.registry.socket;
    if slot.problem.borrow().as_ref() == Some(&why) {
        return;
    }
    let path = path.display();
    let line = match &why {
        NoPlugins::Taken(listener) if slot.was_open.get() => format!(
            "{listener} has taken the plugin socket {path}: connected plugins stay, new ones reach that process; nri-runc takes the socket back when it is free"
        ),
        NoPlugins::Taken(_) | NoPlugins::SwitchedOff | NoPlugins::Failed(_) => {
            format!("plugins cannot connect: {why}")
        }
    };
    daemon.report.note_failure(&line, "");
    slot.since.set(now());
    *slot.problem.borrow_mut() = Some(why);
}
