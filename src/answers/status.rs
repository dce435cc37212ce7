// SPDX-License-Identifier: Apache-2.0
//! The daemon's response to `status`.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ListeningState;
use crate::config::RuleMode;

/// The daemon, as `status` shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) version: String,
    /// The NRI version that the daemon offers to plugins.
    pub(crate) nri_version: String,
    /// The daemon's PID; 0 if it does not respond.
    pub(crate) pid: u32,
    pub(crate) run_dir: PathBuf,
    /// The command or file that shows the daemon's log.
    pub(crate) log: String,
    pub(crate) log_lines_lost: u64,
    /// Why the log cannot be written.
    pub(crate) log_failure: Option<String>,
    /// The files in force.
    pub(crate) configuration: Option<ConfigurationInForce>,
    /// The program that the daemon executes.
    pub(crate) program: Option<Program>,
    /// The supervisor that restarts the daemon: `systemd`.
    pub(crate) supervisor: Option<String>,
    pub(crate) uptime_seconds: u64,
    /// Connected plugins.
    pub(crate) plugins: usize,
    pub(crate) pods: usize,
    pub(crate) containers: usize,
    /// Requests of wrappers by outcome.
    pub(crate) requests: BTreeMap<String, u64>,
    pub(crate) failures: Vec<Failure>,
    /// Commands that ran without plugins being asked.
    pub(crate) bypassed: u64,
    /// Containers whose records were lost and that were recovered from the runtime's state.
    pub(crate) found: usize,
    /// Records that could not be read.
    pub(crate) set_aside: Vec<PathBuf>,
    /// Containers that were created without plugins and have not stopped: the first 100.
    pub(crate) unadjusted: Vec<String>,
    /// Containers and pods whose records could not be written to disk.
    pub(crate) unwritten: Vec<String>,
    pub(crate) records_refused: Option<RefusedRecords>,
    /// Null without an audit log.
    pub(crate) audit: Option<AuditCounts>,
    /// Launched plugins that run an older program or configuration than their files.
    pub(crate) outdated_plugins: Vec<OutdatedPlugin>,
    /// Plugins that were connected before the daemon started and have not returned.
    pub(crate) absent_plugins: Vec<String>,
    /// Data of engines that could not be read.
    pub(crate) missing: Vec<MissingData>,
    /// Identity claims of tenants that the daemon rejected.
    pub(crate) contradictions: Vec<IdentityClaim>,
    /// `open`, or why plugins cannot connect.
    pub(crate) plugin_socket: String,
    pub(crate) plugin_socket_state: SocketState,
    /// Whether the engine serves plugins itself, and nri-runc only executes the runtime.
    pub(crate) pass_through: bool,
    pub(crate) disabled: bool,
    pub(crate) disabled_by: Option<String>,
    pub(crate) required: Vec<RequiredPlugin>,
    /// Null from a daemon of an earlier version.
    pub(crate) promises: Option<Vec<PromiseRow>>,
    pub(crate) refused_connections: Vec<RefusedConnections>,
}

impl Status {
    /// Returns the required plugins that are not connected: none while plugins are disabled, or
    /// served by the engine's own NRI.
    pub(crate) fn missing_plugins(&self) -> impl Iterator<Item = &str> {
        let are_asked_for = !self.pass_through && !self.disabled;
        let missing = self.required.iter().filter(move |row| are_asked_for && !row.connected);
        missing.map(|row| row.plugin.as_str())
    }
}

/// The configuration in force, and its differences from the files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct ConfigurationInForce {
    /// The only file that is read, if one was named.
    pub(crate) file: Option<PathBuf>,
    pub(crate) files: Vec<PathBuf>,
    /// An error that makes the daemon refuse creates.
    pub(crate) protection_error: Option<String>,
    /// Keys whose values in the files are not in force.
    pub(crate) changed: Vec<String>,
    /// The changed keys that need a restart; null from a daemon of an earlier version.
    pub(crate) restart_needed: Option<Vec<String>>,
    pub(crate) log_level: String,
}

/// A program's file, with its attributes when it was executed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    #[serde(flatten)]
    pub(crate) file: Option<ProgramFile>,
}

/// The attributes that distinguish a file from another one at its path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ProgramFile {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    /// Time of the last modification, in seconds and nanoseconds.
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct Failure {
    pub(crate) at: i64,
    pub(crate) time: Option<String>,
    /// Unix time of its first occurrence, in nanoseconds.
    pub(crate) first: i64,
    pub(crate) count: u64,
    pub(crate) what: String,
    /// `NN-name`, or empty.
    pub(crate) plugin: String,
    /// Whether a command was refused.
    pub(crate) refused: bool,
}

/// Records that could not be written to disk: their requests failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct RefusedRecords {
    pub(crate) count: usize,
    pub(crate) why: String,
}

/// Lines of the audit log since the daemon's start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct AuditCounts {
    pub(crate) written: u64,
    pub(crate) lost: u64,
    /// Why the audit log cannot be written now.
    pub(crate) failure: Option<String>,
}

/// A launched plugin that runs an older program or configuration than its files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct OutdatedPlugin {
    /// `NN-name`.
    pub(crate) plugin: String,
    pub(crate) why: String,
}

/// Data of an engine that could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct MissingData {
    pub(crate) engine: String,
    pub(crate) what: String,
    pub(crate) count: u64,
    pub(crate) at: i64,
    /// The ID of the last container whose data could not be read, or empty.
    pub(crate) id: String,
}

/// An identity claim of a tenant that the daemon rejected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct IdentityClaim {
    pub(crate) at: i64,
    pub(crate) id: String,
    pub(crate) engine: String,
    pub(crate) what: String,
}

/// The state of the plugin socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct SocketState {
    pub(crate) state: ListeningState,
    pub(crate) path: PathBuf,
    pub(crate) since: i64,
    /// The process that listens on the socket in place of the daemon.
    pub(crate) listener: Option<Listener>,
}

/// The process that listens on the plugin socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct Listener {
    pub(crate) pid: Option<i32>,
    pub(crate) name: String,
    pub(crate) engine: Option<String>,
}

/// A plugin whose absence makes creates fail.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct RequiredPlugin {
    pub(crate) connected: bool,
    /// The plugin's name or `NN-name`.
    pub(crate) plugin: String,
}

/// A section `[[require]]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PromiseRow {
    pub(crate) promise: String,
    /// The plugin's name or `NN-name`.
    pub(crate) plugin: String,
    pub(crate) mode: RuleMode,
    pub(crate) connected: bool,
}

/// Plugin connections that were refused for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    fn no_plugin_is_missing_while_disabled_or_passing_through() {
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
}
