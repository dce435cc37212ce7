// SPDX-License-Identifier: Apache-2.0
//! Writes the lines of the log. Nothing here blocks: a journal, a syslog or a terminal that does
//! not read must never stop the daemon's loop (D53). Lines that cannot be written now wait in a
//! bounded queue; further ones are counted and lost. A socket that its owner binds again is
//! reconnected.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::libc::{O_NOCTTY, O_NOFOLLOW, O_NONBLOCK};

use crate::error::in_our_words;
use crate::limits;
use crate::presence::IfThere;

/// Lines that were lost since this process started.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of lines that were lost, because the queue was full or a write failed.
pub(crate) fn lost() -> u64 {
    LOST.load(Relaxed)
}

/// The destination of lines.
#[derive(Debug)]
pub(super) enum LogTarget {
    /// Standard error, reopened as non-blocking; `None` if it is a file or a socket, which is used
    /// as it is.
    Stderr(Option<File>),
    /// Standard error that could not be reopened: a write could block, so each line is lost.
    Blocking,
    /// The journal or syslog.
    Socket {
        path: PathBuf,
        socket: Option<UnixDatagram>,
        is_journal: bool,
    },
    File {
        path: PathBuf,
        written: Option<u64>,
    },
}

impl LogTarget {
    /// Opens standard error again, because its flags are shared by every process that has it. A
    /// file and a socket need no flags.
    pub(super) fn stderr() -> Self {
        let path = Path::new("/proc/self/fd/2");
        let kind = path.metadata().or_absent().map(|meta| meta.file_type());
        if kind.is_some_and(|kind| kind.is_file() || kind.is_socket()) {
            return Self::Stderr(None);
        }
        let options =
            OpenOptions::new().append(true).custom_flags(O_NONBLOCK | O_NOCTTY).to_owned();
        options.open(path).map_or(Self::Blocking, |reopened| Self::Stderr(Some(reopened)))
    }

    /// Connects a datagram socket; `None` if no process listens there.
    pub(super) fn socket(path: &str, is_journal: bool) -> Option<Self> {
        let path = PathBuf::from(path);
        let socket = Some(connect(&path).ok()?);
        Some(Self::Socket { path, socket, is_journal })
    }

    /// Returns the command or place that shows this output.
    pub(super) fn shown_by(&self) -> String {
        match self {
            Self::Stderr(_) | Self::Blocking => "the standard error of the daemon".to_owned(),
            Self::Socket { is_journal: true, .. } => "journalctl -t nri-runc".to_owned(),
            Self::Socket { is_journal: false, .. } => "the lines of nri-runc in syslog".to_owned(),
            Self::File { path, .. } => format!("tail -n 50 {}", path.display()),
        }
    }

    /// Writes as much of `line` as the reader accepts now; returns the number of bytes.
    fn try_write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stderr(Some(reopened)) => reopened.write(line),
            Self::Stderr(None) => write_to_stderr(line),
            Self::Blocking => Err(io::ErrorKind::Unsupported.into()),
            Self::Socket { path, socket, .. } => send(path, socket, line).map(|()| line.len()),
            Self::File { path, written } => append(path, written, line).map(|()| line.len()),
        }
    }
}

/// Writes to standard error: a file accepts a line at once; on a socket, this one write is
/// non-blocking.
fn write_to_stderr(line: &[u8]) -> io::Result<usize> {
    use nix::sys::socket::{MsgFlags, send};
    let stderr = io::stderr();
    match send(std::os::fd::AsRawFd::as_raw_fd(&stderr.as_fd()), line, MsgFlags::MSG_DONTWAIT) {
        Ok(sent) => Ok(sent),
        Err(nix::errno::Errno::ENOTSOCK) => stderr.lock().write_all(line).map(|()| line.len()),
        Err(errno) => Err(errno.into()),
    }
}

fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect(path)?;
    Ok(socket)
}

/// Sends a datagram; if that fails, sends it through a new connection to the path.
fn send(path: &Path, socket: &mut Option<UnixDatagram>, line: &[u8]) -> io::Result<()> {
    if let Some(connected) = socket {
        match connected.send(line) {
            Ok(_) => return Ok(()),
            // The reader is slow, or another socket has this path while a process keeps the old one
            // open.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_closed) => *socket = None,
        }
    }
    let again = connect(path)?;
    again.send(line)?;
    *socket = Some(again);
    Ok(())
}

fn append(path: &Path, written: &mut Option<u64>, line: &[u8]) -> io::Result<()> {
    let size = written.unwrap_or_else(|| path.metadata().map_or(0, |meta| meta.len()));
    if size > limits::LOG_FILE {
        std::fs::rename(path, path.with_extension("log.old"))?;
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(O_NOFOLLOW | O_NONBLOCK);
    options.open(path)?.write_all(line)?;
    let length = u64::try_from(line.len()).unwrap_or(0);
    *written = Some(if size > limits::LOG_FILE { length } else { size + length });
    Ok(())
}

/// A target with the lines that wait for it.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) target: LogTarget,
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    /// Why the last line could not be written.
    unwritable: Option<String>,
}

impl Output {
    pub(super) fn new(target: LogTarget) -> Self {
        Self { target, queue: VecDeque::new(), queued_bytes: 0, unwritable: None }
    }

    /// Returns why no line can be written now; `None` if lines can be written.
    pub(super) fn failure(&self) -> Option<String> {
        match self.queue.len() {
            0 => self.unwritable.clone(),
            waiting => Some(format!("{waiting} lines wait for a reader")),
        }
    }

    /// Writes or queues a line, or loses it if the queue is full; returns whether lines are queued.
    pub(super) fn put(&mut self, line: Vec<u8>) -> bool {
        let fits = self.queue.len() < limits::LOG_QUEUE
            && self.queued_bytes + line.len() <= limits::LOG_QUEUE_BYTES;
        if fits {
            self.queued_bytes += line.len();
            self.queue.push_back(line);
        } else {
            LOST.fetch_add(1, Relaxed);
        }
        self.flush()
    }

    /// Writes as many lines as possible now, and drops a line whose write fails; returns whether
    /// lines are still queued.
    pub(super) fn flush(&mut self) -> bool {
        while let Some(line) = self.queue.front_mut() {
            let length = line.len();
            match self.target.try_write(line) {
                Ok(written) if written < length => {
                    // The pipe accepted only a part, so the rest of the line is next.
                    line.drain(..written);
                    self.queued_bytes -= written;
                    return true;
                }
                Ok(_) => self.unwritable = None,
                Err(error) if is_unread(&error, &self.target) => return true,
                Err(error) => {
                    LOST.fetch_add(1, Relaxed);
                    self.unwritable = Some(in_our_words(&error));
                }
            }
            self.queued_bytes -= length;
            self.queue.pop_front();
        }
        false
    }
}

/// Whether the line may be accepted later, because the reader is slow or its service is restarting.
fn is_unread(error: &io::Error, target: &LogTarget) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, NotFound, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted)
        || matches!(error.kind(), ConnectionRefused | NotFound)
            && matches!(target, LogTarget::Socket { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_could_block_is_lost_and_counted() {
        let mut output = Output::new(LogTarget::Blocking);
        let before = lost();
        assert!(!output.put(b"line\n".to_vec()) && lost() > before);
    }

    fn file(path: &Path, written: u64) -> Output {
        Output::new(LogTarget::File { path: path.to_owned(), written: Some(written) })
    }

    #[test]
    fn a_log_file_is_rotated_at_its_limit() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("daemon.log");
        crate::files::replace(&path, b"old\n").unwrap();
        assert!(!file(&path, limits::LOG_FILE + 1).put(b"new\n".to_vec()));
        assert_eq!(std::fs::read(&path).unwrap(), b"new\n");
        assert_eq!(std::fs::read(temp.path().join("daemon.log.old")).unwrap(), b"old\n");
    }

    #[test]
    fn a_fifo_in_the_place_of_the_log_file_blocks_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("daemon.log");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let before = lost();
        assert!(!file(&path, 0).put(b"x\n".to_vec()));
        assert!(lost() > before);
    }

    #[test]
    fn log_lines_wait_for_a_slow_journal_and_keep_their_order() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("journal");
        let journal = UnixDatagram::bind(&path).unwrap();
        journal.set_nonblocking(true).unwrap();
        let target = LogTarget::socket(&path.display().to_string(), true).unwrap();
        let (mut output, before) = (Output::new(target), lost());
        let most = 2 * limits::LOG_QUEUE;
        for number in 0..most {
            output.put(number.to_string().into_bytes());
        }
        let lines = output.queue.len();
        assert_eq!(lines, limits::LOG_QUEUE, "the queue is bounded");
        let mut received = Vec::new();
        let mut datagram = [0; 16];
        loop {
            let (waits, before) = (output.flush(), received.len());
            while let Ok(length) = journal.recv(&mut datagram) {
                let number = String::from_utf8_lossy(&datagram[..length]).parse::<usize>();
                received.push(number.unwrap());
            }
            if !waits && received.len() == before {
                break;
            }
        }
        assert!(received.is_sorted() && received.len() > limits::LOG_QUEUE, "{received:?}");
        let missing = u64::try_from(most - received.len()).unwrap();
        assert!(lost() - before >= missing && missing > 0, "{missing}");
    }

    #[test]
    fn waiting_lines_are_sent_once_the_reader_binds_again() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("syslog");
        let first = UnixDatagram::bind(&path).unwrap();
        let mut output =
            Output::new(LogTarget::socket(&path.display().to_string(), false).unwrap());
        assert!(!output.put(b"one".to_vec()));
        drop(first);
        std::fs::remove_file(&path).unwrap();
        assert!(output.put(b"two".to_vec()), "it waits while nothing listens");
        let second = UnixDatagram::bind(&path).unwrap();
        assert!(!output.flush());
        let mut datagram = [0; 16];
        let length = second.recv(&mut datagram).unwrap();
        assert_eq!(&datagram[..length], b"two");
    }

    #[test]
    fn log_lines_reach_a_new_socket_while_the_old_one_is_full() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("syslog");
        let _held = UnixDatagram::bind(&path).unwrap();
        let mut output =
            Output::new(LogTarget::socket(&path.display().to_string(), false).unwrap());
        while !output.put(b"old".to_vec()) {}
        std::fs::remove_file(&path).unwrap();
        assert!(output.flush() && output.failure().is_some_and(|why| why.contains("wait for")));
        let new = UnixDatagram::bind(&path).unwrap();
        assert!(!output.flush() && output.failure().is_none());
        let mut datagram = [0; 16];
        let length = new.recv(&mut datagram).unwrap();
        assert_eq!(&datagram[..length], b"old");
    }

    #[test]
    fn a_line_written_to_a_pipe_in_parts_stays_whole() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(&path).unwrap();
        let writer = OpenOptions::new().append(true).custom_flags(O_NONBLOCK).open(&path).unwrap();
        let mut output = Output::new(LogTarget::Stderr(Some(writer)));
        let line = vec![b'x'; 300_000];
        assert!(output.put(line.clone()), "a pipe holds 64 KiB");
        let mut received = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        while received.len() < line.len() {
            let length = io::Read::read(&mut &reader, &mut buffer).unwrap();
            received.extend_from_slice(&buffer[..length]);
            output.flush();
        }
        assert_eq!(received, line);
    }
}
