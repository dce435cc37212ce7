// SPDX-License-Identifier: Apache-2.0
//! Who may connect under a plugin's name (`[plugin.NAME] from`, decision D44), by what the kernel
//! says of the process that connected, and by our own records of pods.
//!
//! Nothing that a process says of itself counts. A PID is only a number, so the process is held by
//! a descriptor: the one that the kernel made when it connected (SO_PEERPIDFD, from Linux 6.5 on),
//! else one that is opened now, while the connection stands. What was read of a process that has
//! ended meanwhile does not count. It admits and refuses nothing.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use tokio::net::UnixStream;

use crate::config::PluginOrigin;
use crate::daemon::node::Node;
use crate::daemon::resources::own_pod;
use crate::daemon::watch::pidfd;
use crate::error::quoted;
use crate::glob;
use crate::host::Host;
use crate::presence::IfThere;

/// The process that connected, as far as it can be proven.
#[derive(Debug)]
pub(super) struct PluginPeer {
    pid: i32,
    /// None if the process cannot be held.
    process: Option<OwnedFd>,
    facts: PeerFacts,
}

/// What is known of it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct PeerFacts {
    /// The file that it executes, as it sees that path.
    program: String,
    /// Whether that is this host's file of the path, executed by a process of this host.
    is_hosts: bool,
    /// Whether it runs in a container that nri-runc knows.
    is_contained: bool,
    /// Namespace and name of the pod in which it runs, where nobody but the engine may have written
    /// them.
    pod: Option<(String, String)>,
}

impl PluginPeer {
    /// The process at the other end of this connection.
    pub(super) fn of(node: &Node, stream: &UnixStream) -> Self {
        let pid = getsockopt(stream, PeerCredentials).map_or(0, |peer| peer.pid());
        let number = u32::try_from(pid).ok().filter(|pid| *pid > 0);
        let process = number.and_then(|pid| hold(stream, pid));
        let facts = match (&process, number) {
            (Some(_), Some(pid)) => PeerFacts::of(node, pid),
            _ => PeerFacts::default(),
        };
        Self { pid, process, facts }
    }

    /// Whether it may connect under a name with these origins; else the reason, in one clause.
    ///
    /// # Errors
    /// Fails with that reason.
    pub(super) fn check(&self, origins: &[PluginOrigin]) -> Result<(), String> {
        if origins.is_empty() {
            return Ok(());
        }
        // What was read is this process's only if it has not ended since.
        match &self.process {
            None => return Err(format!("its process {} cannot be identified", self.pid)),
            Some(process) if pidfd::has_ended(process) => {
                return Err(format!("its process {} has exited", self.pid));
            }
            Some(_) => {}
        }
        if origins.iter().any(|origin| self.facts.fits(origin)) {
            return Ok(());
        }
        Err(format!("its process {} is {}", self.pid, self.facts))
    }
}

/// A descriptor of the process that connected.
fn hold(stream: &UnixStream, pid: u32) -> Option<OwnedFd> {
    match getsockopt(stream, PeerPidfd) {
        Ok(process) => Some(process),
        // An older kernel. A process that had ended before would have closed the connection.
        Err(Errno::ENOPROTOOPT) => {
            // One that cannot be held does not prove its origin.
            let process = pidfd::open(pid).or_absent()??;
            (!has_hung_up(stream)).then_some(process)
        }
        // It has ended, or is in another PID namespace.
        Err(_) => None,
    }
}

impl PeerFacts {
    fn of(node: &Node, pid: u32) -> Self {
        let pod = own_pod::pod_of_process(node, pid);
        // A process whose cgroup cannot be read may be in a container.
        let is_contained = !matches!(pod, Ok(None));
        let pod = pod.or_absent().flatten();
        let pod = pod.filter(|pod| !pod.is_doubtful && !pod.namespace.is_empty());
        let host = &node.host;
        let link = std::fs::read_link(host.path(format!("/proc/{pid}/exe")));
        let program = link.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        Self {
            is_hosts: is_program_of_host(host, pid, &program) && is_process_of_host(host, pid),
            program,
            is_contained,
            pod: pod.map(|pod| (pod.namespace, pod.name)),
        }
    }

    fn fits(&self, origin: &PluginOrigin) -> bool {
        match origin {
            PluginOrigin::Pod { namespace, name } => self
                .pod
                .as_ref()
                .is_some_and(|(ns, pod)| glob::matches(namespace, ns) && glob::matches(name, pod)),
            PluginOrigin::Program(pattern) => {
                self.is_hosts && !self.is_contained && glob::matches_path(pattern, &self.program)
            }
        }
    }
}

impl std::fmt::Display for PeerFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let program = match self.program.as_str() {
            "" => "an unknown program".to_owned(),
            program => quoted(program),
        };
        match (&self.pod, self.is_contained) {
            (Some((namespace, name)), _) => {
                write!(f, "{program} in pod {}/{}", quoted(namespace), quoted(name))
            }
            (None, true) => write!(f, "{program} in a pod whose namespace is not proven"),
            (None, false) if self.is_hosts => write!(f, "{program} on the host"),
            (None, false) => write!(f, "{program} in a container that nri-runc did not create"),
        }
    }
}

/// Whether the process executes this host's file of that path: a container has its own files under
/// the same names.
fn is_program_of_host(host: &Host, pid: u32, program: &str) -> bool {
    // What cannot be looked at proves nothing.
    let file =
        |path: &Path| std::fs::metadata(path).or_absent().map(|meta| (meta.dev(), meta.ino()));
    let executed = file(&host.path(format!("/proc/{pid}/exe")));
    Path::new(program).is_absolute() && executed.is_some() && executed == file(&host.path(program))
}

/// Whether the process is in the user and PID namespaces of this one: not in a container, whatever
/// it has mounted where.
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

/// Whether the other end of the connection is closed.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let polled = poll(&mut fds, PollTimeout::ZERO);
    polled.is_err() || fds[0].revents().is_none_or(|events| events.contains(PollFlags::POLLHUP))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str) -> PluginOrigin {
        PluginOrigin::Pod { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn program(pattern: &str) -> PluginOrigin {
        PluginOrigin::Program(pattern.to_owned())
    }

    fn facts() -> PeerFacts {
        PeerFacts {
            program: "/opt/nri/plugins/10-a".to_owned(),
            is_hosts: true,
            is_contained: false,
            pod: None,
        }
    }

    #[test]
    fn a_program_is_the_hosts_file_outside_of_containers() {
        let own = program("/opt/nri/plugins/*");
        assert!(facts().fits(&own) && facts().fits(&program("/opt/nri/plugins/10-a")));
        for other in ["/opt/nri/*", "/opt/nri/plugins", "/opt/*/10-a", "/opt/nri/plugins/1"] {
            assert!(!facts().fits(&program(other)), "{other}");
        }
        assert!(!PeerFacts { is_hosts: false, ..facts() }.fits(&own), "its own file of that name");
        assert!(
            !PeerFacts { is_contained: true, ..facts() }.fits(&own),
            "mounted into a container"
        );
        assert!(!facts().fits(&pod("*", "*")), "it is in no pod");
    }

    #[test]
    fn a_pod_is_known_by_namespace_and_name_and_not_by_its_program() {
        let of_pod = Some(("kube-system".to_owned(), "balloons-x7k2p".to_owned()));
        let inside = PeerFacts { pod: of_pod, is_contained: true, ..facts() };
        assert!(inside.fits(&pod("kube-system", "balloons-*")));
        for (namespace, name) in
            [("kube-syste", "balloons-*"), ("kube-system", "balloons"), ("default", "*")]
        {
            assert!(!inside.fits(&pod(namespace, name)), "{namespace}/{name}");
        }
        let doubtful = PeerFacts { pod: None, ..inside };
        assert!(!doubtful.fits(&pod("*", "*")));
        assert!(doubtful.to_string().ends_with("in a pod whose namespace is not proven"));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a process that ends at once")]
    fn a_peer_that_cannot_be_held_or_has_ended_fits_nothing_but_no_restriction() {
        let lost = PluginPeer { pid: 0, process: None, facts: facts() };
        assert_eq!(lost.check(&[]), Ok(()));
        let why = lost.check(&[program("/opt/nri/plugins/*")]).unwrap_err();
        assert!(why.contains("cannot be identified"), "{why}");
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let process = pidfd::open(child.id()).unwrap();
        child.wait().unwrap();
        let ended = PluginPeer { pid: 7, process, facts: facts() };
        let why = ended.check(&[program("/opt/nri/plugins/*")]).unwrap_err();
        assert!(why.contains("process 7 has exited"), "{why}");
    }
}
