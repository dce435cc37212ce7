// SPDX-License-Identifier: Apache-2.0
//! The engines that `install` supports: their names, their programs, the command by which each
//! reloads its configuration, and how containers select the handler. Pure.

use clap::ValueEnum;
use serde_json::json;

use super::distribution::Distribution;
use crate::named::named;

named! {
    /// An engine with which nri-runc can be registered, with its name on the command line and in records.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
    pub(super) enum Engine {
        /// containerd (CRI)
        Containerd => "containerd",
        /// CRI-O.
        #[value(alias = "cri-o")]
        Crio => "crio",
        /// Docker.
        Docker => "docker",
        /// Podman.
        Podman => "podman",
        /// nerdctl (needs no registration)
        Nerdctl => "nerdctl",
        /// iSulad.
        Isulad => "isulad",
    }
}

impl Engine {
    /// The engine's name as people write it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Crio => "CRI-O",
            Self::Docker => "Docker",
            Self::Podman => "Podman",
            Self::Nerdctl => "nerdctl",
            Self::Isulad => "iSulad",
        }
    }

    /// The first version with NRI on by default; if none has, only the engine's name.
    pub(super) fn first_with_nri(self) -> &'static str {
        match self {
            Self::Containerd => "containerd 2.0",
            Self::Crio => "CRI-O 1.30",
            Self::Docker | Self::Podman | Self::Nerdctl | Self::Isulad => self.title(),
        }
    }

    /// The programs whose presence shows that the engine is installed.
    pub(super) fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Containerd => &["/usr/bin/containerd", "/usr/local/bin/containerd"],
            Self::Crio => &["/usr/bin/crio", "/usr/local/bin/crio"],
            Self::Docker => &["/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd"],
            Self::Podman => &["/usr/bin/podman", "/usr/local/bin/podman"],
            Self::Nerdctl => &["/usr/bin/nerdctl", "/usr/local/bin/nerdctl"],
            Self::Isulad => &["/usr/bin/isulad", "/usr/local/bin/isulad"],
        }
    }

    /// The command that makes the engine reload its configuration; `removes_entry`: an entry was
    /// removed from that configuration.
    pub(super) fn reload_command(self, removes_entry: bool) -> &'static str {
        match self {
            Self::Containerd => "systemctl restart containerd",
            Self::Crio => "systemctl restart crio",
            // At a reload dockerd keeps removed entries, and exits if its default runtime no longer
            // has one.
            Self::Docker if removes_entry => "systemctl restart docker",
            Self::Docker => "systemctl reload docker",
            Self::Isulad => "systemctl restart isulad",
            Self::Podman | Self::Nerdctl => "",
        }
    }

    /// How containers use the handler, the usual way first. `main` is the engine's file; it
    /// determines a distribution's names of `crictl` and `ctr`.
    pub(super) fn usage(
        self,
        main: Option<&str>,
        name: &str,
        binary: &str,
        default: bool,
    ) -> Vec<String> {
        let line = |line: String| vec![line];
        match self {
            Self::Containerd => {
                let of = main.and_then(Distribution::of_main);
                let (crictl, ctr) = of.unwrap_or(Distribution::Kubeadm).tools();
                let mut lines = pods(&crictl, name, default);
                lines.push(format!(
                    "{ctr} run --runc-binary {binary} IMAGE ID (ctr reads no configuration)"
                ));
                lines
            }
            Self::Crio => pods("crictl", name, default),
            Self::Docker if default => line("docker run IMAGE".to_owned()),
            Self::Docker => line(format!("docker run --runtime {name} IMAGE")),
            Self::Podman if default => line("podman run IMAGE".to_owned()),
            Self::Podman => line(format!("podman --runtime {name} run IMAGE")),
            Self::Nerdctl => line(format!("nerdctl run --runtime {binary} IMAGE")),
            Self::Isulad => {
                let runtime = if default { String::new() } else { format!("--runtime {name} ") };
                let mut lines = pods("crictl", name, default);
                lines.push(format!("isula run {runtime}IMAGE"));
                lines
            }
        }
    }
}

/// How pods use the handler; `crictl` is the command's name on the node.
fn pods(crictl: &str, name: &str, default: bool) -> Vec<String> {
    if default {
        return vec![
            "every pod without a runtimeClassName".to_owned(),
            format!("{crictl} runp POD.json"),
        ];
    }
    let crictl = format!("{crictl} runp --runtime {name} POD.json");
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if name.len() > 63
        || !name.bytes().all(is_plain)
        || name.starts_with('-')
        || name.ends_with('-')
    {
        return vec![
            crictl,
            format!(
                "a Kubernetes RuntimeClass cannot use the handler name {name}: choose another with --name"
            ),
        ];
    }
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": {"name": name}, "handler": name,
    });
    vec![
        format!(
            "runtimeClassName: {name} in the pod's spec, after: echo '{class}' | kubectl apply -f -"
        ),
        crictl,
    ]
}
