// SPDX-License-Identifier: Apache-2.0
//! Processes by descriptor: whether one has ended, and waiting for it, without polling.
//!
//! A pid is only a number; the start time beside it tells a process from a later one of the
//! same number. It never sends a signal.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::files;
use crate::host::Host;

/// Opens a process, if it is there.
pub(super) fn open(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Opens the very process that started at `start`, if it still runs (or is a zombie).
pub(super) fn open_same(host: &Host, pid: u32, start: Option<u64>) -> Option<OwnedFd> {
    let fd = open(pid)?;
    // Checked after opening: from here on the descriptor cannot mean another process.
    (start.is_none() || start_time(host, pid) == start).then_some(fd)
}

/// Whether the process has ended; its parent need not have reaped it.
pub(super) fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..))
}

/// Waits until the process has ended.
pub(super) async fn ended(process: &OwnedFd) {
    readable(process).await;
}

/// The same, where nobody else needs the descriptor: it is not doubled, for thousands may wait.
pub(super) async fn ended_alone(process: OwnedFd) {
    becomes_readable(process).await;
}

/// Waits until there is something to read; of a process, that it has ended.
pub(super) async fn readable(descriptor: &OwnedFd) {
    if let Ok(copy) = descriptor.try_clone() {
        becomes_readable(copy).await;
    }
}

#[expect(unsafe_code, reason = "registering a descriptor with the event loop")]
async fn becomes_readable(descriptor: OwnedFd) {
    let number = descriptor.as_raw_fd();
    // SAFETY: an OwnedFd is open for as long as it lives, which is longer than the registration.
    match unsafe { AsyncFd::register_with_interest(number, Interest::READABLE) } {
        Ok(registered) => {
            let _ready = registered.readable().await;
        }
        // The kernel has no watch left: ask now and then instead.
        Err(_) => {
            while !has_ended(&descriptor) {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

fn stat(host: &Host, pid: u32) -> Option<String> {
    let bytes = files::read_small(&host.path(format!("/proc/{pid}/stat"))).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Start time of a process in clock ticks since boot (field 22 of proc_pid_stat(5)).
pub(super) fn start_time(host: &Host, pid: u32) -> Option<u64> {
    let stat = stat(host, pid)?;
    // The command name may hold blanks and parentheses; the last one ends it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The command line of a process, word by word.
pub(super) fn command_line(host: &Host, pid: u32) -> Vec<Vec<u8>> {
    let bytes = files::read_small(&host.path(format!("/proc/{pid}/cmdline"))).unwrap_or_default();
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if words.is_empty() {
        Vec::new()
    } else {
        words.split(|b| *b == 0).map(<[u8]>::to_vec).collect()
    }
}

/// The parent of a process.
pub(super) fn parent(host: &Host, pid: u32) -> Option<u32> {
    let stat = stat(host, pid)?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_runs_and_has_a_start_time() {
        let host = Host::default();
        let start = start_time(&host, std::process::id());
        let own = open_same(&host, std::process::id(), start).unwrap();
        assert!(start.is_some() && !has_ended(&own));
    }

    #[test]
    fn a_later_process_of_the_same_number_is_not_taken_for_it() {
        assert!(open_same(&Host::default(), std::process::id(), Some(1)).is_none());
    }

    #[test]
    fn a_missing_process_is_none() {
        assert!(open(u32::MAX / 2).is_none());
        assert_eq!(start_time(&Host::default(), u32::MAX / 2), None);
    }
}
