// SPDX-License-Identifier: Apache-2.0
//! The daemon as the project's systemd unit. It is reloaded and upgraded without a new process; with
//! the drop-in that restricts it, it works as without, and the restrictions are in force. It needs
//! systemd as the first process: the second boot of `make vm`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use test_support::Script;
use test_support::adjustments::limits_processes;

use super::scopes::{Scopes, unstarted};
use super::{is_done, succeeds, wait_until};

const UNIT: &str = include_str!("../../../contrib/systemd/nri-runc.service");
const HARDENED: &str = include_str!("../../../contrib/systemd/hardened.conf");

/// The daemon as the shipped unit runs it, from a folder of the test.
struct UnitOfDaemon {
    scopes: Scopes,
    name: String,
    file: PathBuf,
}

impl UnitOfDaemon {
    /// Starts the unit, with a drop-in.
    fn start(drop_in: &str) -> Option<Self> {
        let scopes = unstarted("runc")?;
        let name = format!("nri-runc-{}.service", scopes.prefix());
        let file = Path::new("/run/systemd/system").join(&name);
        let unit = Self { scopes, name, file };
        let host = &unit.scopes.place.host;
        std::fs::create_dir_all(host.path("prefix/bin")).unwrap();
        unit.install(b"");
        unit.configure("");
        let prefix = host.path("prefix").display().to_string();
        let text = format!("{}\n{drop_in}", UNIT.replace("@PREFIX@", &prefix));
        std::fs::create_dir_all(unit.file.parent().unwrap()).unwrap();
        nri_runc::testing::files::replace(&unit.file, text.as_bytes()).unwrap();
        unit.scopes.reload_systemd();
        unit.scopes.systemctl(&["start", &unit.name]);
        Some(unit)
    }

    fn install(&self, more: &[u8]) {
        let path = self.scopes.place.host.path("prefix/bin/nri-runc");
        let built = std::fs::read(test_support::program::nri_runc()).unwrap();
        test_support::program::put(&path, [&built, more].concat());
    }

    /// Writes beside the executable the host's configuration, a log that a failure can show, and
    /// `more`.
    fn configure(&self, more: &str) {
        let host = &self.scopes.place.host;
        let text = host.read("config.toml");
        host.write(
            "prefix/bin/nri-runc.toml",
            &format!("{text}\n[log]\ntarget = \"file\"\n{more}"),
        );
    }

    fn shows(&self, property: &str) -> String {
        self.scopes.systemctl(&["show", "--value", "--property", property, &self.name])
    }

    fn can_reload(&self) -> bool {
        let mut command = Command::new(self.scopes.program());
        command.args(["reload", &self.name]).output().unwrap().status.success()
    }
}

impl Drop for UnitOfDaemon {
    fn drop(&mut self) {
        let _stopped = Command::new(self.scopes.program()).args(["stop", &self.name]).output();
        let _removed = std::fs::remove_file(&self.file);
    }
}

fn status_line(pid: &str, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

#[test]
fn a_daemon_in_a_hardened_unit_serves_like_any_other() {
    let Some(unit) = UnitOfDaemon::start(HARDENED) else { return };
    let scopes = &unit.scopes;
    let pid = unit.shows("MainPID");
    assert_eq!(scopes.place.host.admin(&["status"])["pid"].to_string(), pid);
    // The restrictions: system calls are filtered, no new privileges, most capabilities are dropped.
    assert_eq!(status_line(&pid, "Seccomp"), "2");
    assert_eq!(status_line(&pid, "NoNewPrivs"), "1");
    let bounding = u64::from_str_radix(&status_line(&pid, "CapBnd"), 16).unwrap();
    assert_eq!(bounding.count_ones(), 12, "{bounding:x}");
    // The restricted daemon still works: a create, an update in a scope, an eviction.
    let _plugin = scopes.place.host.plugin("10", "limits", limits_processes(42));
    scopes.run("c1", &json!({"memory": {"limit": 67_108_864}}));
    scopes.all_say("c1", &[("pids.max", "42")], &[("TasksMax", "42")]);
    let asking = scopes.place.asker_called("20", "asker");
    assert!(is_done(&asking, "c1", &json!({"memory": {"limit": 134_217_728}})));
    scopes.all_say("c1", &[("memory.max", "134217728")], &[("MemoryMax", "134217728")]);
    let other = json!({"memory": {"limit": 33_554_432}});
    succeeds(&scopes.update("c1", &other));
    scopes.systemctl(&["restart", &unit.name]);
    wait_until("the next daemon knows it", || {
        scopes.place.state("c1").is_some_and(|state| state == "running")
    });
    scopes.show("a daemon that systemd restricts", "ok");
}

#[test]
fn systemd_reloads_the_daemon_and_keeps_its_process() {
    let Some(unit) = UnitOfDaemon::start("") else { return };
    wait_until("the unit's daemon runs", || unit.shows("ActiveState") == "active");
    let pid = unit.shows("MainPID");
    let host = &unit.scopes.place.host;
    let status = || host.admin(&["status"]);
    wait_until("it answers", || status()["pid"].as_u64() == pid.parse().ok());
    let _plugin = host.plugin("10", "a", Script::default());
    unit.configure("level = \"debug\"\n");
    assert!(unit.can_reload());
    assert_eq!(status()["configuration"]["log_level"], "debug");
    unit.configure("[plugin.a]\nrequird = true\n");
    assert!(!unit.can_reload(), "a reload with an error fails");
    assert_eq!((unit.shows("ActiveState"), unit.shows("MainPID")), ("active".into(), pid.clone()));
    unit.configure("");
    unit.install(b"newer");
    let printed = host.call(&["nri", "--json", "reexec"]);
    let line = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success(), "{line}\n{}", host.read("run/daemon.log"));
    let printed: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(
        (printed["pid"].to_string(), &printed["plugins"]),
        (pid.clone(), &json!(1)),
        "{printed}"
    );
    wait_until("systemd knows that it is ready", || unit.shows("ActiveState") == "active");
    assert_eq!((unit.shows("MainPID"), unit.shows("NRestarts")), (pid, "0".to_owned()));
}
