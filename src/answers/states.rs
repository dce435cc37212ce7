// SPDX-License-Identifier: Apache-2.0
//! The words for states and results in the daemon's answers. A word that only a later daemon uses
//! is read as `unknown`.

use serde::{Deserialize, Serialize};

use crate::named::named;
use crate::state::{Lifecycle, PodState};

named! {
    /// The state of a container.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "lowercase")]
    pub(crate) enum ContainerState {
        Creating => "creating",
        Created => "created",
        Running => "running",
        Paused => "paused",
        Stopped => "stopped",
        Removed => "removed",
        #[default]
        #[serde(other)]
        Unknown => "unknown",
    }

    /// The state of a pod.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "lowercase")]
    pub(crate) enum SandboxState {
        Created => "created",
        Ready => "ready",
        Stopped => "stopped",
        Removed => "removed",
        #[default]
        #[serde(other)]
        Unknown => "unknown",
    }

    /// The state of the plugin socket.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "lowercase")]
    pub(crate) enum ListeningState {
        Open => "open",
        /// The configuration switches it off.
        Off => "off",
        /// Another process took it from the daemon.
        Lost => "lost",
        /// Another process had it before the daemon.
        Taken => "taken",
        Failed => "failed",
        #[default]
        #[serde(other)]
        Unknown => "unknown",
    }

    /// The result of a promise.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub(crate) enum PromiseResult {
        /// The plugin was connected.
        Met => "met",
        /// The plugin was missing, and the container was refused.
        Refused => "refused",
        /// The plugin was missing, and the container was created because the promise is in audit
        /// mode.
        WouldRefuse => "would_refuse",
        #[serde(other)]
        Unknown => "unknown",
    }
}

impl From<Lifecycle> for ContainerState {
    fn from(state: Lifecycle) -> Self {
        match state {
            Lifecycle::Creating => Self::Creating,
            Lifecycle::Created => Self::Created,
            Lifecycle::Running => Self::Running,
            Lifecycle::Stopped => Self::Stopped,
            Lifecycle::Removed => Self::Removed,
        }
    }
}

impl From<PodState> for SandboxState {
    fn from(state: PodState) -> Self {
        match state {
            PodState::Created => Self::Created,
            PodState::Ready => Self::Ready,
            PodState::Stopped => Self::Stopped,
        }
    }
}
