// SPDX-License-Identifier: Apache-2.0
//! The daemon shakes off what it inherited from the wrapper that started it (decision D10):
//! CRI-O starts conmon under taskset, conmon may sit in the pod's cgroup, an engine may have
//! blocked signals. It never fails: what the kernel refuses stays as it was.

use std::io::Write;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, chdir};

use crate::host::Host;

/// Makes this process independent of whoever started it.
pub(super) fn shake_off(host: &Host) {
    let _stays = chdir("/");
    umask(Mode::from_bits_truncate(0o022));
    let _stays = SigSet::empty().thread_set_mask();
    ignore_broken_pipes();
    let mut all = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        let _beyond_the_set = all.set(cpu);
    }
    let _stays = sched_setaffinity(Pid::from_raw(0), &all);
    let _may_need_a_capability = write_to(host, "/proc/self/oom_score_adj", "0");
    leave_cgroup(host);
}

/// An engine or a service manager limits what it starts. One descriptor for each container is not many, but the
/// usual 1024 would end with a thousand of them; a log that is cut short is a lost log.
pub(super) fn lift_limits() {
    for limit in [Resource::RLIMIT_NOFILE, Resource::RLIMIT_FSIZE, Resource::RLIMIT_CPU] {
        if let Ok((_, hard)) = getrlimit(limit) {
            let _stays = setrlimit(limit, hard, hard);
        }
    }
}

/// Our entry point is not std's, so SIGPIPE is as it came; a plugin that goes away must not
/// end us.
#[expect(unsafe_code, reason = "sigaction")]
pub(super) fn ignore_broken_pipes() {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: ignoring a signal installs no handler that could run at a bad moment.
    let _stays = unsafe { sigaction(Signal::SIGPIPE, &ignore) };
}

/// Moves to the root of every cgroup hierarchy: a pod's cgroup must be empty when it is removed,
/// and its limits are not ours.
fn leave_cgroup(host: &Host) {
    let own = std::fs::read_to_string(host.path("/proc/self/cgroup")).unwrap_or_default();
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
