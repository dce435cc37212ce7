// SPDX-License-Identifier: Apache-2.0
//! With which code a container's process ended. The runtime never learns it; the kernel tells it
//! from 6.15 on, once the process was reaped, and the engine's monitor writes it down: containerd's
//! shim (from 2.4) into `exit.json` of the bundle, conmon into a file of the engine's exit folder.
//! And why it ended, as far as that shows. It only reads; what is not there is not known.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::engine::EngineKind;
use crate::host::Host;
use crate::state::{Container, EVICTION, Lifecycle};

use crate::daemon::runtime::state_dir;
use crate::daemon::watch::pidfd::{self, ProcessExit};

/// How long the exit code is waited for, and how often it is looked for meanwhile.
const EXIT_CODE_WAIT: Duration = Duration::from_millis(50);
const EXIT_CODE_CHECK: Duration = Duration::from_millis(5);

/// The code of a process that was ended by SIGKILL.
const KILLED: i32 = 128 + 9;

/// The exit code, if the engine wrote one for this very process.
pub(crate) fn code(host: &Host, record: &Container) -> Option<i32> {
    let text = std::fs::read_to_string(host.path(place(record)?)).ok()?;
    if !is_shim(record) {
        return text.trim().parse().ok();
    }
    let said: serde_json::Value = serde_json::from_str(&text).ok()?;
    let is_this = said["Pid"].as_u64() == record.init_pid.map(u64::from);
    is_this.then(|| said["Status"].as_i64()?.try_into().ok()).flatten()
}

/// Exit codes, and which engines' monitors write none.
#[derive(Debug, Default)]
pub(crate) struct ExitCodes {
    /// Engine and runtime root.
    mute_monitors: RefCell<BTreeSet<(String, String)>>,
}

impl ExitCodes {
    /// Waits until the kernel or the engine has told it, but not long: plugins wait for
    /// StopContainer. Where neither does, nobody waits.
    pub(crate) async fn wait(
        &self,
        host: &Host,
        record: &Container,
        process: Option<&OwnedFd>,
    ) -> Option<i32> {
        let deadline = tokio::time::Instant::now() + EXIT_CODE_WAIT;
        let is_mute =
            self.mute_monitors.borrow().contains(&monitor(record)) || place(record).is_none();
        loop {
            // What the engine says counts: people see that too.
            if let Some(code) = code(host, record) {
                return Some(code);
            }
            let ending = process.map_or(ProcessExit::Unsaid, pidfd::ending);
            if let ProcessExit::Code(code) = ending {
                return Some(code);
            }
            let is_hopeless = ending == ProcessExit::Unsaid && is_mute;
            if is_hopeless || tokio::time::Instant::now() >= deadline {
                return None;
            }
            tokio::time::sleep(EXIT_CODE_CHECK).await;
        }
    }

    /// A container that has ended is being deleted: its monitor has reaped it long since, so what is
    /// not written now never will be, nor for the next containers of this engine.
    pub(crate) fn note_monitor(&self, host: &Host, record: &Container) {
        if place(record).is_none() {
            return;
        }
        let mut mute = self.mute_monitors.borrow_mut();
        if code(host, record).is_none() {
            mute.insert(monitor(record));
        } else {
            mute.remove(&monitor(record));
        }
    }
}

/// Whether the init process of a container is known to have exited.
pub(crate) fn has_exited(host: &Host, record: &Container) -> bool {
    let Some(pid) = record.init_pid else { return false };
    match pidfd::open_same(host, pid, record.init_start) {
        Some(process) => pidfd::has_ended(&process),
        None => true,
    }
}

/// Why the container is not running any more, in the words that CRI engines use, and more of it
/// for people; both empty where nobody knows.
pub(crate) fn status(host: &Host, record: &Container, code: Option<i32>) -> (String, String) {
    let only = |reason: &str| (reason.to_owned(), String::new());
    let eviction = record.changes.iter().find(|change| change.event == EVICTION);
    if let Some(eviction) = eviction {
        let why = eviction.after.as_str().unwrap_or_default();
        return ("Evicted".to_owned(), format!("by {}: {why}", eviction.plugin));
    }
    if record.state == Lifecycle::Creating {
        let why = record.refused.last().cloned();
        let why = why.unwrap_or_else(|| "the runtime did not create it".to_owned());
        return ("CreateContainerError".to_owned(), why);
    }
    match code {
        Some(0) => only("Completed"),
        // Only a process that was killed can have been killed for its memory.
        Some(KILLED) | None if lacked_memory(host, record) => only("OOMKilled"),
        Some(_) => only("Error"),
        None => only(""),
    }
}

/// Whether the kernel killed a process of the container because its memory was used up: its
/// cgroup counts that, and is there until the runtime deletes the container.
fn lacked_memory(host: &Host, record: &Container) -> bool {
    let (cgroups, _) = state_dir::cgroups(host, &record.key);
    let files = [("", "memory.events"), ("memory", "memory.oom_control")];
    files.into_iter().any(|(controller, file)| {
        let Some(dir) = cgroups.get(controller) else { return false };
        let text = std::fs::read_to_string(host.path(dir.join(file))).unwrap_or_default();
        let counts = text.lines().filter_map(|line| line.strip_prefix("oom_kill "));
        counts.into_iter().any(|count| count.trim() != "0")
    })
}

/// Of one engine, for one runtime root.
fn monitor(record: &Container) -> (String, String) {
    (record.engine.clone(), record.key.root.clone())
}

fn is_shim(record: &Container) -> bool {
    EngineKind::named(&record.engine).is_some_and(EngineKind::has_shim)
}

fn place(record: &Container) -> Option<String> {
    let id = &record.key.id;
    match EngineKind::named(&record.engine)? {
        EngineKind::ContainerdCri
        | EngineKind::Containerd
        | EngineKind::Nerdctl
        | EngineKind::Docker => Some(format!("{}/exit.json", record.bundle)),
        EngineKind::Crio => Some(format!("/var/run/crio/exits/{id}")),
        EngineKind::Podman => Some(format!("/run/libpod/exits/{id}")),
        EngineKind::Isulad | EngineKind::Kubernetes | EngineKind::Plain => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn record(root: &str, bundle: &str) -> Container {
        let json = serde_json::json!({
            "schema": 1, "boot_id": "", "key": {"root": root, "id": "c"}, "incarnation": 1,
            "runtime": "", "global_flags": [], "bundle": bundle, "is_sandbox": false,
            "pod": "", "name": "", "state": "running", "pid_file": null, "init_pid": 7,
            "init_start": 1, "engine": "containerd", "evidence": [], "variables": [],
            "message": "", "engine_resources": {}, "overlay": {}, "owners": {}, "patched": null,
            "changes": [], "refused": [], "skipped": [], "in_flight": null
        });
        serde_json::from_value(json).unwrap()
    }

    async fn waited(codes: &ExitCodes, record: &Container) -> Duration {
        let begun = Instant::now();
        codes.wait(&Host::default(), record, None).await;
        begun.elapsed()
    }

    #[tokio::test]
    async fn an_engine_that_writes_no_codes_is_waited_for_until_its_first_delete() {
        let temp = tempfile::tempdir().unwrap();
        let (codes, host) = (ExitCodes::default(), Host::default());
        let here = record("/run/one", &temp.path().display().to_string());
        assert!(waited(&codes, &here).await >= EXIT_CODE_WAIT);
        assert!(
            waited(&codes, &here).await >= EXIT_CODE_WAIT,
            "one that was slow is waited for again"
        );
        codes.note_monitor(&host, &here);
        assert!(waited(&codes, &here).await < EXIT_CODE_WAIT, "it writes none");
        let other = record("/run/other", &here.bundle);
        assert!(waited(&codes, &other).await >= EXIT_CODE_WAIT, "another may");
        // A newer version does.
        let exit = temp.path().join("exit.json");
        crate::files::replace(&exit, b"{\"Pid\": 7, \"Status\": 3}").unwrap();
        assert_eq!(code(&host, &here), Some(3));
        codes.note_monitor(&host, &here);
        std::fs::remove_file(exit).unwrap();
        assert!(waited(&codes, &here).await >= EXIT_CODE_WAIT);
    }
}
