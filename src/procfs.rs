// SPDX-License-Identifier: Apache-2.0
//! The kernel's facts about a process (proc(5)): its command line, parent, start time, limits,
//! signal handling and environment; and a descriptor of the process.
//!
//! A process may end at any time, another process may get its PID, and a container's process may
//! give itself any name, so the caller decides which facts to trust. This module sends no signal.
//!
//! Only the kernel's report proves that a process is gone: if that cannot be determined, the
//! functions here return an error ([`is_of_this_host`] returns false). A zombie still has its
//! facts, except for its command line, its program and its environment.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::files;
use crate::host::Host;
use crate::limits;
use crate::presence::IfThere;

/// Name prefixes of engines' processes, which search their PATH for a runtime; with the engine's
/// title and its name for `install` if the engine has its own NRI.
pub(crate) const ENGINES: [(&str, Option<(&str, &str)>); 8] = [
    ("containerd", Some(("containerd", "containerd"))),
    ("k3s", Some(("containerd", "containerd"))),
    ("rke2", Some(("containerd", "containerd"))),
    ("k0s", Some(("containerd", "containerd"))),
    ("dockerd", Some(("Docker", "docker"))),
    ("crio", Some(("CRI-O", "crio"))),
    ("isulad", Some(("iSulad", "isulad"))),
    ("conmon", None),
];

/// Returns the arguments of a process, its program's name first; none if the process has ended, and
/// for a moment during its execve(2).
///
/// # Errors
/// Fails when they cannot be read.
pub(crate) fn command_line(host: &Host, pid: u32) -> io::Result<Vec<Vec<u8>>> {
    let bytes = read(host, pid, "cmdline")?.unwrap_or_default();
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if words.is_empty() {
        return Ok(Vec::new());
    }
    Ok(words.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
}

/// Whether a process executes a program: one that has ended does not, nor does a kernel thread.
pub(crate) fn has_program(host: &Host, pid: u32) -> io::Result<bool> {
    let link = std::fs::read_link(host.path(format!("/proc/{pid}/exe"))).if_there();
    Ok(link?.is_some())
}

/// Returns the parent of a process; `None` if the process was reaped.
pub(crate) fn parent_of(host: &Host, pid: u32) -> io::Result<Option<u32>> {
    stat_field(host, pid, 4)
}

/// Returns the process's name, as the kernel truncates it, and its parent; `None` if it was reaped.
pub(crate) fn name_and_parent(host: &Host, pid: u32) -> io::Result<Option<(String, u32)>> {
    let Some(stat) = read(host, pid, "stat")? else { return Ok(None) };
    let stat = String::from_utf8_lossy(&stat);
    let name = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
    let name = name.map(|(name, _)| name.to_owned()).unwrap_or_default();
    let parent = field_of(&stat, 4).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((name, parent)))
}

/// Returns the login user of a process; `None` if it belongs to no login or was reaped, or the
/// kernel records no logins.
pub(crate) fn login_uid(host: &Host, pid: u32) -> io::Result<Option<u32>> {
    let text = read(host, pid, "loginuid")?.unwrap_or_default();
    let uid = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
    Ok(uid.filter(|uid| *uid != u32::MAX))
}

/// Returns the OOM score adjustment of a process; `None` if the process was reaped.
pub(crate) fn oom_score_adj(host: &Host, pid: u32) -> io::Result<Option<String>> {
    let text = read(host, pid, "oom_score_adj")?;
    Ok(text.map(|text| String::from_utf8_lossy(&text).trim().to_owned()))
}

/// Resource limits as `/proc/PID/limits` names them.
const LIMITS: [(&str, &str); 16] = [
    ("RLIMIT_AS", "Max address space"),
    ("RLIMIT_CORE", "Max core file size"),
    ("RLIMIT_CPU", "Max cpu time"),
    ("RLIMIT_DATA", "Max data size"),
    ("RLIMIT_FSIZE", "Max file size"),
    ("RLIMIT_LOCKS", "Max file locks"),
    ("RLIMIT_MEMLOCK", "Max locked memory"),
    ("RLIMIT_MSGQUEUE", "Max msgqueue size"),
    ("RLIMIT_NICE", "Max nice priority"),
    ("RLIMIT_NOFILE", "Max open files"),
    ("RLIMIT_NPROC", "Max processes"),
    ("RLIMIT_RSS", "Max resident set"),
    ("RLIMIT_RTPRIO", "Max realtime priority"),
    ("RLIMIT_RTTIME", "Max realtime timeout"),
    ("RLIMIT_SIGPENDING", "Max pending signals"),
    ("RLIMIT_STACK", "Max stack size"),
];

/// Returns a resource limit of a process as `SOFT:HARD`, of which each may be `unlimited`; `None`
/// if the process was reaped, or the kernel does not show this limit.
pub(crate) fn resource_limit(host: &Host, pid: u32, kind: &str) -> io::Result<Option<String>> {
    let Some(text) = read(host, pid, "limits")? else { return Ok(None) };
    let name = LIMITS.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name);
    let text = String::from_utf8_lossy(&text);
    let rest = name.and_then(|name| text.lines().find_map(|line| line.strip_prefix(name)));
    let mut values = rest.unwrap_or_default().split_whitespace();
    Ok(values.next().zip(values.next()).map(|(soft, hard)| format!("{soft}:{hard}")))
}

/// Returns when a process started, in clock ticks since the host's boot; `None` if it was reaped.
pub(crate) fn start_time(host: &Host, pid: u32) -> io::Result<Option<u64>> {
    stat_field(host, pid, 22)
}

/// Whether a process has this process's UID and is in its PID namespace. If not, callers do not
/// read its command line and environment, because these are in the process's memory, and a
/// container's process can make the reader wait.
pub(crate) fn is_of_this_host(host: &Host, pid: u32) -> bool {
    let namespace =
        |pid: &str| std::fs::read_link(host.path(format!("/proc/{pid}/ns/pid"))).or_absent();
    let owner = std::fs::metadata(host.path(format!("/proc/{pid}"))).or_absent();
    owner.is_some_and(|meta| meta.uid() == nix::unistd::geteuid().as_raw())
        && namespace(&pid.to_string()) == namespace("self")
}

/// Returns a variable of a process's initial environment; `None` if it is not set, or the process
/// has ended.
///
/// # Errors
/// Fails when its environment cannot be read.
pub(crate) fn variable(host: &Host, pid: u32, name: &str) -> io::Result<Option<OsString>> {
    Ok(variables(host, pid, &[name])?.pop().map(|(_, value)| value))
}

/// Returns the given variables of a process's initial environment; none if it has ended.
///
/// # Errors
/// Fails when its environment cannot be read.
pub(crate) fn variables(
    host: &Host,
    pid: u32,
    names: &[&str],
) -> io::Result<Vec<(String, OsString)>> {
    let environment = read(host, pid, "environ")?.unwrap_or_default();
    let pairs = environment.split(|byte| *byte == 0).filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        let name = names.iter().find(|name| Some(name.as_bytes()) == pair.get(..at))?;
        Some(((*name).to_owned(), OsString::from_vec(pair.get(at + 1..)?.to_vec())))
    });
    Ok(pairs.collect())
}

/// How a process handles signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dispositions {
    handled: u64,
    ignored: u64,
    /// Whether the process is the first of a PID namespace other than the host's.
    pub(crate) is_first: bool,
}

impl Dispositions {
    /// Whether the process has a handler for the signal of this number.
    pub(crate) fn handles(self, signal: u8) -> bool {
        self.handled & bit(signal) != 0
    }

    /// Whether the process ignores the signal of this number.
    pub(crate) fn ignores(self, signal: u8) -> bool {
        self.ignored & bit(signal) != 0
    }
}

fn bit(signal: u8) -> u64 {
    1_u64.checked_shl(u32::from(signal).wrapping_sub(1)).unwrap_or(0)
}

/// Returns how a process handles signals; `None` if it was reaped.
pub(crate) fn dispositions(host: &Host, pid: u32) -> io::Result<Option<Dispositions>> {
    Ok(read(host, pid, "status")?.and_then(|status| dispositions_in(&status)))
}

fn dispositions_in(status: &[u8]) -> Option<Dispositions> {
    let status = String::from_utf8_lossy(status);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let mask = |name: &str| u64::from_str_radix(field(name)?.trim(), 16).ok();
    let numbers = field("NSpid:").unwrap_or_default().split_whitespace();
    let is_first = numbers.skip(1).last() == Some("1");
    Some(Dispositions { handled: mask("SigCgt:")?, ignored: mask("SigIgn:")?, is_first })
}

/// Opens a process; `None` if it has ended and was reaped.
///
/// # Errors
/// Fails when the process cannot be opened, for instance because no descriptor is free.
pub(crate) fn open(pid: u32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        // Before Linux 6.15 the kernel returns this if the PID is a thread's, or only that of a
        // session or process group whose leader was reaped.
        Err(Errno::INVAL) => Ok(None),
        opened => opened.map_err(io::Error::from).if_there(),
    }
}

/// Opens the process with this PID that started at `start`, if it still runs or is a zombie;
/// without a start time, any process with this PID.
///
/// # Errors
/// Fails when the process cannot be examined.
pub(crate) fn open_same(host: &Host, pid: u32, start: Option<u64>) -> io::Result<Option<OwnedFd>> {
    let Some(process) = open(pid)? else { return Ok(None) };
    // Compared after opening: a process with this PID that started at `start` is the opened one.
    let is_same = start.is_none() || start_time(host, pid)? == start;
    Ok(is_same.then_some(process))
}

/// Whether the process with this PID that started at `start` runs. False also if only its first thread has ended.
///
/// # Errors
/// Fails when the process cannot be examined.
pub(crate) fn surely_runs(host: &Host, pid: u32, start: u64) -> io::Result<bool> {
    let is_it = |stat: &str| {
        let state: char = field_of(stat, 3)?;
        Some(field_of(stat, 22) == Some(start) && !matches!(state, 'Z' | 'X'))
    };
    Ok(of_stat(host, pid, is_it)?.unwrap_or(false))
}

fn stat_field<T: FromStr>(host: &Host, pid: u32, number: usize) -> io::Result<Option<T>> {
    of_stat(host, pid, |stat| field_of(stat, number))
}

/// Returns what `wanted` finds in `stat` of a process. One read is enough, because 52 numbers and a name of at most
/// 64 bytes fit the buffer.
fn of_stat<T>(
    host: &Host,
    pid: u32,
    wanted: impl FnOnce(&str) -> Option<T>,
) -> io::Result<Option<T>> {
    let mut bytes = [0; 2048];
    let path = host.path(format!("/proc/{pid}/stat"));
    let Some(stat) = files::read_at_once(&path, &mut bytes).if_there()? else { return Ok(None) };
    let found = wanted(&String::from_utf8_lossy(stat));
    found.ok_or_else(|| io::ErrorKind::InvalidData.into()).map(Some)
}

/// Returns a field of `stat`, the third or a later one, by its number in proc_pid_stat(5).
fn field_of<T: FromStr>(stat: &str, number: usize) -> Option<T> {
    // The second field, the program's name, may hold blanks and parentheses; the last one ends it.
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    rest.split_whitespace().nth(number.saturating_sub(3))?.parse().ok()
}

fn read(host: &Host, pid: u32, name: &str) -> io::Result<Option<Vec<u8>>> {
    files::read(&host.path(format!("/proc/{pid}/{name}")), limits::KERNEL_FILE).if_there()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_by_their_name_and_an_ended_process_has_none() {
        let limits =
            b"Limit                     Soft Limit           Hard Limit           Units     \n\
            Max cpu time              unlimited            unlimited            seconds   \n\
            Max open files            1024                 524288               files     \n";
        let (_temp, host) = host_with(&[("limits", limits), ("oom_score_adj", b"-998\n")]);
        let of = |kind| resource_limit(&host, 7, kind).unwrap();
        assert_eq!(of("RLIMIT_NOFILE").as_deref(), Some("1024:524288"));
        assert_eq!(of("RLIMIT_CPU").as_deref(), Some("unlimited:unlimited"));
        assert_eq!((of("RLIMIT_RTTIME"), of("RLIMIT_NEW")), (None, None));
        assert_eq!(oom_score_adj(&host, 7).unwrap().as_deref(), Some("-998"));
        assert_eq!(resource_limit(&host, 8, "RLIMIT_CPU").unwrap(), None);
        assert_eq!(oom_score_adj(&host, 8).unwrap(), None);
    }

    #[test]
    fn every_limit_that_the_kernel_shows_has_a_name() {
        let text = std::fs::read_to_string("/proc/self/limits").unwrap();
        for line in text.lines().skip(1) {
            assert!(LIMITS.iter().any(|(_, name)| line.starts_with(name)), "{line}");
        }
    }

    fn host_with(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Host) {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("proc/7");
        std::fs::create_dir_all(&dir).unwrap();
        for (name, bytes) in files {
            files::replace(&dir.join(name), bytes).unwrap();
        }
        let host = Host::new(&temp.path().display().to_string(), "");
        (temp, host)
    }

    #[test]
    fn a_process_surely_runs_unless_it_is_a_zombie_or_another() {
        let stat = |state| format!("7 (a) Z) {state} 1{} 900 0", " 0".repeat(17));
        for (state, start, runs) in [
            ("S", 900, true),
            ("R", 900, true),
            ("T", 900, true),
            ("S", 901, false),
            ("Z", 900, false),
            ("X", 900, false),
        ] {
            let (_temp, host) = host_with(&[("stat", stat(state).as_bytes())]);
            assert_eq!(surely_runs(&host, 7, start).unwrap(), runs, "{state} {start}");
            assert!(!surely_runs(&host, 8, start).unwrap(), "there is none");
        }
        let (_temp, host) = host_with(&[("stat", b"7 (a)")]);
        assert!(surely_runs(&host, 7, 900).is_err());
    }

    #[test]
    fn kernel_threads_and_missing_processes_have_no_program() {
        let host = Host::default();
        assert!(has_program(&host, std::process::id()).unwrap());
        assert!(!has_program(&host, 2).unwrap_or(false) && !has_program(&host, 0).unwrap());
    }

    #[test]
    fn a_program_name_with_blanks_and_parentheses_shifts_no_fields() {
        let stat = b"7 (a) R 1 (b c) S 41 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 900 0 0";
        let (_temp, host) = host_with(&[("stat", stat)]);
        assert_eq!(parent_of(&host, 7).unwrap(), Some(41));
        assert_eq!(start_time(&host, 7).unwrap(), Some(900));
        let (_temp, odd) = host_with(&[("stat", b"7 (a) R")]);
        assert!(start_time(&odd, 7).is_err());
    }

    #[test]
    fn arguments_may_be_empty_and_a_process_without_any_has_none() {
        let (_temp, some) = host_with(&[("cmdline", b"conmon\0\0-c\0")]);
        assert_eq!(command_line(&some, 7).unwrap(), [&b"conmon"[..], b"", b"-c"]);
        let (_temp, none) = host_with(&[("cmdline", b"")]);
        assert!(command_line(&none, 7).unwrap().is_empty());
        assert!(command_line(&none, 8).unwrap().is_empty());
    }

    #[test]
    fn only_variables_of_exactly_these_names_are_returned() {
        let (_temp, host) = host_with(&[("environ", b"PATHS=/x\0PATH=/a=b\0B=\xff\0junk\0")]);
        assert_eq!(variable(&host, 7, "PATH").unwrap(), Some("/a=b".into()));
        assert_eq!(variable(&host, 7, "PAT").unwrap(), None);
        let both = variables(&host, 7, &["B", "PATH"]).unwrap();
        assert_eq!(both[0].0, "PATH");
        assert_eq!(both[1].1, OsString::from_vec(vec![0xff]));
    }

    #[test]
    fn handled_signals_and_a_namespaces_first_process_are_found() {
        let status = b"Name:\tpause\nNSpid:\t70\t7\t1\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000014002\n";
        let (_temp, pause) = host_with(&[("status", status)]);
        let found = dispositions(&pause, 7).unwrap().unwrap();
        assert_eq!([2, 15, 9, 1, 0].map(|n| found.handles(n)), [true, true, false, false, false]);
        assert!(found.is_first && found.ignores(1) && !found.ignores(2));
        let (_temp, plain) = host_with(&[("status", b"NSpid:\t1\nSigIgn:\t0\nSigCgt:\t0\n")]);
        assert!(!dispositions(&plain, 7).unwrap().unwrap().is_first, "of the host's namespace");
        assert_eq!(dispositions(&plain, 8).unwrap(), None);
    }

    #[test]
    fn a_process_is_identified_by_its_start_time() {
        let (host, own) = (Host::default(), std::process::id());
        let start = start_time(&host, own).unwrap();
        assert!(start.is_some() && open_same(&host, own, start).unwrap().is_some());
        assert!(open_same(&host, own, Some(1)).unwrap().is_none());
    }

    #[test]
    fn an_unused_pid_counts_as_exited() {
        for number in [u32::MAX / 2, 0, u32::MAX] {
            assert!(open(number).unwrap().is_none(), "{number}");
        }
        assert_eq!(start_time(&Host::default(), u32::MAX / 2).unwrap(), None);
    }

    #[test]
    fn a_process_with_unreadable_files_still_runs() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("proc/7");
        for file in ["stat", "cmdline", "environ", "status"] {
            std::fs::create_dir_all(dir.join(file)).unwrap();
        }
        let host = Host::new(&temp.path().display().to_string(), "");
        assert!(start_time(&host, 7).is_err() && parent_of(&host, 7).is_err());
        assert!(command_line(&host, 7).is_err() && dispositions(&host, 7).is_err());
        assert!(variable(&host, 7, "A").is_err());
        let own = std::process::id();
        std::fs::rename(&dir, temp.path().join(format!("proc/{own}"))).unwrap();
        assert!(open_same(&host, own, Some(1)).is_err(), "another process, or this one");
    }
}
