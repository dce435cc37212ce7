// SPDX-License-Identifier: Apache-2.0
//! Decides whether the process that connected as a plugin may be that plugin: by its user (D11), by its
//! origin (`[plugin.NAME] from`, D44), and by whether a plugin file has the name (D55). The facts are stored
//! with the plugin, because a reload may change the result. Other modules collect the facts.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::config::{Config, Displace, PluginOrigin};
use crate::daemon::watch::pidfd;
use crate::error::quoted;
use crate::glob;

use super::pre_installed::PreInstalled;

/// The connecting process, as far as it is proven.
#[derive(Debug)]
pub(crate) struct PluginPeer {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// A descriptor of the process; `None` if it could not be opened.
    pub(crate) process: Option<OwnedFd>,
    pub(crate) facts: PeerFacts,
}

/// Facts about the process, from the kernel and from the records of pods.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct PeerFacts {
    /// Path of the file that it executes, as the process sees it.
    pub(crate) program: String,
    /// Whether the process is in the daemon's user and PID namespaces.
    pub(crate) is_on_host: bool,
    /// Whether its program is this host's file at that path; `None` until an `exe:` pattern needs it.
    pub(crate) is_hosts_file: Cell<Option<bool>>,
    /// Whether the process runs in a container on record, or may do so because that could not be determined.
    pub(crate) is_contained: bool,
    /// Namespace and name of its pod, if only the engine can have written them.
    pub(crate) pod: Option<(String, String)>,
}

/// The setting that forbids a process to be a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NotAdmitted {
    /// `nri.allowed_uids`.
    User,
    /// `[plugin.NAME] from`.
    Origin,
    /// The name belongs to a plugin file.
    File,
}

impl PluginPeer {
    /// Whether the process may be the plugin `index-name`.
    ///
    /// # Errors
    /// Fails with the setting that forbids it, and the line to log.
    pub(crate) fn check(
        &self,
        config: &Config,
        pre_installed: &PreInstalled,
        (index, name): (&str, &str),
    ) -> Result<(), (NotAdmitted, String)> {
        allow_user(config, self.uid).map_err(|why| (NotAdmitted::User, why))?;
        let settings = config.plugin(index, name);
        let id = format!("{index}-{name}");
        self.fits_any(&settings.from).map_err(|why| {
            let section = config.section_of(&id, |section| section.from.as_ref());
            let why = format!("it may not connect under this name: {why} (plugin.{section}.from)");
            (NotAdmitted::Origin, why)
        })?;
        if settings.displace == Displace::Never && pre_installed.owns(&id) {
            // The section with the full id would win over the one with the name.
            let own = config.plugins.get(&id).filter(|section| section.displace.is_some());
            let section = own.map_or(name, |_| id.as_str());
            let why = name_belongs_to_file(&config.plugin_path.join(&id), section, self.pid);
            return Err((NotAdmitted::File, why));
        }
        Ok(())
    }

    /// Whether the process has one of these origins, or none is demanded; else the reason, as a clause.
    fn fits_any(&self, origins: &[PluginOrigin]) -> Result<(), String> {
        if origins.is_empty() {
            return Ok(());
        }
        // The facts belong to this process only if it still runs.
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

/// Whether processes of this user may connect plugins.
///
/// # Errors
/// Fails with the line to log.
pub(crate) fn allow_user(config: &Config, uid: u32) -> Result<(), String> {
    match config.allowed_uids.contains(&uid) {
        true => Ok(()),
        false => Err(format!("user {uid} may not connect a plugin (nri.allowed_uids)")),
    }
}

fn name_belongs_to_file(file: &Path, section: &str, pid: i32) -> String {
    format!(
        "{} has this name, which is reserved for the process that nri-runc starts from it: stop process {pid}, remove the file, or set displace = \"any\" in [plugin.{section}]",
        file.display()
    )
}

impl PeerFacts {
    /// Whether the process is on the host and this `exe:` pattern matches its path, so that its file must be examined.
    fn may_be_program(&self, pattern: &str) -> bool {
        self.is_on_host && !self.is_contained && glob::matches_path(pattern, &self.program)
    }

    /// Whether an `exe:` pattern of a plugin's section matches and the program's file was not examined yet.
    pub(crate) fn needs_file(&self, config: &Config) -> bool {
        let mut origins =
            config.plugins.values().filter_map(|section| section.from.as_ref()).flatten();
        self.is_hosts_file.get().is_none()
            && origins.any(|origin| match origin {
                PluginOrigin::Program(pattern) => self.may_be_program(pattern),
                PluginOrigin::Pod { .. } => false,
            })
    }

    fn fits(&self, origin: &PluginOrigin) -> bool {
        match origin {
            PluginOrigin::Pod { namespace, name } => self
                .pod
                .as_ref()
                .is_some_and(|(ns, pod)| glob::matches(namespace, ns) && glob::matches(name, pod)),
            PluginOrigin::Program(pattern) => {
                self.may_be_program(pattern) && self.is_hosts_file.get() == Some(true)
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
            (None, true) => {
                write!(f, "{program} in a pod that is unknown or whose namespace is not proven")
            }
            (None, false) if self.is_hosts_file.get() == Some(false) => {
                write!(f, "{program}, which is not shown to be the host's file of that path")
            }
            (None, false) if self.is_on_host => write!(f, "{program} on the host"),
            (None, false) => write!(f, "{program} outside the host's user and PID namespaces"),
        }
    }
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
            is_on_host: true,
            is_hosts_file: Cell::new(Some(true)),
            is_contained: false,
            pod: None,
        }
    }

    #[test]
    fn exe_matches_only_the_hosts_file_outside_of_containers() {
        let own = program("/opt/nri/plugins/*");
        assert!(facts().fits(&own) && facts().fits(&program("/opt/nri/plugins/10-a")));
        for other in ["/opt/nri/*", "/opt/nri/plugins", "/opt/*/10-a", "/opt/nri/plugins/1"] {
            assert!(!facts().fits(&program(other)), "{other}");
        }
        assert!(!PeerFacts { is_on_host: false, ..facts() }.fits(&own), "its own namespaces");
        let other = PeerFacts { is_hosts_file: Cell::new(Some(false)), ..facts() };
        assert!(!other.fits(&own), "its own file of that name");
        assert!(other.to_string().ends_with("not shown to be the host's file of that path"));
        assert!(
            !PeerFacts { is_contained: true, ..facts() }.fits(&own),
            "mounted into a container"
        );
        assert!(!facts().fits(&pod("*", "*")), "it is in no pod");
    }

    #[test]
    fn a_program_file_is_read_only_if_an_exe_pattern_matches() {
        let new = || PeerFacts { is_hosts_file: Cell::new(None), ..facts() };
        let config = |from: Option<PluginOrigin>| {
            let mut config = Config::default();
            let section = config.plugins.entry("a".to_owned()).or_default();
            section.from = from.map(|origin| vec![origin]);
            config
        };
        let own = config(Some(program("/opt/nri/plugins/*")));
        assert!(new().needs_file(&own) && !new().fits(&program("/opt/nri/plugins/*")));
        for config in [config(None), config(Some(program("/other"))), config(Some(pod("*", "*")))] {
            assert!(!new().needs_file(&config));
        }
        let elsewhere = [
            PeerFacts { is_on_host: false, ..new() },
            PeerFacts { is_contained: true, ..new() },
            facts(),
        ];
        assert!(elsewhere.iter().all(|facts| !facts.needs_file(&own)));
    }

    #[test]
    fn a_pod_origin_matches_namespace_and_name_not_the_program() {
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
        assert!(
            doubtful
                .to_string()
                .ends_with("in a pod that is unknown or whose namespace is not proven")
        );
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a process that ends at once")]
    fn an_exited_peer_is_admitted_only_without_a_restriction() {
        let lost = PluginPeer { pid: 0, uid: 0, process: None, facts: facts() };
        assert_eq!(lost.fits_any(&[]), Ok(()));
        let why = lost.fits_any(&[program("/opt/nri/plugins/*")]).unwrap_err();
        assert!(why.contains("cannot be identified"), "{why}");
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let process = pidfd::open(child.id()).unwrap();
        child.wait().unwrap();
        let ended = PluginPeer { pid: 7, uid: 0, process, facts: facts() };
        let why = ended.fits_any(&[program("/opt/nri/plugins/*")]).unwrap_err();
        assert!(why.contains("process 7 has exited"), "{why}");
    }

    #[test]
    fn a_process_is_admitted_by_user_origin_and_file() {
        let temp = tempfile::tempdir().unwrap();
        crate::files::replace(&temp.path().join("10-policy"), b"").unwrap();
        let mut config = Config { plugin_path: temp.path().to_owned(), ..Config::default() };
        let files = PreInstalled::default();
        let peer = PluginPeer { pid: 7, uid: 0, process: None, facts: facts() };
        let kind = |config: &Config, peer: &PluginPeer, index: &str| {
            files.look(config).unwrap();
            peer.check(config, &files, (index, "policy")).map_err(|(kind, why)| {
                assert!(!why.contains('\n'), "{why}");
                kind
            })
        };
        assert_eq!(kind(&config, &peer, "10"), Err(NotAdmitted::File));
        assert_eq!(kind(&config, &peer, "11"), Ok(()));
        let other = PluginPeer { uid: 7, process: None, facts: facts(), ..peer };
        assert_eq!(kind(&config, &other, "11"), Err(NotAdmitted::User));
        let section = config.plugins.entry("policy".to_owned()).or_default();
        section.displace = Some(Displace::Any);
        assert_eq!(kind(&config, &peer, "10"), Ok(()));
        let section = config.plugins.entry("policy".to_owned()).or_default();
        section.from = Some(vec![program("/elsewhere")]);
        assert_eq!(kind(&config, &peer, "10"), Err(NotAdmitted::Origin));
    }
}
