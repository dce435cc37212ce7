// SPDX-License-Identifier: Apache-2.0
//! What the real runtime did, told by what it left behind (decision D2): we exec it and so never
//! see its exit code. Facts: runc keeps `ROOT/ID/state.json`, crun and youki other files in the
//! same folder; `exec.fifo` lies there from create until the process was started.
//! It only reads.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::host::Host;
use crate::state::Key;

/// Where the runtime keeps the container's state.
pub(crate) fn folder(host: &Host, key: &Key) -> PathBuf {
    host.path(&key.root).join(&key.id)
}

/// Whether the runtime knows the container.
pub(crate) fn exists(host: &Host, key: &Key) -> bool {
    folder(host, key).is_dir()
}

/// Whether the container was created and not started yet.
pub(crate) fn waits_for_start(host: &Host, key: &Key) -> bool {
    folder(host, key).join("exec.fifo").exists()
}

/// The init process: from the pid file if it is newer than `since` (an inode and a time of
/// modification before the call), else from the runtime's own state.
pub(crate) fn init_pid(
    host: &Host,
    key: &Key,
    pid_file: Option<&Path>,
    before: Option<Stamp>,
) -> Option<u32> {
    let fresh = pid_file.filter(|path| stamp(path) != before);
    let from_file = fresh.and_then(|path| std::fs::read_to_string(path).ok());
    from_file.and_then(|text| text.trim().parse().ok()).or_else(|| pid_in_state(host, key))
}

fn pid_in_state(host: &Host, key: &Key) -> Option<u32> {
    // runc: init_process_pid in state.json; crun: pid in status; youki: pid in state.json.
    number_in_state(host, key, ["init_process_pid", "pid"]).and_then(|pid| u32::try_from(pid).ok())
}

/// When the init process started, in clock ticks since boot, by the runtime's own state.
pub(crate) fn init_start(host: &Host, key: &Key) -> Option<u64> {
    // runc: init_process_start in state.json; crun: process-start-time in status; youki: nothing.
    number_in_state(host, key, ["init_process_start", "process-start-time"])
}

fn number_in_state(host: &Host, key: &Key, members: [&str; 2]) -> Option<u64> {
    let folder = folder(host, key);
    for name in ["state.json", "status"] {
        let Ok(bytes) = std::fs::read(folder.join(name)) else { continue };
        let Ok(state) = serde_json::from_slice::<serde_json::Value>(&bytes) else { continue };
        let number = members.iter().find_map(|member| state.get(*member)?.as_u64());
        if let Some(number) = number.filter(|number| *number > 0) {
            return Some(number);
        }
    }
    None
}

/// Where the runtime says that the container's cgroups are, by controller, and whether systemd
/// manages them for it. crun names only a path, which is its process's as well.
pub(crate) fn cgroups(host: &Host, key: &Key) -> (BTreeMap<String, PathBuf>, bool) {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct State {
        cgroup_paths: BTreeMap<String, PathBuf>,
        config: Config,
        #[serde(rename = "systemd-cgroup")]
        systemd_cgroup: bool,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Config {
        cgroups: Driver,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "PascalCase")]
    struct Driver {
        systemd: bool,
    }
    let folder = folder(host, key);
    for name in ["state.json", "status"] {
        let Ok(bytes) = std::fs::read(folder.join(name)) else { continue };
        let Ok(state) = serde_json::from_slice::<State>(&bytes) else { continue };
        return (state.cgroup_paths, state.systemd_cgroup || state.config.cgroups.systemd);
    }
    (BTreeMap::new(), false)
}

/// Tells a file from a later one of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp(pub(crate) u64, pub(crate) i64, pub(crate) i64);

/// The stamp of a file, if it is there.
pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some(Stamp(meta.ino(), meta.mtime(), meta.mtime_nsec()))
}

/// The stamp of the runtime's state file: an `update` replaces it.
pub(crate) fn state_stamp(host: &Host, key: &Key) -> Option<Stamp> {
    let folder = folder(host, key);
    stamp(&folder.join("state.json")).or_else(|| stamp(&folder.join("status")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(files: &[(&str, &str)]) -> (tempfile::TempDir, Key) {
        let temp = tempfile::tempdir().unwrap();
        let key = Key { root: temp.path().display().to_string(), id: "c".to_owned() };
        std::fs::create_dir(temp.path().join("c")).unwrap();
        for (name, text) in files {
            crate::files::replace(&temp.path().join(name), text.as_bytes()).unwrap();
        }
        (temp, key)
    }

    #[test]
    fn a_fresh_pid_file_wins_and_a_stale_one_does_not_count() {
        let (temp, key) = place(&[("pid", "41"), ("c/state.json", "{\"init_process_pid\":42}")]);
        let file = temp.path().join("pid");
        let host = Host::default();
        assert_eq!(init_pid(&host, &key, Some(&file), None), Some(41));
        assert_eq!(init_pid(&host, &key, Some(&file), stamp(&file)), Some(42));
    }

    #[test]
    fn crun_and_youki_states_are_understood() {
        let (_a, crun) = place(&[("c/status", "{\"pid\":7}")]);
        let (_b, youki) = place(&[("c/state.json", "{\"pid\":8}")]);
        assert_eq!(init_pid(&Host::default(), &crun, None, None), Some(7));
        assert_eq!(init_pid(&Host::default(), &youki, None, None), Some(8));
    }

    #[test]
    fn garbage_and_nothing_give_nothing() {
        let (_a, garbage) = place(&[("c/state.json", "{{{")]);
        let (_b, stopped) = place(&[("c/status", "{\"pid\":0}")]);
        for key in [garbage, stopped] {
            assert_eq!(init_pid(&Host::default(), &key, None, None), None);
        }
    }
}
