// SPDX-License-Identifier: Apache-2.0
//! The file that is read: the named one, or the one beside the executable if no environment can
//! name one; and the message if it is missing.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use test_support::{TestHost, wait_until};

use super::{fails, started, succeeds};

/// Calls a program as conmon does: without any environment.
fn call(program: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.env_clear().args(words).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn the_file_beside_the_program_is_used_without_an_environment() {
    let host = TestHost::default();
    std::fs::create_dir(host.path("bin")).unwrap();
    let program = host.path("bin/nri-runc");
    test_support::program::copy(test_support::program::nri_runc(), &program);
    let link = host.path("nri-link");
    std::os::unix::fs::symlink(&program, &link).unwrap();
    std::fs::rename(host.path("config.toml"), host.path("bin/nri-runc.toml")).unwrap();
    let (root, bundle) = (host.path("root"), host.path("bundle"));
    let words =
        ["--root", root.to_str().unwrap(), "create", "--bundle", bundle.to_str().unwrap(), "c1"];
    // The link's own folder has no file, but the executable's has.
    let status = Command::new(&link)
        .env_clear()
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(host.path("fake/seen.json").exists(), "its runtime was used");
    let status = call(&program, &["nri", "--json", "status"]);
    succeeds(&status);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["containers"], 1, "and its daemon, which found the same file");
    assert_eq!(status["configuration"]["file"], format!("{}.toml", program.display()));
    succeeds(&call(&program, &["nri", "stop"]));
    wait_until("it has ended", || !host.path("run/daemon.sock").exists());
}

#[test]
fn a_named_but_missing_file_is_reported_by_every_verb() {
    let host = started("");
    let missing = host.path("nowhere.toml").display().to_string();
    let bundle = host.path("bundle").display().to_string();
    for words in [
        &["status"][..],
        &["plugins"],
        &["pods"],
        &["explain", "x"],
        &["adjust", "--bundle", &bundle],
        &["replay", "/dev/null"],
        &["install", "docker", "--dry-run"],
        &["uninstall", "docker", "--dry-run"],
        &["stop"],
        &["restart"],
        &["disable"],
        &["enable"],
    ] {
        let output = host.call(&[&["nri", "--config", &missing][..], words].concat());
        fails(&output, &["nowhere.toml: it is missing", "--config"]);
        assert_eq!(output.stdout, b"", "{words:?}");
    }
    std::fs::rename(host.path("config.toml"), host.path("kept.toml")).unwrap();
    fails(&host.call(&["nri", "status"]), &["config.toml: it is missing", "NRI_RUNC_CONFIG"]);
    std::fs::rename(host.path("kept.toml"), host.path("config.toml")).unwrap();
    succeeds(&host.call(&["nri", "status"]));
}
