// SPDX-License-Identifier: Apache-2.0
//! The run directory of a daemon that lives: somebody may wipe it, and wrappers would find nobody,
//! start a second daemon and leave the plugins with the first. What has gone is made anew at once,
//! from what is known. It never polls, but where the kernel has no watch left.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::config::{self, Loaded, SNAPSHOT};
use crate::error::Result;
use crate::files;
use crate::link::REFUSED_DIR;
use crate::plugin::socket::SocketFile;

use crate::daemon::node::{Node, log_failure};
use crate::daemon::plugins::admission;
use crate::daemon::process::sockets::{self, DaemonLock, ForWrappers};
use crate::daemon::recovery::bypassed;
use crate::daemon::watch::folders;
use crate::daemon::watch::pidfd;

/// How often it is looked at when the kernel has no watch left.
const WITHOUT_A_WATCH: Duration = Duration::from_secs(5);

/// How long after a failure it is tried again, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// What of the run directory is this daemon's alone.
pub(crate) struct Home {
    node: Rc<Node>,
    lock: RefCell<DaemonLock>,
    /// The socket's file; none where it is the service manager's.
    socket: Cell<Option<SocketFile>>,
    /// The configuration that could be read last, for wrappers that find a broken one (D7).
    snapshot: Option<String>,
    /// Whoever looks for notes of what went past us.
    following: RefCell<Option<JoinHandle<()>>>,
}

impl Home {
    /// Moves in: sockets and lock are there, and the records.
    pub(crate) fn new(node: &Rc<Node>, lock: DaemonLock, loaded: &Loaded) -> Self {
        let home = Self {
            node: Rc::clone(node),
            lock: RefCell::new(lock),
            socket: Cell::default(),
            snapshot: (!loaded.is_broken() && loaded.config.protection_error.is_none())
                .then(|| config::snapshot_text(&loaded.files)),
            following: RefCell::default(),
        };
        home.keep_snapshot();
        home
    }

    fn keep_snapshot(&self) {
        if let Some(text) = &self.snapshot {
            let path = self.node.config.run_dir.join(SNAPSHOT);
            log_failure("keeping the configuration", files::replace(&path, text.as_bytes()));
        }
    }

    /// Serves wrappers, and looks for the notes of those that went past us.
    pub(crate) fn open(&self, wrappers: ForWrappers) -> Result<()> {
        let listener = crate::daemon::asynchronous(wrappers.listener)?;
        self.socket.set(wrappers.file);
        // Whoever has connected to an earlier socket is served by its own task.
        tokio::task::spawn_local(crate::daemon::accept(Rc::clone(&self.node), listener));
        self.follow();
        Ok(())
    }

    fn follow(&self) {
        let before = self.following.replace(bypassed::follow(&self.node));
        before.iter().for_each(JoinHandle::abort);
    }

    /// Leaves: nobody finds us here any more.
    pub(crate) fn leave(&self) {
        if let Some(file) = self.socket.get() {
            file.remove(&self.node.config.daemon_socket());
        }
    }

    /// Keeps the run directory whole. Ends when another daemon has it.
    pub(crate) async fn keep(&self) {
        let (mut pause, mut is_said) = (PAUSES[0], false);
        loop {
            // Before it is looked at: what goes meanwhile is not missed.
            let events = self.watch();
            if self.is_whole() {
                (pause, is_said) = (PAUSES[0], false);
                wait(events).await;
                continue;
            }
            let said = match self.restore() {
                Ok(()) => "what is known was written again".to_owned(),
                Err(_) if self.has_another() => {
                    return warn!("another daemon has taken over the run directory");
                }
                Err(error) => error.to_string(),
            };
            if !std::mem::replace(&mut is_said, true) {
                self.node.note_failure(&format!("the run directory was deleted; {said}"), "");
            }
            // Whoever wipes may not have finished.
            tokio::time::sleep(pause).await;
            pause = PAUSES[1].min(pause * 2);
        }
    }

    fn watch(&self) -> Option<OwnedFd> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        let wanted = WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let run = &self.node.config.run_dir;
        let watched = [run.clone(), run.join("state")];
        let watched =
            watched.iter().filter(|dir| inotify::add_watch(&events, *dir, wanted).is_ok());
        (watched.count() == 2).then_some(events)
    }

    fn has_lock(&self) -> bool {
        let ours = self.lock.borrow().metadata().ok();
        let there = std::fs::symlink_metadata(self.node.config.daemon_lock()).ok();
        let file = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        ours.map(file).is_some_and(|ours| there.map(file) == Some(ours))
    }

    fn has_socket(&self) -> bool {
        let path = self.node.config.daemon_socket();
        // The service manager's own is its business, as long as there is one.
        self.socket.get().map_or_else(|| path.exists(), |file| file.is_at(&path))
    }

    fn is_whole(&self) -> bool {
        let run = &self.node.config.run_dir;
        self.has_lock()
            && self.has_socket()
            && self.node.store.borrow().is_in_place()
            && run.join("bypassed").is_dir()
            && run.join(REFUSED_DIR).is_dir()
    }

    /// Whether a wrapper found nobody and has started another daemon, before we saw it.
    fn has_another(&self) -> bool {
        !self.has_lock() && sockets::is_locked(&self.node.config)
    }

    fn restore(&self) -> Result<()> {
        let config = &self.node.config;
        if !self.has_lock() {
            // It may be that of a folder that is on its way out: then it is taken once more.
            self.lock.replace(sockets::lock(config)?);
        }
        if !self.has_socket() {
            self.open(sockets::bound(config)?)?;
        }
        if !self.node.store.borrow().is_in_place() {
            self.node.store.borrow_mut().rebuild()?;
            admission::remember_who_is_here(&self.node);
        }
        self.keep_snapshot();
        self.follow();
        info!("{} is complete again", config.run_dir.display());
        Ok(())
    }
}

async fn wait(events: Option<OwnedFd>) {
    match events {
        Some(events) => {
            pidfd::readable(&events).await;
            folders::take_in(&events);
        }
        None => tokio::time::sleep(WITHOUT_A_WATCH).await,
    }
}
