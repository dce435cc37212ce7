// SPDX-License-Identifier: Apache-2.0
//! Running engines: whether they have loaded the handler, and the PATH with which they start
//! runtimes. It reads their processes, and asks CRI engines and Docker over their sockets.

use std::ffi::OsString;

use super::containerd;
use super::distribution::Distribution;
use super::engine::Engine;
use super::root::Root;
use crate::engine::Dockerd;
use crate::host::Host;
use crate::presence::IfThere;
use crate::procfs;
use crate::sources::{self, LoadedHandlers, Process};

/// The PATH of conmon, unless the engine's configuration sets another.
pub(super) const OF_CONMON: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether a running engine has loaded a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandlerState {
    /// The engine has loaded the handler.
    Known,
    /// The engine answers, and does not have the handler.
    Unknown,
    /// The engine has a handler of this name with another program.
    OtherProgram,
    /// The engine has loaded the handler, but not as the default runtime.
    NotDefault,
    /// The engine does not run.
    NotRunning,
    /// The engine runs and did not answer.
    NoAnswer,
    /// The engine runs and, as iSulad, has no API that lists its handlers.
    NotListed,
    /// The engine has no daemon and reads its configuration for each container.
    ReadEachTime,
}

/// The handler that a running engine should have loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct WantedHandler<'w> {
    pub(super) name: &'w str,
    /// The program of the handler; `None` means any program.
    pub(super) binary: Option<&'w str>,
    pub(super) default: bool,
}

impl WantedHandler<'_> {
    /// Compares the wanted handler with the loaded ones. A value that the engine does not report is
    /// assumed correct.
    fn state(&self, loaded: &LoadedHandlers) -> HandlerState {
        let Some(program) = loaded.programs.get(self.name) else { return HandlerState::Unknown };
        let differs = |wanted: &str| program.as_deref().is_some_and(|program| program != wanted);
        if self.binary.is_some_and(differs) {
            return HandlerState::OtherProgram;
        }
        match loaded.default.as_deref() {
            Some(other) if self.default && other != self.name => HandlerState::NotDefault,
            Some(_) | None => HandlerState::Known,
        }
    }
}

/// Asks a running engine about a handler: the engine's process that reads the file `main`, or any process.
pub(super) fn query_handler(
    engine: Engine,
    wanted: WantedHandler<'_>,
    main: Option<&str>,
    root: &Root,
    host: &Host,
) -> HandlerState {
    let Some(daemon) = &engine.row().daemon else { return HandlerState::ReadEachTime };
    let process = (daemon.find)(host, main);
    match daemon.handlers.map(|ask| ask(process.as_ref(), main, root, host)) {
        Some(Some(loaded)) => wanted.state(&loaded),
        Some(None) if process.is_some() => HandlerState::NoAnswer,
        None if process.is_some() => HandlerState::NotListed,
        Some(None) | None => HandlerState::NotRunning,
    }
}

/// Asks containerd for its handlers.
pub(super) fn containerd_handlers(
    process: Option<&Process>,
    main: Option<&str>,
    root: &Root,
    host: &Host,
) -> Option<LoadedHandlers> {
    let said = process.and_then(|its| flag(its, &["--address", "-a"]));
    let said_by_file = || {
        let read = process.map(config_of);
        let file = main.or(read.as_deref()).unwrap_or(containerd::MAIN);
        containerd::socket_path(file, &root.text(file))
    };
    sources::handlers(&host.path(said.unwrap_or_else(said_by_file)))
}

/// Returns a process's PATH.
pub(super) fn path_of(process: &Process, host: &Host) -> Option<OsString> {
    procfs::variable(host, process.pid, "PATH").or_absent()?
}

/// Returns the main file of a running engine, unless it is the default one.
pub(super) fn unusual_file(engine: Engine, host: &Host) -> Option<String> {
    unusual(engine, &(engine.row().daemon.as_ref()?.find)(host, None)?)
}

/// Returns the main file of the engine's process `pid`, unless it is the default one.
pub(super) fn file_of(engine: Engine, pid: i32, host: &Host) -> Option<String> {
    let pid = u32::try_from(pid).ok()?;
    unusual(engine, &Process { pid, words: procfs::command_line(host, pid).or_absent()? })
}

fn unusual(engine: Engine, process: &Process) -> Option<String> {
    let row = engine.row();
    let file = (row.daemon.as_ref()?.file_of)(process)?;
    (Some(file.as_str()) != row.main).then_some(file)
}

/// Returns the executable of a running engine that reads the file `main`, or the default one.
pub(super) fn program(engine: Engine, main: Option<&str>, host: &Host) -> Option<String> {
    let row = engine.row();
    let process = (row.daemon.as_ref()?.find)(host, main.or(row.main))?;
    let link = std::fs::read_link(host.path(format!("/proc/{}/exe", process.pid))).ok()?;
    // The next start executes the file that replaced the deleted one.
    let path = link.to_str()?.trim_end_matches(" (deleted)").to_owned();
    Some(path)
}

/// Whether dockerd writes this file, for a containerd that it starts itself.
pub(super) fn is_written_by_docker(file: &str) -> bool {
    file.ends_with("/containerd/containerd.toml")
}

/// Whether a running engine may have this handler through its command line, which names the handler or other
/// files than the default ones; true for an engine without a daemon, or if no process is found.
pub(super) fn may_be_from_flags(engine: Engine, name: &str, host: &Host) -> bool {
    let Some(daemon) = &engine.row().daemon else { return true };
    (daemon.find)(host, None).is_none_or(|process| {
        let mut words = process.words.iter().map(|word| String::from_utf8_lossy(word));
        words.any(|word| word.contains(name)) || flag(&process, daemon.other_files).is_some()
    })
}

/// Finds a process of this program.
pub(super) fn first_process(program: &str, host: &Host) -> Option<Process> {
    sources::processes(host, &[program]).into_iter().next()
}

/// Finds the Docker daemon that reads this file, or any.
pub(super) fn docker_of(host: &Host, main: Option<&str>) -> Option<(Process, Dockerd)> {
    let mut all = sources::dockers(host).into_iter();
    all.find(|(_, dockerd)| main.is_none_or(|main| dockerd.config_file == main))
}

/// Finds the containerd that reads this file; without a file, any that Docker does not start.
pub(super) fn containerd_of(host: &Host, main: Option<&str>) -> Option<Process> {
    let mut all = sources::processes(host, &["containerd"]).into_iter();
    all.find(|its| match main {
        Some(main) => config_of(its) == main,
        None => !is_written_by_docker(&config_of(its)),
    })
}

pub(super) fn config_of(containerd: &Process) -> String {
    let named = flag(containerd, &["--config", "-c"]);
    let file = named.unwrap_or_else(|| containerd::MAIN.to_owned());
    match Distribution::of_main(&file) {
        // A snap's file is in the directory of its revision; the main file's path has the link `current`.
        Some(Distribution::Microk8s) => Distribution::Microk8s.main().to_owned(),
        Some(_) | None => file,
    }
}

/// Lists the main files of all running containerds.
pub(super) fn main_files(host: &Host) -> Vec<String> {
    sources::processes(host, &["containerd"]).iter().map(config_of).collect()
}

/// Returns the PID of the running containerd that reads this file.
pub(super) fn containerd_pid(main: &str, host: &Host) -> Option<u32> {
    containerd_of(host, Some(main)).map(|process| process.pid)
}

/// Returns the state directory of the containerd with this main file.
pub(super) fn state_directory(main: &str, root: &Root) -> String {
    let runs = containerd_of(&root.processes(), Some(main)).filter(|_| !root.is_confined());
    let said = runs.as_ref().and_then(|process| flag(process, &["--state"]));
    said.unwrap_or_else(|| containerd::state_directory(main, &root.text(main)))
}

/// Returns the value of the first of these flags on a process's command line.
pub(super) fn flag(process: &Process, names: &[&str]) -> Option<String> {
    let words = process.words.iter().map(|word| String::from_utf8_lossy(word).into_owned());
    let words: Vec<String> = words.collect();
    words.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
        Some((name, value)) if names.contains(&name) => Some(value.to_owned()),
        _ if names.contains(&word.as_str()) => words.get(at + 1).cloned(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn place(processes: &[(&str, &str)]) -> (tempfile::TempDir, Root, Host) {
        let temp = tempfile::tempdir().unwrap();
        for (pid, line) in processes {
            let folder = temp.path().join("proc").join(pid);
            std::fs::create_dir_all(&folder).unwrap();
            let line = line.replace(' ', "\0") + "\0";
            crate::files::replace(&folder.join("cmdline"), line.as_bytes()).unwrap();
            let environ = format!("A=1\0PATH=/opt/{pid}/bin\0");
            crate::files::replace(&folder.join("environ"), environ.as_bytes()).unwrap();
        }
        let host = Host::new(&temp.path().display().to_string(), "");
        (temp, Root::of_host(host.clone()), host)
    }

    const WANTED: WantedHandler<'_> =
        WantedHandler { name: "nri-runc", binary: Some("/x"), default: true };

    #[test]
    fn a_loaded_handler_must_have_the_program_and_the_default() {
        let state = |programs: &[(&str, Option<&str>)], default: Option<&str>| {
            let owned = |text: &str| text.to_owned();
            let programs = programs.iter().map(|(name, path)| (owned(name), path.map(owned)));
            let default = default.map(owned);
            WANTED.state(&LoadedHandlers { programs: programs.collect(), default })
        };
        let ours = ("nri-runc", Some("/x"));
        assert_eq!(state(&[ours], Some("nri-runc")), HandlerState::Known);
        assert_eq!(state(&[ours], Some("runc")), HandlerState::NotDefault);
        assert_eq!(state(&[("nri-runc", Some("/y"))], None), HandlerState::OtherProgram);
        assert_eq!(state(&[("nri-runc", None)], None), HandlerState::Known, "it does not say");
        assert_eq!(state(&[("runc", Some("/x"))], Some("runc")), HandlerState::Unknown);
    }

    #[test]
    fn no_process_means_a_stopped_engine_except_for_podman() {
        let (_temp, root, host) = place(&[]);
        for engine in [Engine::Containerd, Engine::Crio, Engine::Docker] {
            let said = query_handler(engine, WANTED, None, &root, &host);
            assert_eq!(said, HandlerState::NotRunning, "{engine:?}");
            assert_eq!((engine.row().search_path)(None, &host), None);
        }
        let said = query_handler(Engine::Podman, WANTED, None, &root, &host);
        assert_eq!(said, HandlerState::ReadEachTime);
    }

    #[test]
    fn an_engine_that_does_not_respond_differs_from_a_stopped_one() {
        let (temp, root, host) = place(&[
            ("7", "/usr/bin/dockerd -H unix:///run/d.sock"),
            ("8", "crio"),
            ("9", "isulad"),
        ]);
        std::fs::create_dir(temp.path().join("run")).unwrap();
        let _accepts_and_says_nothing = UnixListener::bind(temp.path().join("run/d.sock")).unwrap();
        let of = |engine| query_handler(engine, WANTED, None, &root, &host);
        assert_eq!(of(Engine::Docker), HandlerState::NoAnswer);
        assert_eq!(of(Engine::Crio), HandlerState::NoAnswer);
        assert_eq!(of(Engine::Isulad), HandlerState::NotListed, "it has no API to ask");
    }

    #[test]
    fn the_search_path_is_that_of_the_process_that_starts_shims() {
        let (_temp, _, host) = place(&[
            ("3", "containerd --config /var/run/docker/containerd/containerd.toml"),
            ("4", "/usr/bin/containerd"),
            ("5", "dockerd --containerd=/run/containerd/containerd.sock"),
            ("6", "dockerd --config-file /srv/other.json"),
        ]);
        let of = |engine: Engine, main| (engine.row().search_path)(main, &host);
        assert_eq!(of(Engine::Containerd, None), Some("/opt/4/bin".into()));
        assert_eq!(of(Engine::Docker, None), Some("/opt/4/bin".into()));
        assert_eq!(of(Engine::Docker, Some("/etc/docker/daemon.json")), of(Engine::Docker, None));
        assert_eq!(of(Engine::Docker, Some("/srv/other.json")), Some("/opt/6/bin".into()));
        assert_eq!(of(Engine::Containerd, Some("/srv/none.toml")), None);
        assert_eq!(of(Engine::Docker, Some("/srv/none.json")), None);
        assert_eq!(of(Engine::Podman, None), Some(OF_CONMON.into()));
    }
}
