// SPDX-License-Identifier: Apache-2.0
//! The values in force: the records of the daemon, and the files of the kernel.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::machine::{command, wait_for};

/// The document that an admin verb prints.
pub(super) fn admin(words: &[&str]) -> Value {
    let output = command("nri-runc").args(["nri", "--json"]).args(words).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// The PID of the current daemon.
pub(super) fn daemon() -> Option<i32> {
    admin(&["status"])["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok())
}

/// Waits until no pod of the namespace is on record.
#[track_caller]
pub(super) fn wait_until_forgotten(namespace: &str) {
    wait_for("nothing of it is on record", || known_pods(namespace).is_empty().then_some(()));
}

/// The pods of a namespace that the daemon knows.
pub(super) fn known_pods(namespace: &str) -> Vec<Value> {
    let all = admin(&["pods"]);
    let pods = all.as_array().into_iter().flatten();
    pods.filter(|pod| pod["namespace"] == namespace).cloned().collect()
}

/// A running container of that pod, as the daemon knows it.
#[track_caller]
pub(super) fn running(namespace: &str, pod: &str, container: &str) -> Running {
    let pods = known_pods(namespace);
    let found = pods.iter().find(|known| known["name"] == pod);
    let containers = found.and_then(|pod| pod["containers"].as_array()).into_iter().flatten();
    let mut running =
        containers.filter(|one| one["name"] == container && one["state"] == "running");
    let Some(one) = running.next() else {
        panic!("no running {pod}/{container} is known: {pods:?}");
    };
    Running { id: one["id"].as_str().unwrap().to_owned(), pid: one["pid"].as_i64().unwrap() }
}

pub(super) struct Running {
    pub(super) id: String,
    pid: i64,
}

impl Running {
    /// Microseconds in 100 ms.
    pub(super) fn cpu_quota(&self) -> String {
        self.value(("cpu", "cpu.cfs_quota_us"), "cpu.max")
    }

    pub(super) fn memory_limit(&self) -> String {
        self.value(("memory", "memory.limit_in_bytes"), "memory.max")
    }

    pub(super) fn cpus(&self) -> String {
        self.value(("cpuset", "cpuset.cpus"), "cpuset.cpus")
    }

    /// The first word of a file of its cgroup, by the names of both versions.
    fn value(&self, (controller, v1): (&str, &str), v2: &str) -> String {
        let top = Path::new("/sys/fs/cgroup");
        let file = match self.cgroup(controller) {
            Some(cgroup) => top.join(controller).join(cgroup).join(v1),
            None => top.join(self.cgroup("").unwrap_or_default()).join(v2),
        };
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.split_whitespace().next().unwrap_or_default().to_owned()
    }

    /// Returns the container's cgroup in the hierarchy of a controller, or of version 2 if that has
    /// none.
    fn cgroup(&self, controller: &str) -> Option<PathBuf> {
        let lines =
            std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        let mut cgroups = lines.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let is_it = controllers.split(',').any(|one| one == controller);
            is_it.then(|| PathBuf::from(path.trim_start_matches('/')))
        });
        cgroups.next()
    }
}
