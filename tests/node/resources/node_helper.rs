// SPDX-License-Identifier: Apache-2.0
//! The program by which the pod of a DaemonSet controls systemd (`contrib/kubernetes/node-helper`),
//! with a real systemd on its private socket. It needs systemd as the first process: the second boot
//! of `make vm`. The program's own tests use a fake systemd.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use test_support::tools;

use super::scopes::{Scopes, unstarted};
use super::succeeds;

/// systemd's own socket, and that of the bus.
const SOCKETS: [&str; 2] = ["/run/systemd/private", "/run/dbus/system_bus_socket"];

/// A unit that starts only while a file exists, and the helper.
struct Unit {
    scopes: Scopes,
    name: String,
    file: PathBuf,
    helper: PathBuf,
}

impl Unit {
    fn start() -> Option<Self> {
        let scopes = unstarted("runc")?;
        let tools = tools::find_in_guest(&["busybox", "nri-runc-node-helper"])?;
        let name = format!("engine-{}.service", scopes.prefix());
        let file = Path::new("/run/systemd/system").join(&name);
        let helper = tools.join("nri-runc-node-helper");
        let unit = Self { scopes, name, file, helper };
        unit.scopes.place.host.write("may-start", "");
        let (busybox, may_start) =
            (tools.join("busybox"), unit.scopes.place.host.path("may-start"));
        let text = format!(
            "[Service]\nExecStartPre={busybox} test -e {may_start}\nExecStart={busybox} sleep 1000\n",
            busybox = busybox.display(),
            may_start = may_start.display()
        );
        std::fs::create_dir_all(unit.file.parent().unwrap()).unwrap();
        nri_runc::testing::files::replace(&unit.file, text.as_bytes()).unwrap();
        unit.scopes.reload_systemd();
        unit.scopes.systemctl(&["start", &unit.name]);
        Some(unit)
    }

    fn helper(&self, socket: &str, words: &[&str]) -> Output {
        Command::new(&self.helper).args(["systemd", socket]).args(words).output().unwrap()
    }

    /// Checks that it fails with this line.
    #[track_caller]
    fn refuses(&self, socket: &str, words: &[&str], line: &str) {
        let output = self.helper(socket, words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).trim(), line, "{words:?}");
    }

    fn shows(&self, property: &str) -> String {
        self.scopes.systemctl(&["show", "--value", "--property", property, &self.name])
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _stopped = Command::new(self.scopes.program()).args(["stop", &self.name]).output();
        let _removed = std::fs::remove_file(&self.file);
    }
}

#[test]
fn the_helper_restarts_the_first_active_unit_by_systemd() {
    let Some(unit) = Unit::start() else { return };
    for socket in SOCKETS {
        let before = unit.shows("MainPID");
        succeeds(&unit.helper(socket, &["restart", "nri-runc-absent", &unit.name]));
        // The helper returned after the end of the job, so the unit is active already.
        assert_eq!(unit.shows("ActiveState"), "active");
        assert_ne!(unit.shows("MainPID"), before);
        let reload = || unit.helper(socket, &["daemon-reload"]);
        succeeds(&unit.scopes.while_systemd_reloads(reload));
        assert_eq!(unit.shows("ActiveState"), "active");
    }
    unit.scopes.show("systemd restarts a unit for the pod of a DaemonSet", "ok");
}

#[test]
fn the_helper_prints_systemds_refusal() {
    let Some(unit) = Unit::start() else { return };
    let name = &unit.name;
    for socket in SOCKETS {
        unit.refuses(
            socket,
            &["restart", "nri-runc-absent"],
            "nri-runc-node-helper: systemd: no unit is active: nri-runc-absent.service is not loaded",
        );
        // The unit has no ExecReload, so systemd refuses to reload it.
        let output = unit.helper(socket, &["reload", name]);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(line.starts_with("nri-runc-node-helper: systemd: ReloadUnit: "), "{line}");
        assert!(line.contains("not applicable"), "it is systemd's reason: {line}");
        std::fs::remove_file(unit.scopes.place.host.path("may-start")).unwrap();
        unit.refuses(
            socket,
            &["restart", name],
            &format!("nri-runc-node-helper: systemd: the job of {name} ended with \"failed\""),
        );
        // A failed unit may be started again.
        unit.scopes.place.host.write("may-start", "");
        succeeds(&unit.helper(socket, &["restart", name]));
        assert_eq!(unit.shows("ActiveState"), "active");
    }
    unit.scopes.show("what systemd refuses the pod of a DaemonSet", "ok");
}
