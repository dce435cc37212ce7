// SPDX-License-Identifier: Apache-2.0
//! Determines whether a container's process was started, even if it has exited since: a `run` may
//! end within milliseconds and leave no state.
//!
//! runc's init waits at `exec.fifo` in the container's folder: it opens the fifo for writing, which
//! blocks until the runtime opens it for reading (fifo(7)). If the container fails earlier, the
//! fifo never has a writer. So the folder is watched (inotify(7)) from its creation for a writer
//! that closes the fifo; Linux no longer reports reads from a fifo (seen on 6.18). For runtimes
//! without a fifo the state file decides. This module only reads.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use tracing::warn;

use crate::daemon::watch::pidfd;
use crate::presence::{self, IfThere};

const FIFO: &str = "exec.fifo";

/// Interval of checks until the folder exists. runc takes more than ten milliseconds from making
/// the folder to opening the fifo.
const FOLDER_CHECK: Duration = Duration::from_millis(2);

/// Interval of checks without an event, while the folder is watched.
const FALLBACK_CHECK: Duration = Duration::from_millis(50);

/// A container's folder and the events seen in it.
#[derive(Debug)]
pub(crate) struct StartWatch {
    folder: PathBuf,
    events: Arc<OnceLock<OwnedFd>>,
    is_over: Arc<AtomicBool>,
    has_fifo: bool,
    was_written: bool,
}

impl StartWatch {
    pub(crate) fn new(folder: PathBuf) -> Self {
        let (events, is_over) = Default::default();
        Self { folder, events, is_over, has_fifo: false, was_written: false }
    }

    /// Starts a thread that watches the folder as soon as it exists: the daemon may be busy in the ten
    /// milliseconds before runc opens the fifo. The thread ends when the watch is added, or with this value.
    pub(crate) fn watch_in_background(&self) {
        let (folder, events) = (self.folder.clone(), Arc::clone(&self.events));
        let is_over = Arc::clone(&self.is_over);
        let look = move || {
            while !is_over.load(Ordering::Relaxed) {
                if let Some(found) = watch_folder(&folder) {
                    let _another_was_faster = events.set(found);
                    return;
                }
                std::thread::sleep(FOLDER_CHECK);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("start_watch".to_owned()).spawn(look) {
            warn!(
                "{} cannot be watched in the background, so the container's start is found by polling: {error}",
                self.folder.display()
            );
        }
    }

    /// Reads the events, and returns whether the process was started. `has_init`: the runtime's
    /// state names an init process.
    ///
    /// # Errors
    /// Fails when the container's folder cannot be examined.
    pub(crate) fn check_started(&mut self, has_init: bool) -> io::Result<bool> {
        if self.events.get().is_none()
            && let Some(found) = watch_folder(&self.folder)
        {
            let _or_the_thread_was_faster = self.events.set(found);
        }
        let has_fifo = presence::exists(&self.folder.join(FIFO));
        self.read_events();
        if self.was_written {
            return Ok(true);
        }
        self.has_fifo |= has_fifo?;
        Ok(has_init && !self.has_fifo)
    }

    /// Waits until another check is due; the returned future borrows nothing.
    pub(crate) fn changes(&self) -> impl Future<Output = ()> + use<> {
        let events = self.events.get().and_then(|events| events.try_clone().or_absent());
        async move {
            match events {
                Some(events) => {
                    let _or_not =
                        tokio::time::timeout(FALLBACK_CHECK, pidfd::readable(&events)).await;
                }
                None => tokio::time::sleep(FOLDER_CHECK).await,
            }
        }
    }

    /// Waits for the next event: without polling if the kernel has a watch left, because the wait
    /// may take days. Also returns when the folder is removed.
    pub(crate) fn event(&self) -> impl Future<Output = ()> + use<> {
        let events = self.events.get().and_then(|events| events.try_clone().or_absent());
        async move {
            match events {
                Some(events) => pidfd::readable(&events).await,
                None => tokio::time::sleep(FALLBACK_CHECK).await,
            }
        }
    }

    fn read_events(&mut self) {
        let Some(events) = self.events.get() else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(events, &mut buffer);
        while let Ok(event) = reader.next() {
            if event.file_name().is_some_and(|name| name.to_bytes() == FIFO.as_bytes()) {
                self.has_fifo = true;
                self.was_written |= event.events().contains(ReadFlags::CLOSE_WRITE);
            }
        }
    }
}

impl Drop for StartWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Watches the folder; `None` if it does not exist yet, or the kernel refuses the watch. The caller
/// tries again.
fn watch_folder(folder: &Path) -> Option<OwnedFd> {
    presence::is_dir(folder).or_absent().filter(|is_dir| *is_dir)?;
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
    let events = events.map_err(io::Error::from).or_absent()?;
    // If the fifo was written before the watch, its removal is the only event.
    let wanted = WatchFlags::CLOSE_WRITE | WatchFlags::CREATE | WatchFlags::MOVED_TO;
    let wanted = wanted | WatchFlags::DELETE;
    let added = inotify::add_watch(&events, folder, wanted | WatchFlags::ONLYDIR);
    added.map_err(io::Error::from).or_absent()?;
    Some(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> (Self, StartWatch) {
            let place = Self(tempfile::tempdir().unwrap());
            let start_watch = StartWatch::new(place.folder());
            (place, start_watch)
        }

        fn folder(&self) -> PathBuf {
            self.0.path().join("c1")
        }

        fn make_fifo(&self) {
            let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
            nix::unistd::mkfifo(&self.folder().join(FIFO), mode).unwrap();
        }

        /// Acts like runc at a start: init writes to the fifo, the runtime reads it and removes it.
        fn let_go(&self) {
            let path = self.folder().join(FIFO);
            let mut both = std::fs::File::options().read(true).write(true).open(&path).unwrap();
            both.write_all(b"0").unwrap();
            both.read_exact(&mut [0]).unwrap();
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_container_that_vanished_after_its_start_has_started() {
        let (place, mut start_watch) = Place::new();
        assert!(!start_watch.check_started(false).unwrap());
        std::fs::create_dir(place.folder()).unwrap();
        assert!(!start_watch.check_started(false).unwrap());
        place.make_fifo();
        assert!(!start_watch.check_started(true).unwrap());
        place.let_go();
        std::fs::remove_dir(place.folder()).unwrap();
        assert!(start_watch.check_started(false).unwrap());
    }

    #[test]
    fn a_start_while_the_daemon_is_busy_is_not_missed() {
        let (place, mut start_watch) = Place::new();
        start_watch.watch_in_background();
        std::fs::create_dir(place.folder()).unwrap();
        place.make_fifo();
        while start_watch.events.get().is_none() {
            std::thread::sleep(FOLDER_CHECK);
        }
        place.let_go();
        std::fs::remove_dir(place.folder()).unwrap();
        assert!(start_watch.check_started(false).unwrap());
    }

    #[test]
    fn a_fifo_removed_unopened_does_not_count_as_a_start() {
        let (place, mut start_watch) = Place::new();
        std::fs::create_dir(place.folder()).unwrap();
        place.make_fifo();
        assert!(!start_watch.check_started(true).unwrap());
        std::fs::remove_file(place.folder().join(FIFO)).unwrap();
        assert!(!start_watch.check_started(true).unwrap());
    }

    #[test]
    fn without_a_fifo_an_init_process_counts_as_a_start() {
        let (place, mut start_watch) = Place::new();
        std::fs::create_dir(place.folder()).unwrap();
        assert!(!start_watch.check_started(false).unwrap());
        assert!(start_watch.check_started(true).unwrap());
    }
}
