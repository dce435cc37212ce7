// SPDX-License-Identifier: Apache-2.0
//! Connects modules of the daemon through queues of container processes to watch and of pods to
//! follow, so that the sending module need not import the receiving one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::daemon::runtime::state_dir;
use crate::daemon::watch::folders::FolderWatch;
use crate::daemon::watch::pidfd;
use crate::daemon::watch::start_watch::StartWatch;
use crate::daemon::watch::writers::WriteWatch;
use crate::host::Host;
use crate::state::{Container, ContainerKey};

/// A queue; its receiving end is taken once.
pub(crate) struct Queue<T> {
    sender: UnboundedSender<T>,
    receiver: RefCell<Option<UnboundedReceiver<T>>>,
    queued: Rc<Cell<usize>>,
}

/// The receiving end of a queue.
pub(crate) struct QueueReceiver<T> {
    receiver: UnboundedReceiver<T>,
    queued: Rc<Cell<usize>>,
}

impl<T> QueueReceiver<T> {
    /// Returns the next piece of work; `None` once all senders are dropped.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        let work = self.receiver.recv().await;
        self.queued.set(self.queued.get().saturating_sub(1));
        work
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let (sender, receiver) = unbounded_channel();
        Self { sender, receiver: RefCell::new(Some(receiver)), queued: Rc::default() }
    }
}

impl<T> Queue<T> {
    /// Queues a piece of work until the receiver takes it.
    pub(crate) fn send(&self, work: T) {
        self.queued.set(self.queued.get() + 1);
        let _the_daemon_is_ending = self.sender.send(work);
    }

    /// Returns the receiving end; `None` on a second call.
    pub(crate) fn receive(&self) -> Option<QueueReceiver<T>> {
        let receiver = self.receiver.borrow_mut().take()?;
        Some(QueueReceiver { receiver, queued: Rc::clone(&self.queued) })
    }

    /// Whether all work was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.get() == 0
    }
}

/// The init process of a container, to be watched until it exits.
pub(crate) struct InitProcess {
    pub(crate) key: Rc<ContainerKey>,
    pub(crate) incarnation: u64,
    /// The process's descriptor; `None` if it has been reaped; an error while its state is unreadable.
    pub(crate) process: io::Result<Option<OwnedFd>>,
    /// A watch of the container's folder, which shows whether the container was started.
    pub(crate) folder: StartWatch,
}

impl InitProcess {
    /// Opens the init process of this container; `None` if no PID is on record. The kernel reports the
    /// exit code only to a descriptor that was opened while the process existed.
    pub(crate) fn open(
        host: &Host,
        key: Rc<ContainerKey>,
        record: &Container,
        folder: Option<StartWatch>,
        watches: &InitWatches,
    ) -> Option<Self> {
        let pid = record.process.init_pid?;
        let process = match watches.take_resumed(record) {
            Some(process) => Ok(process),
            None => pidfd::open_same(host, pid, record.process.init_start),
        };
        let incarnation = record.incarnation;
        let folder = folder.unwrap_or_else(|| StartWatch::new(state_dir::folder(host, &key)));
        Some(Self { key, incarnation, process, folder })
    }

    /// Whether the init process is known to have exited.
    pub(crate) fn has_exited(&self) -> bool {
        matches!(&self.process, Ok(process) if process.as_ref().is_none_or(pidfd::has_ended))
    }
}

/// A container, and the descriptor of its init process.
type WatchedInit = (Rc<ContainerKey>, Option<RawFd>);

/// The watched init processes, and those that the previous program watched.
#[derive(Default)]
pub(crate) struct InitWatches {
    /// The watched processes by incarnation.
    watched: RefCell<HashMap<u64, WatchedInit>>,
    resumed: RefCell<HashMap<(ContainerKey, u64), Option<OwnedFd>>>,
}

impl InitWatches {
    /// Records that an init process is watched until [`end`](Self::end); the caller keeps its
    /// descriptor open until then.
    pub(crate) fn begin(
        &self,
        key: &Rc<ContainerKey>,
        incarnation: u64,
        process: Option<&OwnedFd>,
    ) {
        let number = process.map(AsRawFd::as_raw_fd);
        self.watched.borrow_mut().insert(incarnation, (Rc::clone(key), number));
    }

    /// Ends the watch: the exit of the process is on record.
    pub(crate) fn end(&self, incarnation: u64) {
        self.watched.borrow_mut().remove(&incarnation);
    }

    /// Returns all watched processes, with their descriptors.
    pub(crate) fn all(&self) -> Vec<(ContainerKey, u64, Option<RawFd>)> {
        let watched = self.watched.borrow();
        let rows = watched.iter();
        rows.map(|(incarnation, (key, number))| (ContainerKey::clone(key), *incarnation, *number))
            .collect()
    }

    /// Records that the previous program watched this process.
    pub(crate) fn resume(&self, key: ContainerKey, incarnation: u64, process: Option<OwnedFd>) {
        self.resumed.borrow_mut().insert((key, incarnation), process);
    }

    /// Whether the previous program watched the init process and this one does not watch it yet.
    pub(crate) fn is_resumed(&self, record: &Container) -> bool {
        self.resumed.borrow().contains_key(&(record.key.clone(), record.incarnation))
    }

    /// Takes the process that the previous program watched, without a descriptor if it was reaped.
    fn take_resumed(&self, record: &Container) -> Option<Option<OwnedFd>> {
        self.resumed.borrow_mut().remove(&(record.key.clone(), record.incarnation))
    }
}

/// Events of pods that begin and end without a runtime call.
#[derive(Debug)]
pub(crate) enum PodNews {
    /// From now on, pods that appear without a call are announced.
    LookOut,
    /// RunPodSandbox is about to be sent for this pod.
    Announced(String),
    /// A container of this pod has ended.
    MemberEnded(String),
}

/// The watch of CRI-O's folders (D20).
#[derive(Default)]
pub(crate) struct CrioWatch {
    pub(crate) news: Queue<PodNews>,
    /// Notified whenever a pod's record is removed.
    pub(crate) forgotten: Notify,
    /// The watched folders in which pods appear.
    pub(crate) homes: RefCell<BTreeSet<PathBuf>>,
    /// IDs of new folders whose document is awaited, or whose pod is being announced.
    pub(crate) arriving: RefCell<BTreeSet<String>>,
    /// IDs of pods that appeared while no daemon ran, and are announced with their first container.
    pub(crate) older_than_daemon: RefCell<BTreeSet<String>>,
    /// Whether `install` had recorded CRI-O at any time while this daemon ran.
    pub(crate) was_registered: Cell<bool>,
}

/// The pods whose cgroups are watched, each with the signal that ends its watch.
#[derive(Default)]
pub(crate) struct PodCgroups(RefCell<HashMap<String, Rc<Notify>>>);

impl PodCgroups {
    /// Begins a watch, replacing an earlier one; returns the signal that ends it.
    pub(crate) fn begin(&self, id: &str) -> Rc<Notify> {
        let ended = Rc::new(Notify::new());
        self.end(id);
        self.0.borrow_mut().insert(id.to_owned(), Rc::clone(&ended));
        ended
    }

    /// Ends the watch of this pod, if there is one.
    pub(crate) fn end(&self, id: &str) {
        if let Some(ended) = self.0.borrow_mut().remove(id) {
            ended.notify_one();
        }
    }

    /// Whether the cgroup of this pod is watched.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.0.borrow().contains_key(id)
    }
}

/// The watch of the runtimes' state directories (D65).
#[derive(Default)]
pub(crate) struct NodeScopeWatch {
    /// The watched folders, each with a task.
    pub(crate) watched: RefCell<HashSet<PathBuf>>,
    /// Notified when every directory must be checked.
    pub(crate) again: Notify,
    pub(crate) is_followed: Cell<bool>,
}

/// The daemon's watches, and the queues of work for them.
#[derive(Default)]
pub(crate) struct Watches {
    /// The inotify descriptor of all folder watches, except those of `start_watch.rs`, which have their own.
    pub(crate) folders: FolderWatch,
    /// Init processes to be watched.
    pub(crate) inits: Queue<InitProcess>,
    pub(crate) init_watches: InitWatches,
    pub(crate) crio: CrioWatch,
    pub(crate) node_scope: NodeScopeWatch,
    pub(crate) pod_cgroups: PodCgroups,
    /// Watches writes to the limits of pods' cgroups, with one fanotify group.
    pub(crate) limit_writes: WriteWatch,
    /// Notified when a reload has put a configuration in force.
    pub(crate) reloaded: Notify,
    /// Notified at the same time, for the drift checks, whose interval may have changed.
    pub(crate) drift_reloaded: Notify,
    /// The watched folders in which an engine keeps its containers' folders.
    pub(crate) kept_homes: RefCell<HashSet<PathBuf>>,
}
