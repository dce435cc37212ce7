// SPDX-License-Identifier: Apache-2.0
//! `install.sh` over a running daemon, in a separate mount namespace, because it writes to `/etc` and
//! `/var/lib`.

use std::process::{Command, Output, Stdio};

use test_support::{Script, Started, TestHost, has_received, skip, succeeds, wait_until};

/// Writes into a file the program under test with additional bytes, or a script that only prints a
/// version.
fn program(host: &TestHost, name: &str, more: Option<&[u8]>) {
    let built = std::fs::read(env!("CARGO_BIN_EXE_nri-runc")).unwrap();
    let script =
        b"#!/bin/sh\n[ \"$*\" != 'nri --version' ] || { echo nri-runc nri 9.9; exit; }\nexit 1\n";
    let bytes = more.map_or_else(|| script.to_vec(), |more| [&built, more].concat());
    test_support::program::put(&host.path(name), &bytes);
}

fn install(host: &TestHost, binary: &str) -> Output {
    // Commands such as awk may be links to /etc/alternatives.
    let private = "mount --bind /etc/alternatives \"$1/alternatives\" && \
                   mount --rbind \"$1\" /etc && mount --bind \"$2\" /var/lib && \
                   shift 2 && exec sh \"$@\"";
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/install.sh");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", private, "sh"]);
    command.arg(host.path("etc")).arg(host.path("lib")).arg(script).arg("--no-units");
    command.arg("--binary").arg(host.path(binary)).arg("--prefix").arg(host.path("prefix"));
    command.output().unwrap()
}

fn has_namespaces() -> bool {
    let tried = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    let has = tried.is_ok_and(|status| status.success());
    if !has {
        skip::machine_lacks("mount namespaces cannot be made here");
    }
    has
}

#[test]
fn install_sh_makes_the_daemon_execute_the_new_program() {
    if !has_namespaces() {
        return;
    }
    let host = TestHost::default();
    for folder in ["etc/alternatives", "lib", "prefix/bin"] {
        std::fs::create_dir_all(host.path(folder)).unwrap();
    }
    host.write("prefix/bin/nri-runc.toml", &host.read("config.toml"));
    program(&host, "prefix/bin/nri-runc", Some(b""));
    let mut command = Command::new(host.path("prefix/bin/nri-runc"));
    command.args(["nri", "daemon"]).stdout(Stdio::null()).stderr(Stdio::null());
    let daemon = Started(command.spawn().unwrap());
    let size = || {
        let status = host.admin(&["status"]);
        assert!(status.is_null() || status["pid"] == daemon.0.id(), "it is the same process");
        status["program"]["size"].as_u64()
    };
    wait_until("it answers", || size().is_some());
    let before = size();
    let received = host.plugin("10", "a", Script::default());
    program(&host, "newer", Some(b"newer"));
    for is_first in [true, false] {
        let output = install(&host, "newer");
        succeeds(&output);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.contains("re-executed: process"), is_first, "{text}");
    }
    assert_eq!(size(), before.map(|size| size + 5));
    program(&host, "broken", None);
    let output = install(&host, "broken");
    succeeds(&output);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("the daemon still runs the program before"), "{text}");
    assert!(text.contains("to go back: install.sh --rollback"), "{text}");
    succeeds(&host.create("c1"));
    assert!(has_received(&received, "CreateContainer c1"), "it was never disconnected");
}
