// SPDX-License-Identifier: Apache-2.0
//! What a runtime's own state tells of a container: where its bundle is, which process it has and
//! since when. Facts: runc and youki keep `state.json`, crun keeps `status`. It only reads.

use std::path::Path;

use serde_json::Value;

use crate::host::Host;
use crate::runtime::RuntimeKind;

use crate::daemon::runtime::state_dir;

/// Ticks in a second, as the kernel counts them for `/proc`.
const TICKS: u64 = 100;

/// The state of one container.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// The kind of runtime, by its usual name.
    pub(crate) runtime: RuntimeKind,
    pub(crate) bundle: String,
    pub(crate) pid: Option<u32>,
    /// When that process started, in clock ticks since boot.
    pub(crate) start: Option<u64>,
    /// The same in Unix time in nanoseconds, 0 where it is not known.
    pub(crate) created_at: i64,
    /// systemd manages its cgroups.
    pub(crate) systemd: bool,
    /// When the file was written, in seconds of Unix time.
    written: i64,
}

impl Left {
    /// Reads it; `None` where there is nothing, or nothing that tells where the bundle is.
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        ["state.json", "status"].iter().find_map(|name| {
            let path = folder.join(name);
            let written = state_dir::stamp(&path)?.1;
            let state = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
            Self::understand(name, &state, written)
        })
    }

    fn understand(name: &str, state: &Value, written: i64) -> Option<Self> {
        let labels = state["config"]["labels"].as_array().into_iter().flatten();
        let label = labels.filter_map(Value::as_str).find_map(|l| l.strip_prefix("bundle="));
        let bundle = label.or_else(|| state["bundle"].as_str())?;
        let (runtime, pid, start) = match name {
            "status" => (RuntimeKind::Crun, "pid", "process-start-time"),
            _ if label.is_some() => (RuntimeKind::Runc, "init_process_pid", "init_process_start"),
            _ => (RuntimeKind::Youki, "pid", ""),
        };
        let number = |key: &str| state[key].as_u64().filter(|number| *number > 0);
        let is_true = |value: &Value| value.as_bool().unwrap_or(false);
        Some(Self {
            runtime,
            bundle: bundle.starts_with('/').then(|| bundle.to_owned())?,
            pid: number(pid).and_then(|pid| u32::try_from(pid).ok()),
            start: number(start),
            created_at: 0,
            systemd: is_true(&state["systemd-cgroup"])
                || is_true(&state["config"]["cgroups"]["Systemd"]),
            written,
        })
    }

    /// Whether it was written in this boot, by the clock.
    pub(crate) fn is_of_this_boot(&self, host: &Host) -> bool {
        booted(host).is_none_or(|booted| self.written >= booted)
    }

    /// What was left, with the time of its process.
    pub(crate) fn with_time(mut self, host: &Host) -> Self {
        let since = self.start.and_then(|start| i64::try_from(start / TICKS).ok());
        if let (Some(booted), Some(since)) = (booted(host), since) {
            self.created_at = (booted + since).saturating_mul(1_000_000_000);
        }
        self
    }
}

/// When this machine was booted, in seconds of Unix time.
fn booted(host: &Host) -> Option<i64> {
    let stat = std::fs::read_to_string(host.path("/proc/stat")).ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn understood(name: &str, state: &Value) -> Option<Left> {
        let temp = tempfile::tempdir().unwrap();
        crate::files::replace(&temp.path().join(name), state.to_string().as_bytes()).unwrap();
        Left::read(temp.path())
    }

    #[test]
    fn each_runtimes_state_is_understood() {
        let runc = json!({"id": "c", "init_process_pid": 7, "init_process_start": 900,
            "config": {"labels": ["a=b", "bundle=/b/c"], "cgroups": {"Systemd": true}}});
        let runc = understood("state.json", &runc).unwrap();
        assert_eq!(
            (runc.runtime, runc.bundle.as_str(), runc.systemd),
            (RuntimeKind::Runc, "/b/c", true)
        );
        assert_eq!((runc.pid, runc.start), (Some(7), Some(900)));
        let crun = json!({"pid": 8, "process-start-time": 901, "bundle": "/b/d",
            "systemd-cgroup": false});
        let crun = understood("status", &crun).unwrap();
        assert_eq!(
            (crun.runtime, crun.bundle.as_str(), crun.systemd),
            (RuntimeKind::Crun, "/b/d", false)
        );
        assert_eq!((crun.pid, crun.start), (Some(8), Some(901)));
        let youki = json!({"id": "c", "status": "running", "pid": 9, "bundle": "/b/e"});
        let youki = understood("state.json", &youki).unwrap();
        assert_eq!((youki.runtime, youki.pid, youki.start), (RuntimeKind::Youki, Some(9), None));
    }

    #[test]
    fn a_container_without_a_process_is_there_all_the_same() {
        let ended = json!({"pid": 0, "bundle": "/b"});
        assert_eq!(understood("status", &ended).unwrap().pid, None);
    }

    #[test]
    fn what_does_not_say_where_its_bundle_is_tells_nothing() {
        for state in [json!({"pid": 7}), json!({"bundle": "b"}), json!([]), json!("x")] {
            assert_eq!(understood("state.json", &state), None, "{state}");
        }
        let temp = tempfile::tempdir().unwrap();
        crate::files::replace(&temp.path().join("state.json"), b"{{").unwrap();
        assert_eq!(Left::read(temp.path()), None);
    }

    #[test]
    fn what_an_earlier_boot_left_behind_is_told_by_its_time() {
        let host = Host::default();
        let state = json!({"pid": 7, "process-start-time": 300, "bundle": "/b"});
        let left = |written| Left::understand("status", &state, written).unwrap();
        let booted = booted(&host).unwrap();
        assert!(left(booted + 1).is_of_this_boot(&host));
        assert!(!left(booted - 1).is_of_this_boot(&host));
        assert_eq!(left(booted).with_time(&host).created_at, (booted + 3) * 1_000_000_000);
    }
}
