// SPDX-License-Identifier: Apache-2.0
//! Drops the attributes that the daemon inherited from the wrapper that started it (decision D10):
//! CRI-O starts conmon under taskset, conmon may be in the pod's cgroup, an engine may have blocked
//! signals. If a limit, a priority or no_new_privs would impair the daemon and cannot be changed, the start is
//! refused with the reason, because such a daemon could fail every container.

use std::io::Write;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, chdir};

use crate::error::{Error, Result};
use crate::files;
use crate::host::Host;
use crate::presence::IfThere;

/// Makes this process independent of the process that started it.
pub(crate) fn reset_inherited_attributes(host: &Host) {
    let _stays = chdir("/");
    umask(Mode::from_bits_truncate(0o022));
    let _stays = SigSet::empty().thread_set_mask();
    reset_signals();
    let mut all = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        let _beyond_the_set = all.set(cpu);
    }
    let _stays = sched_setaffinity(Pid::from_raw(0), &all);
    let _may_need_a_capability = write_to(host, "/proc/self/oom_score_adj", "0");
    leave_cgroup(host);
}

/// Limits that would eventually end or impair the daemon, and the lowest value of each with which it can work.
const LIMITS: [(Resource, &str, u64); 6] = [
    // A descriptor for each container, and some more.
    (Resource::RLIMIT_NOFILE, "RLIMIT_NOFILE", 1024),
    // A truncated log or record would lose data.
    (Resource::RLIMIT_FSIZE, "RLIMIT_FSIZE", 64 << 20),
    (Resource::RLIMIT_CPU, "RLIMIT_CPU", RLIM_INFINITY),
    (Resource::RLIMIT_AS, "RLIMIT_AS", 1 << 30),
    (Resource::RLIMIT_DATA, "RLIMIT_DATA", 256 << 20),
    (Resource::RLIMIT_NPROC, "RLIMIT_NPROC", 256),
];

/// Limit of open descriptors that the daemon sets, if permitted: the kernel's default maximum (`fs.nr_open`).
const DESCRIPTORS: u64 = 1 << 20;

/// Raises the limits of this process. `is_inherited`: the limits come from an engine's call, so
/// hard limits are raised too if the kernel permits it. A service manager's hard limits are kept.
///
/// # Errors
/// Fails when a limit is too low for the daemon and cannot be raised.
pub(crate) fn lift_limits(is_inherited: bool) -> Result<()> {
    for (resource, name, least) in LIMITS {
        let limit = getrlimit(resource)?;
        let wanted = if resource == Resource::RLIMIT_NOFILE { DESCRIPTORS } else { RLIM_INFINITY };
        let wanted = if is_inherited { wanted.max(limit.1) } else { limit.1 };
        lift(name, limit, wanted, least, |to| setrlimit(resource, to, to).is_ok())?;
    }
    Ok(())
}

/// Raises the soft and the hard limit of a resource to `wanted`; if that is not permitted, only the soft one to
/// `hard`. Fails if `hard` stays below `least`.
fn lift(
    name: &str,
    (soft, hard): (u64, u64),
    wanted: u64,
    least: u64,
    set: impl Fn(u64) -> bool,
) -> Result<()> {
    let is_raised = wanted > hard && set(wanted);
    if is_raised || hard >= least {
        let _stays = is_raised || soft == hard || set(hard);
        return Ok(());
    }
    let least = if least == RLIM_INFINITY { "none".to_owned() } else { format!("{least} or more") };
    Err(Error::new(format!("{name} is {hard}, but the daemon needs {least}"))
        .hint("the process that starts it lacks CAP_SYS_RESOURCE to raise it; see docs/install.md"))
}

/// Resets the priorities to those of an ordinary process.
///
/// # Errors
/// Fails if the scheduling policy, a positive nice value or the idle I/O class remains: a daemon without CPU time
/// would seem to hang.
#[expect(unsafe_code, reason = "priorities of this process, which no library sets")]
pub(crate) fn reset_priorities() -> Result<()> {
    use nix::libc;
    // Uses system calls: musl's functions for the scheduling policy do nothing, and the kernel's
    // parameter structure is this one number.
    let priority: libc::c_int = 0;
    // SAFETY: a plain system call about this very process; the pointer is to a live value.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            libc::c_long::from(libc::SCHED_OTHER),
            &raw const priority,
        )
    };
    // SAFETY: a plain system call on numbers, about this very process.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) };
    // IOPRIO_WHO_PROCESS, this process, no I/O class.
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_ioprio_set, 1, 0, 0) };
    // SAFETY: as above.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    // SAFETY: as above.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // SAFETY: as above.
    let io_class = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) } >> 13;
    let stays = |what: &str, value: i64| {
        Err(Error::new(format!(
            "{what} {value} of the process that started the daemon cannot be reset"
        ))
        .hint("it lacks CAP_SYS_NICE to reset it; see docs/install.md"))
    };
    match (policy, nice, io_class) {
        (policy, ..) if policy != libc::c_long::from(libc::SCHED_OTHER) => {
            stays("the scheduling policy", policy)
        }
        (_, nice, _) if nice > 0 => stays("the nice value", nice.into()),
        // 2 is best effort, the default of ordinary processes.
        (.., class) if class > 2 => stays("the I/O scheduling class", class),
        _ => Ok(()),
    }
}

/// Refuses no_new_privs: this process and the plugins that it starts could never clear it.
///
/// # Errors
/// Fails if it is set.
pub(crate) fn refuse_no_new_privs() -> Result<()> {
    if !nix::sys::prctl::get_no_new_privs().unwrap_or(false) {
        return Ok(());
    }
    Err(Error::new(
        "the process that started the daemon has no_new_privs set, which cannot be undone",
    )
    .hint("let a service manager start it; see docs/install.md"))
}

/// Resets all signals but SIGPIPE to their defaults: ignored ones stay ignored across exec, and an ignored
/// SIGCHLD would lose the exit codes of the daemon's children.
#[expect(unsafe_code, reason = "sigaction")]
fn reset_signals() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    for signal in Signal::iterator() {
        // SAFETY: the default action installs no handler; SIGKILL and SIGSTOP are refused.
        let _stays = unsafe { sigaction(signal, &default) };
    }
    ignore_broken_pipes();
}

/// Ignores SIGPIPE: the program's entry point is not std's, which would do so, and a plugin that
/// disconnects must not end the daemon.
#[expect(unsafe_code, reason = "sigaction")]
pub(crate) fn ignore_broken_pipes() {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: ignoring a signal installs no handler that could run at a bad moment.
    let _stays = unsafe { sigaction(Signal::SIGPIPE, &ignore) };
}

/// Moves to the root of every cgroup hierarchy: a pod's cgroup must be empty for its removal, and
/// its limits must not apply to the daemon.
fn leave_cgroup(host: &Host) {
    let own = files::read_kernel(&host.path("/proc/self/cgroup")).or_absent().unwrap_or_default();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if path == "/" {
            continue;
        }
        let name = controllers.strip_prefix("name=").unwrap_or(controllers);
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            let dir = if name.is_empty() { root.to_owned() } else { format!("{root}/{name}") };
            let _not_here = write_to(host, &format!("{dir}/cgroup.procs"), "0");
        }
    }
}

fn write_to(host: &Host, path: &str, text: &str) -> std::io::Result<()> {
    std::fs::OpenOptions::new().write(true).open(host.path(path))?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Returns the limits that `lift` set, and whether the daemon starts, for a limit of `(soft,
    /// hard)`.
    fn lifted(limit: (u64, u64), may_raise: bool) -> (Vec<u64>, bool) {
        let set: RefCell<Vec<u64>> = RefCell::default();
        let lifted = lift("RLIMIT_X", limit, 1000, 100, |to| {
            set.borrow_mut().push(to);
            may_raise || to <= limit.1
        });
        (set.into_inner(), lifted.is_ok())
    }

    #[test]
    fn a_limit_is_raised_or_must_already_suffice() {
        assert_eq!(lifted((10, 40), true), (vec![1000], true));
        assert_eq!(lifted((10, 40), false), (vec![1000], false));
        assert_eq!(lifted((10, 400), false), (vec![1000, 400], true));
        assert_eq!(lifted((10, 1000), false), (vec![1000], true), "the soft one alone");
        assert_eq!(lifted((1000, 1000), false), (vec![], true));
    }

    #[test]
    fn a_too_low_limit_is_reported_with_the_required_one() {
        let why = |least| lift("RLIMIT_X", (5, 5), 5, least, |_| false).unwrap_err().to_string();
        assert!(
            why(10).starts_with("RLIMIT_X is 5, but the daemon needs 10 or more"),
            "{}",
            why(10)
        );
        assert!(why(RLIM_INFINITY).contains("needs none"));
    }
}
