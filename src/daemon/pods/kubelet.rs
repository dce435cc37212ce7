// SPDX-License-Identifier: Apache-2.0
//! Decides whether kubelet wrote a limit of a pod's cgroup (decision D57): by the writer's user,
//! PID namespace and program, never by the name that the process chose.

use std::path::Path;

use crate::daemon::watch::pidfd;
use crate::daemon::watch::writers::Writer;
use crate::host::Host;
use crate::presence::IfThere;
use crate::procfs;

/// Programs that are kubelet, or contain it: Kubernetes itself, k3s, RKE2, MicroK8s, k0s.
const KUBELETS: [&str; 6] = ["kubelet", "hyperkube", "k3s", "rke2", "kubelite", "k0s"];

/// The process that wrote a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitWriter {
    Kubelet,
    /// systemd, which writes the values that kubelet requested, and writes them again at a `daemon-reload`.
    ServiceManager,
    /// A plugin, a node agent, or a person.
    Other,
    /// The process has ended, the kernel does not name it, the program of a process on the host cannot be
    /// read, or a program like kubelet runs in another PID namespace or as another user.
    Unknown,
}

/// Identifies the writer; `configured` are the names and paths that the operator added to kubelet's.
pub(crate) fn identify(host: &Host, writer: Option<&Writer>, configured: &[String]) -> LimitWriter {
    let Some(Writer { pid, process }) = writer else { return LimitWriter::Unknown };
    let is_of_host = procfs::is_of_this_host(host, *pid);
    let program = std::fs::read_link(host.path(format!("/proc/{pid}/exe"))).or_absent();
    // The PID belongs to this process only while the process runs.
    if pidfd::has_ended(process) {
        return LimitWriter::Unknown;
    }
    match program {
        Some(program) if is_kubelet(&program, configured) => match is_of_host {
            true => LimitWriter::Kubelet,
            false => LimitWriter::Unknown,
        },
        _ if !is_of_host => LimitWriter::Other,
        _ if *pid == 1 => LimitWriter::ServiceManager,
        Some(_) => LimitWriter::Other,
        None => LimitWriter::Unknown,
    }
}

fn is_kubelet(program: &Path, configured: &[String]) -> bool {
    // The file of a running kubelet may have been replaced by an upgrade.
    let text = program.to_string_lossy();
    let text = text.strip_suffix(" (deleted)").unwrap_or(&text);
    let name = text.rsplit('/').next().unwrap_or_default();
    let is_configured =
        |known: &String| if known.contains('/') { known == text } else { known == name };
    KUBELETS.contains(&name) || configured.iter().any(is_configured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelet_is_recognized_by_known_or_configured_names() {
        let configured = ["my-kubelet".to_owned(), "/opt/agent/node".to_owned()];
        for program in [
            "/usr/bin/kubelet",
            "/usr/bin/kubelet (deleted)",
            "/var/lib/rancher/k3s/data/x/bin/k3s",
            "/snap/microk8s/1/kubelite",
            "/x/my-kubelet",
            "/opt/agent/node",
        ] {
            assert!(is_kubelet(Path::new(program), &configured), "{program}");
        }
        for program in [
            "/usr/bin/koordlet",
            "/usr/bin/kubelet/agent",
            "/usr/bin/kubelet-helper",
            "/opt/other/node",
            "/usr/bin/python3",
            "",
        ] {
            assert!(!is_kubelet(Path::new(program), &configured), "{program}");
        }
    }

    /// Starts a process as the first one of a new PID namespace; returns its parent and its PID.
    #[expect(clippy::disallowed_methods, reason = "a process of the test")]
    fn in_a_pid_namespace() -> (std::process::Child, u32) {
        let words = ["--pid", "--fork", "--kill-child", "sh", "-c", "echo; sleep 60; :"];
        let mut parent = std::process::Command::new("unshare")
            .args(words)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = parent.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.id()));
        (parent, children.unwrap().trim().parse().unwrap())
    }

    #[test]
    fn the_first_process_of_the_host_is_the_service_manager() {
        let temp = tempfile::tempdir().unwrap();
        for pid in ["1", "self"] {
            let namespaces = temp.path().join(format!("proc/{pid}/ns"));
            std::fs::create_dir_all(&namespaces).unwrap();
            std::os::unix::fs::symlink("pid:[1]", namespaces.join("pid")).unwrap();
        }
        let exe = temp.path().join("proc/1/exe");
        std::os::unix::fs::symlink("/usr/lib/systemd/systemd", exe).unwrap();
        let host = Host::new(&temp.path().display().to_string(), "");
        let process = pidfd::open(std::process::id()).unwrap().unwrap();
        let first = Writer { pid: 1, process };
        assert_eq!(identify(&host, Some(&first), &[]), LimitWriter::ServiceManager);
    }

    #[test]
    fn only_a_writer_identified_by_program_counts_as_kubelet() {
        let host = Host::default();
        assert_eq!(identify(&host, None, &[]), LimitWriter::Unknown);
        let own = || Writer {
            pid: std::process::id(),
            process: pidfd::open(std::process::id()).unwrap().unwrap(),
        };
        assert_eq!(identify(&host, Some(&own()), &[]), LimitWriter::Other);
        let program = std::env::current_exe().unwrap().display().to_string();
        assert_eq!(identify(&host, Some(&own()), &[program]), LimitWriter::Kubelet);
        // A kubelet in a separate PID namespace, and another program there.
        let (mut parent, inside) = in_a_pid_namespace();
        let writer = Writer { pid: inside, process: pidfd::open(inside).unwrap().unwrap() };
        let program = std::fs::read_link(format!("/proc/{inside}/exe")).unwrap();
        let program = program.display().to_string();
        assert_eq!(identify(&host, Some(&writer), &[program]), LimitWriter::Unknown);
        assert_eq!(identify(&host, Some(&writer), &[]), LimitWriter::Other);
        parent.kill().unwrap();
        parent.wait().unwrap();
        #[expect(clippy::disallowed_methods, reason = "a process that ends")]
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let process = pidfd::open(pid).unwrap().unwrap();
        child.wait().unwrap();
        assert_eq!(identify(&host, Some(&Writer { pid, process }), &[]), LimitWriter::Unknown);
    }
}
