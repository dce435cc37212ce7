// SPDX-License-Identifier: Apache-2.0
//! The answers of `stop`, `restart` and `reexec`.

use serde::Serialize;

use super::output::{Answer, Format};
use crate::answers::Reexec;
use crate::text::counted;

/// The result of `stop`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Stopped {
    pub(super) stopped: bool,
    pub(super) pid: Option<u32>,
    #[serde(flatten)]
    pub(super) how: Option<HowStopped>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct HowStopped {
    pub(super) killed: bool,
    /// Whether the next container starts the daemon again.
    pub(super) autostart: bool,
    /// `systemd`, if it stopped the daemon.
    pub(super) by: Option<&'static str>,
}

impl Answer for Stopped {
    fn page(&self, _: Format) -> String {
        let (Some(pid), Some(how)) = (self.pid, &self.how) else {
            return "the daemon is not running".to_owned();
        };
        let HowStopped { killed, autostart, by } = *how;
        let how = if killed { "killed, as it did not respond" } else { "stopped" };
        match by {
            Some(by) => format!("{how} by {by} (process {pid})"),
            None if autostart => {
                format!("{how} (process {pid}); the next container starts the daemon again")
            }
            None => format!("{how} (process {pid})"),
        }
    }
}

/// The result of `restart`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Restarted {
    pub(super) was: Option<u32>,
    pub(super) pid: u32,
    pub(super) killed: bool,
    /// `systemd`, if it started the daemon.
    pub(super) by: Option<&'static str>,
}

impl Answer for Restarted {
    fn page(&self, _: Format) -> String {
        let Self { was, pid, killed, by } = self;
        let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
        let killed = if *killed { ", killed, as it did not respond" } else { "" };
        match was {
            Some(was) => format!("restarted{by}: process {pid} (was {was}{killed})"),
            None => format!("started{by}: process {pid}"),
        }
    }
}

/// The result of `reexec`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub(super) enum Reexecution {
    Done {
        #[serde(flatten)]
        reexec: Reexec,
        reexecuted: bool,
    },
    None {
        reexecuted: bool,
        pid: Option<u32>,
    },
}

impl Answer for Reexecution {
    fn page(&self, _: Format) -> String {
        let Self::Done { reexec: Reexec { pid, version, was_version, plugins, held_ms }, .. } =
            self
        else {
            return "the daemon is not running".to_owned();
        };
        let plugins = counted(*plugins, "plugin");
        format!(
            "re-executed: process {pid} runs version {version} (was {was_version}); {plugins} stayed \
             connected, requests were held for {held_ms} ms"
        )
    }
}
