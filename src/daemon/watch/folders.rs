// SPDX-License-Identifier: Apache-2.0
//! Watches folders with one inotify descriptor: a host has few such folders, even with many pods. A
//! watcher receives the names that appear and vanish, and an event if the kernel dropped events.
//! This module reads no file. Reference: inotify(7).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::daemon::watch::pidfd;
use crate::presence::IfThere;

/// The events that every watch requests; one set for all, because a second watch of a folder replaces
/// the events that the first one requested.
const WANTED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// The watch number by which the kernel reports that it dropped events.
const OVERFLOW: i32 = -1;

/// An event in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FolderEvent {
    /// A file of this name appeared, or was written.
    Came(OsString),
    /// The file of this name was removed or moved away.
    Went(OsString),
    /// The folder itself was removed or moved; a new folder at its path is not watched.
    Gone,
    /// The kernel dropped events: the watcher must check the folder itself.
    Unknown,
}

/// All watched folders.
#[derive(Debug, Default)]
pub(crate) struct FolderWatch {
    shared: RefCell<Option<Rc<Shared>>>,
}

#[derive(Debug)]
struct Shared {
    events: Arc<OwnedFd>,
    listeners: RefCell<HashMap<i32, Vec<UnboundedSender<FolderEvent>>>>,
    /// The number of watches that are being added.
    adding: Cell<usize>,
    /// Events for watches that have no listener yet: the folder is gone, or must be checked.
    early: RefCell<BTreeMap<i32, FolderEvent>>,
}

/// A watch that is being added, possibly by another thread.
#[derive(Debug)]
pub(crate) struct NewWatch(Rc<Shared>);

/// Adds a watch, from any thread; `None` if the folder does not exist. The call may hang if the
/// folder is on a file server. A watch without a listener stays until the folder is watched again.
///
/// # Errors
/// Fails if the kernel refuses the watch.
pub(crate) fn add_watch(events: &OwnedFd, folder: &Path) -> Result<Option<i32>, Errno> {
    match inotify::add_watch(events, folder, WANTED) {
        Ok(number) => Ok(Some(number)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A watch of one folder; dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct WatchedFolder {
    number: i32,
    news: UnboundedReceiver<FolderEvent>,
    shared: Rc<Shared>,
}

impl FolderWatch {
    /// Watches a folder; `None` if it does not exist, or the kernel refuses the watch. For callers
    /// that check again anyway or have another source.
    pub(crate) fn watch(&self, folder: &Path) -> Option<WatchedFolder> {
        self.watch_if_there(folder).map_err(io::Error::from).or_absent().flatten()
    }

    /// Watches a folder; `None` if it does not exist, an error if the kernel refuses the watch.
    pub(crate) fn watch_if_there(&self, folder: &Path) -> Result<Option<WatchedFolder>, Errno> {
        let new = self.begin()?;
        Ok(add_watch(&new.events(), folder)?.map(|number| new.listen(number)))
    }

    /// Begins a watch, which [`add_watch`] may add on another thread.
    ///
    /// # Errors
    /// Fails if the kernel has no inotify descriptor left.
    pub(crate) fn begin(&self) -> Result<NewWatch, Errno> {
        let shared = self.shared()?;
        shared.adding.set(shared.adding.get() + 1);
        Ok(NewWatch(shared))
    }

    fn shared(&self) -> Result<Rc<Shared>, Errno> {
        let mut shared = self.shared.borrow_mut();
        if let Some(shared) = shared.as_ref() {
            return Ok(Rc::clone(shared));
        }
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let events = Arc::new(events);
        let new = Rc::new(Shared {
            events,
            listeners: RefCell::default(),
            adding: Cell::default(),
            early: RefCell::default(),
        });
        tokio::task::spawn_local(listen(Rc::clone(&new)));
        *shared = Some(Rc::clone(&new));
        Ok(new)
    }
}

impl NewWatch {
    /// Returns the descriptor for [`add_watch`].
    pub(crate) fn events(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0.events)
    }

    /// Returns the watch that was added under this number, which receives its events from now on.
    pub(crate) fn listen(self, number: i32) -> WatchedFolder {
        let shared = Rc::clone(&self.0);
        let (sender, news) = unbounded_channel();
        let early = shared.early.borrow();
        if let Some(event) = early.get(&number).or_else(|| early.get(&OVERFLOW)) {
            let _is_received_below = sender.send(event.clone());
        }
        drop(early);
        shared.listeners.borrow_mut().entry(number).or_default().push(sender);
        WatchedFolder { number, news, shared }
    }
}

impl Drop for NewWatch {
    fn drop(&mut self) {
        self.0.adding.set(self.0.adding.get().saturating_sub(1));
        if self.0.adding.get() == 0 {
            self.0.early.borrow_mut().clear();
        }
    }
}

impl WatchedFolder {
    /// Returns the next event. Never returns once the kernel has ended the watch and its events were received.
    pub(crate) async fn next(&mut self) -> FolderEvent {
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// Waits until a file appears or the kernel drops events. Returns false if the folder itself is
    /// gone: a new folder at its path is not watched.
    pub(crate) async fn next_arrival(&mut self) -> bool {
        loop {
            match self.next().await {
                FolderEvent::Went(_) => {}
                FolderEvent::Gone => return false,
                FolderEvent::Came(_) | FolderEvent::Unknown => break,
            }
        }
        self.drain();
        true
    }

    /// Waits until a file, or the folder itself, is removed, or the kernel drops events.
    pub(crate) async fn next_departure(&mut self) {
        while matches!(self.next().await, FolderEvent::Came(_)) {}
        self.drain();
    }

    /// Drops events that were not received yet.
    pub(crate) fn drain(&mut self) {
        while self.news.try_recv().is_ok() {}
    }
}

impl Drop for WatchedFolder {
    fn drop(&mut self) {
        self.news.close();
        let mut listeners = self.shared.listeners.borrow_mut();
        let Some(senders) = listeners.get_mut(&self.number) else { return };
        senders.retain(|sender| !sender.is_closed());
        if senders.is_empty() {
            listeners.remove(&self.number);
            let _gone_with_its_folder = inotify::remove_watch(&self.shared.events, self.number);
        }
    }
}

async fn listen(shared: Rc<Shared>) {
    loop {
        pidfd::readable(&shared.events).await;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&shared.events, &mut buffer);
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
            deliver(&shared, event.wd(), event.events(), name);
        }
    }
}

fn deliver(shared: &Shared, number: i32, what: ReadFlags, name: Option<OsString>) {
    let mut listeners = shared.listeners.borrow_mut();
    if shared.adding.get() > 0 && !listeners.contains_key(&number) {
        let mut early = shared.early.borrow_mut();
        let event = early.entry(number).or_insert(FolderEvent::Unknown);
        if name.is_none() && number != OVERFLOW {
            *event = FolderEvent::Gone;
        }
    }
    if what.contains(ReadFlags::QUEUE_OVERFLOW) {
        for sender in listeners.values().flatten() {
            let _watch_dropped = sender.send(FolderEvent::Unknown);
        }
        return;
    }
    let comes = ReadFlags::CREATE | ReadFlags::MOVED_TO | ReadFlags::CLOSE_WRITE;
    let news = match name {
        Some(name) if what.intersects(comes) => FolderEvent::Came(name),
        Some(name) => FolderEvent::Went(name),
        // Only events of the folder itself have no name.
        None => FolderEvent::Gone,
    };
    for sender in listeners.get(&number).into_iter().flatten() {
        let _watch_dropped = sender.send(news.clone());
    }
    if what.contains(ReadFlags::IGNORED) {
        // The kernel may reuse the watch's number.
        listeners.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(tokio::task::LocalSet::new().run_until(test))
    }

    async fn until(watched: &mut WatchedFolder, wanted: &FolderEvent) {
        let received = async { while watched.next().await != *wanted {} };
        tokio::time::timeout(std::time::Duration::from_secs(30), received).await.unwrap();
    }

    #[test]
    fn a_replaced_folder_counts_as_removed() {
        let temp = tempfile::tempdir().unwrap();
        let (home, elsewhere) = (temp.path().join("home"), temp.path().join("elsewhere"));
        local(async {
            let folders = FolderWatch::default();
            for is_moved in [false, true] {
                std::fs::create_dir_all(&home).unwrap();
                let mut watched = folders.watch(&home).unwrap();
                if is_moved {
                    std::fs::rename(&home, &elsewhere).unwrap();
                } else {
                    std::fs::remove_dir(&home).unwrap();
                }
                std::fs::create_dir(&home).unwrap();
                until(&mut watched, &FolderEvent::Gone).await;
            }
        });
    }

    #[test]
    fn removing_an_entry_does_not_remove_the_folder() {
        let temp = tempfile::tempdir().unwrap();
        local(async {
            let mut watched = FolderWatch::default().watch(temp.path()).unwrap();
            std::fs::create_dir(temp.path().join("a")).unwrap();
            std::fs::remove_dir(temp.path().join("a")).unwrap();
            assert_eq!(watched.next().await, FolderEvent::Came("a".into()));
            assert_eq!(watched.next().await, FolderEvent::Went("a".into()));
        });
    }

    #[test]
    fn events_before_a_watch_has_its_listener_are_received() {
        let temp = tempfile::tempdir().unwrap();
        let (kept, gone) = (temp.path().join("kept"), temp.path().join("gone"));
        for folder in [&kept, &gone] {
            std::fs::create_dir(folder).unwrap();
        }
        local(async {
            let folders = FolderWatch::default();
            let mut probe = folders.watch(temp.path()).unwrap();
            let begun = [&kept, &gone].map(|folder| {
                let new = folders.begin().unwrap();
                let number = add_watch(&new.events(), folder).unwrap().unwrap();
                (new, number)
            });
            std::fs::create_dir(kept.join("a")).unwrap();
            std::fs::remove_dir(&gone).unwrap();
            // An event that follows both.
            std::fs::create_dir(temp.path().join("b")).unwrap();
            until(&mut probe, &FolderEvent::Came("b".into())).await;
            let [mut kept, mut gone] = begun.map(|(new, number)| new.listen(number));
            assert_eq!(kept.next().await, FolderEvent::Unknown);
            assert_eq!(gone.next().await, FolderEvent::Gone);
            assert!(kept.shared.early.borrow().is_empty());
        });
    }

    #[test]
    fn watching_a_missing_folder_is_not_an_error() {
        let temp = tempfile::tempdir().unwrap();
        crate::files::replace(&temp.path().join("file"), b"").unwrap();
        local(async {
            for path in ["none", "none/none", "file", "file/none"] {
                let watched = FolderWatch::default().watch_if_there(&temp.path().join(path));
                assert!(matches!(watched, Ok(None)), "{path}: {watched:?}");
            }
            let too_long = temp.path().join("x".repeat(300));
            assert!(FolderWatch::default().watch_if_there(&too_long).is_err());
        });
    }
}
