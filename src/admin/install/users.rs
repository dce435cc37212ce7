// SPDX-License-Identifier: Apache-2.0
//! Containers that still use a registration, because the engine recorded nri-runc's path for them:
//! their `kill` and `delete` call that path, and an engine without the handler cannot restart them.
//! Sources are the daemon's records, containerd's bundles, Docker's and iSulad's containers,
//! Podman's database, and conmon's command lines. This module only reads.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Deserialize;

use super::engine::Engine;
use super::ledger::Ledger;
use super::root::Root;
use crate::config::Config;
use crate::engine::{Dockerd, is_conmon, libpod};
use crate::text::counted;

/// Lists the containers' IDs, each once.
pub(super) fn list(engine: Engine, ledger: &Ledger, root: &Root, config: &Config) -> Vec<String> {
    let row = engine.row();
    let mut ids: BTreeSet<String> = recorded(row.kinds, root, config)
        .into_iter()
        .filter(|record| !(row.is_given_up)(root, ledger, record))
        .filter_map(|record| record.key.id)
        .collect();
    ids.extend((row.containers)(root, ledger));
    ids.into_iter().collect()
}

/// Warns of containers that use the handler that a new `install` replaces.
pub(super) fn note(engine: Engine, old: &Ledger, root: &Root, config: &Config) -> Option<String> {
    let count = list(engine, old, root, config).len();
    let verb = if count == 1 { "uses" } else { "use" };
    (count > 0).then(|| {
        format!(
            "{} still {verb} the handler {}, which this installation replaces: remove them before the engine \
             reads its configuration again, and keep {} until then",
            counted(count, "container"),
            old.name,
            old.binary
        )
    })
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// The members of a container's record that show whether it may still need nri-runc. The daemon's type
/// needs all members of its version, but a record of another version must not be overlooked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerRecord {
    key: RecordKey,
    engine: String,
    state: String,
    is_deleted: bool,
    /// Whether the plain runtime made the container, so that nri-runc is not called for it; the daemon has such
    /// records with `nri.scope = "node"`.
    by_plain_runtime: bool,
    bundle: Option<String>,
    init_pid: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordKey {
    root: Option<String>,
    id: Option<String>,
}

/// Returns the daemon's records of these engines' containers that may still need nri-runc.
fn recorded(kinds: &[&str], root: &Root, config: &Config) -> Vec<ContainerRecord> {
    let folder = config.run_dir.join("state/containers");
    let records = root.entries(&folder.to_string_lossy());
    let records = records.iter().map(|path| root.json(path));
    let records = records.filter_map(|record| ContainerRecord::deserialize(record).ok());
    let ours = records.filter(|record| {
        record.state != "removed"
            && !record.is_deleted
            && !record.by_plain_runtime
            && kinds.contains(&record.engine.as_str())
            && !is_lost(root, record)
    });
    ours.collect()
}

/// Whether a record's process is gone; false in a pod, which cannot see the node's processes.
fn has_ended(root: &Root, record: &ContainerRecord) -> bool {
    let process = record.init_pid.map(|pid| format!("/proc/{pid}"));
    process.is_some_and(|process| root.has("/proc/1") && root.is_absent(&process))
}

/// Whether Docker has removed a container although the runtime failed to delete it: Docker never
/// calls nri-runc for it again.
pub(super) fn is_given_up_by_docker(
    root: &Root,
    ledger: &Ledger,
    record: &ContainerRecord,
) -> bool {
    let home = dockers_containers(root, ledger);
    let id = record.key.id.as_deref().unwrap_or_default();
    has_ended(root, record) && root.has(&home) && root.is_absent(&format!("{home}/{id}"))
}

/// Whether a record's container is gone. Its bundle must be missing, so that no engine can call
/// nri-runc for it, and either its process has ended or the runtime does not know it. A bundle on
/// an unmounted file system is not missing.
fn is_lost(root: &Root, record: &ContainerRecord) -> bool {
    let RecordKey { root: Some(of_runtime), id: Some(id) } = &record.key else { return false };
    let Some(bundle) = &record.bundle else {
        return false;
    };
    let is_absent = |path: &str| {
        let mut above = Path::new(path).ancestors().skip(1).take(2);
        root.is_absent(path) && above.any(|above| above.to_str().is_some_and(|dir| root.has(dir)))
    };
    is_absent(bundle) && (has_ended(root, record) || is_absent(&format!("{of_runtime}/{id}")))
}

/// Lists the containers for which containerd recorded nri-runc's program in a file of the bundle,
/// without Docker's.
pub(super) fn bundles(root: &Root, ledger: &Ledger) -> Vec<String> {
    let binary = ledger.binary.as_str();
    let main = ledger.main.as_deref().unwrap_or(super::containerd::MAIN);
    let state = super::running::state_directory(main, root);
    let namespaces = root.entries(&format!("{state}/io.containerd.runtime.v2.task"));
    let namespaces = namespaces.iter().filter(|namespace| last_part(namespace) != "moby");
    let bundles = namespaces.flat_map(|namespace| root.entries(namespace));
    let ours = bundles.filter(|bundle| {
        let options = root.json(&format!("{bundle}/options.json"));
        root.text(&format!("{bundle}/runtime")).trim() == binary
            || options["binary_name"] == binary
            || options["BinaryName"] == binary
    });
    ours.map(|bundle| last_part(&bundle).to_owned()).collect()
}

/// Returns the directory of Docker's containers.
fn dockers_containers(root: &Root, ledger: &Ledger) -> String {
    let main = ledger.main.as_deref().unwrap_or(super::docker::DOCKER.main);
    let running = command_lines(root).into_iter().filter_map(|words| Dockerd::of(&words));
    let mut dockerd = running.into_iter().find(|dockerd| dockerd.config_file == main);
    let dockerd = dockerd.get_or_insert_default();
    dockerd.read(&root.json(main));
    format!("{}/containers", dockerd.data_root())
}

/// Lists Docker's containers with nri-runc's handler, running or not: each has a file with the
/// runtime's name.
pub(super) fn docker(root: &Root, ledger: &Ledger) -> Vec<String> {
    let containers = root.entries(&dockers_containers(root, ledger));
    let ours = containers.iter().filter(|container| {
        root.json(&format!("{container}/hostconfig.json"))["Runtime"] == ledger.name.as_str()
    });
    ours.map(|container| last_part(container).to_owned()).collect()
}

/// Lists iSulad's containers with nri-runc's handler, running or not: they are in a folder with the
/// runtime's name.
pub(super) fn isulad(root: &Root, ledger: &Ledger) -> Vec<String> {
    let main = ledger.main.as_deref().unwrap_or(super::docker::ISULAD.main);
    let settings = root.json(main);
    let graph = settings["graph"].as_str().unwrap_or("/var/lib/isulad");
    let containers = root.entries(&format!("{graph}/engines/{}", ledger.name));
    containers.iter().map(|container| last_part(container).to_owned()).collect()
}

/// Returns the command lines of all processes; for a user's engine, only of the user's processes.
pub(super) fn command_lines(root: &Root) -> Vec<Vec<Vec<u8>>> {
    let own = nix::unistd::geteuid().as_raw();
    let is_own = |path: &str| {
        std::fs::metadata(root.path(Path::new(path))).is_ok_and(|meta| meta.uid() == own)
    };
    let is_process = |path: &&String| {
        last_part(path).bytes().all(|b| b.is_ascii_digit())
            && (root.user().is_none() || is_own(path))
    };
    let processes = root.entries("/proc");
    let lines = processes.iter().filter(is_process).filter_map(|process| {
        let line = root.read(&format!("{process}/cmdline")).ok().flatten()?;
        Some(line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
    });
    lines.collect()
}

/// Lists Podman's containers with nri-runc's runtime, running or not: its database has the
/// runtime's name or path.
pub(super) fn podman(root: &Root, ledger: &Ledger) -> Vec<String> {
    let (files, usual) = match root.user() {
        Some((config, data)) => (vec![format!("{config}/containers/storage.conf")], data),
        None => (super::podman::STORAGE.map(str::to_owned).to_vec(), "/var/lib"),
    };
    let storage = root.last_setting(&files, &["storage", "graphroot"]);
    let storage = storage.unwrap_or_else(|| format!("{usual}/containers/storage"));
    let databases = libpod::files(&storage).into_iter();
    let databases = databases.filter_map(|path| root.read(&path).ok().flatten());
    let noted = databases.flat_map(|bytes| libpod::runtimes(&bytes));
    let ours = noted.filter(|(_, runtime)| [&ledger.name, &ledger.binary].contains(&runtime));
    ours.map(|(id, _)| id).collect()
}

/// Lists the containers whose conmon runs with nri-runc's path on its command line: Podman's, or
/// CRI-O's.
pub(super) fn monitored(of_podman: bool, root: &Root, binary: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for words in command_lines(root) {
        let after = |flags: &[&[u8]]| {
            let at = words.iter().position(|word| flags.contains(&word.as_slice()))?;
            words.get(at + 1).map(Vec::as_slice)
        };
        // Only these flags are compared: names that a pod chooses (its container, its log) may
        // contain "podman" too.
        let is_podmans = words.windows(2).any(|pair| {
            let at_exit: [&[u8]; 2] = [b"--exit-command", b"--exit-command-arg"];
            at_exit.contains(&pair[0].as_slice()) && pair[1].windows(6).any(|p| p == b"podman")
        });
        let is_ours = after(&[b"-r", b"--runtime"]) == Some(binary.as_bytes());
        if is_conmon(&words) && is_ours && is_podmans == of_podman {
            let id = after(&[b"-c", b"--cid"]).unwrap_or_default();
            ids.push(String::from_utf8_lossy(id).into_owned());
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forty containers with the runtime `nri-runc`, one of which was removed.
    const DATABASE: &[u8] = include_bytes!("../../../fixtures/engines/bolt_state.db");

    fn named(runtime: &str, binary: &str, settings: &str, database: &str) -> usize {
        let temp = tempfile::tempdir().unwrap();
        for (path, bytes) in
            [("etc/containers/storage.conf", settings.as_bytes()), (database, DATABASE)]
        {
            std::fs::create_dir_all(temp.path().join(path).parent().unwrap()).unwrap();
            crate::files::replace(&temp.path().join(path), bytes).unwrap();
        }
        let root = Root::confined(temp.path()).unwrap();
        let ledger = serde_json::json!({
            "schema": 1, "name": runtime, "binary": binary, "default": false, "main": null,
            "files": [], "folders": [],
        });
        podman(&root, &serde_json::from_value(ledger).unwrap()).len()
    }

    #[test]
    fn podmans_containers_are_found_wherever_its_storage_is() {
        let usual = "var/lib/containers/storage/libpod/bolt_state.db";
        assert_eq!(named("nri-runc", "/x", "", usual), 39);
        let elsewhere = "[storage]\ngraphroot = \"/srv/images\"\n";
        assert_eq!(named("nri-runc", "/x", elsewhere, "srv/images/libpod/bolt_state.db"), 39);
        assert_eq!(named("other", "nri-runc", "", usual), 39, "it may be named by its path");
    }

    #[test]
    fn records_of_other_versions_still_count_as_containers() {
        let temp = tempfile::tempdir().unwrap();
        let records = [
            ("a", r#"{"key": {"id": "a"}, "engine": "e", "later": {"b": [1]}}"#),
            ("b", r#"{"key": {"id": "b"}, "engine": "e", "state": "removed"}"#),
            ("c", r#"{"key": {"id": "c"}, "engine": "e", "by_plain_runtime": true}"#),
            ("d", r#"{"key": {"id": "d"}, "engine": "other"}"#),
            ("e", "no JSON"),
        ];
        for (name, record) in records {
            let folder = temp.path().join("run/state/containers");
            std::fs::create_dir_all(&folder).unwrap();
            crate::files::replace(&folder.join(name), record.as_bytes()).unwrap();
        }
        let root = Root::confined(temp.path()).unwrap();
        let config = Config { run_dir: "/run".into(), ..Config::default() };
        let found = recorded(&["e"], &root, &config);
        assert_eq!(
            found.iter().map(|record| &record.key.id).collect::<Vec<_>>(),
            [&Some("a".to_owned())]
        );
    }

    #[test]
    fn a_conmon_is_attributed_by_its_exit_command() {
        let temp = tempfile::tempdir().unwrap();
        let lines = [
            ("1", "/usr/bin/conmon -c a -n k8s_podman_web -r /x -l /var/log/pods/podman/0.log"),
            ("2", "/usr/bin/conmon -c b -n web -r /x --exit-command /usr/bin/podman"),
            ("3", "conmon -c c -r /x --exit-command /bin/p --exit-command-arg /srv/podman"),
            ("4", "/usr/bin/conmon -c d -n podman -r /y"),
            ("5", "/usr/bin/crio-conmon -c e -n podman -r /x"),
        ];
        for (pid, line) in lines {
            let process = temp.path().join("proc").join(pid);
            std::fs::create_dir_all(&process).unwrap();
            let line = line.replace(' ', "\0") + "\0";
            crate::files::replace(&process.join("cmdline"), line.as_bytes()).unwrap();
        }
        let root = Root::confined(temp.path()).unwrap();
        let found = |of_podman| {
            let mut ids = monitored(of_podman, &root, "/x");
            ids.sort();
            ids
        };
        assert_eq!(found(false), ["a", "e"]);
        assert_eq!(found(true), ["b", "c"]);
    }

    #[test]
    fn other_runtimes_and_missing_storage_yield_no_containers() {
        assert_eq!(named("other", "/x", "", "var/lib/containers/storage/libpod/bolt_state.db"), 0);
        assert_eq!(named("nri-runc", "/x", "", "srv/bolt_state.db"), 0);
        assert_eq!(named("nri-runc", "/x", "no toml", "srv/bolt_state.db"), 0);
    }
}
