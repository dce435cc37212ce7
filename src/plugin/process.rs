// SPDX-License-Identifier: Apache-2.0
//! Logs the output and exit of a launched plugin.
//!
//! Log lines have the plugin's name, and the last lines are kept for the command `plugins`. If a plugin
//! prints endlessly, only some of its lines are logged, and it never blocks on a full pipe.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::clock;
use crate::limits;
use crate::text::printable;

const PERIOD: Duration = Duration::from_secs(10);

/// Output and exit of one launched process.
#[derive(Debug)]
pub(crate) struct ProcessLog {
    id: String,
    tail: Mutex<OutputTail>,
    exit: Mutex<Option<String>>,
    is_read: Mutex<bool>,
    /// The beginning of an unfinished line, and the descriptor from which the rest is read.
    lines: Mutex<Lines>,
    pipe: Mutex<Option<RawFd>>,
    changed: Notify,
}

impl ProcessLog {
    /// Creates the log of the plugin `NN-name`.
    pub(crate) fn new(id: &str) -> Arc<Self> {
        Arc::new(Self {
            id: id.to_owned(),
            tail: Mutex::default(),
            exit: Mutex::default(),
            is_read: Mutex::new(true),
            lines: Mutex::default(),
            pipe: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Returns the last lines that the process printed.
    pub(crate) fn last_words(&self) -> Vec<String> {
        let tail = self.tail();
        let first = tail.len().saturating_sub(limits::PLUGIN_LAST_LINES);
        tail.into_iter().skip(first).map(|(_, line)| line).collect()
    }

    /// Returns all kept lines, each with its Unix time in nanoseconds.
    pub(crate) fn tail(&self) -> Vec<(i64, String)> {
        self.tail.lock().map(|tail| tail.lines.iter().cloned().collect()).unwrap_or_default()
    }

    /// Returns how the process ended, if it has.
    pub(crate) fn exit(&self) -> Option<String> {
        self.exit.lock().ok().and_then(|exit| exit.clone())
    }

    /// Waits, up to a limit, until the process has ended and its output was read.
    pub(super) async fn is_over(&self, limit: Duration) {
        let over = async {
            loop {
                let changed = self.changed.notified();
                if self.exit().is_some() && self.is_read.lock().is_ok_and(|is_read| *is_read) {
                    return;
                }
                changed.await;
            }
        };
        let _whatever_is_known = tokio::time::timeout(limit, over).await;
    }

    /// Records how the process ended. `by_itself`: the daemon did not end it.
    pub(super) fn note_exit(&self, status: ExitStatus, by_itself: bool) {
        let how = describe_exit(status);
        let text = if by_itself { how } else { format!("ended by nri-runc ({how})") };
        if by_itself {
            warn!(plugin = self.id, "{}: its process has ended: {text}", self.id);
        } else {
            info!(plugin = self.id, "{}: its process was {text}", self.id);
        }
        if let Ok(mut exit) = self.exit.lock() {
            *exit = Some(text);
        }
        self.changed.notify_waiters();
    }

    /// Saves the pipe and the unfinished line.
    pub(super) fn save(&self) -> (Option<RawFd>, Vec<u8>) {
        let pipe = self.pipe.lock().ok().and_then(|pipe| *pipe);
        let line = self.lines.lock().map(|lines| lines.line.clone());
        (pipe, line.unwrap_or_default())
    }

    /// Takes over the output of a plugin's process that the daemon started before it re-executed.
    pub(super) fn resume(
        self: &Arc<Self>,
        tail: Vec<(i64, String)>,
        line: Vec<u8>,
        pipe: Option<OwnedFd>,
    ) {
        if let Ok(mut kept) = self.tail.lock() {
            tail.iter().for_each(|(at, line)| kept.push(*at, line));
        }
        if let Ok(mut lines) = self.lines.lock() {
            lines.line = line;
        }
        pipe.into_iter().for_each(|pipe| self.read_from(pipe));
    }

    /// Starts to log the output of the pipe, until its last writer is gone.
    pub(super) fn read_from(self: &Arc<Self>, pipe: OwnedFd) {
        let number = pipe.as_raw_fd();
        let Ok(pipe) = Receiver::from_owned_fd(pipe) else { return };
        if let Ok(mut slot) = self.pipe.lock() {
            *slot = Some(number);
        }
        self.set_read(false);
        tokio::spawn(Arc::clone(self).read(pipe));
    }

    fn set_read(&self, is_read: bool) {
        if let Ok(mut slot) = self.is_read.lock() {
            *slot = is_read;
        }
        self.changed.notify_waiters();
    }

    async fn read(self: Arc<Self>, mut pipe: Receiver) {
        let mut budget = Budget::new();
        let mut buffer = vec![0_u8; 4096];
        while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
            let lines = self.lines.lock().map(|mut lines| lines.split(&buffer[..length]));
            for line in lines.unwrap_or_default() {
                self.log(&line, &mut budget);
            }
            // A plugin that prints continuously must not block the loop.
            tokio::task::yield_now().await;
        }
        if let Ok(mut slot) = self.pipe.lock() {
            *slot = None;
        }
        if let Some(line) = self.lines.lock().ok().and_then(|mut lines| lines.rest()) {
            self.log(&line, &mut budget);
        }
        self.set_read(true);
    }

    fn log(&self, line: &str, budget: &mut Budget) {
        if let Ok(mut tail) = self.tail.lock() {
            tail.push(clock::now(), line);
        }
        let (may_log, left_out) = budget.take(Instant::now());
        if left_out > 0 {
            warn!(plugin = self.id, "{}: {left_out} lines of its output were left out", self.id);
        }
        if may_log {
            info!(plugin = self.id, "{}: {line}", self.id);
        }
    }
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => match Signal::try_from(signal) {
            Ok(name) => format!("signal {signal} ({name})"),
            Err(_) => format!("signal {signal}"),
        },
        (None, None) => status.to_string(),
    }
}

/// The last lines, and their total length.
#[derive(Debug, Default)]
struct OutputTail {
    lines: VecDeque<(i64, String)>,
    bytes: usize,
}

impl OutputTail {
    fn push(&mut self, at: i64, line: &str) {
        self.bytes += line.len();
        self.lines.push_back((at, line.to_owned()));
        while self.lines.len() > limits::PLUGIN_TAIL_LINES || self.bytes > limits::PLUGIN_TAIL_BYTES
        {
            let Some((_, oldest)) = self.lines.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }
}

/// Splits bytes into lines of a limited length.
#[derive(Debug, Default)]
struct Lines {
    line: Vec<u8>,
    is_cut: bool,
}

impl Lines {
    fn split(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for byte in bytes {
            if *byte == b'\n' {
                lines.extend(self.rest());
            } else if self.line.len() < limits::PLUGIN_LINE {
                self.line.push(*byte);
            } else {
                self.is_cut = true;
            }
        }
        lines
    }

    /// Returns the line so far; `None` for an empty one.
    fn rest(&mut self) -> Option<String> {
        let (line, is_cut) = (std::mem::take(&mut self.line), std::mem::take(&mut self.is_cut));
        let line = String::from_utf8_lossy(&line).replace('\t', " ");
        let mut text = printable(line.trim_ascii_end());
        if is_cut {
            text.push_str(" […]");
        }
        (!text.is_empty()).then_some(text)
    }
}

/// The number of lines logged and omitted in this period.
struct Budget {
    begun: Instant,
    used: u32,
    left_out: u64,
}

impl Budget {
    fn new() -> Self {
        Self { begun: Instant::now(), used: 0, left_out: 0 }
    }

    /// Returns whether the next line may be logged, and how many were omitted in a period that is
    /// now over.
    fn take(&mut self, now: Instant) -> (bool, u64) {
        let mut left_out = 0;
        if now.saturating_duration_since(self.begun) >= PERIOD {
            left_out = std::mem::take(&mut self.left_out);
            (self.begun, self.used) = (now, 0);
        }
        let may_log = self.used < limits::PLUGIN_LINES;
        if may_log {
            self.used += 1;
        } else {
            self.left_out += 1;
        }
        (may_log, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_output_is_split_into_lines_and_long_ones_are_cut() {
        let mut lines = Lines::default();
        assert_eq!(lines.split(b"one\ntw"), ["one"]);
        assert_eq!(lines.split(b"o\n\n\r\n"), ["two"]);
        let long = [vec![b'x'; 3 * limits::PLUGIN_LINE], b"\nnext".to_vec()].concat();
        let cut = lines.split(&long);
        assert_eq!((cut.len(), cut[0].len()), (1, limits::PLUGIN_LINE + " […]".len()));
        assert_eq!(lines.rest().as_deref(), Some("next"));
        assert_eq!(lines.rest(), None);
    }

    #[test]
    fn plugin_output_cannot_forge_lines_or_control_a_terminal() {
        let mut lines = Lines::default();
        let split = lines.split("\x1b[2J\u{202e}a\tb\u{9b}\rz\0\u{2028}\n".as_bytes());
        assert_eq!(split, ["\\u{1b}[2J\\u{202e}a b\\u{9b}\\rz\\0\\u{2028}"]);
        assert_eq!(lines.split(b"\xff\xfe\n"), ["\u{fffd}\u{fffd}"]);
    }

    #[test]
    fn the_last_lines_are_kept_however_many_and_long_they_are() {
        let mut tail = OutputTail::default();
        (0..1000).for_each(|number| tail.push(number, &number.to_string()));
        assert_eq!(
            (tail.lines.len(), tail.lines[0].clone()),
            (limits::PLUGIN_TAIL_LINES, (500, "500".to_owned()))
        );
        (0..1000).for_each(|number| tail.push(number, &"\u{1b}".repeat(limits::PLUGIN_LINE)));
        let bytes: usize = tail.lines.iter().map(|(_, line)| line.len()).sum();
        assert_eq!(tail.bytes, bytes);
        assert!(bytes <= limits::PLUGIN_TAIL_BYTES && tail.lines.len() > 100, "{bytes}");
    }

    #[test]
    fn dropped_lines_are_counted_and_reported_in_the_next_period() {
        let mut budget = Budget::new();
        let now = Instant::now();
        let logged = (0..1000).filter(|_| budget.take(now).0).count();
        assert_eq!(logged, usize::try_from(limits::PLUGIN_LINES).unwrap());
        assert_eq!(budget.take(now + PERIOD), (true, 1000 - u64::from(limits::PLUGIN_LINES)));
        assert_eq!(budget.take(now + PERIOD), (true, 0));
    }

    #[test]
    fn an_exit_is_shown_as_a_status_or_a_signal() {
        for (raw, wanted) in
            [(0x300, "exit status 3"), (9, "signal 9 (SIGKILL)"), (0, "exit status 0")]
        {
            assert_eq!(describe_exit(ExitStatus::from_raw(raw)), wanted);
        }
    }
}
