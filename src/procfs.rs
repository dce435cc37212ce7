// SPDX-License-Identifier: Apache-2.0
//! What the kernel tells about a process (proc(5)): its command line, parent, start time and
//! environment, and a descriptor of it. Every reader of these files is here.
//!
//! A process may end at any time and its number go to another one, and a process of a container
//! may call itself anything: the caller decides what it believes. It never sends a signal.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::files;
use crate::host::Host;

/// The arguments of a process, its program's name first; none if the process has ended.
pub(crate) fn command_line(host: &Host, pid: u32) -> Vec<Vec<u8>> {
    let bytes = read(host, pid, "cmdline").unwrap_or_default();
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if words.is_empty() {
        return Vec::new();
    }
    words.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

/// The parent of a process.
pub(crate) fn parent_of(host: &Host, pid: u32) -> Option<u32> {
    stat_field(host, pid, 4)?.parse().ok()
}

/// When a process started, in clock ticks since the host was booted.
pub(crate) fn start_time(host: &Host, pid: u32) -> Option<u64> {
    stat_field(host, pid, 22)?.parse().ok()
}

/// A variable of the environment that a process was started with.
pub(crate) fn variable(host: &Host, pid: u32, name: &str) -> Option<OsString> {
    variables(host, pid, &[name]).pop().map(|(_, value)| value)
}

/// Those of these variables that a process was started with.
pub(crate) fn variables(host: &Host, pid: u32, names: &[&str]) -> Vec<(String, OsString)> {
    let environment = read(host, pid, "environ").unwrap_or_default();
    let pairs = environment.split(|byte| *byte == 0).filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        let name = names.iter().find(|name| Some(name.as_bytes()) == pair.get(..at))?;
        Some(((*name).to_owned(), OsString::from_vec(pair.get(at + 1..)?.to_vec())))
    });
    pairs.collect()
}

/// What a process does about signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dispositions {
    handled: u64,
    ignored: u64,
    /// Whether it is the first process of a PID namespace other than the host's.
    pub(crate) is_first: bool,
}

impl Dispositions {
    /// Whether it has a handler for the signal of this number.
    pub(crate) fn handles(self, signal: u8) -> bool {
        self.handled & bit(signal) != 0
    }

    /// Whether it ignores that signal.
    pub(crate) fn ignores(self, signal: u8) -> bool {
        self.ignored & bit(signal) != 0
    }
}

fn bit(signal: u8) -> u64 {
    1_u64.checked_shl(u32::from(signal).wrapping_sub(1)).unwrap_or(0)
}

/// What a process does about signals; `None` if it has ended.
pub(crate) fn dispositions(host: &Host, pid: u32) -> Option<Dispositions> {
    let status = read(host, pid, "status")?;
    let status = String::from_utf8_lossy(&status);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let mask = |name: &str| u64::from_str_radix(field(name)?.trim(), 16).ok();
    let numbers = field("NSpid:").unwrap_or_default().split_whitespace();
    let is_first = numbers.skip(1).last() == Some("1");
    Some(Dispositions { handled: mask("SigCgt:")?, ignored: mask("SigIgn:")?, is_first })
}

/// Opens a process.
///
/// # Errors
/// Fails when it has ended and was reaped, or no descriptor is left.
pub(crate) fn open(pid: u32) -> std::io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(std::io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Opens the very process that started at `start`, if it still runs or is a zombie; without a
/// start time any process of that number.
pub(crate) fn open_same(host: &Host, pid: u32, start: Option<u64>) -> Option<OwnedFd> {
    let process = open(pid).ok()?;
    // Compared after opening: from here on the descriptor cannot mean another process.
    (start.is_none() || start_time(host, pid) == start).then_some(process)
}

/// A field of `stat` by its number in proc_pid_stat(5), from the third on.
fn stat_field(host: &Host, pid: u32, number: usize) -> Option<String> {
    let stat = read(host, pid, "stat")?;
    let stat = String::from_utf8_lossy(&stat);
    // The second field, the program's name, may hold blanks and parentheses; the last one ends it.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

fn read(host: &Host, pid: u32, name: &str) -> Option<Vec<u8>> {
    files::read_small(&host.path(format!("/proc/{pid}/{name}"))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Host) {
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
    fn a_program_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let stat = b"7 (a) R 1 (b c) S 41 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 900 0 0";
        let (_temp, host) = host(&[("stat", stat)]);
        assert_eq!((parent_of(&host, 7), start_time(&host, 7)), (Some(41), Some(900)));
    }

    #[test]
    fn arguments_may_be_empty_and_a_process_without_any_has_none() {
        let (_temp, some) = host(&[("cmdline", b"conmon\0\0-c\0")]);
        assert_eq!(command_line(&some, 7), [&b"conmon"[..], b"", b"-c"]);
        let (_temp, none) = host(&[("cmdline", b"")]);
        assert!(command_line(&none, 7).is_empty() && command_line(&none, 8).is_empty());
    }

    #[test]
    fn only_variables_of_exactly_these_names_are_given() {
        let (_temp, host) = host(&[("environ", b"PATHS=/x\0PATH=/a=b\0B=\xff\0junk\0")]);
        assert_eq!(variable(&host, 7, "PATH"), Some("/a=b".into()));
        assert_eq!(variable(&host, 7, "PAT"), None);
        let both = variables(&host, 7, &["B", "PATH"]);
        assert_eq!(both[0].0, "PATH");
        assert_eq!(both[1].1, OsString::from_vec(vec![0xff]));
    }

    #[test]
    fn handlers_are_known_by_signal_and_the_first_process_of_a_namespace_is_told_apart() {
        let status = b"Name:\tpause\nNSpid:\t70\t7\t1\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000014002\n";
        let (_temp, pause) = host(&[("status", status)]);
        let found = dispositions(&pause, 7).unwrap();
        assert_eq!([2, 15, 9, 1, 0].map(|n| found.handles(n)), [true, true, false, false, false]);
        assert!(found.is_first && found.ignores(1) && !found.ignores(2));
        let (_temp, plain) = host(&[("status", b"NSpid:\t1\nSigIgn:\t0\nSigCgt:\t0\n")]);
        assert!(!dispositions(&plain, 7).unwrap().is_first, "of the host's namespace");
        assert_eq!(dispositions(&plain, 8), None);
    }

    #[test]
    fn our_own_process_has_a_start_time_and_is_told_from_one_of_another() {
        let (host, own) = (Host::default(), std::process::id());
        let start = start_time(&host, own);
        assert!(start.is_some() && open_same(&host, own, start).is_some());
        assert!(open_same(&host, own, Some(1)).is_none());
    }

    #[test]
    fn a_number_that_no_process_has_is_an_error() {
        assert!(open(u32::MAX / 2).is_err() && open(0).is_err() && open(u32::MAX).is_err());
        assert_eq!(start_time(&Host::default(), u32::MAX / 2), None);
    }
}
