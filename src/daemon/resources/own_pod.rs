// SPDX-License-Identifier: Apache-2.0
//! Finds the pod in which a process runs: by its cgroup, as the kernel reports it, and the cgroups
//! that the runtimes made for the containers on record. Claims by the process, and names of cgroups
//! that it made itself, are ignored.

use std::collections::BTreeSet;
use std::io;

use crate::daemon::runtime::state_dir::{self, FoundInit};
use crate::daemon::shared::{Daemon, messages};
use crate::daemon::watch::pidfd;
use crate::files;
use crate::host::Host;
use crate::presence::IfThere;
use crate::state::{Container, Pod};

/// Returns the pod on record in which the plugin's process runs, if any.
///
/// # Errors
/// As [`pod_of_process`].
pub(super) fn of_plugin(daemon: &Daemon, plugin: &str) -> io::Result<Option<Pod>> {
    let pid = daemon.registry.find(plugin).and_then(|connected| connected.pid());
    let pid = pid.and_then(|pid| u32::try_from(pid).ok());
    pid.map_or(Ok(None), |pid| pod_of_process(daemon, pid))
}

/// Returns the pod on record in which a process runs, if any.
///
/// # Errors
/// Fails when `/proc` cannot be read, and as [`outermost`].
pub(crate) fn pod_of_process(daemon: &Daemon, pid: u32) -> io::Result<Option<Pod>> {
    match cgroups_of(&daemon.host, pid)? {
        Some(text) => pod_in(daemon, &text),
        None => Ok(None),
    }
}

/// Returns `/proc/PID/cgroup`; `None` without such a process.
fn cgroups_of(host: &Host, pid: u32) -> io::Result<Option<String>> {
    let path = host.path(format!("/proc/{pid}/cgroup"));
    files::read_kernel(&path).if_there()
}

fn pod_in(daemon: &Daemon, text: &str) -> io::Result<Option<Pod>> {
    let store = daemon.records.read();
    let mentioned = store.containers().filter(|known| text.contains(&known.key.id));
    let candidates: Vec<(&Container, String)> = mentioned
        .map(|known| (known, messages::container(known).linux.cgroups_path.clone()))
        .collect();
    let paths = candidates.iter().map(|(known, path)| (known.key.id.as_str(), path.as_str()));
    let init = |at: usize| {
        let (record, _) = candidates.get(at)?;
        init_cgroups(&daemon.host, record).or_absent()?
    };
    let at = outermost(text, &paths.collect::<Vec<_>>(), init)?;
    let found = at.and_then(|at| candidates.get(at));
    Ok(found.and_then(|(record, _)| store.pod(&record.pod).cloned()))
}

/// Returns `/proc/PID/cgroup` of the container's init process, whose cgroup the runtime made; `None` if
/// that process is unknown or no longer exists.
fn init_cgroups(host: &Host, record: &Container) -> io::Result<Option<String>> {
    let (host, key) = (host, &record.key);
    let init = match record.process.init_pid {
        Some(pid) => Some(FoundInit { pid, start: record.process.init_start }),
        // The PID of a `run` is recorded late, so the runtime's state is read.
        None => state_dir::init(host, key)?,
    };
    let Some(FoundInit { pid, start: Some(start) }) = init else { return Ok(None) };
    let text = cgroups_of(host, pid)?;
    let is_same = pidfd::start_time(host, pid)? == Some(start);
    Ok(text.filter(|_| is_same))
}

/// Finds a process's container by its `/proc/PID/cgroup`, among these IDs and cgroup paths. Of several matches the
/// outermost is right, because a process in a container can make child cgroups of any name. A cgroup with a container's
/// name matches only if the container's init process is in or below it, because other processes may make cgroups too.
/// On cgroup v1, all hierarchies that name a container must name the same one; the others are ignored.
///
/// # Errors
/// Fails when the only matching name is that of a container whose init process is unknown, or when two hierarchies name
/// different containers.
fn outermost(
    text: &str,
    containers: &[(&str, &str)],
    init: impl Fn(usize) -> Option<String>,
) -> io::Result<Option<usize>> {
    let mut is_unknown = false;
    let mut found = BTreeSet::new();
    for (hierarchy, path) in text.lines().filter_map(hierarchy_and_path) {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        let named = ends.flat_map(|end| {
            let cgroup = &path[..end];
            let all = containers.iter().enumerate();
            let named = all.filter(move |(_, (id, path))| is_cgroup_of(cgroup, id, path));
            named.map(move |(at, _)| (cgroup, at))
        });
        found.extend(named.into_iter().find_map(|(cgroup, at)| match init(at) {
            Some(init) => is_at_or_below(&init, hierarchy, cgroup).then_some(at),
            None => {
                is_unknown = true;
                None
            }
        }));
    }
    match (found.len(), is_unknown) {
        (0, true) => Err(io::Error::other("the cgroup of a container of that name is not known")),
        (0 | 1, _) => Ok(found.pop_first()),
        _ => Err(io::Error::other("its cgroups are those of several containers")),
    }
}

/// Returns the hierarchy of a line, with its controllers, and the path in it.
fn hierarchy_and_path(line: &str) -> Option<(&str, &str)> {
    let (at, _) = line.match_indices(':').nth(1)?;
    Some((&line[..at], &line[at + 1..]))
}

/// Whether a process with this `/proc/PID/cgroup` is in a cgroup of this hierarchy, or below it.
fn is_at_or_below(text: &str, hierarchy: &str, cgroup: &str) -> bool {
    let mut paths = text.lines().filter_map(hierarchy_and_path);
    paths.any(|(own, path)| {
        let below = (own == hierarchy).then(|| path.strip_prefix(cgroup)).flatten();
        below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    })
}

/// Whether a cgroup may be the container's: it ends with `path`, or with `PREFIX-NAME.scope` for
/// `SLICE:PREFIX:NAME`, or, if the container has no path, with the name `ID` or `ANYTHING-ID.scope`.
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

    /// Returns the container of a process; `inits` has `/proc/PID/cgroup` of each init process.
    fn found(text: &str, all: &[(&str, &str)], inits: &[&str]) -> Option<usize> {
        outermost(text, all, |at| inits.get(at).map(|text| (*text).to_owned())).unwrap()
    }

    #[test]
    fn a_plugin_belongs_to_the_outermost_container_cgroup() {
        let all = [("victim", "/kubepods/podv/victim"), ("own", "/kubepods/podo/own")];
        let inits = ["12:cpu:/kubepods/podv/victim\n0::/", "12:cpu:/kubepods/podo/own\n0::/"];
        let text = "12:cpu:/kubepods/podo/own/kubepods/podv/victim\n0::/\n";
        assert_eq!(found(text, &all, &inits), Some(1));
        let inits = ["0::/kubepods/podv/victim", "0::/kubepods/podo/own"];
        assert_eq!(found("0::/kubepods/podo/own", &all, &inits), Some(1));
        assert_eq!(found("0::/kubepods/podo/own/made/below", &all, &inits), Some(1));
        for text in ["0::/kubepods/podx/own", "0::/kubepods/podo/own2", "0::/", "", "own", "0::"] {
            assert_eq!(found(text, &all, &inits), None, "{text}");
        }
        // The engine itself may run in a container, so every cgroup has a prefix.
        let inits = ["0::/outer.slice/kubepods/podv/victim", "0::/outer.slice/kubepods/podo/own"];
        assert_eq!(found("0::/outer.slice/kubepods/podo/own/init", &all, &inits), Some(1));
    }

    #[test]
    fn a_cgroup_with_a_containers_name_elsewhere_is_not_its_own() {
        let all = [("victim", "/kubepods/podv/victim")];
        let inits = ["0::/kubepods/podv/victim"];
        for forged in [
            "0::/mine/kubepods/podv/victim",
            "0::/../mine/kubepods/podv/victim",
            "0::/user.slice/kubepods/podv/victim/more",
            "3:cpu:/kubepods/podv/victim",
        ] {
            assert_eq!(found(forged, &all, &inits[..]), None, "{forged}");
        }
        // An init process may have moved itself into a child cgroup.
        let inits = ["0::/kubepods/podv/victim/init.scope"];
        assert_eq!(found("0::/kubepods/podv/victim/plugin", &all, &inits), Some(0));
        let inits = ["0::/kubepods/podv/victim2"];
        assert_eq!(found("0::/kubepods/podv/victim", &all, &inits), None);
    }

    #[test]
    fn a_container_without_a_known_init_process_does_not_match() {
        let all = [("victim", "/kubepods/podv/victim")];
        assert!(outermost("0::/kubepods/podv/victim", &all, |_| None).is_err());
        assert!(outermost("0::/x/kubepods/podv/victim", &all, |_| None).is_err());
        assert!(matches!(outermost("0::/elsewhere", &all, |_| None), Ok(None)));
    }

    #[test]
    fn hierarchies_that_name_two_containers_are_an_error() {
        let all = [("victim", "/podv/victim"), ("own", "/podo/own")];
        let inits = [
            "4:cpu:/podv/victim\n3:pids:/podv/victim\n0::/",
            "4:cpu:/podo/own\n3:pids:/podo/own\n0::/",
        ];
        let in_cgroups = |text: &str| outermost(text, &all, |at| Some(inits[at].to_owned()));
        assert!(in_cgroups("4:cpu:/podo/own\n3:pids:/podv/victim\n0::/").is_err());
        for text in ["4:cpu:/podo/own\n3:pids:/podo/own\n0::/", "4:cpu:/podo/own\n3:pids:/\n0::/x"]
        {
            assert!(matches!(in_cgroups(text), Ok(Some(1))), "{text}");
        }
    }

    #[test]
    fn systemd_scopes_are_matched_by_engine_prefix_and_id() {
        let slice = "kubepods-podo.slice:cri-containerd:own";
        let path = "0::/kubepods.slice/kubepods-podo.slice/cri-containerd-own.scope";
        assert_eq!(found(path, &[("own", slice)], &[path]), Some(0));
        let scope = "0::/a.slice/other-own.scope";
        assert_eq!(found(scope, &[("own", slice)], &[scope]), None);
        assert_eq!(found(scope, &[("own", "")], &[scope]), Some(0));
        // A container with the name of one of kubelet's cgroups must not own every pod's processes.
        let named = [("burstable", "/default/burstable")];
        let init = ["0::/default/burstable"];
        assert_eq!(found("0::/kubepods/burstable/podo/own", &named, &init), None);
    }
}
