// SPDX-License-Identifier: Apache-2.0
//! Watching folders: one inotify descriptor for all of them, for a host has few of those and many
//! pods. Whoever watches hears the names that come and go, and when too much has happened to know.
//! It reads no file. Reference: inotify(7).

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::watch;

/// The same for every folder: a second watch of one folder is the first one.
const WANTED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// What has happened in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum News {
    /// Something of this name has come, or has been written.
    Came(OsString),
    /// Something has gone, perhaps the folder itself.
    Went,
    /// More than the kernel could keep: look for yourself.
    Unknown,
}

/// All watched folders.
#[derive(Debug, Default)]
pub(super) struct Folders {
    shared: RefCell<Option<Rc<Shared>>>,
}

#[derive(Debug)]
struct Shared {
    events: OwnedFd,
    listeners: RefCell<HashMap<i32, Vec<UnboundedSender<News>>>>,
}

/// One folder as somebody watches it; it ends with its value.
#[derive(Debug)]
pub(super) struct Watched {
    number: i32,
    news: UnboundedReceiver<News>,
    shared: Rc<Shared>,
}

impl Folders {
    /// Watches a folder; `None` where it is not there, or the kernel has no watch left.
    pub(super) fn watch(&self, folder: &Path) -> Option<Watched> {
        let shared = self.shared()?;
        let number = inotify::add_watch(&shared.events, folder, WANTED).ok()?;
        let (sender, news) = unbounded_channel();
        shared.listeners.borrow_mut().entry(number).or_default().push(sender);
        Some(Watched { number, news, shared })
    }

    fn shared(&self) -> Option<Rc<Shared>> {
        let mut shared = self.shared.borrow_mut();
        if shared.is_none() {
            let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
            let new = Rc::new(Shared { events, listeners: RefCell::default() });
            tokio::task::spawn_local(listen(Rc::clone(&new)));
            *shared = Some(new);
        }
        shared.clone()
    }
}

impl Watched {
    /// The next news; never, once the folder itself has gone and that was told.
    pub(super) async fn next(&mut self) -> News {
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// Forgets what has been told and not heard.
    pub(super) fn drain(&mut self) {
        while self.news.try_recv().is_ok() {}
    }
}

impl Drop for Watched {
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

/// Empties the queue of a descriptor of one's own.
pub(super) fn take_in(events: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut reader = Reader::new(events, &mut buffer);
    while reader.next().is_ok_and(|event| !event.events().contains(ReadFlags::QUEUE_OVERFLOW)) {}
}

async fn listen(shared: Rc<Shared>) {
    loop {
        watch::readable(&shared.events).await;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&shared.events, &mut buffer);
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
            tell(&shared, event.wd(), event.events(), name);
        }
    }
}

fn tell(shared: &Shared, number: i32, what: ReadFlags, name: Option<OsString>) {
    let mut listeners = shared.listeners.borrow_mut();
    if what.contains(ReadFlags::QUEUE_OVERFLOW) {
        for sender in listeners.values().flatten() {
            let _left = sender.send(News::Unknown);
        }
        return;
    }
    let comes = ReadFlags::CREATE | ReadFlags::MOVED_TO | ReadFlags::CLOSE_WRITE;
    let news = match name {
        Some(name) if what.intersects(comes) => News::Came(name),
        Some(_) | None => News::Went,
    };
    for sender in listeners.get(&number).into_iter().flatten() {
        let _left = sender.send(news.clone());
    }
    if what.contains(ReadFlags::IGNORED) {
        // The kernel may give the number away again.
        listeners.remove(&number);
    }
}
