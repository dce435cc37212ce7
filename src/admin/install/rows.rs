// SPDX-License-Identifier: Apache-2.0
//! The facts about each engine that `install` needs: one row per engine. A new engine does not
//! compile until its row has all of them.

use std::ffi::OsString;

use super::distribution::{self, Distribution};
use super::docker::{DOCKER as DOCKER_FILE, ISULAD as ISULAD_FILE};
use super::engine::{Engine, option_for, pods};
use super::ledger::Ledger;
use super::nri_decision::NriSetting;
use super::plan::{EngineFile, Plan, Registration, Texts};
use super::root::Root;
use super::running::{OF_CONMON, first_process, flag, path_of};
use super::users::ContainerRecord;
use super::{containerd, crio, docker, own_nri, podman, running, users};
use crate::engine::{Dockerd, EngineKind};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::sources::{self, LoadedHandlers, Process};

/// Asks a daemon, which reads the file `main`, for its handlers.
pub(super) type AskHandlers =
    fn(Option<&Process>, main: Option<&str>, &Root, &Host) -> Option<LoadedHandlers>;

/// The facts about one engine that `install` needs. The argument `main` is the engine's main file,
/// `None` for the usual one.
#[derive(Debug)]
pub(super) struct EngineRow {
    /// The engine's name as people write it.
    pub(super) title: &'static str,
    /// The programs whose presence shows that the engine is installed.
    pub(super) programs: &'static [&'static str],
    /// The engine's names in the daemon's records.
    pub(super) kinds: &'static [&'static str],
    /// The usual main file, if an option may name another.
    pub(super) main: Option<&'static str>,
    /// The main file of a user's own engine, below the user's folder of configurations.
    pub(super) main_of_user: Option<&'static str>,
    /// The engine that runs this engine's containers.
    pub(super) runs_on: Option<Engine>,
    /// The engine's own NRI.
    pub(super) nri: Option<OwnNri>,
    /// The engine's daemon; without one, the engine reads its files for each container.
    pub(super) daemon: Option<EngineDaemon>,
    /// Lists the engine's files; `texts` are the files read so far, whose imports name more.
    pub(super) sources: fn(main: Option<&str>, texts: &Texts) -> Vec<EngineFile>,
    /// Plans the changed files for a registration.
    pub(super) plan: fn(&Registration, &Texts) -> Result<Plan>,
    /// Describes how containers use the handler, the usual way first.
    pub(super) usage:
        fn(main: Option<&str>, name: &str, binary: &str, default: bool) -> Vec<String>,
    /// The PATH with which the engine runs nri-runc; `None` if no process shows it.
    pub(super) search_path: fn(main: Option<&str>, &Host) -> Option<OsString>,
    /// Lists the containers for which the engine recorded the registration, each by its ID.
    pub(super) containers: fn(&Root, &Ledger) -> Vec<String>,
    /// Whether the engine never calls nri-runc again for the container of the daemon's `record`.
    pub(super) is_given_up: fn(&Root, &Ledger, &ContainerRecord) -> bool,
}

impl EngineRow {
    /// Returns the main file of a user's engine, `None` for root's; `user` has the user's folders.
    ///
    /// # Errors
    /// Fails if the user has no daemon.
    pub(super) fn file_of_user(
        &self,
        user: Option<(&str, &str)>,
        has_daemon: bool,
    ) -> Result<Option<String>> {
        let (Some((config, _)), Some(main)) = (user, self.main_of_user) else { return Ok(None) };
        if has_daemon {
            return Ok(Some(format!("{config}/{main}")));
        }
        let file = format!("{config}/nri-runc/config.toml");
        Err(Error::new(format!(
            "this user has no daemon: {file} or the folder of XDG_RUNTIME_DIR is missing"
        ))
        .hint("nothing was changed; create the file (it may be empty) in a login session"))
    }

    /// Whether the engine's files name handlers; otherwise the command for each container names the
    /// runtime.
    pub(super) fn has_files(&self) -> bool {
        !(self.sources)(None, &Texts::new()).is_empty()
    }

    /// Returns the first of the engine's programs that is installed.
    pub(super) fn program(&self, root: &Root) -> Option<&'static str> {
        self.programs.iter().copied().find(|path| root.has_program(path))
    }
}

/// Whether this program of an engine has NRI on by default; `None` if unknown.
type IsOnByDefault = fn(program: &str, &Root) -> Option<bool>;

/// An engine's own NRI.
#[derive(Debug)]
pub(super) struct OwnNri {
    /// The first version with NRI on by default, and the check whether a program is that or a later
    /// version; `None` if NRI is off by default in every version.
    pub(super) default: Option<(&'static str, IsOnByDefault)>,
    /// Reads the setting of NRI in the engine's files.
    pub(super) setting: fn(main: Option<&str>, &Texts) -> Result<NriSetting>,
    /// Plans to switch NRI off, if nri-runc is registered with another engine.
    pub(super) plan_off: fn(main: Option<&str>, &Texts, &mut Plan) -> Result<()>,
}

/// An engine's daemon.
#[derive(Debug)]
pub(super) struct EngineDaemon {
    /// Whether a reload makes the daemon read its file. A reload keeps removed entries, and the
    /// daemon exits if its default runtime was removed.
    pub(super) reloads: bool,
    /// Flags that make the daemon read other files than those of `sources`.
    pub(super) other_files: &'static [&'static str],
    /// Finds the process that reads the file `main`; without `main`, any process.
    pub(super) find: fn(&Host, main: Option<&str>) -> Option<Process>,
    /// The main file of a process, if a flag may name it.
    pub(super) file_of: fn(&Process) -> Option<String>,
    /// Asks the daemon for its handlers, if it has an API for that. In a pod, the node's daemon
    /// answers although no process is found.
    pub(super) handlers: Option<AskHandlers>,
}

impl Engine {
    pub(super) fn row(self) -> &'static EngineRow {
        match self {
            Self::Containerd => &CONTAINERD,
            Self::Crio => &CRIO,
            Self::Docker => &DOCKER,
            Self::Podman => &PODMAN,
            Self::Nerdctl => &NERDCTL,
            Self::Isulad => &ISULAD,
        }
    }

    /// Returns the command that makes the engine read its changed configuration: a reload if the
    /// engine supports that and no entry was removed, else a restart. Empty without a daemon.
    pub(super) fn reload_command(self, removes_entry: bool) -> String {
        let Some(daemon) = &self.row().daemon else { return String::new() };
        let verb = if daemon.reloads && !removes_entry { "reload" } else { "restart" };
        format!("systemctl {verb} {}", self.name())
    }
}

const CONTAINERD: EngineRow = EngineRow {
    title: "containerd",
    programs: &["/usr/bin/containerd", "/usr/local/bin/containerd"],
    kinds: &[EngineKind::ContainerdCri.name()],
    main: Some(containerd::MAIN),
    main_of_user: None,
    runs_on: None,
    nri: Some(OwnNri {
        default: Some(("containerd 2.0", own_nri::is_containerd_2)),
        setting: |main, texts| containerd::nri_setting(main.unwrap_or(containerd::MAIN), texts),
        plan_off: |main, texts, plan| {
            containerd::plan_nri_off(main.unwrap_or(containerd::MAIN), texts, plan)
        },
    }),
    daemon: Some(EngineDaemon {
        reloads: false,
        other_files: &[],
        find: running::containerd_of,
        file_of: |process| Some(running::config_of(process)),
        handlers: Some(running::containerd_handlers),
    }),
    sources: |main, texts| {
        let main = main.unwrap_or(containerd::MAIN);
        [containerd::sources(main, texts), distribution::beside(main)].concat()
    },
    plan: containerd::plan,
    usage: |main, name, binary, default| {
        let of = main.and_then(Distribution::of_main).unwrap_or(Distribution::Kubeadm);
        let (crictl, ctr) = of.tools();
        let ctr = format!("{ctr} run --runc-binary {binary} IMAGE ID (ctr reads no configuration)");
        [pods(&crictl, name, default), vec![ctr]].concat()
    },
    search_path: |main, host| path_of(&running::containerd_of(host, main)?, host),
    containers: users::bundles,
    is_given_up: |_, _, _| false,
};

const CRIO: EngineRow = EngineRow {
    title: "CRI-O",
    programs: &["/usr/bin/crio", "/usr/local/bin/crio"],
    kinds: &[EngineKind::Crio.name()],
    main: None,
    main_of_user: None,
    runs_on: None,
    nri: Some(OwnNri {
        default: Some(("CRI-O 1.30", |_, root| {
            Some(own_nri::is_crio_1_30(CRIO.program(root), root))
        })),
        setting: |_, texts| crio::nri_setting(texts),
        plan_off: |_, texts, plan| crio::plan_nri_off(texts, plan),
    }),
    daemon: Some(EngineDaemon {
        reloads: false,
        other_files: &["--config", "-c", "--config-dir", "-d"],
        find: |host, _| first_process("crio", host),
        file_of: |_| None,
        handlers: Some(|process, _, root, host| {
            let said = process.and_then(|its| flag(its, &["--listen"]));
            sources::handlers(&host.path(said.unwrap_or_else(|| crio::socket_path(root))))
        }),
    }),
    sources: |_, _| crio::sources(),
    plan: crio::plan,
    usage: |_, name, _, default| pods("crictl", name, default),
    // conmon has CRI-O's PATH, or in older versions OF_CONMON.
    search_path: |_, host| {
        let mut all = path_of(&first_process("crio", host)?, host).unwrap_or_default();
        if !all.is_empty() {
            all.push(":");
        }
        all.push(OF_CONMON);
        Some(all)
    },
    containers: |root, ledger| users::monitored(false, root, &ledger.binary),
    is_given_up: |_, _, _| false,
};

const DOCKER: EngineRow = EngineRow {
    title: DOCKER_FILE.title,
    programs: &["/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd"],
    kinds: &[EngineKind::Docker.name()],
    main: Some(DOCKER_FILE.main),
    main_of_user: None,
    runs_on: Some(Engine::Containerd),
    nri: Some(OwnNri {
        default: None,
        setting: |main, texts| docker::nri_setting(&DOCKER_FILE, main, texts),
        plan_off: |main, texts, plan| docker::plan_nri_off(&DOCKER_FILE, main, texts, plan),
    }),
    daemon: Some(EngineDaemon {
        reloads: true,
        other_files: &[],
        find: |host, main| running::docker_of(host, main).map(|(process, _)| process),
        file_of: |process| Some(Dockerd::of(&process.words)?.config_file),
        handlers: Some(|_, main, _, host| {
            let mut sockets = running::docker_of(host, main)?.1.sockets().into_iter();
            sockets.find_map(|socket| sources::docker_runtimes(&host.path(socket)))
        }),
    }),
    sources: |main, _| vec![EngineFile::File(main.unwrap_or(DOCKER_FILE.main).to_owned())],
    plan: |registration, texts| docker::plan(&DOCKER_FILE, registration, texts),
    usage: |_, name, _, default| vec![format!("docker run {}IMAGE", option_for(name, default))],
    search_path: |main, host| {
        let (its, _) = running::docker_of(host, main)?;
        // The shim is a child of containerd, which may be a containerd that Docker did not start.
        let other = flag(&its, &["--containerd"]).and_then(|_| running::containerd_of(host, None));
        path_of(other.as_ref().unwrap_or(&its), host)
    },
    containers: users::docker,
    is_given_up: users::is_given_up_by_docker,
};

const ISULAD: EngineRow = EngineRow {
    title: ISULAD_FILE.title,
    programs: &["/usr/bin/isulad", "/usr/local/bin/isulad"],
    kinds: &[EngineKind::Isulad.name()],
    main: Some(ISULAD_FILE.main),
    main_of_user: None,
    runs_on: None,
    nri: Some(OwnNri {
        default: None,
        setting: |main, texts| docker::nri_setting(&ISULAD_FILE, main, texts),
        plan_off: |main, texts, plan| docker::plan_nri_off(&ISULAD_FILE, main, texts, plan),
    }),
    daemon: Some(EngineDaemon {
        reloads: false,
        other_files: &[],
        find: |host, _| first_process("isulad", host),
        file_of: |_| None,
        handlers: None,
    }),
    sources: |main, _| vec![EngineFile::File(main.unwrap_or(ISULAD_FILE.main).to_owned())],
    plan: |registration, texts| docker::plan(&ISULAD_FILE, registration, texts),
    usage: |_, name, _, default| {
        let isula = format!("isula run {}IMAGE", option_for(name, default));
        [pods("crictl", name, default), vec![isula]].concat()
    },
    search_path: |_, host| path_of(&first_process("isulad", host)?, host),
    containers: users::isulad,
    is_given_up: |_, _, _| false,
};

const PODMAN: EngineRow = EngineRow {
    title: "Podman",
    programs: &["/usr/bin/podman", "/usr/local/bin/podman"],
    kinds: &[EngineKind::Podman.name()],
    main: None,
    // A user's Podman reads this file and its folder after the system's files.
    main_of_user: Some("containers/containers.conf"),
    runs_on: None,
    nri: None,
    daemon: None,
    sources: |main, _| podman::sources(main),
    plan: podman::plan,
    usage: |_, name, _, default| vec![format!("podman {}run IMAGE", option_for(name, default))],
    search_path: |_, _| Some(OF_CONMON.into()),
    containers: |root, ledger| {
        [users::monitored(true, root, &ledger.binary), users::podman(root, ledger)].concat()
    },
    is_given_up: |_, _, _| false,
};

const NERDCTL: EngineRow = EngineRow {
    title: "nerdctl",
    programs: &["/usr/bin/nerdctl", "/usr/local/bin/nerdctl"],
    // Only an annotation distinguishes nerdctl from other clients of containerd.
    kinds: &[EngineKind::Nerdctl.name(), EngineKind::Containerd.name()],
    main: None,
    main_of_user: None,
    runs_on: Some(Engine::Containerd),
    nri: None,
    daemon: None,
    sources: |_, _| Vec::new(),
    plan: |registration, _| nerdctl(registration),
    usage: |_, _, binary, _| vec![format!("nerdctl run --runtime {binary} IMAGE")],
    search_path: CONTAINERD.search_path,
    containers: CONTAINERD.containers,
    is_given_up: |_, _, _| false,
};

fn nerdctl(registration: &Registration) -> Result<Plan> {
    if registration.default {
        return Err(Error::new("nerdctl.toml has no key for a default runtime").hint(format!(
            "pass it with each container: nerdctl run --runtime {}",
            registration.binary
        )));
    }
    let mut plan = Plan::default();
    plan.notes.push(format!(
        "nothing to register: nerdctl takes the runtime with each container: nerdctl run --runtime {} \
         IMAGE",
        registration.binary
    ));
    Ok(plan)
}
