// SPDX-License-Identifier: Apache-2.0
//! What the daemon answers to `nri` commands about itself, its plugins and its pods: the documents of
//! `status`, `plugins` and `pods`, in the form that scripts read (`docs/schema/`).
//!
//! During an upgrade the daemon and a command may be of different versions: a member that the other side
//! does not know is ignored, and one that it does not send has its default.
//!
//! `*_at` is a Unix time in nanoseconds, 0 for never; `*_time` is the same as text (RFC 3339).

mod drift;
mod explain;
mod policy;
mod top;

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::RuleMode;

pub(crate) use drift::{DriftAnswer, DriftRow};
pub(crate) use explain::{
    CallTime, ContainerExplained, Dated, Explanation, InjectionNote, MatchRow, MemberRow,
    PodExplained, PodKind, PromiseOutcome, Repetition, SeveralMatches, WayGiven,
};
pub(crate) use policy::{
    ExecRuleRow, InjectionRow, PluginRights, PolicyAnswer, PolicyPod, PromiseFit, RuleTried,
};
pub(crate) use top::{Observations, PluginCounts, RequestCounts, TopAnswer};

/// The stage of a plugin's connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PluginState {
    /// The connection has not sent a name yet.
    Registering,
    Configuring,
    Synchronizing,
    Synchronized,
    Gone,
    /// A state of a later version.
    #[default]
    #[serde(other)]
    Unknown,
}

impl PluginState {
    /// Its name in documents and tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Registering => "registering",
            Self::Configuring => "configuring",
            Self::Synchronizing => "synchronizing",
            Self::Synchronized => "synchronized",
            Self::Gone => "gone",
            Self::Unknown => "unknown",
        }
    }
}

/// A row of `plugins`: a plugin that is connected, connects, or was connected lately.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PluginRow {
    /// Two digits; empty before the plugin has registered.
    pub(crate) index: String,
    pub(crate) name: String,
    pub(crate) state: PluginState,
    /// The daemon starts it from a file.
    pub(crate) launched: bool,
    pub(crate) pid: Option<i32>,
    pub(crate) connected_at: i64,
    pub(crate) connected_time: Option<String>,
    /// The process whose place it is about to take.
    pub(crate) replaces: Option<i32>,
    /// Events that it is subscribed to.
    pub(crate) events: Vec<String>,
    pub(crate) nri_version: String,
    /// Events that it takes as the deprecated StateChange.
    pub(crate) deprecated_events: Vec<String>,
    /// Methods of the extension that it is subscribed to.
    pub(crate) extension_events: Vec<String>,
    pub(crate) requests: u64,
    pub(crate) timeouts: u64,
    pub(crate) failures: u64,
    pub(crate) last_failure: Option<PluginFailure>,
    pub(crate) failure_policy: Option<PolicyRow>,
    /// None before the plugin has registered.
    pub(crate) time_limits: Option<TimeLimits>,
    /// None before the first response.
    pub(crate) answers: Option<AnswerRow>,
    pub(crate) synchronizing: Option<SynchronizeRow>,
    pub(crate) restarts: u64,
    /// How the last process ended that the daemon started.
    pub(crate) exit_status: Option<String>,
    /// The last lines of that process.
    pub(crate) last_words: Vec<String>,
    pub(crate) restart_in_seconds: Option<f32>,
    /// Its last requests all timed out.
    pub(crate) unresponsive: bool,
    /// It was disconnected for time-outs.
    pub(crate) struck: bool,
    /// Why its process is older than its file.
    pub(crate) outdated: Option<String>,
    pub(crate) start_failure: Option<String>,
    /// Its connection was refused.
    pub(crate) refused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gone_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gone_time: Option<String>,
    /// Why it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl PluginRow {
    /// `NN-name`.
    pub(crate) fn id(&self) -> String {
        format!("{}-{}", self.index, self.name)
    }

    /// Whether both rows are of plugins with the same identity.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.index == other.index && self.name == other.name
    }
}

/// What a launched plugin has printed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PluginOutput {
    pub(crate) index: String,
    pub(crate) name: String,
    /// The run before, and the present one.
    pub(crate) runs: Vec<PluginRun>,
}

/// One process of a launched plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PluginRun {
    /// How it ended.
    pub(crate) exit_status: Option<String>,
    pub(crate) lines: Vec<PrintedLine>,
}

/// A line that a plugin has printed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PrintedLine {
    pub(crate) at: i64,
    pub(crate) time: Option<String>,
    pub(crate) line: String,
}

/// The last failure of a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PluginFailure {
    pub(crate) at: i64,
    pub(crate) time: Option<String>,
    pub(crate) what: String,
}

/// What a missing response of a plugin means, and whether the configuration, the plugin or the default says so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PolicyRow {
    /// `refuse` or `skip`.
    pub(crate) on_failure: String,
    pub(crate) on_failure_from: String,
    /// Time-outs in a row before it is disconnected; 0 is never.
    pub(crate) strikes: u32,
    pub(crate) strikes_from: String,
}

/// The limits of a plugin's requests, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TimeLimits {
    pub(crate) request_ms: f64,
    /// For the whole Synchronize; without it, each request of it has that of any other.
    pub(crate) synchronize_ms: Option<f64>,
}

/// How long a plugin took to respond within about the last hour.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AnswerRow {
    pub(crate) count: u32,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) limit_ms: f64,
    /// p99 was above half of the limit throughout.
    pub(crate) busy_for_an_hour: bool,
}

/// How far the Synchronize of a plugin is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SynchronizeRow {
    pub(crate) for_ms: f64,
    pub(crate) limit_ms: f64,
    /// Requests that were answered; a long snapshot has several.
    pub(crate) answered: usize,
}

/// A row of `pods`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PodRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) engine: String,
    /// What identified the engine.
    pub(crate) evidence: Vec<String>,
    pub(crate) state: String,
    /// A daemon of an earlier version does not list them.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) created_at: i64,
    pub(crate) created_time: Option<String>,
    pub(crate) containers: Vec<ContainerRow>,
}

impl PodRow {
    /// `NAMESPACE/NAME`, as other verbs take it; the ID of a pod without a name of its own.
    pub(crate) fn full_name(&self) -> String {
        match (self.namespace.as_str(), self.name.as_str()) {
            (_, name) if name.is_empty() || name == self.id => self.id.clone(),
            ("", name) => name.to_owned(),
            (namespace, name) => format!("{namespace}/{name}"),
        }
    }
}

/// A container in a row of `pods`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) pid: Option<u32>,
    /// Its record was lost, and it was found by the runtime's state.
    pub(crate) found: bool,
    #[serde(flatten)]
    pub(crate) times: Times,
}

/// When a container was created, started, exited and refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Times {
    pub(crate) created_at: i64,
    pub(crate) created_time: Option<String>,
    pub(crate) started_at: i64,
    pub(crate) started_time: Option<String>,
    pub(crate) finished_at: i64,
    pub(crate) finished_time: Option<String>,
    pub(crate) refused_at: i64,
    pub(crate) refused_time: Option<String>,
}

/// The daemon, as `status` shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) version: String,
    /// The NRI version that plugins are served.
    pub(crate) nri_version: String,
    /// 0 where the daemon does not respond.
    pub(crate) pid: u32,
    pub(crate) run_dir: PathBuf,
    /// The command or file that shows its log.
    pub(crate) log: String,
    pub(crate) log_lines_lost: u64,
    /// Why the log cannot be written.
    pub(crate) log_failure: Option<String>,
    /// The files in force.
    pub(crate) configuration: Option<ConfigurationInForce>,
    /// The file that it executes.
    pub(crate) program: Option<Program>,
    /// What restarts it: `systemd`.
    pub(crate) supervisor: Option<String>,
    pub(crate) uptime_seconds: u64,
    /// Connected plugins.
    pub(crate) plugins: usize,
    pub(crate) pods: usize,
    pub(crate) containers: usize,
    /// Requests of wrappers by outcome.
    pub(crate) requests: BTreeMap<String, u64>,
    pub(crate) failures: Vec<Failure>,
    /// Commands that went on without plugins.
    pub(crate) bypassed: u64,
    /// Containers that were found by the runtime's state: their records were lost.
    pub(crate) found: usize,
    /// Records that could not be read.
    pub(crate) set_aside: Vec<PathBuf>,
    /// Running containers that were created without plugins.
    pub(crate) unadjusted: Vec<String>,
    /// Containers and pods whose records are not on disk.
    pub(crate) unwritten: Vec<String>,
    pub(crate) records_refused: Option<RefusedRecords>,
    /// None without an audit log.
    pub(crate) audit: Option<AuditCounts>,
    /// Launched plugins that are older than their files.
    pub(crate) outdated_plugins: Vec<OutdatedPlugin>,
    /// Plugins that took part before the daemon started, and have not returned.
    pub(crate) absent_plugins: Vec<String>,
    /// Data of engines that could not be read.
    pub(crate) missing: Vec<MissingData>,
    /// Identity claims of tenants that were not believed.
    pub(crate) contradictions: Vec<IdentityClaim>,
    /// `open`, or why plugins cannot connect.
    pub(crate) plugin_socket: String,
    pub(crate) plugin_socket_state: SocketState,
    /// The engine itself serves plugins, and nri-runc only executes the runtime.
    pub(crate) pass_through: bool,
    pub(crate) disabled: bool,
    pub(crate) disabled_by: Option<String>,
    pub(crate) required: Vec<RequiredPlugin>,
    /// None of a daemon of an earlier version.
    pub(crate) promises: Option<Vec<PromiseRow>>,
    pub(crate) refused_connections: Vec<RefusedConnections>,
}

impl Status {
    /// Required plugins that are not connected. None is required while plugins are disabled, or served
    /// by the engine's own NRI.
    pub(crate) fn missing_plugins(&self) -> impl Iterator<Item = &str> {
        let are_asked_for = !self.pass_through && !self.disabled;
        let missing = self.required.iter().filter(move |row| are_asked_for && !row.connected);
        missing.map(|row| row.plugin.as_str())
    }
}

/// The configuration that a daemon has, and how the files differ from it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConfigurationInForce {
    /// The only file that is read, if one was named.
    pub(crate) file: Option<PathBuf>,
    pub(crate) files: Vec<PathBuf>,
    /// An error because of which creates are refused.
    pub(crate) protection_error: Option<String>,
    /// Keys whose values in the files are not in force.
    pub(crate) changed: Vec<String>,
    /// Those of them that need a restart. None of a daemon of an earlier version.
    pub(crate) restart_needed: Option<Vec<String>>,
    pub(crate) log_level: String,
}

/// Metrics in OpenMetrics' text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MetricsText {
    pub(crate) text: String,
}

/// The daemon goes on as another program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Reexec {
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) was_version: String,
    /// Those that stayed connected.
    pub(crate) plugins: usize,
    /// How long requests waited.
    pub(crate) held_ms: u64,
}

/// A program's file, as it was when it was executed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    #[serde(flatten)]
    pub(crate) file: Option<ProgramFile>,
}

/// What distinguishes a file from another one at its path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProgramFile {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    /// Seconds and nanoseconds.
    pub(crate) modified: [i64; 2],
}

impl ProgramFile {
    pub(crate) fn of(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            size: file.len(),
            modified: [file.mtime(), file.mtime_nsec()],
        }
    }
}

/// A failure of the daemon or of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Failure {
    pub(crate) at: i64,
    pub(crate) time: Option<String>,
    /// When it happened first.
    pub(crate) first: i64,
    pub(crate) count: u64,
    pub(crate) what: String,
    /// `NN-name`, or empty.
    pub(crate) plugin: String,
    /// A command was refused.
    pub(crate) refused: bool,
}

/// Records that the disk refused: the requests failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RefusedRecords {
    pub(crate) count: usize,
    pub(crate) why: String,
}

/// Lines of the audit log since the daemon's start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AuditCounts {
    pub(crate) written: u64,
    pub(crate) lost: u64,
    /// Why it cannot be written now.
    pub(crate) failure: Option<String>,
}

/// A launched plugin that is older than its file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OutdatedPlugin {
    /// `NN-name`.
    pub(crate) plugin: String,
    pub(crate) why: String,
}

/// Data of an engine that could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MissingData {
    pub(crate) engine: String,
    pub(crate) what: String,
    pub(crate) count: u64,
    pub(crate) at: i64,
    /// The last container that it concerned, or empty.
    pub(crate) id: String,
}

/// An identity claim of a tenant that was not believed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct IdentityClaim {
    pub(crate) at: i64,
    pub(crate) id: String,
    pub(crate) engine: String,
    pub(crate) what: String,
}

/// The state of the plugin socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SocketState {
    /// `open`, `off`, `lost`, `taken` or `failed`.
    pub(crate) state: String,
    pub(crate) path: PathBuf,
    pub(crate) since: i64,
    /// The process that has it in place of the daemon.
    pub(crate) listener: Option<Listener>,
}

/// The process that has the plugin socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Listener {
    pub(crate) pid: Option<i32>,
    pub(crate) name: String,
    pub(crate) engine: Option<String>,
}

/// A plugin without which creates are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RequiredPlugin {
    pub(crate) connected: bool,
    /// Its name or `NN-name`.
    pub(crate) plugin: String,
}

/// A section `[[require]]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PromiseRow {
    pub(crate) promise: String,
    /// Its name or `NN-name`.
    pub(crate) plugin: String,
    pub(crate) mode: RuleMode,
    pub(crate) connected: bool,
}

/// Plugin connections that were refused for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RefusedConnections {
    pub(crate) why: String,
    pub(crate) count: u64,
    pub(crate) at: i64,
    pub(crate) last: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_missing_only_where_it_is_required() {
        let row = |(plugin, connected): (&str, bool)| RequiredPlugin {
            connected,
            plugin: plugin.to_owned(),
        };
        let required = [("10-a", false), ("b", true)].map(row).to_vec();
        let of = |pass_through, disabled| {
            let status =
                Status { required: required.clone(), pass_through, disabled, ..Status::default() };
            status.missing_plugins().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(of(false, false), ["10-a"]);
        assert!(of(false, true).is_empty(), "plugins are disabled");
        assert!(of(true, false).is_empty(), "the engine's own NRI serves them");
    }

    #[test]
    fn members_and_states_of_other_versions_are_read() {
        let later =
            r#"{"name": "a", "state": "dreaming", "dreams": 7, "last_failure": {"what": "x"}}"#;
        let row: PluginRow = serde_json::from_str(later).unwrap();
        assert_eq!((row.name.as_str(), row.state, row.requests), ("a", PluginState::Unknown, 0));
        assert_eq!(row.last_failure.unwrap().at, 0);
        let earlier: Status = serde_json::from_str(r#"{"program": {"path": "/p"}}"#).unwrap();
        let program = earlier.program.unwrap();
        assert_eq!((program.path, program.file, earlier.promises), ("/p".into(), None, None));
    }
}
