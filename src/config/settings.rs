// SPDX-License-Identifier: Apache-2.0
//! The settings as types, with their defaults and the paths that follow from them. The table in
//! `keys.rs` sets them and documents each. Nothing here reads a file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use nri_adaptation::DefaultValidator;
use serde::{Deserialize, Serialize};

use super::exec_rules::ExecRuleSection;
use super::injections::InjectionSection;
use super::promises::PromiseSection;
use super::rules::RuleSection;
use crate::engine::identity::Exemptions;
use crate::host::Host;
use crate::named::named;
use crate::presence::{self, IfThere};

/// Time without a heartbeat after which the daemon is considered unresponsive.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);

/// The name of the section `[plugin."*"]`, which has the defaults for every plugin.
pub(super) const ANY_PLUGIN: &str = "*";

named! {
    /// The behaviour of a command if the daemon is unavailable.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DaemonPolicy {
        /// Continue as the plain runtime, and leave a note; a create fails nevertheless if a
        /// protection forbids it.
        Continue => "continue",
        /// Fail the command, except a `delete`.
        Fail => "fail",
    }

    /// The policy for a container whose creator is not the host's root, by its name in the policy
    /// file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RootlessPolicy {
        /// The container is created without plugins.
        Pass => "pass",
        /// The container is refused.
        Refuse => "refuse",
    }

    /// The containers that plugins see.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Scope {
        /// Containers of nri-runc only.
        Handler => "handler",
        /// Also containers that the plain runtime created.
        Node => "node",
    }

    /// The effect on a request if a plugin does not respond.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "lowercase")]
    pub enum OnFailure {
        /// The operation is refused.
        Refuse => "refuse",
        /// The plugin is skipped.
        #[default]
        Skip => "skip",
    }

    /// The containers that a plugin may evict.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum Evict {
        /// Any container.
        #[default]
        Allow => "allow",
        /// None.
        Deny => "deny",
        /// Containers in the namespace of the plugin's own pod.
        OwnNamespace => "own-namespace",
    }
}

/// The processes that may connect under a plugin's name, as `[plugin.NAME] from` lists them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginOrigin {
    /// Processes in a pod: patterns of its namespace and name.
    Pod { namespace: String, name: String },
    /// Processes on this host that execute a file: a pattern of its path.
    Program(String),
}

named! {
    /// The processes that may connect as a pre-installed plugin.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum Displace {
        /// Only the process that the daemon starts from the plugin's file.
        #[default]
        Never => "never",
        /// Other processes too.
        Any => "any",
    }
}

/// The address at which the daemon serves metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsListener {
    /// An address and port.
    Tcp(SocketAddr),
    /// A socket to which only the daemon's user can connect.
    Unix(PathBuf),
}

named! {
    /// The destination of the audit log.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AuditTarget {
        /// Files of limited size.
        File => "file",
        /// The systemd journal.
        Journal => "journal",
    }

    /// The arguments of an `exec`'s process that the audit log records.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ExecArgs {
        /// Only the program.
        First => "first",
        /// All arguments, without the values of `KEY=VALUE`.
        All => "all",
        /// No argument.
        Nothing => "none",
    }
}

/// Settings for tests only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seams {
    pub state_version: Option<u32>,
    pub protocol: Option<u32>,
    /// The state directories of runtimes, instead of the engines' usual ones.
    pub runtime_roots: Option<Vec<PathBuf>>,
    /// Whether the kernel may be asked for exit codes.
    pub kernel_exits: bool,
}

impl Default for Seams {
    fn default() -> Self {
        Self { state_version: None, protocol: None, runtime_roots: None, kernel_exits: true }
    }
}

/// All settings, with defaults filled in. The table of keys documents each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub runtime: Vec<String>,
    pub on_daemon_failure: DaemonPolicy,
    /// `None` means `Refuse` if something protects containers, else `Pass`.
    pub on_rootless: Option<RootlessPolicy>,
    pub autostart: bool,
    pub exempt_namespaces: Vec<String>,
    pub exempt_by_annotation: bool,
    pub default_namespace: String,
    pub run_dir: PathBuf,
    /// The run directory of root's daemon, if this is the configuration of a user's daemon
    /// (`config/user.rs`).
    pub node_run_dir: Option<PathBuf>,
    pub runtime_roots: Vec<PathBuf>,
    pub runtime_name: String,
    pub instances: BTreeMap<String, String>,
    pub disable: bool,
    pub socket_path: PathBuf,
    pub plugin_path: PathBuf,
    pub plugin_config_path: PathBuf,
    pub registration_timeout: Duration,
    pub request_timeout: Duration,
    pub disable_connections: bool,
    pub wait_for: Vec<String>,
    pub kubelet: Vec<String>,
    pub socket_mode: u32,
    pub socket_gid: Option<u32>,
    pub allowed_uids: Vec<u32>,
    pub default_validator: DefaultValidator,
    pub plugins: BTreeMap<String, PluginSection>,
    /// The rules, in the order in which they apply.
    pub rules: Vec<RuleSection>,
    /// The exec rules, in the order in which they apply.
    pub exec_rules: Vec<ExecRuleSection>,
    /// The promises, in file order.
    pub promises: Vec<PromiseSection>,
    pub injections: Vec<InjectionSection>,
    pub section_names: SectionNames,
    pub pod_resources: PathBuf,
    pub cdi_spec_dirs: Vec<PathBuf>,
    pub blockio_config_file: Option<PathBuf>,
    pub rdt_config_file: Option<PathBuf>,
    pub resctrl_path: PathBuf,
    pub drift_every: Option<Duration>,
    pub drift_reapply: Vec<String>,
    pub eviction_signal: String,
    pub eviction_grace: Duration,
    pub eviction_per_minute: u32,
    pub eviction_sandboxes: bool,
    pub metrics_listen: Option<MetricsListener>,
    pub audit_target: Option<AuditTarget>,
    pub audit_path: PathBuf,
    pub audit_max_size: u64,
    pub audit_max_files: u32,
    pub audit_exec: bool,
    pub audit_exec_args: ExecArgs,
    pub log_target: String,
    pub log_level: String,
    pub log_format: String,
    pub scope: Scope,
    pub seams: Seams,
    pub debug_host_root: String,
    pub debug_node_root: String,
    pub debug_fault: String,
    /// [`SILENCE`], unless a test sets another value.
    pub debug_silence: Duration,
    /// The first error that makes creates fail, except in exempt namespaces; see [`Problem::text`].
    pub protection_error: Option<String>,
    pub debug_create_cap: Duration,
    /// Interval at which records are compared with the files that they describe.
    pub debug_look_every: Duration,
}

/// One section `[plugin.NAME]` as written; `None` for an absent key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginSection {
    pub on_failure: Option<OnFailure>,
    pub request_timeout: Option<Duration>,
    pub sync_timeout: Option<Duration>,
    pub strikes: Option<u32>,
    pub required: Option<bool>,
    pub wait: Option<Duration>,
    pub concurrency: Option<u32>,
    pub allow: Option<Vec<String>>,
    pub deny: Option<Vec<String>>,
    pub evict: Option<Evict>,
    pub from: Option<Vec<PluginOrigin>>,
    pub displace: Option<Displace>,
    pub runtime_annotations: Option<Vec<String>>,
}

/// The names of the sections in lists such as `[[rule]]`, to find duplicates. The lists contain
/// them too, so a comparison ignores them.
#[derive(Debug, Clone, Default)]
pub struct SectionNames(BTreeSet<(&'static str, String)>);

impl PartialEq for SectionNames {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SectionNames {}

impl SectionNames {
    /// Adds a name; false if another section of this list has it.
    pub(super) fn add(&mut self, list: &'static str, name: &str) -> bool {
        self.0.insert((list, name.to_owned()))
    }

    pub(super) fn forget(&mut self, list: &'static str, name: String) {
        self.0.remove(&(list, name));
    }
}

impl Default for Config {
    #[expect(clippy::too_many_lines, reason = "a table, a line for each key")]
    fn default() -> Self {
        Self {
            runtime: vec!["runc".to_owned(), "crun".to_owned(), "youki".to_owned()],
            on_daemon_failure: DaemonPolicy::Continue,
            on_rootless: None,
            autostart: true,
            exempt_namespaces: vec!["kube-system".to_owned()],
            exempt_by_annotation: false,
            default_namespace: String::new(),
            run_dir: PathBuf::from("/run/nri-runc"),
            node_run_dir: None,
            runtime_roots: Vec::new(),
            runtime_name: "nri-runc".to_owned(),
            instances: BTreeMap::new(),
            disable: false,
            socket_path: PathBuf::from("/var/run/nri/nri.sock"),
            plugin_path: PathBuf::from("/opt/nri/plugins"),
            plugin_config_path: PathBuf::from("/etc/nri/conf.d"),
            registration_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            disable_connections: false,
            wait_for: Vec::new(),
            kubelet: Vec::new(),
            socket_mode: 0o600,
            socket_gid: None,
            allowed_uids: vec![0],
            default_validator: DefaultValidator::default(),
            plugins: BTreeMap::new(),
            rules: Vec::new(),
            exec_rules: Vec::new(),
            promises: Vec::new(),
            injections: Vec::new(),
            section_names: SectionNames::default(),
            pod_resources: PathBuf::from("/var/lib/kubelet/pod-resources/kubelet.sock"),
            cdi_spec_dirs: vec![PathBuf::from("/etc/cdi"), PathBuf::from("/var/run/cdi")],
            blockio_config_file: None,
            rdt_config_file: None,
            resctrl_path: PathBuf::from("/sys/fs/resctrl"),
            drift_every: None,
            drift_reapply: Vec::new(),
            eviction_signal: "SIGTERM".to_owned(),
            eviction_grace: Duration::from_secs(10),
            eviction_per_minute: 10,
            eviction_sandboxes: false,
            metrics_listen: None,
            audit_target: None,
            audit_path: PathBuf::from("/var/log/nri-runc/audit.log"),
            audit_max_size: 64 << 20,
            audit_max_files: 4,
            audit_exec: false,
            audit_exec_args: ExecArgs::First,
            log_target: "auto".to_owned(),
            log_level: "info".to_owned(),
            log_format: "text".to_owned(),
            scope: Scope::Handler,
            seams: Seams::default(),
            debug_host_root: String::new(),
            debug_node_root: String::new(),
            debug_fault: String::new(),
            debug_silence: SILENCE,
            protection_error: None,
            debug_create_cap: Duration::from_secs(90),
            debug_look_every: Duration::from_secs(60),
        }
    }
}

impl Config {
    /// Keeps those values of `running` that only a start of the daemon can change; returns whether any
    /// differs.
    pub(crate) fn keep_started(&mut self, running: &Self) -> bool {
        let wanted = self.clone();
        self.run_dir.clone_from(&running.run_dir);
        self.runtime_roots.clone_from(&running.runtime_roots);
        self.debug_host_root.clone_from(&running.debug_host_root);
        self.debug_node_root.clone_from(&running.debug_node_root);
        self.debug_fault.clone_from(&running.debug_fault);
        let protocol = self.seams.protocol;
        self.seams = Seams { protocol, ..running.seams.clone() };
        *self != wanted
    }

    /// Returns the host paths that show what the node supports.
    pub fn node(&self) -> Host {
        if self.debug_node_root.is_empty() {
            return self.host();
        }
        Host::new(&self.debug_node_root, "")
    }

    /// Returns the host paths and side effects, which the configuration of a test redirects.
    pub fn host(&self) -> Host {
        Host::new(&self.debug_host_root, &self.debug_fault)
    }

    /// Returns the settings that exempt pods.
    pub(crate) fn exemptions(&self) -> Exemptions<'_> {
        Exemptions {
            namespaces: &self.exempt_namespaces,
            by_annotation: self.exempt_by_annotation,
            annotation: &self.default_validator.tolerate_missing_plugins_annotation,
        }
    }

    /// Whether the configuration requires plugins, apart from promises.
    pub fn requires_plugins(&self) -> bool {
        let validator = &self.default_validator;
        self.required_plugins().next().is_some()
            || (validator.enable && !validator.required_plugins.is_empty())
    }

    /// Whether the audit log records processes that `exec` starts.
    pub fn audits_execs(&self) -> bool {
        self.audit_exec && self.audit_target.is_some()
    }

    /// Returns the path of the file that says why each `exec` involves the daemon (`src/link/mod.rs`); it is
    /// absent if none does. Wrappers read it before they execute the runtime.
    pub fn execs_file(&self) -> PathBuf {
        self.run_dir.join("execs")
    }

    /// Whether the daemon is a user's (`config/user.rs`).
    pub fn is_of_user(&self) -> bool {
        self.node_run_dir.is_some()
    }

    /// Returns the path of the policy file for containers of unprivileged users
    /// (`config/rootless.rs`): beside the run directory of root's daemon, which these users cannot
    /// enter.
    pub fn rootless_marker(&self) -> PathBuf {
        let run_dir = self.node_run_dir.as_ref().unwrap_or(&self.run_dir);
        let mut path = run_dir.clone().into_os_string();
        path.push(".rootless");
        PathBuf::from(path)
    }

    /// Returns the path of the daemon's socket for wrappers and operators' commands.
    pub fn daemon_socket(&self) -> PathBuf {
        self.run_dir.join("daemon.sock")
    }

    /// Returns the path of the file that the daemon keeps locked as long as it runs.
    pub fn daemon_lock(&self) -> PathBuf {
        self.run_dir.join("daemon.lock")
    }

    /// Returns the path of a file that exists while the daemon re-executes and sends no heartbeat.
    /// It contains the time at which the re-execution began, in nanoseconds of the monotonic clock.
    pub fn reexec_file(&self) -> PathBuf {
        self.run_dir.join("reexec")
    }

    /// Returns the configuration file that error messages name.
    pub(crate) fn usual_file(&self) -> &'static str {
        if self.is_of_user() { "~/.config/nri-runc/config.toml" } else { super::DEFAULT_FILE }
    }

    /// Returns the path of the file that disables plugins: while it exists, commands pass through.
    pub fn disabled_file(&self) -> PathBuf {
        self.run_dir.join("disabled")
    }

    /// Whether every command passes through, because of the configuration or [`disabled_file`](Self::disabled_file).
    pub fn is_disabled(&self) -> bool {
        // A file that cannot be examined disables nothing.
        self.disable || presence::exists(&self.disabled_file()).or_absent() == Some(true)
    }

    /// Returns the path of the file that makes a daemon catch up with commands that passed through or left no note
    /// (`daemon/recovery/enabled.rs`). It exists while commands pass through too.
    pub fn was_disabled_file(&self) -> PathBuf {
        self.run_dir.join("was_disabled")
    }
}

/// An error in a configuration file, for `check` and the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `FILE:LINE:COLUMN: error`, or `FILE: error` for an unreadable file; one line.
    pub text: String,
    /// The effect of the error on a reload and on a start.
    pub consequence: Consequence,
}

/// The effect of an error in the configuration files on a reload and on a start, in increasing
/// order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Consequence {
    /// A reload and a start ignore the key, which does not exist and protects nothing.
    Ignored,
    /// A reload fails. A start uses the last valid configuration; without one, the valid part of
    /// the files.
    KeepsLast,
    /// In addition, a start makes creates fail, because something may be permitted that the
    /// operator meant to forbid.
    RefusesCreates,
    /// In addition, if there is no last valid configuration, a start uses no value from the files:
    /// they are unreadable, or may name another runtime than the operator meant.
    UsesNoFile,
}
