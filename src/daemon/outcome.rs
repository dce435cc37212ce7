// SPDX-License-Identifier: Apache-2.0
//! With which code a container's process ended. The runtime never learns it; the engine's monitor
//! writes it down once it has reaped the process: containerd's shim (from 2.4) into `exit.json`
//! of the bundle, conmon into a file of the engine's exit folder. And why it ended, as far as that
//! shows. It only reads; what is not there is not known.

use std::time::Duration;

use crate::state::{Container, Lifecycle};

use super::node::Node;
use super::{evict, evidence};

/// How long the monitor is waited for, and how often it is looked at.
const PATIENCE: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(5);

/// The code of a process that was ended by SIGKILL.
const KILLED: i32 = 128 + 9;

/// The exit code, if the engine wrote one for this very process.
pub(super) fn code(node: &Node, record: &Container) -> Option<i32> {
    let text = std::fs::read_to_string(node.host.path(place(record)?)).ok()?;
    if !is_shim(record) {
        return text.trim().parse().ok();
    }
    let said: serde_json::Value = serde_json::from_str(&text).ok()?;
    let is_this = said["Pid"].as_u64() == record.init_pid.map(u64::from);
    is_this.then(|| said["Status"].as_i64()?.try_into().ok()).flatten()
}

/// Waits until the engine has written it, but not long: plugins wait for StopContainer.
pub(super) async fn known(node: &Node, record: &Container) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while place(record).is_some()
        && code(node, record).is_none()
        && tokio::time::Instant::now() < deadline
    {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Why the container is not running any more, in the words that CRI engines use, and more of it
/// for people; both empty where nobody knows.
pub(super) fn status(node: &Node, record: &Container, code: Option<i32>) -> (String, String) {
    let only = |reason: &str| (reason.to_owned(), String::new());
    let eviction = record.changes.iter().find(|change| change.event == evict::EVICTION);
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
        Some(KILLED) | None if lacked_memory(node, record) => only("OOMKilled"),
        Some(_) => only("Error"),
        None => only(""),
    }
}

/// Whether the kernel killed a process of the container because its memory was used up: its
/// cgroup counts that, and is there until the runtime deletes the container.
fn lacked_memory(node: &Node, record: &Container) -> bool {
    let (cgroups, _) = evidence::cgroups(&node.host, &record.key);
    let files = [("", "memory.events"), ("memory", "memory.oom_control")];
    files.into_iter().any(|(controller, file)| {
        let Some(dir) = cgroups.get(controller) else { return false };
        let text = std::fs::read_to_string(node.host.path(dir.join(file))).unwrap_or_default();
        let counts = text.lines().filter_map(|line| line.strip_prefix("oom_kill "));
        counts.into_iter().any(|count| count.trim() != "0")
    })
}

fn is_shim(record: &Container) -> bool {
    matches!(record.engine.as_str(), "containerd-cri" | "containerd" | "nerdctl" | "docker")
}

fn place(record: &Container) -> Option<String> {
    let id = &record.key.id;
    match record.engine.as_str() {
        _ if is_shim(record) => Some(format!("{}/exit.json", record.bundle)),
        "cri-o" => Some(format!("/var/run/crio/exits/{id}")),
        "podman" => Some(format!("/run/libpod/exits/{id}")),
        _ => None,
    }
}
