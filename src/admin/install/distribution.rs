// SPDX-License-Identifier: Apache-2.0
//! Kubernetes distributions, whose containerd may be elsewhere than its package installs it: for
//! each, the file that containerd reads, the file to change instead, the socket and the
//! directories. This module does no I/O.
//!
//! nri-runc never changes a file that the distribution rewrites at each start: k3s and RKE2 render
//! a template or import a directory, k0s collects a directory, microk8s fills in a template, and on
//! Flatcar the file is read-only. A file's path identifies its distribution, so the undo record
//! needs only that path.

use clap::ValueEnum;

use super::plan::{EngineFile, Texts};
use crate::engine::containerd_socket_of;
use crate::error::Error;
use crate::named::named;

/// The file that containerd reads, unless a distribution names another.
pub(super) const USUAL_MAIN: &str = "/etc/containerd/config.toml";
/// Flatcar's own file.
pub(super) const FLATCAR_MAIN: &str = "/usr/share/containerd/config.toml";
/// The file that identifies the system; `/etc/os-release` is a link to it.
pub(super) const OS_RELEASE: &str = "/usr/lib/os-release";
/// Path of the file of k3s and RKE2, below their data directory.
const RANCHER_MAIN: &str = "/agent/etc/containerd/config.toml";
const K0S_MAIN: &str = "/etc/k0s/containerd.toml";
const K0S_FOLDER: &str = "/etc/k0s/containerd.d";
/// The first line by which k0s recognizes its own file.
const K0S_FIRST_LINE: &str = "# k0s_managed=true";
const MICROK8S_DATA: &str = "/var/snap/microk8s/";
const MICROK8S_MAIN: &str = "/var/snap/microk8s/current/args/containerd.toml";
const MICROK8S_TEMPLATE: &str = "/var/snap/microk8s/current/args/containerd-template.toml";

named! {
    /// A distribution that `install` knows by name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
    pub(super) enum Distribution {
        /// k3s, also in k3d
        #[value(name = "k3s", alias = "k3d")]
        K3s => "k3s",
        /// RKE2
        #[value(name = "rke2")]
        Rke2 => "rke2",
        /// k0s
        #[value(name = "k0s")]
        K0s => "k0s",
        /// MicroK8s
        #[value(name = "microk8s")]
        Microk8s => "microk8s",
        /// kubeadm, and any other with containerd's own package
        Kubeadm => "kubeadm",
        /// kind (inside of a node)
        Kind => "kind",
        /// minikube (inside of the node)
        Minikube => "minikube",
        /// EKS on Amazon Linux 2023
        #[value(name = "eks", alias = "eks-al2023")]
        Eks => "eks",
        /// Flatcar Container Linux
        Flatcar => "flatcar",
    }
}

/// Distributions with a built-in containerd; `install` looks for them if none is named.
pub(super) const DISTRIBUTIONS: [Distribution; 5] = [
    Distribution::K3s,
    Distribution::Rke2,
    Distribution::K0s,
    Distribution::Microk8s,
    Distribution::Flatcar,
];

impl Distribution {
    /// Returns the distribution's name as people write it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Rke2 => "RKE2",
            Self::Microk8s => "MicroK8s",
            Self::Eks => "EKS",
            Self::Flatcar => "Flatcar",
            Self::K3s | Self::K0s | Self::Kubeadm | Self::Kind | Self::Minikube => self.name(),
        }
    }

    /// Returns the file that the distribution's containerd reads.
    pub(super) fn main(self) -> &'static str {
        match self {
            Self::K3s => "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            Self::Rke2 => "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
            Self::K0s => K0S_MAIN,
            Self::Microk8s => MICROK8S_MAIN,
            Self::Flatcar => FLATCAR_MAIN,
            Self::Kubeadm | Self::Kind | Self::Minikube | Self::Eks => USUAL_MAIN,
        }
    }

    /// Returns the distribution that writes this file; `None` if no distribution does.
    pub(super) fn of_main(main: &str) -> Option<Self> {
        if let Some(data) = main.strip_suffix(RANCHER_MAIN) {
            let is_rke2 = data.rsplit('/').next().is_some_and(|name| name.contains("rke2"));
            return Some(if is_rke2 { Self::Rke2 } else { Self::K3s });
        }
        match main {
            K0S_MAIN => Some(Self::K0s),
            FLATCAR_MAIN => Some(Self::Flatcar),
            _ => main.starts_with(MICROK8S_DATA).then_some(Self::Microk8s),
        }
    }

    /// Returns the programs whose presence shows that the distribution is installed.
    pub(super) fn programs(self) -> &'static [&'static str] {
        match self {
            Self::K3s => &["/usr/local/bin/k3s", "/usr/bin/k3s", "/bin/k3s", "/opt/bin/k3s"],
            Self::Rke2 => &["/usr/local/bin/rke2", "/usr/bin/rke2", "/opt/rke2/bin/rke2"],
            Self::K0s => &["/usr/local/bin/k0s", "/usr/bin/k0s"],
            Self::Microk8s => &["/snap/bin/microk8s", "/snap/microk8s/current/bin/containerd"],
            Self::Kubeadm | Self::Kind | Self::Minikube | Self::Eks | Self::Flatcar => &[],
        }
    }

    /// Returns the state directory of the distribution's containerd.
    pub(super) fn state_directory(self) -> &'static str {
        match self {
            Self::K3s | Self::Rke2 => "/run/k3s/containerd",
            Self::K0s => "/run/k0s/containerd",
            Self::Microk8s => "/var/snap/microk8s/common/run/containerd",
            Self::Kubeadm | Self::Kind | Self::Minikube | Self::Eks | Self::Flatcar => {
                "/run/containerd"
            }
        }
    }

    /// Returns the socket of the distribution's containerd.
    pub(super) fn socket_path(self) -> &'static str {
        containerd_socket_of(self.state_directory())
    }

    /// Returns the commands for crictl and ctr on a node of the distribution.
    pub(super) fn tools(self) -> (String, String) {
        let socket = self.socket_path();
        match self {
            Self::K3s => ("k3s crictl".to_owned(), "k3s ctr".to_owned()),
            Self::Rke2 => {
                let config = "/var/lib/rancher/rke2/agent/etc/crictl.yaml";
                let programs = "/var/lib/rancher/rke2/bin";
                let crictl = format!("{programs}/crictl --config {config}");
                (crictl, format!("{programs}/ctr --address {socket}"))
            }
            Self::K0s | Self::Microk8s => {
                let crictl = format!("crictl --runtime-endpoint unix://{socket}");
                (crictl, format!("{} ctr", self.name()))
            }
            Self::Kubeadm | Self::Kind | Self::Minikube | Self::Eks | Self::Flatcar => {
                ("crictl".to_owned(), "ctr".to_owned())
            }
        }
    }

    /// Returns the distribution's systemd units, the one of a control plane first.
    pub(super) fn units(self) -> &'static [&'static str] {
        match self {
            Self::K3s => &["k3s", "k3s-agent"],
            Self::Rke2 => &["rke2-server", "rke2-agent"],
            Self::K0s => &["k0scontroller", "k0sworker"],
            Self::Microk8s => &["snap.microk8s.daemon-containerd"],
            Self::Kubeadm | Self::Kind | Self::Minikube | Self::Eks | Self::Flatcar => {
                &["containerd"]
            }
        }
    }

    /// Returns the error for a distribution that has not written its configuration yet.
    pub(super) fn is_not_started(self, file: &str) -> Error {
        let title = self.title();
        Error::new(format!("{file} is missing: {title} writes it at its first start"))
            .hint(format!("start {title} once, then install"))
    }
}

/// Returns the file that `install` reads for this main file, and changes unless the distribution renders it.
pub(super) fn source(main: &str) -> &str {
    match Distribution::of_main(main) {
        Some(Distribution::Microk8s) => MICROK8S_TEMPLATE,
        Some(_) | None => main,
    }
}

/// Whether the distribution rewrites this file, or it is read-only.
pub(super) fn is_rendered(main: &str, text: &str) -> bool {
    use Distribution as D;
    match Distribution::of_main(main) {
        Some(D::K3s | D::Rke2 | D::Flatcar) => true,
        Some(D::K0s) => text.lines().next() == Some(K0S_FIRST_LINE),
        Some(D::Microk8s | D::Kubeadm | D::Kind | D::Minikube | D::Eks) | None => false,
    }
}

/// Returns the template from which k3s or RKE2 renders `main` in this configuration version; `None` for other
/// distributions.
pub(super) fn template(main: &str, version: i64) -> Option<String> {
    main.strip_suffix(RANCHER_MAIN)?;
    let folder = main.strip_suffix("/config.toml")?;
    let name = if version >= 3 { "config-v3.toml.tmpl" } else { "config.toml.tmpl" };
    Some(format!("{folder}/{name}"))
}

/// Returns the folder that the distribution's containerd reads although its file does not name it.
pub(super) fn folder(main: &str, text: &str) -> Option<EngineFile> {
    let is_k0s = main == K0S_MAIN && is_rendered(main, text);
    is_k0s.then(|| EngineFile::Folder(K0S_FOLDER.to_owned(), ".toml".to_owned()))
}

/// Returns other files that `install` reads: the templates of k3s and RKE2; on other systems, the files that
/// identify Flatcar and from which its configuration is copied.
pub(super) fn beside(main: &str) -> Vec<EngineFile> {
    let templates = [2, 3].into_iter().filter_map(|version| template(main, version));
    let system = [FLATCAR_MAIN, OS_RELEASE].map(ToOwned::to_owned).into_iter();
    let system = system.filter(|path| main == USUAL_MAIN && path != main);
    templates.chain(system).map(EngineFile::File).collect()
}

/// Whether the system is Flatcar, according to its [`OS_RELEASE`] among these files.
pub(super) fn is_flatcar(texts: &Texts) -> bool {
    let text = texts.get(OS_RELEASE).map_or("", String::as_str);
    text.lines().any(|line| line.replace('"', "") == "ID=flatcar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_identifies_the_distribution_that_writes_it() {
        for (path, wanted) in [
            ("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", Some(Distribution::K3s)),
            ("/srv/k3s/agent/etc/containerd/config.toml", Some(Distribution::K3s)),
            ("/srv/data/agent/etc/containerd/config.toml", Some(Distribution::K3s)),
            ("/var/lib/rancher/rke2/agent/etc/containerd/config.toml", Some(Distribution::Rke2)),
            ("/etc/k0s/containerd.toml", Some(Distribution::K0s)),
            ("/var/snap/microk8s/7731/args/containerd.toml", Some(Distribution::Microk8s)),
            ("/usr/share/containerd/config.toml", Some(Distribution::Flatcar)),
            ("/etc/containerd/config.toml", None),
            ("/etc/k0s/other.toml", None),
            ("/srv/config.toml", None),
        ] {
            assert_eq!(Distribution::of_main(path), wanted, "{path}");
        }
        for distribution in DISTRIBUTIONS {
            assert_eq!(Distribution::of_main(distribution.main()), Some(distribution));
        }
    }

    #[test]
    fn the_template_has_the_version_of_the_rendered_file() {
        let main = Distribution::Rke2.main();
        let folder = "/var/lib/rancher/rke2/agent/etc/containerd";
        assert_eq!(template(main, 2), Some(format!("{folder}/config.toml.tmpl")));
        assert_eq!(template(main, 3), Some(format!("{folder}/config-v3.toml.tmpl")));
        assert_eq!(template(USUAL_MAIN, 3), None);
        assert_eq!(template(K0S_MAIN, 2), None);
    }

    #[test]
    fn a_k0s_file_without_the_managed_line_belongs_to_the_operator() {
        assert!(is_rendered(K0S_MAIN, "# k0s_managed=true\nversion = 2\n"));
        assert!(!is_rendered(K0S_MAIN, "# k0s_managed=false\nversion = 2\n"));
        assert!(!is_rendered(K0S_MAIN, "version = 2\n# k0s_managed=true\n"));
        assert_eq!(folder(K0S_MAIN, "version = 2\n"), None);
    }

    #[test]
    fn flatcar_is_detected_only_by_its_id() {
        let is = |text: &str| is_flatcar(&Texts::from([(OS_RELEASE.to_owned(), text.to_owned())]));
        assert!(is("NAME=\"x\"\nID=flatcar\n") && is("ID=\"flatcar\"\n"));
        assert!(!is("ID=debian\nID_LIKE=flatcar\n") && !is(""));
    }
}
