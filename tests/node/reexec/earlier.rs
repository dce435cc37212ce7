// SPDX-License-Identifier: Apache-2.0
//! An upgrade from an earlier version and back, with that version's program, which `make upgrade-test`
//! builds and names. The other tests use only modified copies of this version's program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::json;
use test_support::adjustments::sets;
use test_support::{BUNDLE, TestHost, has_received, life, skip, succeeds, wait_until};

use super::{Installed, put};

/// The program of an earlier version.
fn earlier() -> Option<PathBuf> {
    let named = std::env::var_os("NRI_RUNC_EARLIER").map(PathBuf::from);
    if named.is_none() {
        skip::machine_lacks("no program of an earlier version is named (make upgrade-test)");
    }
    named
}

fn install_file(host: &TestHost, program: &Path) {
    put(host, &std::fs::read(program).unwrap());
}

/// Runs a runtime verb by the installed program, as engines do.
fn installed_verb(installed: &Installed, words: &[&str]) -> Output {
    let host = &installed.host;
    let mut command = Command::new(super::program(host));
    command.env("NRI_RUNC_CONFIG", host.path("config.toml"));
    command.arg("--root").arg(host.path("root")).args(words).output().unwrap()
}

fn create(installed: &Installed, id: &str) {
    let host = &installed.host;
    let bundle = format!("bundle-{id}");
    std::fs::create_dir_all(host.path(&bundle).join("rootfs")).unwrap();
    host.write(&format!("{bundle}/config.json"), BUNDLE);
    let bundle = host.path(&bundle).display().to_string();
    succeeds(&installed_verb(installed, &["create", "--bundle", &bundle, id]));
    let written = host.read(&format!("bundle-{id}/config.json"));
    assert!(written.contains("HELLO=there"), "{id} was adjusted: {written}");
}

/// Runs `reexec` of the installed program, as `install.sh` does.
fn reexec(installed: &Installed) {
    let before = installed.pid();
    succeeds(&installed_verb(installed, &["nri", "reexec"]));
    assert_eq!(installed.pid(), before, "it is the same process");
}

#[test]
fn a_container_survives_an_upgrade_and_a_downgrade() {
    let Some(earlier) = earlier() else { return };
    let installed = Installed::of(&earlier, "");
    let host = &installed.host;
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    let connected_at = host.admin(&["plugins"])[0]["connected_at"].clone();
    create(&installed, "c1");
    super::install(host, b"");
    reexec(&installed);
    create(&installed, "c2");
    succeeds(&installed_verb(&installed, &["start", "c1"]));
    install_file(host, &earlier);
    reexec(&installed);
    create(&installed, "c3");
    succeeds(&installed_verb(&installed, &["kill", "c1", "9"]));
    wait_until("its end is received", || has_received(&received, "StopContainer c1"));
    succeeds(&installed_verb(&installed, &["delete", "c1"]));
    wait_until("its pod is over", || has_received(&received, "RemovePodSandbox c1"));
    let mut of_c1 = received.lock().unwrap().clone();
    of_c1.retain(|line| line.ends_with(" c1"));
    assert_eq!(of_c1, life("c1"), "each event once");
    let status = host.admin(&["status"]);
    assert_eq!((&status["bypassed"], &status["containers"]), (&json!(0), &json!(2)), "{status}");
    assert_eq!(host.admin(&["plugins"])[0]["connected_at"], connected_at);
}

#[test]
fn wrappers_of_one_version_are_served_by_a_daemon_of_another() {
    let Some(earlier) = earlier() else { return };
    let installed = Installed::of(&earlier, "");
    let received = installed.host.plugin("10", "env", sets("HELLO", "there"));
    let before = installed.pid();
    // The files are replaced first, as a package manager does; the daemon still runs the other program.
    super::install(&installed.host, b"");
    create(&installed, "newer");
    install_file(&installed.host, &earlier);
    create(&installed, "older");
    for id in ["newer", "older"] {
        let line = format!("CreateContainer {id}");
        assert_eq!(
            received.lock().unwrap().iter().filter(|received| **received == line).count(),
            1
        );
    }
    let status = installed.host.admin(&["status"]);
    assert_eq!((&status["pid"], &status["bypassed"]), (&json!(before), &json!(0)), "{status}");
}
