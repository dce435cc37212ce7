// SPDX-License-Identifier: Apache-2.0
//! Records which functions of a program are called, in the order of their first calls:
//! `call_trace OUTPUT FUNCTIONS PROGRAM ARGUMENT...` until the program executes another one, or
//! `call_trace OUTPUT FUNCTIONS --pid PID` for a running process until it receives SIGTERM; OUTPUT then
//! exists, empty, from the moment at which the process is traced. FUNCTIONS lists addresses, a
//! hexadecimal number on each line. A breakpoint at each function stops the program once, so it runs
//! at almost its own speed. For `scripts/hot.sh`; x86-64 only.
#![expect(
    unsafe_code,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a tool for developers, which may panic"
)]

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The instruction `int3`.
const BREAKPOINT: u8 = 0xcc;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let (output, list, program) =
        (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
    let words: Vec<OsString> = words.collect();
    let list = std::fs::read_to_string(list).unwrap();
    let addresses = list.lines().map(|line| u64::from_str_radix(line, 16).unwrap());
    let mut trace = if program == "--pid" {
        let trace = Trace::attach(words[0].to_str().unwrap().parse().unwrap(), addresses);
        std::fs::write(&output, "").unwrap();
        trace
    } else {
        Trace::start(Command::new(program).args(words), addresses)
    };
    let code = trace.follow();
    let called = trace.called.iter().map(|address| format!("{address:016x}\n"));
    std::fs::write(output, called.collect::<String>()).unwrap();
    ExitCode::from(code)
}

struct Trace {
    root: Pid,
    /// The first byte of each function.
    first_bytes: HashMap<u64, u8>,
    /// The threads and processes that have stopped before.
    tracees: HashSet<Pid>,
    called: Vec<u64>,
    /// Whether the program has received SIGTERM: what it calls then is not recorded.
    is_ending: bool,
}

/// Threads are traced too, and so are forked processes, which have the breakpoints in their copy of the memory.
fn options() -> Options {
    Options::PTRACE_O_EXITKILL
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
}

impl Trace {
    fn start(command: &mut Command, functions: impl Iterator<Item = u64>) -> Self {
        // SAFETY: ptrace(2) may be called between fork and exec.
        unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
        let root = Pid::from_raw(command.spawn().unwrap().id().cast_signed());
        waitpid(root, None).unwrap();
        ptrace::setoptions(root, options()).unwrap();
        let trace = Self::plant(root, &[root], functions);
        ptrace::cont(root, None).unwrap();
        trace
    }

    fn attach(pid: i32, functions: impl Iterator<Item = u64>) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let threads: Vec<Pid> = tasks
            .map(|entry| Pid::from_raw(name(entry).to_str().unwrap().parse().unwrap()))
            .collect();
        for thread in &threads {
            ptrace::attach(*thread).unwrap();
            waitpid(*thread, Some(WaitPidFlag::__WALL)).unwrap();
            ptrace::setoptions(*thread, options()).unwrap();
        }
        let trace = Self::plant(Pid::from_raw(pid), &threads, functions);
        for thread in threads {
            ptrace::cont(thread, None).unwrap();
        }
        trace
    }

    /// Sets a breakpoint at each function.
    fn plant(root: Pid, threads: &[Pid], functions: impl Iterator<Item = u64>) -> Self {
        let memory = File::options().read(true).write(true).open(format!("/proc/{root}/mem"));
        let memory = memory.unwrap();
        let mut first_bytes = HashMap::new();
        for address in functions {
            let mut first = [0];
            memory.read_exact_at(&mut first, address).unwrap();
            memory.write_all_at(&[BREAKPOINT], address).unwrap();
            first_bytes.insert(address, first[0]);
        }
        let tracees = threads.iter().copied().collect();
        Self { root, first_bytes, tracees, called: Vec::new(), is_ending: false }
    }

    /// Returns the exit code of the program.
    fn follow(&mut self) -> u8 {
        let mut code = 1;
        loop {
            let status = match waitpid(None, Some(WaitPidFlag::__WALL)) {
                Err(Errno::ECHILD) => return code,
                status => status.unwrap(),
            };
            match status {
                WaitStatus::Exited(pid, of_root) if pid == self.root => {
                    code = u8::try_from(of_root).unwrap_or(1);
                }
                // Another program has no breakpoints, and runs untraced.
                WaitStatus::PtraceEvent(pid, _, event)
                    if event == Event::PTRACE_EVENT_EXEC as i32 =>
                {
                    ptrace::detach(pid, None).unwrap();
                }
                WaitStatus::PtraceEvent(pid, ..) => go_on(pid, None),
                WaitStatus::Stopped(pid, Signal::SIGTRAP) => {
                    self.note_call(pid);
                    go_on(pid, None);
                }
                // A new thread or process begins with a stop.
                WaitStatus::Stopped(pid, Signal::SIGSTOP) if self.tracees.insert(pid) => {
                    go_on(pid, None);
                }
                WaitStatus::Stopped(pid, signal) => {
                    self.is_ending |= signal == Signal::SIGTERM;
                    go_on(pid, Some(signal));
                }
                WaitStatus::Exited(..)
                | WaitStatus::Signaled(..)
                | WaitStatus::PtraceSyscall(_)
                | WaitStatus::Continued(_)
                | WaitStatus::StillAlive => {}
            }
        }
    }

    /// Removes the breakpoint that a thread has reached, and lets the thread execute the instruction.
    fn note_call(&mut self, pid: Pid) {
        let mut registers = ptrace::getregs(pid).unwrap();
        let address = registers.rip.wrapping_sub(1);
        let Some(first) = self.first_bytes.get(&address) else { return };
        // Not in the memory of `root`: a forked process has its own copy.
        let at = address as ptrace::AddressType;
        let mut word = ptrace::read(pid, at).unwrap().to_ne_bytes();
        word[0] = *first;
        ptrace::write(pid, at, i64::from_ne_bytes(word)).unwrap();
        registers.rip = address;
        ptrace::setregs(pid, registers).unwrap();
        // Several threads may have reached it at once.
        if !self.is_ending && !self.called.contains(&address) {
            self.called.push(address);
        }
    }
}

fn go_on(pid: Pid, signal: Option<Signal>) {
    // A process that was killed meanwhile does not exist any more.
    let continued = ptrace::cont(pid, signal);
    assert!(matches!(continued, Ok(()) | Err(Errno::ESRCH)), "{pid}: {continued:?}");
}
