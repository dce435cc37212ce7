// SPDX-License-Identifier: Apache-2.0
//! One entry of the audit log, as the daemon states it. Data only.

use serde::Serialize;
use serde_json::Value;

/// What happened. The words are those of the lines, which scripts search for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuditAction {
    /// A value is in force.
    Applied,
    /// A request was refused, for this field if one is named.
    Refused,
    /// A rule in audit mode would have refused it.
    WouldRefuse,
    /// An injection in audit mode would have set it.
    WouldInject,
    /// A value was not applied, or a plugin was left out, and the request went on.
    Skipped,
    /// A plugin's request to end a container was carried out.
    Evicted,
    /// A process was started in a container, or was to be.
    Exec,
    /// A plugin was synchronized: from now on it is asked.
    Connected,
    /// A plugin is gone.
    Disconnected,
    /// A plugin was turned away, or could not be started or synchronized.
    Rejected,
    /// Lines are missing here.
    Lost,
}

impl AuditAction {
    /// All of them, in the order of `docs/audit.md`.
    pub(crate) const ALL: [Self; 11] = [
        Self::Applied,
        Self::Refused,
        Self::WouldRefuse,
        Self::WouldInject,
        Self::Skipped,
        Self::Evicted,
        Self::Exec,
        Self::Connected,
        Self::Disconnected,
        Self::Rejected,
        Self::Lost,
    ];

    /// Whether it is about a connection: whoever holds the plugin socket can make many of them.
    pub(crate) fn is_about_connections(self) -> bool {
        matches!(self, Self::Connected | Self::Disconnected | Self::Rejected)
    }

    /// Its word in the lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Refused => "refused",
            Self::WouldRefuse => "would_refuse",
            Self::WouldInject => "would_inject",
            Self::Skipped => "skipped",
            Self::Evicted => "evicted",
            Self::Exec => "exec",
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
            Self::Rejected => "rejected",
            Self::Lost => "lost",
        }
    }
}

/// The pod and the container that an entry is about; empty where there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuditSubject {
    pub(crate) engine: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) pod_id: String,
    pub(crate) container: String,
    pub(crate) container_id: String,
}

/// A process that `exec` started or was to start. What is absent could not be read.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ExecutedProcess {
    /// `UID:GID`.
    pub(crate) user: Option<String>,
    /// The user of the login behind it.
    #[serde(rename = "loginuid")]
    pub(crate) login_uid: Option<u32>,
    /// Names of the processes that asked for it, up to the engine's shim.
    pub(crate) caller: Vec<String>,
    /// The arguments that the configuration lets the line have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) args: Vec<String>,
    pub(crate) terminal: Option<bool>,
    /// `refused`, `started`, `exited` or `failed`.
    pub(crate) result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
}

/// One entry. Members that do not apply stay empty and are not in the line.
#[derive(Debug, Clone)]
pub(crate) struct AuditEntry {
    /// Unix time in nanoseconds.
    pub(crate) at: i64,
    pub(crate) action: AuditAction,
    /// The event, or the command of the runtime.
    pub(crate) event: String,
    /// `NN-name`.
    pub(crate) plugin: String,
    /// Path in config.json, `cgroup:FILE`, or NRI's name of a field that was refused.
    pub(crate) field: String,
    /// Value before and after. Only an entry about an applied value has them.
    pub(crate) values: Option<(Value, Value)>,
    /// Only an entry about such a process has it.
    pub(crate) executed: Option<ExecutedProcess>,
    /// The rule that decided.
    pub(crate) rule: String,
    /// Why, in one line.
    pub(crate) reason: String,
    pub(crate) subject: AuditSubject,
}

impl AuditEntry {
    /// An entry of now, without any detail.
    pub(crate) fn new(action: AuditAction) -> Self {
        Self {
            at: crate::clock::now(),
            action,
            event: String::new(),
            plugin: String::new(),
            field: String::new(),
            values: None,
            executed: None,
            rule: String::new(),
            reason: String::new(),
            subject: AuditSubject::default(),
        }
    }

    /// At which event, or by which command.
    #[must_use]
    pub(crate) fn at_event(mut self, event: &str) -> Self {
        event.clone_into(&mut self.event);
        self
    }

    /// By which plugin.
    #[must_use]
    pub(crate) fn by(mut self, plugin: &str) -> Self {
        plugin.clone_into(&mut self.plugin);
        self
    }

    /// About which field.
    #[must_use]
    pub(crate) fn of_field(mut self, field: &str) -> Self {
        field.clone_into(&mut self.field);
        self
    }

    /// For which reason.
    #[must_use]
    pub(crate) fn because(mut self, reason: &str) -> Self {
        reason.clone_into(&mut self.reason);
        self
    }
}
