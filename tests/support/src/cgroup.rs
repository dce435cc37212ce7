// SPDX-License-Identifier: Apache-2.0
//! Where this machine's cgroups are, for tests that lay files beside them or write them.

use std::path::PathBuf;

/// The configuration with which the test that runs counts as kubelet: what it writes is a resize.
pub fn test_is_kubelet() -> String {
    let program = std::env::current_exe().unwrap();
    format!("[kubernetes]\nkubelet = [\"{}\"]\n", program.display())
}

/// Where the memory controller is mounted, and its file that limits a pod.
pub fn memory_limit() -> (PathBuf, &'static str) {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = text.lines().filter_map(|line| line.split_once(" - "));
    let mounts = mounts.map(|(before, after)| (before.split(' ').nth(4).unwrap(), after));
    let mut mounts: Vec<(&str, &str)> = mounts.collect();
    mounts.retain(|(_, after)| after.starts_with("cgroup"));
    let is_memory = |after: &str| after.split([' ', ',']).any(|word| word == "memory");
    let v1 = mounts.iter().find(|(_, after)| after.starts_with("cgroup ") && is_memory(after));
    match v1 {
        Some((at, _)) => (PathBuf::from(at), "memory.limit_in_bytes"),
        None => (PathBuf::from(mounts[0].0), "memory.max"),
    }
}
