// SPDX-License-Identifier: Apache-2.0
//! The requests of `nri` commands and the daemon's answers, as types that both share. `--json` prints the
//! serialization of answers, the form that scripts read (`docs/schema/`).
//!
//! During an upgrade the daemon and a command may be of different versions: the reader ignores members
//! that it does not know, and a member that a later version adds needs a default.
//!
//! `at` and `*_at` are Unix times in nanoseconds, 0 for never; `time` and `*_time` are the same as text (RFC 3339).

mod drift;
mod explain;
mod plugins;
mod pods;
mod policy;
mod request;
mod states;
mod status;
mod top;

use serde::{Deserialize, Serialize};

use crate::config::ChangedKey;
pub(crate) use crate::rules::Fit;
pub(crate) use crate::state::{Change, ChangedMember, ExecChange, HiddenFrom, RuleHit, Skipped};
pub(crate) use drift::*;
pub(crate) use explain::*;
pub(crate) use plugins::*;
pub(crate) use pods::*;
pub(crate) use policy::*;
pub(crate) use request::*;
pub(crate) use states::*;
pub(crate) use status::*;
pub(crate) use top::*;

/// Containers that can connect to the plugin socket, except those in pods of connected plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct SocketMounts {
    /// The number of all such containers; the list may be shorter.
    pub(crate) count: usize,
    pub(crate) containers: Vec<SocketMount>,
}

/// A container with a mount of the plugin socket or of a folder above it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct SocketMount {
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(crate) source: String,
}

/// The containers of the plain runtime that plugins do not see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct Unseen {
    pub(crate) count: usize,
}

/// The records that `forget` dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct Forgotten {
    pub(crate) containers: Vec<ForgottenContainer>,
    /// The IDs of the dropped pods.
    pub(crate) pods: Vec<String>,
    pub(crate) warning: String,
}

/// A container whose record was dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct ForgottenContainer {
    pub(crate) id: String,
    pub(crate) root: String,
    pub(crate) name: String,
}

/// The first answer to `events --follow`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct EventsBegin {
    /// The position at which the stream begins.
    pub(crate) cursor: String,
}

/// The answer to `stop`, before the daemon stops.
#[derive(Debug, Serialize)]
pub(crate) struct Stopping {
    pub(crate) pid: u32,
}

/// The answer to `switched`.
#[derive(Debug, Serialize)]
pub(crate) struct Noted {}

/// Metrics as OpenMetrics text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct MetricsText {
    pub(crate) text: String,
}

/// The result of a re-execution of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct Reexec {
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) was_version: String,
    /// The number of plugins that stayed connected.
    pub(crate) plugins: usize,
    /// Time for which requests were held, in milliseconds.
    pub(crate) held_ms: u64,
}

/// The changes that a reload made, or would make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct Reloaded {
    pub(crate) applied: bool,
    pub(crate) changed: Vec<ChangedKey>,
    /// The keys whose values need a restart.
    pub(crate) restart_needed: Vec<String>,
    /// The command that restarts the daemon.
    pub(crate) restart_with: String,
    pub(crate) warnings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

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
