// SPDX-License-Identifier: Apache-2.0
//! Watches folders: one inotify descriptor for all of them, since a host has few folders and many
//! pods. A watcher receives the names that appear and vanish, and a note when the kernel dropped
//! events. It reads no file. Reference: inotify(7).

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::daemon::watch::pidfd;
use crate::presence::IfThere;

/// The events of every watch: a second watch of one folder would replace the first one's.
const WANTED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// An event in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FolderEvent {
    /// A file of this name appeared, or was written.
    Came(OsString),
    /// The file of this name was removed.
    Went(OsString),
    /// The folder itself was removed or moved: a new one at its path is not watched.
    Gone,
    /// The kernel dropped events: the watcher has to check the folder itself.
    Unknown,
}

/// All watched folders.
#[derive(Debug, Default)]
pub(crate) struct FolderWatch {
    shared: RefCell<Option<Rc<Shared>>>,
}

#[derive(Debug)]
struct Shared {
    events: OwnedFd,
    listeners: RefCell<HashMap<i32, Vec<UnboundedSender<FolderEvent>>>>,
}

/// A watch over one folder; dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct WatchedFolder {
    number: i32,
    news: UnboundedReceiver<FolderEvent>,
    shared: Rc<Shared>,
}

impl FolderWatch {
    /// Watches a folder; `None` if it does not exist, or the kernel has no watch left: for callers
    /// that look again, or have another source.
    pub(crate) fn watch(&self, folder: &Path) -> Option<WatchedFolder> {
        self.watch_if_there(folder).map_err(io::Error::from).or_absent().flatten()
    }

    /// Watches a folder; `None` if it does not exist, an error if the kernel refuses the watch.
    pub(crate) fn watch_if_there(&self, folder: &Path) -> Result<Option<WatchedFolder>, Errno> {
        let shared = self.shared()?;
        let number = match inotify::add_watch(&shared.events, folder, WANTED) {
            Ok(number) => number,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (sender, news) = unbounded_channel();
        shared.listeners.borrow_mut().entry(number).or_default().push(sender);
        Ok(Some(WatchedFolder { number, news, shared }))
    }

    fn shared(&self) -> Result<Rc<Shared>, Errno> {
        let mut shared = self.shared.borrow_mut();
        if let Some(shared) = shared.as_ref() {
            return Ok(Rc::clone(shared));
        }
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let new = Rc::new(Shared { events, listeners: RefCell::default() });
        tokio::task::spawn_local(listen(Rc::clone(&new)));
        *shared = Some(Rc::clone(&new));
        Ok(new)
    }
}

impl WatchedFolder {
    /// The next event; never returns once the folder itself is gone and that was reported.
    pub(crate) async fn next(&mut self) -> FolderEvent {
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// Waits until a file appears, the kernel drops events, or the folder itself is gone: false
    /// then, for a new folder at its path is not watched.
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

    /// Waits until a file is removed, or the folder itself.
    pub(crate) async fn next_departure(&mut self) {
        while matches!(self.next().await, FolderEvent::Came(_)) {}
        self.drain();
    }

    /// Drops the events that were not received yet.
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
        // The kernel may reuse the number.
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
    fn a_folder_that_was_replaced_is_gone_although_its_path_is_there() {
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
    fn what_goes_inside_is_not_the_folder_itself() {
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
    fn a_folder_that_is_not_there_is_no_lack_of_watches() {
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
