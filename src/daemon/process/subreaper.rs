// SPDX-License-Identifier: Apache-2.0
//! Lets conmon exit before the daemon. A wrapper starts the daemon as an orphan, and conmon adopts orphans
//! (prctl(2), PR_SET_CHILD_SUBREAPER). When conmon's container has exited, conmon stops adopting
//! and waits for its remaining children: with the daemon among them conmon would stay, with its
//! container's name on its command line, as long as the daemon lives.
//!
//! So a small process is placed between them, conmon's child and the daemon's parent: the stand-in.
//! It exits once it finds that conmon adopts no more orphans; then init becomes the daemon's parent. Only an
//! experiment shows which process adopts orphans: the stand-in makes an orphan when a container has
//! exited, and once a minute. It works with any engine, and is not started if init is the daemon's parent anyway.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::presence::IfThere;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, pipe2, read, write};

/// Pauses before the experiments after a container's exit, in milliseconds: conmon first reads the
/// container's output and writes its exit code.
const PAUSES: [u64; 10] = [0, 5, 10, 20, 40, 80, 160, 320, 640, 1280];

/// The longest time between two experiments, in milliseconds: the daemon may have missed an exit.
const AT_LEAST_EVERY: u16 = 60_000;

/// The daemon's end of the pipe to its stand-in.
#[derive(Debug)]
pub(crate) struct StandIn {
    wake: OwnedFd,
}

impl StandIn {
    /// Resumes the stand-in of the previous program.
    pub(crate) fn resume(wake: OwnedFd) -> Self {
        Self { wake }
    }

    /// Returns the number of the pipe's descriptor, for the next program.
    pub(crate) fn number(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// Reports that a container has exited: its monitor may now be waiting for its children.
    pub(crate) fn wake(&self) {
        // If the pipe is full, the stand-in is already awake; if the pipe has no reader, the
        // stand-in has exited.
        let _either_way = write(&self.wake, b"E");
    }
}

/// Forks: this process becomes the stand-in, and the caller continues in its child. This process must
/// have one thread. Returns `None`, without a fork, if the parent is init or the fork is impossible.
#[expect(unsafe_code, reason = "fork")]
pub(crate) fn stand_aside() -> Option<StandIn> {
    let elder = getppid();
    if elder.as_raw() <= 1 {
        return None;
    }
    let (ends, wake) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).ok()?;
    // SAFETY: this process has one thread, so the child may call any function.
    match unsafe { fork() }.ok()? {
        ForkResult::Child => Some(StandIn { wake }),
        ForkResult::Parent { child } => {
            keep_only(&ends);
            stand_in(elder, child, &ends);
            // SAFETY: ends this process at once; the daemon is another process.
            unsafe { nix::libc::_exit(0) }
        }
    }
}

/// Closes all descriptors above 2 but this one: readers of the others wait for the daemon's end, not this process's.
#[expect(unsafe_code, reason = "closing descriptors by number")]
fn keep_only(descriptor: &OwnedFd) {
    let number = descriptor.as_raw_fd().unsigned_abs();
    for (first, last) in [(3, number.saturating_sub(1)), (number + 1, u32::MAX)] {
        if first <= last {
            // SAFETY: plain system call on numbers; no later code of this process uses the descriptors.
            unsafe { nix::libc::syscall(nix::libc::SYS_close_range, first, last, 0) };
        }
    }
    if std::fs::read_dir("/proc/self/fd").or_absent().is_some_and(|open| open.count() > 5) {
        // Linux before 5.9 has no close_range, so close them one by one.
        for other in (3..1024).filter(|other| *other != number.cast_signed()) {
            // SAFETY: as above.
            let _was_not_open = unsafe { nix::libc::close(other) };
        }
    }
}

/// Waits until the parent no longer adopts orphans, or the daemon has exited.
fn stand_in(elder: Pid, daemon: Pid, ends: &OwnedFd) {
    let _stays_until_the_daemon_ends = set_pdeathsig(Signal::SIGKILL);
    while getppid() == elder && takes_orphans(elder) {
        let mut fds = [PollFd::new(ends.as_fd(), PollFlags::POLLIN)];
        if let Ok(0) = poll(&mut fds, PollTimeout::from(AT_LEAST_EVERY)) {
            continue;
        }
        let mut received = [0_u8; 64];
        if let Ok(0) = read(ends, &mut received) {
            let _reaped = waitpid(daemon, None);
            return;
        }
        for pause in PAUSES {
            std::thread::sleep(Duration::from_millis(pause));
            if !takes_orphans(elder) {
                return;
            }
        }
    }
}

/// Makes an orphan, and returns whether `elder` adopts it; true if the experiment fails.
#[expect(unsafe_code, reason = "fork")]
fn takes_orphans(elder: Pid) -> bool {
    let Ok((answer, report)) = pipe2(OFlag::O_CLOEXEC) else { return true };
    // SAFETY: this process has one thread, and the child ends without returning.
    match unsafe { fork() } {
        Err(_) => true,
        Ok(ForkResult::Child) => {
            let parent = getpid();
            // SAFETY: as above.
            if let Ok(ForkResult::Child) = unsafe { fork() } {
                while getppid() == parent {
                    std::thread::sleep(Duration::from_micros(200));
                }
                let _written = write(&report, if getppid() == elder { b"y" } else { b"n" });
            }
            // SAFETY: ends the child at once, without running this process's exit handlers.
            unsafe { nix::libc::_exit(0) }
        }
        Ok(ForkResult::Parent { child }) => {
            drop(report);
            let _reaped = waitpid(child, None);
            let mut word = [0_u8; 1];
            !matches!(read(&answer, &mut word), Ok(1) if word == *b"n")
        }
    }
}
