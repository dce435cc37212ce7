// SPDX-License-Identifier: Apache-2.0
//! `--user`: the Podman of a user without privileges, in the user's folders.
//! `tests/engines/podman/rootless.rs` tests the result with Podman.

use std::path::Path;
use std::process::{Command, Output};

use test_support::skip;

use super::{PROGRAM, Place, tree};

const USER: &str = "65534";

/// Calls `nri-runc nri` as the user of a home with a daemon's configuration, or as root.
fn call(home: &Path, words: &[&str], is_root: bool) -> Output {
    let mut command = Command::new("setpriv");
    let user = if is_root { "0" } else { USER };
    command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    command.arg(env!("CARGO_BIN_EXE_nri-runc")).arg("nri").args(words);
    command.env_clear().env("HOME", home).env("XDG_RUNTIME_DIR", home.join("run"));
    command.output().unwrap()
}

/// A home of the user; `None` after printing why the test is skipped.
fn home() -> Option<Place> {
    let place = Place::new();
    place.write("home/.config/nri-runc/config.toml", "");
    place
        .write("home/.config/containers/containers.conf", "# mine\n[engine]\nruntime = \"crun\"\n");
    std::fs::create_dir(place.path("home/run")).unwrap();
    place.mode("home/run", 0o700);
    place.mode("", 0o755);
    let mut give = Command::new("chown");
    let given = give.args(["-R", USER]).arg(place.path("home")).output().unwrap();
    let printed = call(&place.path("home"), &["--help"], false);
    if !given.status.success() || !printed.status.success() {
        skip::machine_lacks("root, and a program that other users can reach");
        return None;
    }
    Some(place)
}

#[track_caller]
fn refused(output: &Output, wanted: &str) {
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains(wanted) && printed.lines().count() == 1, "{printed}");
}

#[test]
fn a_users_registration_belongs_to_the_user_and_is_undone() {
    let Some(place) = home() else { return };
    let home = place.path("home");
    let before = tree(place.root());
    let binary = place.path(PROGRAM).display().to_string();
    let install = ["install", "podman", "--user", "--default", "--binary", &binary];
    for _twice in 0..2 {
        let output = call(&home, &install, false);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let written = place.read("home/.config/containers/containers.conf.d/50-nri-runc.conf");
    assert!(written.contains("runtime = \"nri-runc\"") && written.contains(&binary), "{written}");
    // Without the configuration there is no daemon, but still a registration to undo.
    let config = place.path("home/.config/nri-runc/config.toml");
    std::fs::rename(&config, place.path("away")).unwrap();
    refused(&call(&home, &install, false), "this user has no daemon");
    let output = call(&home, &["uninstall", "podman", "--user"], false);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(place.path("away"), &config).unwrap();
    assert_eq!(tree(place.root()), before);
}

#[test]
fn another_entry_another_engine_and_root_are_refused() {
    let Some(place) = home() else { return };
    let home = place.path("home");
    let by_hand = "[engine.runtimes]\nnri-runc = [\"/opt/mine\"]\n";
    place.write("home/.config/containers/containers.conf.d/10-mine.conf", by_hand);
    place.mode("home/.config/containers/containers.conf.d/10-mine.conf", 0o644);
    let before = tree(place.root());
    let binary = place.path(PROGRAM).display().to_string();
    let user = ["install", "podman", "--user", "--binary", &binary];
    refused(&call(&home, &user, false), "10-mine.conf already has a runtime nri-runc");
    refused(
        &call(&home, &["install", "crio", "--user", "--binary", &binary], false),
        "--user is for the Podman",
    );
    refused(&call(&home, &user, true), "--user is for the Podman of an unprivileged user");
    refused(&call(&home, &user[..2], false), "this command must be run as root");
    assert_eq!(tree(place.root()), before);
}
