// SPDX-License-Identifier: Apache-2.0
//! strace, which makes one system call of a process fail (`--inject`), and lists its calls.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::{tools, wait_until};

/// System calls for which no failure is injected: they cannot fail, no kernel returns an error (a
/// failing `close` still closes; refused memory ends a process, as the other tests here do), or
/// strace itself needs them.
const NEVER_FAIL: [&str; 37] = [
    "_exit",
    "arch_prctl",
    "brk",
    "clock_gettime",
    "clock_nanosleep",
    "close",
    "execve",
    "exit",
    "exit_group",
    "futex",
    "getegid",
    "geteuid",
    "getgid",
    "getpid",
    "getppid",
    "getrandom",
    "gettid",
    "getuid",
    "madvise",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "nanosleep",
    "prctl",
    "prlimit64",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_getaffinity",
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
    "sigaltstack",
    "umask",
];

/// System calls for which only an interruption is injected.
const ONLY_INTERRUPTED: [&str; 4] = ["epoll_pwait", "epoll_wait", "poll", "ppoll"];

/// The failures, as strace names them.
pub const ERRORS: [&str; 8] =
    ["EMFILE", "ENFILE", "ENOSPC", "EIO", "EROFS", "EACCES", "ENOMEM", "EINTR"];

/// Whether this call can fail with this error.
pub fn can_fail(call: &str, error: &str) -> bool {
    !NEVER_FAIL.contains(&call) && (error == "EINTR" || !ONLY_INTERRUPTED.contains(&call))
}

/// The path of strace: the machine's own, or that of the tools.
pub fn find() -> Option<PathBuf> {
    let of_machine = Path::new("/usr/bin/strace");
    if of_machine.exists() {
        return Some(of_machine.to_owned());
    }
    tools::find(&["strace"]).map(|folder| folder.join("strace"))
}

/// The injection: this call fails the `nth` time that a thread makes it.
fn injected(call: &str, nth: usize, error: &str) -> [String; 4] {
    let what = format!("inject={call}:error={error}:when={nth}");
    ["-e".to_owned(), format!("trace={call}"), "-e".to_owned(), what]
}

/// The words before a wrapper's command: its calls go to `log` until it executes the runtime.
pub fn around_wrapper(
    strace: &Path,
    log: &Path,
    fault: Option<(&str, usize, &str)>,
) -> Vec<String> {
    // -D: the wrapper stays a child of this process, like the runtime that it executes.
    let mut words = vec![strace.display().to_string(), "-D".into(), "-qq".into()];
    words.extend(["-b", "execve", "-o"].map(str::to_owned));
    words.push(log.display().to_string());
    words.extend(fault.into_iter().flat_map(|(call, nth, error)| injected(call, nth, error)));
    words
}

/// A tracer of a running process and all its threads.
pub struct Attached {
    strace: Child,
    log: PathBuf,
}

impl Attached {
    /// Lists its calls in `log`, and makes one of them fail.
    pub fn to(pid: i32, strace: &Path, log: &Path, fault: Option<(&str, usize, &str)>) -> Self {
        let fault = fault.into_iter().flat_map(|(call, nth, error)| injected(call, nth, error));
        Self::with(pid, strace, log, fault)
    }

    /// Lists its calls in `log`, each descriptor with its object.
    pub fn with_descriptors(pid: i32, strace: &Path, log: &Path) -> Self {
        Self::with(pid, strace, log, ["-y", "-s", "64"].map(str::to_owned))
    }

    fn with(pid: i32, strace: &Path, log: &Path, more: impl IntoIterator<Item = String>) -> Self {
        let mut command = Command::new(strace);
        command.args(["-f", "-qq", "-o"]).arg(log).args(["-p", &pid.to_string()]).args(more);
        let printed = log.with_extension("said");
        let file = std::fs::File::create(&printed).unwrap();
        let mut strace = command.stdin(Stdio::null()).stderr(file).spawn().unwrap();
        let is_traced = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let is_so = status.is_empty() || !status.contains("TracerPid:\t0\n");
            let says = || std::fs::read_to_string(&printed).unwrap_or_default();
            assert!(is_so || strace.try_wait().unwrap().is_none(), "strace has ended: {}", says());
            is_so
        };
        wait_until("strace is attached", is_traced);
        Self { strace, log: log.to_owned() }
    }

    /// Detaches from the process; the log is complete then.
    pub fn detach(mut self) -> String {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.strace.id()).unwrap());
        let _gone = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        self.strace.wait().unwrap();
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Whether the failed call woke a thread of the same process, which no kernel refuses.
pub fn was_wake_up(log: &str) -> bool {
    let is_wake_up = |line: &str| line.contains(r#""\1\0\0\0\0\0\0\0", 8)"#);
    log.lines().any(|line| line.contains("(INJECTED)") && is_wake_up(line))
}

/// The number of each call, by the thread that made it most often.
pub fn counted(log: &str) -> BTreeMap<String, usize> {
    let mut by_thread: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in log.lines() {
        let (thread, rest) = match line.split_once(' ') {
            Some((pid, rest)) if pid.bytes().all(|byte| byte.is_ascii_digit()) => (pid, rest),
            _ => ("", line),
        };
        let Some((name, _)) = rest.trim_start().split_once('(') else { continue };
        if name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        {
            *by_thread.entry((name.to_owned(), thread.to_owned())).or_default() += 1;
        }
    }
    let mut most: BTreeMap<String, usize> = BTreeMap::new();
    for ((name, _), count) in by_thread {
        let known = most.entry(name).or_default();
        *known = (*known).max(count);
    }
    most
}
