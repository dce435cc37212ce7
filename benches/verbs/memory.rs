// SPDX-License-Identifier: Apache-2.0
//! Memory of a process: resident pages, which depend on the page cache too, and private pages, which no
//! other process shares.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::Place;

/// Memory of a process, in KiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) resident: f64,
    /// Pages that it has written. Pages of its program do not count, even if no other process has the
    /// program open at the moment.
    pub(crate) private: f64,
}

impl Memory {
    pub(crate) fn of(pid: u32) -> Self {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let kib = |name: &str| -> f64 {
            let line = rollup.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        Self { resident: kib("Rss:"), private: kib("Private_Dirty:") }
    }
}

impl Place {
    /// Returns the wrapper's memory in a whole `create`, when it executes the runtime: `wait4` would include the
    /// process that started it.
    pub(super) fn before_exec(&self) -> Memory {
        let bundle = self.path("bundle").display().to_string();
        let mut child = traced(self.command(&self.binary, &["create", "--bundle", &bundle, "x"]));
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let execve = nix::libc::SYS_execve.to_string();
        // From its beginning it stops before and after each system call.
        loop {
            ptrace::syscall(pid, None).unwrap();
            waitpid(pid, None).unwrap();
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
            if call.split(' ').next() == Some(execve.as_str()) {
                break;
            }
        }
        let memory = Memory::of(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        memory
    }

    /// Memory of a command at its end.
    pub(super) fn at_exit(&self, program: &Path, words: &[&str]) -> Memory {
        let mut child = traced(self.command(program, words));
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        ptrace::setoptions(pid, ptrace::Options::PTRACE_O_TRACEEXIT).unwrap();
        let mut signal = None;
        loop {
            ptrace::cont(pid, signal).unwrap();
            let status = waitpid(pid, None).unwrap();
            if let WaitStatus::PtraceEvent(..) = status {
                break;
            }
            signal =
                if let WaitStatus::Stopped(_, received) = status { Some(received) } else { None };
        }
        let memory = Memory::of(child.id());
        ptrace::detach(pid, None).unwrap();
        child.wait().unwrap();
        memory
    }
}

/// A command that has stopped at its beginning.
#[expect(unsafe_code, reason = "a command that is traced from its beginning")]
fn traced(mut command: Command) -> Child {
    let trace = || ptrace::traceme().map_err(std::io::Error::from);
    // SAFETY: between fork and exec, one system call.
    unsafe { command.pre_exec(trace) };
    let child = command.spawn().unwrap();
    waitpid(Pid::from_raw(i32::try_from(child.id()).unwrap()), None).unwrap();
    child
}
