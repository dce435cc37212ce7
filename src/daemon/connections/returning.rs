// SPDX-License-Identifier: Apache-2.0
//! Determines the plugins for which creates wait after a daemon start (decision D14): previously connected
//! plugins that may reconnect, pre-installed plugins, and plugins that the operator names.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::{Value, json};
use tracing::{info, warn};

use crate::config::Config;
use crate::error::in_our_words;
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::plugin;
use crate::presence::{self, IfThere};
use crate::state::Store;

use crate::daemon::registry::connected::ConnectedPlugin;
use crate::daemon::registry::returning::ExpectedPlugin;
use crate::daemon::shared::{Daemon, log_failure};
use crate::daemon::watch::pidfd;

fn file(config: &Config) -> std::path::PathBuf {
    config.run_dir.join("state/plugins.json")
}

/// Records the connected plugins, each with its process and its pod, and whether systemd may restart it.
pub(crate) fn remember(daemon: &Daemon) {
    let rows = daemon.registry.connected().into_iter().map(|plugin| row(daemon, &plugin));
    let bytes = Value::Array(rows.collect()).to_string();
    log_failure("recording the plugins", files::replace(&file(&daemon.config()), bytes.as_bytes()));
}

/// Returns the recorded form of a connected plugin.
fn row(daemon: &Daemon, plugin: &ConnectedPlugin) -> Value {
    let pid = plugin.pid().and_then(|pid| u32::try_from(pid).ok());
    let pid = pid.filter(|pid| *pid > 0);
    let cgroup = pid.map(|pid| cgroup(&daemon.host, pid)).unwrap_or_default();
    json!({
        "id": plugin.id(),
        "pid": pid,
        // Without a start time, any process with that PID is taken for the plugin's.
        "start": pid.and_then(|pid| pidfd::start_time(&daemon.host, pid).or_absent()?),
        "service": is_service(&cgroup),
        "pod": pod_of(&daemon.records.read(), &cgroup),
    })
}

/// The reason for disconnecting plugins from which the reloaded configuration hides fewer pods.
pub(crate) const SHOWN_MORE: &str =
    "rules no longer hide pods from it: it is to be synchronized with them";

/// Disconnects plugins that a reload must synchronize again, for instance because they may see more pods: a connection
/// has only one Synchronize, so they must reconnect. Meanwhile creates wait for them, as after a daemon start.
pub(crate) fn synchronize_anew(daemon: &Daemon, plugins: &[Rc<ConnectedPlugin>], why: &str) {
    for plugin in plugins {
        let id = plugin.id();
        let expected = match plugin.is_launched() {
            true => Some(ExpectedPlugin::default()), // The launcher restarts it.
            false => may_return(daemon, id, &row(daemon, plugin)),
        };
        let expected = expected.map(|expected| (id.to_owned(), expected)).into_iter().collect();
        daemon.registry.returning.expect_more(expected, daemon.config().registration_timeout);
        plugin.disconnect(why);
    }
}

/// Makes creates wait for the plugins that a reload adds to [`configured`], unless they are connected or the engine
/// serves plugins itself; `before` is the old configuration.
pub(crate) fn expect_added(daemon: &Daemon, before: &Config) {
    let config = daemon.config();
    let added: BTreeMap<_, _> = if daemon.is_bystander() {
        BTreeMap::new()
    } else {
        let known = configured(before);
        let added = configured(&config).into_iter().filter(|id| !known.contains(id));
        let added = added.filter(|id| !daemon.registry.is_present(id));
        added.map(|id| (id, ExpectedPlugin::default())).collect()
    };
    daemon.registry.returning.expect_more(added, config.registration_timeout);
}

/// Returns the plugins for which the configuration makes creates wait after a daemon start: pre-installed
/// ones, and those that the operator names.
fn configured(config: &Config) -> BTreeSet<String> {
    let (files, _) = plugin::discover(&config.plugin_path, &config.plugin_config_path);
    let launched = files.iter().map(plugin::PluginFile::id);
    launched.chain(config.wait_for.iter().cloned()).collect()
}

/// Makes creates wait for plugins that may connect, from the daemon's start on, up to the registration time-out.
pub(crate) fn expect_at_start(daemon: &Daemon) {
    // No request is served yet, so a read that is retried delays none.
    expect_remembered(daemon, presence::insist(|| remembered(&daemon.config())));
}

/// Like [`expect_at_start`], for a daemon that already serves requests: creates wait from now on.
pub(crate) fn expect(daemon: &Daemon) {
    expect_remembered(daemon, remembered(&daemon.config()));
}

fn remembered(config: &Config) -> std::io::Result<Option<Vec<u8>>> {
    files::read_own(&file(config), limits::OWN_FILE).if_there()
}

fn expect_remembered(daemon: &Daemon, bytes: std::io::Result<Option<Vec<u8>>>) {
    let bytes = bytes.unwrap_or_else(|error| {
        let why = in_our_words(&error);
        warn!(
            "the previously connected plugins are unknown, and creates do not wait for them: {why}"
        );
        None
    });
    let bytes = bytes.unwrap_or_default();
    let rows: Vec<Value> = serde_json::from_slice(&bytes).unwrap_or_default();
    let mut expected = BTreeMap::new();
    for row in &rows {
        // Earlier versions recorded a plugin as its name alone.
        let Some(id) = row.as_str().or_else(|| row["id"].as_str()) else { continue };
        if let Some(returning) = may_return(daemon, id, row) {
            expected.insert(id.to_owned(), returning);
        }
    }
    let config = daemon.config();
    expected.extend(configured(&config).into_iter().map(|id| (id, ExpectedPlugin::default())));
    daemon.registry.returning.expect_all(expected, config.registration_timeout);
}

/// Returns how creates wait for a previously connected plugin; `None` if it cannot return.
fn may_return(daemon: &Daemon, id: &str, row: &Value) -> Option<ExpectedPlugin> {
    let number = |key: &str| row[key].as_u64();
    let Some(pid) = number("pid").and_then(|pid| u32::try_from(pid).ok()) else {
        return Some(ExpectedPlugin::default());
    };
    let pod = row["pod"].as_str();
    let has_pod = pod.is_some_and(|pod| daemon.records.read().pod(pod).is_some());
    if has_pod || row["service"] == true {
        // Kubelet or systemd restarts it.
        return Some(ExpectedPlugin::default());
    }
    let Ok(process) = pidfd::open_same(&daemon.host, pid, number("start")) else {
        return Some(ExpectedPlugin::default()); // It may still run.
    };
    if process.as_ref().is_none_or(pidfd::has_ended) {
        let more = if pod.is_some() { " and its pod was removed" } else { "" };
        info!("not waiting for {id}: its process {pid} has exited{more}");
        return None;
    }
    Some(ExpectedPlugin::again(process))
}

/// Returns the pod in which a process runs, from the containers on record, else from kubelet's name of the pod's
/// cgroup, since a plugin's pod may use another runtime.
pub(super) fn pod_of_process(daemon: &Daemon, pid: Option<i32>) -> Option<String> {
    let pid = pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)?;
    let cgroup = cgroup(&daemon.host, pid);
    let recorded = pod_of(&daemon.records.read(), &cgroup);
    recorded.or_else(|| pod_uid(&cgroup).map(ToOwned::to_owned))
}

/// Returns the pod's UID as kubelet's cgroup path spells it: names for systemd have `_` for `-`.
fn pod_uid(cgroup: &str) -> Option<&str> {
    let mut parts = cgroup.split('/');
    parts.by_ref().find(|part| part.starts_with("kubepods") || part.contains("-kubepods"))?;
    let mut uids = parts.filter_map(|part| {
        let bare = part.strip_suffix(".slice").unwrap_or(part);
        bare.strip_prefix("pod").or_else(|| bare.rsplit_once("-pod").map(|(_, uid)| uid))
    });
    uids.find(|uid| !uid.is_empty())
}

/// Returns the cgroup of a process: the longest path that the kernel lists, of any hierarchy.
pub(super) fn cgroup(host: &Host, pid: u32) -> String {
    let path = host.path(format!("/proc/{pid}/cgroup"));
    let text = files::read(&path, limits::KERNEL_FILE).or_absent().unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    // On a hybrid host the longest path is the most specific.
    lines().max_by_key(|path| path.len()).unwrap_or_default().to_owned()
}

/// Whether systemd may restart the process of this cgroup: it is in a system service, not in a session.
fn is_service(cgroup: &str) -> bool {
    let last = cgroup.rsplit('/').next().unwrap_or_default();
    cgroup.starts_with("/system.slice/") && last.ends_with(".service")
}

/// Returns the pod of a process, found by a container ID in its cgroup's path.
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
    fn a_pod_is_identified_by_the_cgroup_that_kubelet_made() {
        let uid = "0a1b2c3d-0000-4000-8000-000000000001";
        let slice = uid.replace('-', "_");
        for (cgroup, wanted) in [
            (format!("/kubepods/besteffort/pod{uid}/0123abcd"), Some(uid)),
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-0123abcd.scope"
                ),
                Some(slice.as_str()),
            ),
            (format!("/kubelet/kubepods/pod{uid}/crio-0123abcd.scope/container"), Some(uid)),
            ("/kubepods/besteffort".to_owned(), None),
            ("/system.slice/podman.service".to_owned(), None),
            ("/user.slice/pod-of-mine".to_owned(), None),
            ("/".to_owned(), None),
        ] {
            assert_eq!(pod_uid(&cgroup), wanted, "{cgroup}");
        }
    }

    #[test]
    fn only_a_system_services_plugin_is_expected_to_return() {
        assert!(is_service("/system.slice/balloons.service"));
        assert!(!is_service("/user.slice/user-0.slice/user@0.service"));
        assert!(!is_service("/user.slice/user-0.slice/session-1.scope"));
        assert!(!is_service("/"));
    }
}
