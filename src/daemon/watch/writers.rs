// SPDX-License-Identifier: Apache-2.0
//! Watches writes to files and reports the process that wrote, with one fanotify group; inotify
//! does not name the writer. It needs CAP_SYS_ADMIN and Linux 5.15. This module reads no file and
//! no process. Reference: fanotify(7).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};

use crate::daemon::watch::pidfd;

/// Pause between two reads of events, in which the kernel merges those of a process that writes
/// continuously.
const READ_PAUSE: Duration = Duration::from_millis(20);

/// Length in bytes of `struct fanotify_event_metadata`, and of the record after it that has the pidfd.
const METADATA: usize = 24;
const PIDFD_RECORD: usize = 8;

/// `FAN_EVENT_INFO_TYPE_PIDFD`.
const IS_PIDFD: u8 = 4;

/// The process that wrote to a file. Its descriptor proves that the PID still belongs to it.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) pid: u32,
    pub(crate) process: OwnedFd,
}

/// Called at each write with the process that wrote; with `None` if the kernel does not name it or lost events.
type OnWrite = Rc<dyn Fn(Option<&Writer>)>;

/// The listener of a file, and its number: a later listener may replace it.
type Listener = (u64, OnWrite);

/// All watched files.
#[derive(Default)]
pub(crate) struct WriteWatch {
    shared: RefCell<Option<Rc<Shared>>>,
}

struct Shared {
    group: Fanotify,
    /// The same fanotify group, for reading.
    events: OwnedFd,
    /// The listeners, by the file's device and inode.
    listeners: RefCell<HashMap<(u64, u64), Listener>>,
    /// The number of the last listener.
    last: Cell<u64>,
}

/// A watch over one file; dropping it ends the watch.
pub(crate) struct WatchedFile {
    path: PathBuf,
    place: (u64, u64),
    number: u64,
    shared: Rc<Shared>,
}

impl WriteWatch {
    /// Watches a file, replacing an earlier listener; `None` if it does not exist.
    ///
    /// # Errors
    /// Fails if the kernel does not report writers, or refuses the watch.
    pub(crate) fn watch(
        &self,
        path: &Path,
        on_write: impl Fn(Option<&Writer>) + 'static,
    ) -> Result<Option<WatchedFile>, Errno> {
        let shared = self.shared()?;
        let marked =
            shared.group.mark(MarkFlags::FAN_MARK_ADD, MaskFlags::FAN_MODIFY, AT_FDCWD, Some(path));
        let meta = match marked {
            Ok(()) => std::fs::metadata(path).map_err(|error| Errno::from_raw(raw(&error))),
            Err(errno) => Err(errno),
        };
        match meta {
            Ok(meta) => {
                let place = (meta.dev(), meta.ino());
                let number = shared.last.get() + 1;
                shared.last.set(number);
                shared.listeners.borrow_mut().insert(place, (number, Rc::new(on_write)));
                Ok(Some(WatchedFile { path: path.to_owned(), place, number, shared }))
            }
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ENODEV) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn shared(&self) -> Result<Rc<Shared>, Errno> {
        let mut shared = self.shared.borrow_mut();
        if let Some(shared) = shared.as_ref() {
            return Ok(Rc::clone(shared));
        }
        let flags = InitFlags::FAN_CLASS_NOTIF
            | InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_UNLIMITED_MARKS
            | InitFlags::FAN_REPORT_PIDFD;
        let group = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC)?;
        let events = group.as_fd().try_clone_to_owned();
        let events = events.map_err(|error| Errno::from_raw(raw(&error)))?;
        let new =
            Rc::new(Shared { group, events, listeners: RefCell::default(), last: Cell::default() });
        tokio::task::spawn_local(listen(Rc::clone(&new)));
        *shared = Some(Rc::clone(&new));
        Ok(new)
    }
}

fn raw(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::EIO as i32)
}

impl Drop for WatchedFile {
    fn drop(&mut self) {
        let mut listeners = self.shared.listeners.borrow_mut();
        if listeners.get(&self.place).is_none_or(|(number, _)| *number != self.number) {
            return;
        }
        listeners.remove(&self.place);
        // If the file is gone, the kernel has removed the mark.
        let _gone_with_its_file = self.shared.group.mark(
            MarkFlags::FAN_MARK_REMOVE,
            MaskFlags::FAN_MODIFY,
            AT_FDCWD,
            Some(&self.path),
        );
    }
}

async fn listen(shared: Rc<Shared>) {
    loop {
        pidfd::readable(&shared.events).await;
        // Space for many events of 32 bytes.
        let mut buffer = [0; 4096];
        match rustix::io::read(&shared.events, &mut buffer) {
            Ok(length) => events(buffer.get(..length).unwrap_or_default())
                .for_each(|event| deliver(&shared, event)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // The kernel dropped an event, because no descriptor was free.
            Err(_lost) => deliver(&shared, RawEvent { file: -1, pid: 0, process: -1 }),
        }
        tokio::time::sleep(READ_PAUSE).await;
    }
}

/// An event as the kernel wrote it; a negative descriptor means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RawEvent {
    file: RawFd,
    pid: i32,
    process: RawFd,
}

/// Returns the events in these bytes.
fn events(mut bytes: &[u8]) -> impl Iterator<Item = RawEvent> {
    std::iter::from_fn(move || {
        let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes);
        let length = usize::try_from(number(0)?).ok().filter(|length| *length >= METADATA)?;
        let (file, pid) = (number(16)?, number(20)?);
        let has_process =
            length >= METADATA + PIDFD_RECORD && bytes.get(METADATA) == Some(&IS_PIDFD);
        let process = number(METADATA + 4).filter(|_| has_process).unwrap_or(-1);
        bytes = bytes.get(length..).unwrap_or_default();
        Some(RawEvent { file, pid, process })
    })
}

#[expect(unsafe_code, reason = "the descriptors of an event")]
fn owned(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: the kernel opened it for this event's reader, which takes each descriptor once.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn deliver(shared: &Shared, event: RawEvent) {
    let (file, process) = (owned(event.file), owned(event.process));
    let pid = u32::try_from(event.pid).ok().filter(|pid| *pid > 0);
    let writer = pid.zip(process).map(|(pid, process)| Writer { pid, process });
    let Some(file) = file else {
        // Events were lost, so any of the files may have been written.
        let all: Vec<Listener> = shared.listeners.borrow().values().cloned().collect();
        return all.iter().for_each(|(_, on_write)| on_write(None));
    };
    let Ok(stat) = rustix::fs::fstat(&file) else { return };
    let on_write = shared.listeners.borrow().get(&(stat.st_dev, stat.st_ino)).cloned();
    if let Some((_, on_write)) = on_write {
        on_write(writer.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn event(file: i32, pid: i32, process: Option<i32>) -> Vec<u8> {
        let length = METADATA + process.map_or(0, |_| PIDFD_RECORD);
        let mut bytes = u32::try_from(length).unwrap().to_ne_bytes().to_vec();
        bytes.extend([3, 0]);
        bytes.extend(24_u16.to_ne_bytes());
        bytes.extend(2_u64.to_ne_bytes());
        bytes.extend(file.to_ne_bytes());
        bytes.extend(pid.to_ne_bytes());
        if let Some(process) = process {
            bytes.extend([IS_PIDFD, 0]);
            bytes.extend(8_u16.to_ne_bytes());
            bytes.extend(process.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn each_event_is_read_and_a_partial_one_is_dropped() {
        let two = [event(7, 42, Some(8)), event(-1, 0, None)].concat();
        let read: Vec<RawEvent> = events(&two).collect();
        let first = RawEvent { file: 7, pid: 42, process: 8 };
        assert_eq!(read, [first, RawEvent { file: -1, pid: 0, process: -1 }]);
        for length in 0..METADATA {
            assert_eq!(events(&two[..length]).count(), 0, "{length}");
        }
        let mut short = event(7, 42, None);
        short[0] = 3;
        assert_eq!(events(&short).count(), 0, "a length that would never end");
    }

    #[test]
    fn a_write_names_its_process_until_the_watch_is_dropped() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("limit");
        crate::files::replace(&path, b"1").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let seen: Rc<RefCell<Vec<u32>>> = Rc::default();
        let test = async {
            let watch = WriteWatch::default();
            let list = Rc::clone(&seen);
            let watched = watch.watch(&path, move |writer| {
                let writer = writer.unwrap();
                assert!(!pidfd::has_ended(&writer.process) && writer.process.as_raw_fd() >= 0);
                list.borrow_mut().push(writer.pid);
            });
            let Ok(Some(watched)) = watched else {
                // Without CAP_SYS_ADMIN the kernel does not report writers.
                assert_eq!(watched.err(), Some(Errno::EPERM));
                return;
            };
            assert!(watch.watch(&temp.path().join("none"), |_| {}).unwrap().is_none());
            // A later watch of the same file continues to work when the earlier one is dropped.
            let list = Rc::clone(&seen);
            let later =
                watch.watch(&path, move |writer| list.borrow_mut().push(writer.unwrap().pid));
            drop(watched);
            let watched = later.unwrap();
            let write = || {
                let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                std::io::Write::write_all(&mut &file, b"2").unwrap();
            };
            write();
            while seen.borrow().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            drop(watched);
            write();
            tokio::time::sleep(10 * READ_PAUSE).await;
            assert_eq!(*seen.borrow(), [std::process::id()]);
        };
        runtime.block_on(tokio::task::LocalSet::new().run_until(test));
    }
}
