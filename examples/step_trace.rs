// SPDX-License-Identifier: Apache-2.0
//! Runs a program instruction by instruction until it executes another one, and records the visited
//! addresses: `step_trace OUTPUT PROGRAM ARGUMENT...`. For `scripts/hot.sh`; it needs no tool, and
//! unlike an emulator it supports every system call. x86-64 only.
#![expect(
    unsafe_code,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a tool that stops at the first surprise"
)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let (output, program) = (words.next().unwrap(), words.next().unwrap());
    let words: Vec<OsString> = words.collect();
    let mut command = Command::new(program);
    command.args(words);
    // SAFETY: ptrace(2) may be called between fork and exec.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    let child = Pid::from_raw(command.spawn().unwrap().id().cast_signed());
    let mut seen = BTreeSet::new();
    let code = follow(child, &mut seen);
    let mut text = String::new();
    for address in seen {
        writeln!(text, "{address:016x}").unwrap();
    }
    std::fs::write(output, text).unwrap();
    ExitCode::from(code)
}

/// Steps until the program executes another one, which then runs to its end untraced.
fn follow(child: Pid, seen: &mut BTreeSet<u64>) -> u8 {
    let mut is_traced = false;
    loop {
        let signal = match waitpid(child, None).unwrap() {
            WaitStatus::Exited(_, code) => return u8::try_from(code).unwrap_or(1),
            WaitStatus::PtraceEvent(_, _, event) if event == Event::PTRACE_EVENT_EXEC as i32 => {
                ptrace::detach(child, None).unwrap();
                continue;
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) if !is_traced => {
                ptrace::setoptions(child, Options::PTRACE_O_TRACEEXEC).unwrap();
                is_traced = true;
                None
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) => None,
            WaitStatus::Stopped(_, signal) => Some(signal),
            WaitStatus::Signaled(..)
            | WaitStatus::PtraceEvent(..)
            | WaitStatus::PtraceSyscall(_)
            | WaitStatus::Continued(_)
            | WaitStatus::StillAlive => return 1,
        };
        seen.insert(ptrace::getregs(child).unwrap().rip);
        ptrace::step(child, signal).unwrap();
    }
}
