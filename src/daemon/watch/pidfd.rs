// SPDX-License-Identifier: Apache-2.0
//! Watches processes by descriptor: checks whether a process has exited, and waits for its exit without polling.
//!
//! A PID may be reused; PID and start time together identify one process. This module never sends a signal.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::ioctl::{Updater, ioctl, opcode};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::host::Host;
use crate::procfs;
pub(crate) use crate::procfs::{open, open_same, start_time};

/// Interval of checks whether a process has exited, if no event can wake the task.
const UNWATCHED_CHECK: Duration = Duration::from_millis(50);

/// Whether the process has exited, even if its parent has not reaped it.
pub(crate) fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..))
}

/// Whether the process with this PID that started at `start` runs; without a start time, any process with this PID.
///
/// # Errors
/// Fails when the process cannot be examined.
pub(crate) fn runs(host: &Host, pid: u32, start: Option<u64>) -> io::Result<bool> {
    if let Some(start) = start
        && procfs::surely_runs(host, pid, start)?
    {
        return Ok(true);
    }
    let process = open_same(host, pid, start)?;
    Ok(process.is_some_and(|process| !has_ended(&process)))
}

/// Waits until the process has exited.
pub(crate) async fn wait_until_exited(process: &OwnedFd) {
    while !has_ended(process) {
        readable(process).await;
    }
}

/// Waits until the process has exited; forever without its descriptor.
pub(crate) async fn wait_if_open(process: Option<&OwnedFd>) {
    match process {
        Some(process) => wait_until_exited(process).await,
        None => std::future::pending().await,
    }
}

/// Waits like [`wait_until_exited`], without duplicating the descriptor, because thousands of tasks may wait.
pub(crate) async fn ended_alone(process: OwnedFd) -> OwnedFd {
    while !is_readable_later(&process).await && !has_ended(&process) {
        tokio::time::sleep(UNWATCHED_CHECK).await;
    }
    process
}

/// The kernel's report about the exit of a process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProcessExit {
    /// The exit code, or 128 plus the signal.
    Code(i32),
    /// The process's parent has not reaped it yet.
    NotReaped,
    /// The kernel does not report exit codes (before 6.15).
    Unsaid,
}

/// `struct pidfd_info` of linux/pidfd.h, first version.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_INFO_EXIT`.
const EXIT: u64 = 1 << 3;

/// Returns how a process exited; the descriptor must have been opened while the process existed.
#[expect(unsafe_code, reason = "PIDFD_GET_INFO")]
pub(crate) fn ending(process: &OwnedFd) -> ProcessExit {
    let mut info = PidfdInfo { mask: EXIT, ..PidfdInfo::default() };
    // SAFETY: the request number is that of PIDFD_GET_INFO with the size of PidfdInfo, so the
    // kernel writes a PidfdInfo.
    let question =
        unsafe { Updater::<{ opcode::read_write::<PidfdInfo>(0xff, 11) }, _>::new(&mut info) };
    // SAFETY: the kernel writes at most the size in the request number.
    match unsafe { ioctl(process, question) } {
        Ok(()) if info.mask & EXIT != 0 => ProcessExit::Code(match info.exit_code & 0x7f {
            0 => (info.exit_code >> 8) & 0xff,
            signal => 128 + signal,
        }),
        Ok(()) => ProcessExit::NotReaped,
        Err(_) => ProcessExit::Unsaid,
    }
}

/// Waits until the descriptor is readable, as a process's is once the process has exited. If the event
/// loop cannot register the descriptor, this returns after a pause, and the caller checks again.
pub(crate) async fn readable(descriptor: &OwnedFd) {
    if is_readable_later(descriptor).await {
        return;
    }
    // Another task already waits for this descriptor, and the loop registers each one only once.
    match descriptor.try_clone() {
        Ok(copy) if is_readable_later(&copy).await => {}
        _ => tokio::time::sleep(UNWATCHED_CHECK).await,
    }
}

/// Waits until the descriptor is readable; false at once if the event loop cannot register it.
#[expect(unsafe_code, reason = "registering a descriptor with the event loop")]
async fn is_readable_later(descriptor: &OwnedFd) -> bool {
    let number = descriptor.as_raw_fd();
    // SAFETY: the descriptor is borrowed, so it stays open as long as this future and its registration.
    match unsafe { AsyncFd::register_with_interest(number, Interest::READABLE) } {
        Ok(registered) => {
            let _ready = registered.readable().await;
            true
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_own_process_is_alive_and_has_a_start_time() {
        let host = Host::default();
        let start = start_time(&host, std::process::id()).unwrap();
        let own = open_same(&host, std::process::id(), start).unwrap().unwrap();
        assert!(start.is_some() && !has_ended(&own));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "processes that end")]
    fn an_exit_code_is_known_once_the_process_is_reaped() {
        for (script, wanted) in [("exit 3", 3), ("kill -9 $$", 137), ("exit 0", 0)] {
            let mut child =
                std::process::Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
            let process = open(child.id()).unwrap().unwrap();
            while !has_ended(&process) {
                std::thread::sleep(Duration::from_millis(2));
            }
            let before = ending(&process);
            assert!(matches!(before, ProcessExit::NotReaped | ProcessExit::Unsaid), "{before:?}");
            child.wait().unwrap();
            let after = ending(&process);
            // Kernels before 6.15 do not report exit codes.
            assert!(
                after == ProcessExit::Code(wanted) || after == ProcessExit::Unsaid,
                "{after:?}"
            );
        }
    }

    /// Runs in another process, because the limit on descriptors applies to the whole process.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "this test again, and a process that ends")]
    fn without_free_descriptors_no_exit_is_assumed() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        let (variable, of) = ("TEST_WITHOUT_DESCRIPTORS", module_path!());
        if std::env::var_os(variable).is_none() {
            let name = "without_free_descriptors_no_exit_is_assumed";
            let path = format!("{}::{name}", of.split_once("::").unwrap().1);
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let output = again.args(["--exact", &path]).env(variable, "1").output().unwrap();
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && shown.contains("1 passed"), "{shown}");
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut child = std::process::Command::new("/bin/sleep").arg("300").spawn().unwrap();
        let process = open(child.id()).unwrap().unwrap();
        // poll(2) fails with more descriptors than the limit.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 3, hard).unwrap();
        let copied = process.try_clone().is_ok();
        let is_gone = matches!(open(child.id()), Ok(None));
        let second = async {
            let early = tokio::time::timeout(UNWATCHED_CHECK * 3, wait_until_exited(&process))
                .await
                .is_ok();
            let began = tokio::time::Instant::now();
            readable(&process).await;
            (early, began.elapsed())
        };
        let (early, pause) = runtime.block_on(async {
            tokio::select! {
                biased;
                // This wait needs no extra descriptor; a second, concurrent one would.
                () = wait_until_exited(&process) => (true, Duration::ZERO),
                found = second => found,
            }
        });
        child.kill().unwrap();
        runtime.block_on(wait_until_exited(&process));
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
        child.wait().unwrap();
        assert!(!copied && !early && pause >= UNWATCHED_CHECK, "{copied} {early} {pause:?}");
        assert!(!is_gone, "a process that runs counts as gone");
    }
}
