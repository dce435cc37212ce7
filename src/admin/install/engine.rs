// SPDX-License-Identifier: Apache-2.0
//! The engines that `install` supports, and the questions that it asks about each: a new engine is a variant and a row
//! of `rows.rs`, for whose fields the compiler asks. Other files never decide by variant.

use std::ffi::OsString;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::ledger::Ledger;
use super::nri_decision::NriSetting;
use super::plan::{EngineFile, Plan, Registration, Texts};
use super::root::Root;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::named::named;
use crate::sources::{LoadedHandlers, Process};

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
    /// The engine of a distribution that is named without an engine.
    pub(super) const OF_DISTRIBUTIONS: Self = Self::Containerd;

    /// The command that makes the engine reload its configuration, empty if it needs none;
    /// `removes_entry`: an entry was removed from that configuration.
    pub(super) fn reload_command(self, removes_entry: bool) -> String {
        let Some(daemon) = &self.row().daemon else { return String::new() };
        let verb = if daemon.reloads && !removes_entry { "reload" } else { "restart" };
        format!("systemctl {verb} {}", self.name())
    }
}

/// What `install` asks about one engine. The argument `main` is the engine's main file, `None` for the usual one.
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
    /// Kubernetes distributions have it built in.
    pub(super) has_distributions: bool,
    /// Its own NRI.
    pub(super) nri: Option<OwnNri>,
    /// Its daemon; without one, it reads its files for each container.
    pub(super) daemon: Option<EngineDaemon>,
    /// Lists the engine's files; `texts` are the files read so far, whose imports name more.
    pub(super) sources: fn(main: Option<&str>, texts: &Texts) -> Vec<EngineFile>,
    /// Plans the changed files for a registration.
    pub(super) plan: fn(&Registration, &Texts) -> Result<Plan>,
    /// Describes how containers use the handler, the usual way first.
    pub(super) usage:
        fn(main: Option<&str>, name: &str, binary: &str, default: bool) -> Vec<String>,
    /// The PATH in which its containers look up a runtime; `None` if no process shows it.
    pub(super) search_path: fn(main: Option<&str>, &Host) -> Option<OsString>,
    /// Lists the containers for which the engine recorded the registration, each by its ID.
    pub(super) containers: fn(&Root, &Ledger) -> Vec<String>,
    /// Whether the engine never calls nri-runc again for the container of this daemon's record.
    pub(super) is_given_up: fn(&Root, &Ledger, record: &Value) -> bool,
}

impl EngineRow {
    /// Returns the main file of a user's engine; `user` are the user's folders.
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

    /// Whether files name its handlers; otherwise the command for each container names the runtime.
    pub(super) fn has_files(&self) -> bool {
        !(self.sources)(None, &Texts::new()).is_empty()
    }

    /// The first of the engine's programs that is installed.
    pub(super) fn program(&self, root: &Root) -> Option<&'static str> {
        self.programs.iter().copied().find(|path| root.has_program(path))
    }
}

/// Whether this program of an engine has NRI on by default; `None` if unknown.
type IsOnByDefault = fn(program: &str, &Root) -> Option<bool>;

/// An engine's own NRI.
#[derive(Debug)]
pub(super) struct OwnNri {
    /// The first version that has it on by default, and how to see that; without one, it is off by default.
    pub(super) default: Option<(&'static str, IsOnByDefault)>,
    /// Reads its setting.
    pub(super) setting: fn(main: Option<&str>, &Texts) -> Result<NriSetting>,
    /// Plans to switch it off, where nri-runc is registered with another engine.
    pub(super) plan_off: fn(main: Option<&str>, &Texts, &mut Plan) -> Result<()>,
}

/// An engine's daemon.
#[derive(Debug)]
pub(super) struct EngineDaemon {
    /// A reload makes it read its file, but it keeps removed entries, and exits if its default runtime was removed.
    pub(super) reloads: bool,
    /// Flags that make it read other files than those of `sources`.
    pub(super) other_files: &'static [&'static str],
    /// Finds the process that reads the file `main`, or without one any process.
    pub(super) find: fn(&Host, main: Option<&str>) -> Option<Process>,
    /// The main file of a process, if a flag may name it.
    pub(super) file_of: fn(&Process) -> Option<String>,
    /// Asks the daemon for its handlers. In a pod, the node's daemon answers although no process is found.
    pub(super) handlers:
        fn(Option<&Process>, main: Option<&str>, &Root, &Host) -> Option<LoadedHandlers>,
}

/// The option (with a trailing space) by which a command selects the handler.
pub(super) fn option_for(name: &str, default: bool) -> String {
    if default { String::new() } else { format!("--runtime {name} ") }
}

/// How pods use the handler; `crictl` is the command's name on the node.
pub(super) fn pods(crictl: &str, name: &str, default: bool) -> Vec<String> {
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
