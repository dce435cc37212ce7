// SPDX-License-Identifier: Apache-2.0
//! Collects the facts by which `registry/peer.rs` decides which processes may connect under a plugin's name
//! (`[plugin.NAME] from`, decision D44): what the kernel and the daemon's records of pods show about the process.
//!
//! A process's claims about itself prove nothing. A PID may be reused, so the process is held by a descriptor: the one
//! that the kernel gives for the process that connected (SO_PEERPIDFD, since Linux 6.5), else one opened now, while the
//! connection lasts. Facts about a process that has since ended prove nothing. This module decides nothing.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::daemon::registry::peer::{PeerFacts, PluginPeer};
use crate::daemon::resources::own_pod;
use crate::daemon::shared::Daemon;
use crate::daemon::watch::pidfd;
use crate::host::Host;
use crate::presence::IfThere;

/// Returns the process at the other end of this connection, with the facts about it.
pub(super) fn peer_of(daemon: &Daemon, stream: &impl AsFd) -> PluginPeer {
    let peer = getsockopt(stream, PeerCredentials);
    let pid = peer.map_or(0, |peer| peer.pid());
    let number = u32::try_from(pid).ok().filter(|pid| *pid > 0);
    let process = number.and_then(|pid| hold(stream, pid));
    let facts = match (&process, number) {
        (Some(_), Some(pid)) => facts_of(daemon, pid),
        _ => PeerFacts::default(),
    };
    // An unknown user may not connect.
    let uid = peer.map_or(u32::MAX, |peer| peer.uid());
    PluginPeer { pid, uid, process, facts }
}

/// Opens a descriptor of the connecting process.
fn hold(stream: &impl AsFd, pid: u32) -> Option<OwnedFd> {
    match getsockopt(stream, PeerPidfd) {
        Ok(process) => Some(process),
        // Older kernels have no SO_PEERPIDFD. If the process had ended before the open, the
        // connection is closed, unless a child holds it (docs/threat-model.md).
        Err(Errno::ENOPROTOOPT) => {
            // Without a descriptor the process cannot prove its origin.
            let process = pidfd::open(pid).or_absent()??;
            (!has_hung_up(stream)).then_some(process)
        }
        // The process has ended, or the daemon has no free descriptor.
        Err(_) => None,
    }
}

fn facts_of(daemon: &Daemon, pid: u32) -> PeerFacts {
    let pod = own_pod::pod_of_process(daemon, pid);
    // If its pod cannot be determined, the process may be in a container.
    let is_contained = !matches!(pod, Ok(None));
    let pod = pod.or_absent().flatten();
    let pod = pod.filter(|pod| !pod.is_doubtful && !pod.namespace.is_empty());
    let host = &daemon.host;
    let link = std::fs::read_link(host.path(format!("/proc/{pid}/exe")));
    let program = link.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    PeerFacts {
        program,
        is_on_host: is_process_of_host(host, pid),
        is_hosts_file: Cell::new(None),
        is_contained,
        pod: pod.map(|pod| (pod.namespace, pod.name)),
    }
}

/// Determines whether the process executes this host's file, if an `exe:` pattern needs that. The
/// process chose the path, and its file system may hang: the calls run on another thread, and a
/// time-out proves nothing.
pub(super) async fn look_at_program(daemon: &Daemon, peer: &PluginPeer) {
    let facts = &peer.facts;
    if !facts.needs_file(&daemon.config()) {
        return;
    }
    let Ok(pid) = u32::try_from(peer.pid) else { return };
    let folder = Path::new(&facts.program).parent().unwrap_or(Path::new("/"));
    let folder = folder.display().to_string();
    let (host, program) = (daemon.host.clone(), facts.program.clone());
    let look = move || Ok(is_program_of_host(&host, pid, &program));
    let looked = daemon.off_loop(&folder, look).await;
    facts.is_hosts_file.set(Some(looked.unwrap_or(false)));
}

/// Whether the process executes the file that this host has at that path: a container has its own
/// files under the same names.
fn is_program_of_host(host: &Host, pid: u32, program: &str) -> bool {
    // The kernel's cached data is enough, so no file server is contacted. A failure proves nothing.
    let file = |path: &Path| {
        let stat = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
        Some((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
    };
    let executed = file(&host.path(format!("/proc/{pid}/exe")));
    Path::new(program).is_absolute() && executed.is_some() && executed == file(&host.path(program))
}

/// Whether the process shares the daemon's user and PID namespaces, as a container's may too (`hostPID`);
/// its mounts may differ.
fn is_process_of_host(host: &Host, pid: u32) -> bool {
    let namespace = |process: &str, kind: &str| {
        let path = host.path(format!("/proc/{process}/ns/{kind}"));
        std::fs::metadata(path).or_absent().map(|meta| (meta.dev(), meta.ino()))
    };
    ["user", "pid"].into_iter().all(|kind| {
        let own = namespace("self", kind);
        own.is_some() && own == namespace(&pid.to_string(), kind)
    })
}

/// Whether the peer has closed the connection.
fn has_hung_up(stream: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let polled = poll(&mut fds, PollTimeout::ZERO);
    polled.is_err() || fds[0].revents().is_none_or(|events| events.contains(PollFlags::POLLHUP))
}
