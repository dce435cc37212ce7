// SPDX-License-Identifier: Apache-2.0
//! The pod in which a process runs: by its cgroup, which the kernel says, and by our own records of
//! containers. Nothing that the process says of itself counts.

use std::io;

use crate::daemon::node::{Node, messages};
use crate::files;
use crate::presence::IfThere;
use crate::state::{Container, Pod};

/// The pod in which the plugin's process runs.
///
/// # Errors
/// Fails when that cannot be known.
pub(super) fn of_plugin(node: &Node, plugin: &str) -> io::Result<Option<Pod>> {
    let pid = node.registry.find(plugin).and_then(|connected| connected.chained.plugin.pid());
    let pid = pid.and_then(|pid| u32::try_from(pid).ok());
    pid.map_or(Ok(None), |pid| pod_of_process(node, pid))
}

/// The pod in which a process runs; `None` if it is in none of those on record.
///
/// # Errors
/// Fails when that cannot be known.
pub(crate) fn pod_of_process(node: &Node, pid: u32) -> io::Result<Option<Pod>> {
    let path = node.host.path(format!("/proc/{pid}/cgroup"));
    let text = files::read_kernel(&path).if_there()?;
    Ok(text.and_then(|text| pod_in(node, &text)))
}

fn pod_in(node: &Node, text: &str) -> Option<Pod> {
    let store = node.records.read();
    let mentioned = store.containers().filter(|known| text.contains(&known.key.id));
    let candidates: Vec<(&Container, String)> = mentioned
        .map(|known| (known, messages::container(known).linux.cgroups_path.clone()))
        .collect();
    let paths = candidates.iter().map(|(known, path)| (known.key.id.as_str(), path.as_str()));
    let at = outermost(text, &paths.collect::<Vec<_>>())?;
    let (record, _) = candidates.get(at)?;
    store.pod(&record.pod).cloned()
}

/// The container in which a process is, by its `/proc/PID/cgroup`, among these IDs and cgroup
/// paths. The outermost counts: a process in a container can make cgroups below its own, by any
/// name.
fn outermost(text: &str, containers: &[(&str, &str)]) -> Option<usize> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let cgroups = paths.flat_map(|path| {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        ends.map(move |end| &path[..end])
    });
    let mut found = cgroups.filter_map(|cgroup| {
        containers.iter().position(|(id, path)| is_cgroup_of(cgroup, id, path))
    });
    found.next()
}

/// Whether a cgroup is the container's: `PATH`, or `PREFIX-NAME.scope` for `SLICE:PREFIX:NAME`;
/// without a path, a cgroup with its ID as the name.
fn is_cgroup_of(cgroup: &str, id: &str, path: &str) -> bool {
    let is_last = |name: &str| {
        cgroup.strip_suffix(name).is_some_and(|above| above.is_empty() || above.ends_with('/'))
    };
    match path.split(':').collect::<Vec<_>>()[..] {
        [_, prefix, name] => is_last(&format!("{prefix}-{name}.scope")),
        _ if path.is_empty() => is_last(id) || cgroup.ends_with(&format!("-{id}.scope")),
        _ => is_last(path.trim_start_matches('/')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_in_the_outermost_container_whatever_it_calls_cgroups_below() {
        let all = [("victim", "/kubepods/podv/victim"), ("own", "/kubepods/podo/own")];
        let text = "12:cpu:/kubepods/podo/own/kubepods/podv/victim\n0::/\n";
        assert_eq!(outermost(text, &all), Some(1));
        assert_eq!(outermost("0::/kubepods/podo/own", &all), Some(1));
        assert_eq!(outermost("0::/outer.slice/kubepods/podo/own/init", &all), Some(1));
        for text in ["0::/kubepods/podx/own", "0::/kubepods/podo/own2", "0::/", "", "own", "0::"] {
            assert_eq!(outermost(text, &all), None, "{text}");
        }
    }

    #[test]
    fn systemds_scopes_and_unnamed_cgroups_are_known_by_their_names() {
        let slice = "kubepods-podo.slice:cri-containerd:own";
        let path = "0::/kubepods.slice/kubepods-podo.slice/cri-containerd-own.scope";
        assert_eq!(outermost(path, &[("own", slice)]), Some(0));
        assert_eq!(outermost("0::/a.slice/other-own.scope", &[("own", slice)]), None);
        assert_eq!(outermost("0::/a.slice/other-own.scope", &[("own", "")]), Some(0));
        // A container that is named like a cgroup of the kubelet does not own every pod's.
        let named = [("burstable", "/default/burstable")];
        assert_eq!(outermost("0::/kubepods/burstable/podo/own", &named), None);
    }
}
