// SPDX-License-Identifier: Apache-2.0
//! One entry of the audit log, as the daemon records it. Data only.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::named::named;

named! {
    /// The kind of an entry, in the order of `docs/audit.md`. Scripts search for these names in the
    /// lines.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub(crate) enum AuditAction {
        /// A value was applied.
        Applied => "applied",
        /// A request was refused; `field` names the field that caused it, if there was one.
        Refused => "refused",
        /// A rule in audit mode would have refused the request.
        WouldRefuse => "would_refuse",
        /// An injection in audit mode would have set the value.
        WouldInject => "would_inject",
        /// A value was not applied, or a plugin was skipped, and the request continued.
        Skipped => "skipped",
        /// An eviction that a plugin requested has begun: the container is being stopped.
        Evicted => "evicted",
        /// A process was started, or requested, in a container.
        Exec => "exec",
        /// A plugin was synchronized: it receives requests from now on.
        Connected => "connected",
        /// A plugin disconnected.
        Disconnected => "disconnected",
        /// A plugin was refused, or could not be started or synchronized.
        Rejected => "rejected",
        /// Lines are missing here.
        Lost => "lost",
    }
}

impl AuditAction {
    /// Whether the entry is about a connection: a process with access to the plugin socket can
    /// cause any number of these entries.
    pub(crate) fn is_about_connections(self) -> bool {
        matches!(self, Self::Connected | Self::Disconnected | Self::Rejected)
    }
}

/// The pod and container of an entry; the members are empty if it has none.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct AuditSubject {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) engine: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) pod: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) pod_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) container: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) container_id: String,
}

impl AuditSubject {
    /// Returns all texts, which tenants may choose.
    pub(crate) fn texts_mut(&mut self) -> [&mut String; 6] {
        let Self { engine, namespace, pod, pod_id, container, container_id } = self;
        [engine, namespace, pod, pod_id, container, container_id]
    }
}

/// The outcome of an `exec`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum ExecOutcome {
    Refused,
    Started,
    Exited,
    Failed,
}

/// A process that an `exec` requested, whether or not it was started. Unreadable members are null.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ExecutedProcess {
    /// `UID:GID`.
    pub(crate) user: Option<String>,
    /// The login user (from `/proc/PID/loginuid`).
    #[serde(rename = "loginuid")]
    pub(crate) login_uid: Option<u32>,
    /// Names of the calling processes, up to the engine's shim.
    pub(crate) caller: Vec<String>,
    /// The arguments that the configuration permits in the line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) args: Vec<String>,
    pub(crate) terminal: Option<bool>,
    pub(crate) result: ExecOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
}

/// The values before and after.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AuditValues {
    pub(crate) from: Value,
    pub(crate) to: Value,
}

/// One entry. The line has its members in this order, without the empty ones.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AuditEntry {
    /// Unix time in nanoseconds.
    #[serde(skip)]
    pub(crate) at: i64,
    #[serde(skip)]
    pub(crate) action: AuditAction,
    /// The event, or the command of the runtime.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) event: String,
    /// `NN-name`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) plugin: String,
    /// Path in config.json, `cgroup:FILE`, or NRI's name of a refused field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) field: String,
    /// The values, if one was applied.
    #[serde(flatten)]
    pub(crate) values: Option<AuditValues>,
    /// The process, if the entry is about `exec`.
    #[serde(flatten)]
    pub(crate) executed: Option<ExecutedProcess>,
    /// The rule that decided about the request.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) rule: String,
    /// The reason, in one line.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(flatten)]
    pub(crate) subject: AuditSubject,
}

impl AuditEntry {
    /// Creates an entry of the current time without details.
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

    /// Sets the event or command.
    #[must_use]
    pub(crate) fn at_event(mut self, event: &str) -> Self {
        event.clone_into(&mut self.event);
        self
    }

    /// Sets the plugin.
    #[must_use]
    pub(crate) fn by(mut self, plugin: &str) -> Self {
        plugin.clone_into(&mut self.plugin);
        self
    }

    /// Sets the field.
    #[must_use]
    pub(crate) fn of_field(mut self, field: &str) -> Self {
        field.clone_into(&mut self.field);
        self
    }

    /// Sets the reason.
    #[must_use]
    pub(crate) fn because(mut self, reason: &str) -> Self {
        reason.clone_into(&mut self.reason);
        self
    }
}
