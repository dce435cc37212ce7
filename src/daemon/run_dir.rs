// SPDX-License-Identifier: Apache-2.0
//! Keeps the run directory complete while the daemon runs. An administrator or a cleaner may wipe it; then wrappers
//! would find no socket and start a second daemon, while the plugins stay connected to the first. So the daemon
//! restores missing files at once, from its records. A file system mounted over the directory causes no event, so the
//! directory is also checked every two seconds. The policy file for unprivileged users lies beside it.
//!
//! This module never reads a record's content. It imports `shared`, `connections`, `process`, `recovery`, `server` and
//! `watch`.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::config::{self, Loaded, SNAPSHOT, rootless};
use crate::error::Result;
use crate::files;
use crate::link::{BYPASSED_DIR, REFUSED_DIR};
use crate::plugin::socket::SocketFile;
use crate::presence::{self, IfThere};

use crate::daemon::connections::admission;
use crate::daemon::process::sockets::{self, DaemonLock, WrapperSocket};
use crate::daemon::recovery::bypassed;
use crate::daemon::server::drain::Drain;
use crate::daemon::server::session;
use crate::daemon::shared::{Daemon, log_failure};
use crate::daemon::watch::folders::WatchedFolder;
use crate::daemon::watch::timer::Timer;

/// Interval of checks without an event: a mount over the directory causes none, and the kernel may have no watch left.
/// A second daemon waits longer than this interval for the first one to restore its files.
const CHECK: Duration = Duration::from_secs(2);

/// The pauses between attempts to restore: the first and the longest.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// The parts of the run directory that belong to this daemon alone.
pub(crate) struct RunDir {
    daemon: Rc<Daemon>,
    drain: Rc<Drain>,
    lock: RefCell<DaemonLock>,
    /// The socket's file; `None` if the service manager owns it.
    socket: Cell<Option<SocketFile>>,
    /// The descriptor of the socket's listener, which stays open as long as the daemon runs.
    listener: Cell<RawFd>,
    /// The last valid configuration, for wrappers that find an invalid one (D7).
    snapshot: RefCell<Option<String>>,
    /// The task that handles notes of calls that bypassed the daemon.
    following: RefCell<Option<JoinHandle<()>>>,
    /// Whether the policy file for unprivileged users could not be written.
    is_marker_unkept: Cell<bool>,
}

impl RunDir {
    /// Takes over a run directory that already has the daemon's lock and its records.
    pub(crate) fn new(
        daemon: &Rc<Daemon>,
        drain: &Rc<Drain>,
        lock: DaemonLock,
        loaded: &Loaded,
    ) -> Self {
        let run_dir = Self {
            daemon: Rc::clone(daemon),
            drain: Rc::clone(drain),
            lock: RefCell::new(lock),
            socket: Cell::default(),
            listener: Cell::new(-1),
            snapshot: RefCell::default(),
            following: RefCell::default(),
            is_marker_unkept: Cell::default(),
        };
        if loaded.refusal().is_none() || loaded.is_last_good() {
            run_dir.note_configuration(loaded);
        } else {
            daemon.keep_execs_file();
            run_dir.keep_rootless_marker();
        }
        run_dir
    }

    /// Saves the files in force as the last valid configuration.
    pub(crate) fn note_configuration(&self, loaded: &Loaded) {
        self.snapshot.replace(Some(config::snapshot_text(loaded.in_force())));
        self.keep_snapshot();
        self.daemon.keep_execs_file();
        self.keep_rootless_marker();
    }

    /// Writes the policy for unprivileged users, unless the file already has it: `disable` and `enable` change it too.
    /// Reports a failure once.
    fn keep_rootless_marker(&self) {
        let config = self.daemon.config();
        if config.is_of_user() {
            return; // Root's policy applies.
        }
        let kept = rootless::keep(&config.rootless_marker(), config.rootless_policy());
        if kept.is_err() != self.is_marker_unkept.replace(kept.is_err()) {
            log_failure("keeping the policy for users without privileges", kept);
        }
    }

    fn keep_snapshot(&self) {
        if let Some(text) = &*self.snapshot.borrow() {
            let path = self.daemon.config().run_dir.join(SNAPSHOT);
            log_failure("keeping the configuration", files::replace(&path, text.as_bytes()));
        }
    }

    /// Returns the number of the lock's descriptor.
    pub(crate) fn lock_number(&self) -> RawFd {
        self.lock.borrow().as_raw_fd()
    }

    /// Returns the descriptor number on which wrappers are accepted.
    pub(crate) fn listener_number(&self) -> RawFd {
        self.listener.get()
    }

    /// Whether the socket's file is this daemon's.
    pub(crate) fn has_own_socket(&self) -> bool {
        self.socket.get().is_some()
    }

    /// Serves wrappers, and handles the notes of wrappers that bypassed the daemon.
    pub(crate) fn open(&self, wrappers: WrapperSocket) -> Result<()> {
        let listener = sockets::asynchronous(wrappers.listener)?;
        self.socket.set(wrappers.file);
        self.listener.set(listener.as_raw_fd());
        // The task of an earlier socket still serves that socket's open connections.
        tokio::task::spawn_local(session::serve_all(
            Rc::clone(&self.daemon),
            Rc::clone(&self.drain),
            listener,
        ));
        // If the daemon was re-executing, that is over: wrappers receive heartbeats again.
        let _is_gone = std::fs::remove_file(self.daemon.config().reexec_file());
        self.follow();
        Ok(())
    }

    fn follow(&self) {
        let before = self.following.replace(Some(bypassed::follow(&self.daemon)));
        before.iter().for_each(JoinHandle::abort);
    }

    /// Removes the socket's file, so that wrappers find no daemon here.
    pub(crate) fn leave(&self) {
        if let Some(file) = self.socket.get() {
            file.remove(&self.daemon.config().daemon_socket());
        }
    }

    /// Keeps the run directory complete. Returns when another daemon has taken the directory.
    pub(crate) async fn keep_complete(&self) {
        let (mut pause, mut is_reported) = (RETRY_PAUSES[0], false);
        let (mut watched, timer) = (None, Timer::new());
        loop {
            // Watched before the check, so that no removal in between is missed.
            watched = watched.or_else(|| self.watch());
            self.keep_rootless_marker();
            match self.is_whole() {
                Ok(true) => {
                    (pause, is_reported) = (RETRY_PAUSES[0], false);
                    watched = wait(watched, &timer).await;
                    continue;
                }
                Ok(false) => watched = None,
                Err(_unknown) => {
                    tokio::time::sleep(CHECK).await;
                    continue;
                }
            }
            let outcome = match self.restore() {
                Ok(()) => "its files and records were written again".to_owned(),
                Err(_) if self.has_another() => {
                    return warn!("another daemon has taken over the run directory");
                }
                Err(error) => error.to_string(),
            };
            if !std::mem::replace(&mut is_reported, true) {
                self.daemon.report.note_failure(
                    &format!("the run directory was deleted or mounted over; {outcome}"),
                    "",
                );
            }
            // The process that wipes the directory may still be at work.
            tokio::time::sleep(pause).await;
            pause = RETRY_PAUSES[1].min(pause * 2);
        }
    }

    /// Watches the folders; `None` if the kernel has no watch left, or a folder does not exist.
    fn watch(&self) -> Option<[WatchedFolder; 2]> {
        let config = self.daemon.config();
        let run = &config.run_dir;
        let folders = &self.daemon.watches.folders;
        Some([folders.watch(run)?, folders.watch(&run.join("state"))?])
    }

    fn has_lock(&self) -> Result<bool> {
        let ours = self.lock.borrow().metadata()?;
        let there = std::fs::symlink_metadata(self.daemon.config().daemon_lock()).if_there()?;
        let file = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        Ok(there.map(file) == Some(file(ours)))
    }

    fn has_socket(&self) -> Result<bool> {
        let path = self.daemon.config().daemon_socket();
        // The service manager's socket may be bound again; it only has to exist.
        Ok(match self.socket.get() {
            None => presence::exists(&path)?,
            Some(file) => file.is_at(&path)?,
        })
    }

    fn is_whole(&self) -> Result<bool> {
        let config = self.daemon.config();
        let run = &config.run_dir;
        Ok(self.has_lock()?
            && self.has_socket()?
            && self.daemon.records.read().is_in_place()?
            && presence::is_dir(&run.join(BYPASSED_DIR))?
            && presence::is_dir(&run.join(REFUSED_DIR))?)
    }

    /// Whether a wrapper has started another daemon before this daemon noticed the loss.
    fn has_another(&self) -> bool {
        matches!(self.has_lock(), Ok(false)) && sockets::is_locked(&self.daemon.config())
    }

    fn restore(&self) -> Result<()> {
        let config = &self.daemon.config();
        if !self.has_lock()? {
            // The lock may be on a folder that is about to vanish; the next round then locks again.
            self.lock.replace(sockets::try_lock(config)?);
        }
        if !self.has_socket()? {
            self.open(sockets::bound(config)?)?;
        }
        if !self.daemon.records.read().is_in_place()? {
            self.daemon.records.rebuild()?;
            admission::remember_who_is_here(&self.daemon);
        }
        self.keep_snapshot();
        self.daemon.keep_execs_file();
        self.follow();
        info!("{} is complete again", config.run_dir.display());
        Ok(())
    }
}

/// Waits until a file is removed, or until the next check. Returns the watches; `None` if there are
/// none, and after a removal, because the watch of a removed folder is not valid.
async fn wait(
    mut watched: Option<[WatchedFolder; 2]>,
    timer: &Timer,
) -> Option<[WatchedFolder; 2]> {
    let Some([run, state]) = &mut watched else {
        timer.sleep(CHECK).await;
        return None;
    };
    tokio::select! {
        () = run.next_departure() => None,
        () = state.next_departure() => None,
        () = timer.sleep(CHECK) => watched,
    }
}
