// SPDX-License-Identifier: Apache-2.0
//! With which code a container's process ended. The runtime never learns it; the engine's monitor
//! writes it down once it has reaped the process: containerd's shim (from 2.4) into `exit.json`
//! of the bundle, conmon into a file of the engine's exit folder. It only reads; what is not
//! there is not known.

use std::time::Duration;

use crate::state::Container;

use super::node::Node;

/// How long the monitor is waited for, and how often it is looked at.
const PATIENCE: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(5);

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
