// SPDX-License-Identifier: Apache-2.0
//! Plugins that creates wait for after a daemon start (decision D14): those that were connected
//! before, those that are pre-installed, and those that the operator names. One that cannot come
//! back is not waited for.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tracing::info;

use crate::files;
use crate::plugin;
use crate::state::Store;

use crate::daemon::node::{Node, log_failure};
use crate::daemon::registry::returning::ExpectedPlugin;
use crate::daemon::watch::pidfd;

fn file(node: &Node) -> std::path::PathBuf {
    node.config().run_dir.join("state/plugins.json")
}

/// Records the connected plugins, each with its process and whether something would restart it.
pub(crate) fn remember(node: &Node) {
    let rows = node.registry.connected().into_iter().map(|plugin| {
        let pid = plugin.chained.plugin.pid().and_then(|pid| u32::try_from(pid).ok());
        let pid = pid.filter(|pid| *pid > 0);
        let cgroup = pid.map(|pid| cgroup(node, pid)).unwrap_or_default();
        json!({
            "id": plugin.chained.id(),
            "pid": pid,
            "start": pid.and_then(|pid| pidfd::start_time(&node.host, pid)),
            "service": is_service(&cgroup),
            "pod": pod_of(&node.records.read(), &cgroup),
        })
    });
    let bytes = Value::Array(rows.collect()).to_string();
    log_failure("recording the plugins", files::replace(&file(node), bytes.as_bytes()));
}

/// Lets creates wait from now on, bounded by the registration time-out.
pub(crate) fn expect(node: &Node) {
    let bytes = std::fs::read(file(node)).unwrap_or_default();
    let rows: Vec<Value> = serde_json::from_slice(&bytes).unwrap_or_default();
    let mut expected = BTreeMap::new();
    for row in &rows {
        // Earlier versions recorded a plugin as its name alone.
        let Some(id) = row.as_str().or_else(|| row["id"].as_str()) else { continue };
        if let Some(returning) = may_return(node, id, row) {
            expected.insert(id.to_owned(), returning);
        }
    }
    let config = node.config();
    let (files, _) = plugin::discover(&config.plugin_path, &config.plugin_config_path);
    let launched = files.iter().map(plugin::PluginFile::id);
    for id in launched.chain(config.wait_for.iter().cloned()) {
        expected.insert(id, ExpectedPlugin::default());
    }
    node.registry.returning.expect_all(expected, config.registration_timeout);
}

/// How creates wait for a plugin that was connected; `None` if it cannot come back.
fn may_return(node: &Node, id: &str, row: &Value) -> Option<ExpectedPlugin> {
    let number = |key: &str| row[key].as_u64();
    let Some(pid) = number("pid").and_then(|pid| u32::try_from(pid).ok()) else {
        return Some(ExpectedPlugin::default());
    };
    let pod = row["pod"].as_str();
    let has_pod = pod.is_some_and(|pod| node.records.read().pod(pod).is_some());
    if has_pod || row["service"] == true {
        // A kubelet or systemd starts it again.
        return Some(ExpectedPlugin::default());
    }
    let process = pidfd::open_same(&node.host, pid, number("start"));
    if process.as_ref().is_none_or(pidfd::has_ended) {
        let more = if pod.is_some() { " and its pod was removed" } else { "" };
        info!("not waiting for {id}: its process {pid} has exited{more}");
        return None;
    }
    Some(ExpectedPlugin { process })
}

/// The cgroup of a process, by the line that every host has: version 2's, or the first.
fn cgroup(node: &Node, pid: u32) -> String {
    let path = node.host.path(format!("/proc/{pid}/cgroup"));
    let text = files::read_small(&path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    // On a hybrid host the longest path is the most specific.
    lines().max_by_key(|path| path.len()).unwrap_or_default().to_owned()
}

/// Whether systemd would restart it: a service of its own, not one that belongs to a session.
fn is_service(cgroup: &str) -> bool {
    let last = cgroup.rsplit('/').next().unwrap_or_default();
    cgroup.starts_with("/system.slice/") && last.ends_with(".service")
}

/// The pod of a process, by a container's id in its cgroup's path.
fn pod_of(store: &Store, cgroup: &str) -> Option<String> {
    let words = cgroup.split(['/', ':']).flat_map(|word| {
        let bare = word.trim_end_matches(".scope");
        [bare, bare.rsplit('-').next().unwrap_or_default()]
    });
    let mut pods = words.filter(|word| !word.is_empty()).filter_map(|word| {
        let known = store.of_id(word).next()?;
        Some(known.pod.clone())
    });
    pods.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_comes_back_and_a_session_does_not() {
        assert!(is_service("/system.slice/balloons.service"));
        assert!(!is_service("/user.slice/user-0.slice/user@0.service"));
        assert!(!is_service("/user.slice/user-0.slice/session-1.scope"));
        assert!(!is_service("/"));
    }
}
