// SPDX-License-Identifier: Apache-2.0
//! Who still needs the registration: containers that have our path on record. Their `kill` and
//! `delete` will call it, and an engine that no longer knows the name cannot start them again.
//! Sources: our daemon's records, containerd's bundles, Docker's containers, Podman's database,
//! conmon's command lines. It only reads.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::ledger::Ledger;
use super::plan::Engine;
use crate::config::Config;
use crate::engine::libpod;
use crate::host::Host;

/// Their ids, each once.
pub(super) fn of(engine: Engine, ledger: &Ledger, host: &Host, config: &Config) -> Vec<String> {
    let mut ids: BTreeSet<String> = recorded(engine, host, config).into_iter().collect();
    match engine {
        Engine::Containerd | Engine::Nerdctl => ids.extend(bundles(host, ledger)),
        Engine::Docker => ids.extend(docker(host, ledger)),
        Engine::Crio => ids.extend(monitored(engine, host, &ledger.binary)),
        Engine::Podman => {
            ids.extend(monitored(engine, host, &ledger.binary));
            ids.extend(podman(host, ledger));
        }
    }
    ids.into_iter().collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn json(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What our daemon knows of this engine's containers.
fn recorded(engine: Engine, host: &Host, config: &Config) -> Vec<String> {
    let kinds: &[&str] = match engine {
        Engine::Containerd => &["containerd-cri"],
        Engine::Crio => &["cri-o"],
        Engine::Docker => &["docker"],
        Engine::Podman => &["podman"],
        Engine::Nerdctl => &["nerdctl", "containerd"],
    };
    let records = entries(&host.path(config.run_dir.join("state/containers")));
    let records = records.iter().map(|path| json(path));
    let ours = records.filter(|record| {
        kinds.iter().any(|kind| record["engine"] == *kind) && record["state"] != "removed"
    });
    ours.filter_map(|record| Some(record["key"]["id"].as_str()?.to_owned())).collect()
}

/// containerd notes the program beside each bundle.
fn bundles(host: &Host, ledger: &Ledger) -> Vec<String> {
    let binary = ledger.binary.as_str();
    let main = host.path(ledger.main.as_deref().unwrap_or(super::containerd::MAIN));
    let state = super::containerd::state(&std::fs::read_to_string(main).unwrap_or_default());
    let tasks = host.path(Path::new(&state).join("io.containerd.runtime.v2.task"));
    let namespaces = entries(&tasks).into_iter().filter(|namespace| name(namespace) != "moby");
    let bundles = namespaces.flat_map(|namespace| entries(&namespace));
    let ours = bundles.filter(|bundle| {
        let noted = std::fs::read_to_string(bundle.join("runtime")).unwrap_or_default();
        noted.trim() == binary
            || json(&bundle.join("options.json"))["binary_name"] == binary
            || json(&bundle.join("options.json"))["BinaryName"] == binary
    });
    ours.map(|bundle| name(&bundle)).collect()
}

/// Docker notes the runtime's name with each container, also with those that do not run.
fn docker(host: &Host, ledger: &Ledger) -> Vec<String> {
    let main = ledger.main.as_deref().unwrap_or(super::docker::MAIN);
    let settings = json(&host.path(main));
    // With both a flag and a key of its root dockerd does not start.
    let root = settings["data-root"].as_str().map(str::to_owned);
    let root = root.or_else(|| flagged_root(host, main));
    let root = root.unwrap_or_else(|| "/var/lib/docker".to_owned());
    let containers = entries(&host.path(Path::new(&root).join("containers")));
    let ours = containers.iter().filter(|container| {
        let noted = json(&container.join("hostconfig.json"));
        noted["Runtime"] == ledger.name.as_str()
    });
    ours.map(|container| name(container)).collect()
}

/// The root that the dockerd with these settings was started with, if that is on its command line.
fn flagged_root(host: &Host, main: &str) -> Option<String> {
    let after = |words: &[String], flags: &[&str]| {
        words.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
            Some((flag, value)) if flags.contains(&flag) => Some(value.to_owned()),
            _ if flags.contains(&word.as_str()) => words.get(at + 1).cloned(),
            _ => None,
        })
    };
    entries(&host.path("/proc")).iter().find_map(|process| {
        let line = std::fs::read(process.join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line);
        let words: Vec<String> = line.split('\0').map(str::to_owned).collect();
        let is_dockerd = words.first().is_some_and(|first| name(Path::new(first)) == "dockerd");
        let file = after(&words, &["--config-file"]);
        let is_its = is_dockerd && file.as_deref().unwrap_or(super::docker::MAIN) == main;
        is_its.then(|| after(&words, &["--data-root", "-g", "--graph"])).flatten()
    })
}

/// Podman notes the runtime, by name or by path, with each container, also with stopped ones.
fn podman(host: &Host, ledger: &Ledger) -> Vec<String> {
    let files = super::podman::STORAGE.iter().map(|path| (path, host.path(path)));
    let texts = files.filter_map(|(path, file)| Some((path, std::fs::read_to_string(file).ok()?)));
    let said = texts.filter_map(|(path, text)| {
        let file = super::edit::parse(path, &text).ok()?;
        super::edit::text_at(file.as_table(), &["storage", "graphroot"]).map(str::to_owned)
    });
    let root = said.fold(None, |_, later| Some(later));
    let root = root.unwrap_or_else(|| "/var/lib/containers/storage".to_owned());
    let databases = libpod::FILES.iter().map(|file| Path::new(&root).join(file));
    let databases = databases.filter_map(|path| std::fs::read(host.path(path)).ok());
    let noted = databases.flat_map(|bytes| libpod::runtimes(&bytes));
    let ours = noted.filter(|(_, runtime)| [&ledger.name, &ledger.binary].contains(&runtime));
    ours.map(|(id, _)| id).collect()
}

/// conmon holds the runtime's path as long as its container is there.
fn monitored(engine: Engine, host: &Host, binary: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for process in entries(&host.path("/proc")) {
        let Ok(line) = std::fs::read(process.join("cmdline")) else { continue };
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let is_conmon = words.first().is_some_and(|program| {
            Path::new(std::ffi::OsStr::from_bytes(program))
                .file_name()
                .is_some_and(|n| n == "conmon")
        });
        let after = |flags: &[&[u8]]| {
            let at = words.iter().position(|word| flags.contains(word))?;
            words.get(at + 1).copied()
        };
        // Whatever is a pod's to name (the container, its log) may hold the word too.
        let is_podmans = words.windows(2).any(|pair| {
            let at_exit: [&[u8]; 2] = [b"--exit-command", b"--exit-command-arg"];
            at_exit.contains(&pair[0]) && pair[1].windows(6).any(|part| part == b"podman")
        });
        let is_ours = after(&[b"-r", b"--runtime"]) == Some(binary.as_bytes());
        if is_conmon && is_ours && is_podmans == (engine == Engine::Podman) {
            let id = after(&[b"-c", b"--cid"]).unwrap_or_default();
            ids.push(String::from_utf8_lossy(id).into_owned());
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forty containers that name `nri-runc`, of which one was removed.
    const DATABASE: &[u8] = include_bytes!("../../../fixtures/engines/bolt_state.db");

    fn named(runtime: &str, binary: &str, settings: &str, database: &str) -> usize {
        let temp = tempfile::tempdir().unwrap();
        for (path, bytes) in
            [("etc/containers/storage.conf", settings.as_bytes()), (database, DATABASE)]
        {
            std::fs::create_dir_all(temp.path().join(path).parent().unwrap()).unwrap();
            crate::files::replace(&temp.path().join(path), bytes).unwrap();
        }
        let host = Host::new(&temp.path().display().to_string(), "");
        podman(&host, &Ledger::new(runtime, binary, false, None)).len()
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
    fn whose_a_conmon_is_its_exit_command_says_and_no_name() {
        let temp = tempfile::tempdir().unwrap();
        let lines = [
            ("1", "/usr/bin/conmon -c a -n k8s_podman_web -r /x -l /var/log/pods/podman/0.log"),
            ("2", "/usr/bin/conmon -c b -n web -r /x --exit-command /usr/bin/podman"),
            ("3", "conmon -c c -r /x --exit-command /bin/p --exit-command-arg /srv/podman"),
            ("4", "/usr/bin/conmon -c d -n podman -r /y"),
        ];
        for (pid, line) in lines {
            let process = temp.path().join("proc").join(pid);
            std::fs::create_dir_all(&process).unwrap();
            let line = line.replace(' ', "\0") + "\0";
            crate::files::replace(&process.join("cmdline"), line.as_bytes()).unwrap();
        }
        let host = Host::new(&temp.path().display().to_string(), "");
        let found = |engine| {
            let mut ids = monitored(engine, &host, "/x");
            ids.sort();
            ids
        };
        assert_eq!(found(Engine::Crio), ["a"]);
        assert_eq!(found(Engine::Podman), ["b", "c"]);
    }

    #[test]
    fn other_runtimes_containers_and_a_storage_that_is_not_there_are_nobodys() {
        assert_eq!(named("other", "/x", "", "var/lib/containers/storage/libpod/bolt_state.db"), 0);
        assert_eq!(named("nri-runc", "/x", "", "srv/bolt_state.db"), 0);
        assert_eq!(named("nri-runc", "/x", "no toml", "srv/bolt_state.db"), 0);
    }
}
