// SPDX-License-Identifier: Apache-2.0
//! Wrappers and daemons of different versions: an older wrapper is supported, a newer one makes the
//! daemon execute the newer program, and no wrapper bypasses plugins.

use serde_json::json;
use test_support::{BUNDLE, Script, TestHost, fails, has_received, succeeds, wait_until};

use super::{Installed, install_script};

/// Gives this protocol version to every program that reads the configuration from now on: wrappers
/// immediately, the daemon with its next program.
fn speak(host: &TestHost, version: u32, more: &str) {
    host.configure(&host.path("fake/runc"), &format!("{more}\n[debug]\nprotocol = {version}\n"));
}

fn reexecs(host: &TestHost) -> String {
    let page = String::from_utf8(host.call(&["nri", "metrics"]).stdout).unwrap();
    let line =
        page.lines().find(|line| line.starts_with("nri_runc_reexecs_total{outcome=\"done\"}"));
    line.map_or("0", |line| line.rsplit(' ').next().unwrap()).to_owned()
}

fn speaks(version: u32) -> Installed {
    Installed::new(&format!("[debug]\nprotocol = {version}\n"))
}

#[test]
fn a_newer_wrapper_makes_the_daemon_execute_its_program() {
    for newer in [6, 7] {
        let installed = speaks(5);
        let (host, before) = (&installed.host, installed.pid());
        let received = host.plugin("10", "a", Script::default());
        speak(host, newer, "");
        succeeds(&host.create("c1"));
        assert!(has_received(&received, "CreateContainer c1"));
        let status = host.admin(&["status"]);
        assert_eq!((&status["pid"], &status["bypassed"]), (&json!(before), &json!(0)));
        assert_eq!(reexecs(host), "1");
        succeeds(&host.verb(&["delete", "--force", "c1"]));
        assert_eq!(reexecs(host), "1", "it speaks that version now");
    }
}

#[test]
fn wrappers_of_the_two_older_versions_are_understood() {
    for older in [4, 3] {
        let installed = speaks(5);
        let host = &installed.host;
        let received = host.plugin("10", "a", Script::default());
        speak(host, older, "");
        succeeds(&host.create("c1"));
        succeeds(&host.verb(&["delete", "--force", "c1"]));
        assert!(has_received(&received, "CreateContainer c1"));
        wait_until("its end is received", || has_received(&received, "RemoveContainer c1"));
        assert_eq!(
            (reexecs(host).as_str(), host.admin(&["status"])["bypassed"].clone()),
            ("0", json!(0))
        );
    }
}

#[test]
fn a_wrapper_of_an_unsupported_version_follows_the_policy() {
    let installed = speaks(5);
    let host = &installed.host;
    speak(host, 2, "on_daemon_failure = \"fail\"\n");
    fails(&host.create("c1"), &["speaks protocol 5, but this nri-runc speaks 2"]);
    assert_eq!(reexecs(host), "0");
    speak(host, 2, "");
    succeeds(&host.create("c1"));
}

#[test]
fn a_newer_wrapper_follows_the_policy_if_the_program_is_old() {
    let installed = speaks(5);
    let host = &installed.host;
    let received = host.plugin("10", "a", Script::default());
    install_script(host, "exit 1");
    speak(host, 6, "on_daemon_failure = \"fail\"\n");
    fails(&host.create("c1"), &["the daemon continues unchanged"]);
    speak(host, 5, "");
    succeeds(&host.create("c2"));
    assert!(
        has_received(&received, "CreateContainer c2")
            && !has_received(&received, "CreateContainer c1")
    );
}

#[test]
fn many_newer_wrappers_at_once_are_all_answered() {
    let installed = speaks(5);
    let host = &installed.host;
    let received = host.plugin("10", "a", Script::default());
    speak(host, 6, "on_daemon_failure = \"fail\"\n");
    let bundles: Vec<String> = (0..6)
        .map(|number| {
            let bundle = format!("bundle{number}");
            std::fs::create_dir_all(host.path(&bundle).join("rootfs")).unwrap();
            host.write(&format!("{bundle}/config.json"), BUNDLE);
            host.path(&bundle).display().to_string()
        })
        .collect();
    let creates = bundles.iter().enumerate();
    let creates: Vec<_> = creates
        .map(|(number, bundle)| host.spawn(&["create", "--bundle", bundle, &format!("c{number}")]))
        .collect();
    for (number, mut create) in creates.into_iter().enumerate() {
        assert!(create.wait().unwrap().success(), "c{number}");
        let line = format!("CreateContainer c{number}");
        assert_eq!(
            received.lock().unwrap().iter().filter(|received| **received == line).count(),
            1
        );
    }
}

#[test]
fn admin_requests_of_every_version_are_answered() {
    let installed = speaks(5);
    let host = &installed.host;
    let before = installed.pid();
    for version in [1, 4, 6, 9] {
        speak(host, version, "");
        assert_eq!(host.admin(&["status"])["pid"], before, "{version}");
    }
    let printed = installed.reexecuted();
    assert_eq!(printed["pid"], before);
}
