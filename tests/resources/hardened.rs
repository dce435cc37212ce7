// SPDX-License-Identifier: Apache-2.0
//! The daemon as the project's own unit of systemd, with the drop-in that restricts it: adjustments,
//! updates, evictions and addresses work as without it, and what it forbids is forbidden. Needs
//! systemd as the first process: the second boot of `make vm`.

use std::path::{Path, PathBuf};

use serde_json::json;
use test_support::adjustments::limits_processes;

use super::scopes::{Scopes, unstarted};
use super::{is_done, succeeds, wait_until};

const UNIT: &str = include_str!("../../contrib/systemd/nri-runc.service");
const HARDENED: &str = include_str!("../../contrib/systemd/hardened.conf");

/// The unit, below `/run`; stopped and removed with this.
struct Unit<'a> {
    scopes: &'a Scopes,
    file: PathBuf,
    name: String,
}

impl<'a> Unit<'a> {
    fn start(scopes: &'a Scopes) -> Self {
        let name = format!("nri-runc-{}.service", scopes.prefix());
        let file = Path::new("/run/systemd/system").join(&name);
        let config = scopes.place.host.path("config.toml").display().to_string();
        let program = test_support::program::nri_runc().display().to_string();
        let unit = UNIT.replace("@PREFIX@/bin/nri-runc", &program);
        let service = format!("[Service]\nEnvironment=NRI_RUNC_CONFIG={config}\n");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let text = format!("{unit}\n{HARDENED}\n{service}");
        nri_runc::testing::files::replace(&file, text.as_bytes()).unwrap();
        let unit = Self { scopes, file, name };
        scopes.systemctl(&["daemon-reload"]);
        scopes.systemctl(&["start", &unit.name]);
        unit
    }

    fn property(&self, name: &str) -> String {
        self.scopes.systemctl(&["show", "--value", "--property", name, &self.name])
    }
}

impl Drop for Unit<'_> {
    fn drop(&mut self) {
        self.scopes.systemctl(&["stop", &self.name]);
        let _gone = std::fs::remove_file(&self.file);
        self.scopes.systemctl(&["daemon-reload"]);
    }
}

fn status_line(pid: &str, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

#[test]
fn a_hardened_unit_serves_as_any_other_daemon() {
    let Some(scopes) = unstarted("runc") else { return };
    let unit = Unit::start(&scopes);
    let pid = unit.property("MainPID");
    assert_eq!(scopes.place.host.admin(&["status"])["pid"].to_string(), pid);
    // What it forbids: system calls are filtered, nothing new is gained, most capabilities are away.
    assert_eq!(status_line(&pid, "Seccomp"), "2");
    assert_eq!(status_line(&pid, "NoNewPrivs"), "1");
    let bounding = u64::from_str_radix(&status_line(&pid, "CapBnd"), 16).unwrap();
    assert_eq!(bounding.count_ones(), 12, "{bounding:x}");
    // What it does all the same: a create, an update in a scope, an eviction.
    let _told = scopes.place.host.plugin("10", "limits", limits_processes(42));
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
