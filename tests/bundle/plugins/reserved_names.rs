// SPDX-License-Identifier: Apache-2.0
//! The name of a pre-installed plugin belongs to its file (D55): no other process may use it, or count
//! as the required plugin of that name, whether the plugin runs or not. The permission of a connection
//! is checked again when the configuration changes.

use std::os::unix::fs::symlink;

use test_support::example::example;
use test_support::{
    Script, Started, TestHost, connect, fails, is_synchronized, succeeds, wait_until,
};

const REQUIRED: &str =
    "[nri]\nplugin_registration_timeout = \"2s\"\n[plugin.policy]\nrequired = true\n";

/// A host with a daemon, and this file in the folder of plugins.
fn host(more: &str, install: impl FnOnce(&TestHost)) -> TestHost {
    let mut host = TestHost::new(more);
    std::fs::create_dir(host.path("plugins")).unwrap();
    install(&host);
    host.start_daemon();
    host
}

/// Installs the sample plugin, which works.
fn sample(host: &TestHost) {
    symlink(example("demo_plugin"), host.path("plugins/10-policy")).unwrap();
}

/// Installs a plugin that never registers.
fn silent(host: &TestHost) {
    put(host, "plugins/10-policy", "exec sleep 300");
}

fn put(host: &TestHost, name: &str, text: &str) {
    host.put_program("new", &format!("#!/bin/sh\n{text}\n"));
    std::fs::rename(host.path("new"), host.path(name)).unwrap();
}

fn has(host: &TestHost, id: &str, is_launched: bool) -> bool {
    let plugins = host.admin(&["plugins"]);
    let mut rows = plugins.as_array().into_iter().flatten();
    rows.any(|row| {
        let own = format!("{}-{}", row["index"].as_str().unwrap(), row["name"].as_str().unwrap());
        own == id && row["state"] == "synchronized" && row["launched"] == is_launched
    })
}

fn takes_part(host: &TestHost, id: &str, is_launched: bool) {
    wait_until(&format!("{id} takes part"), || has(host, id, is_launched));
}

fn is_turned_away(host: &TestHost, id: &str) {
    host.logs_at_least(&[&format!("{id} was refused: "), "has this name", "stop process"], 1);
    assert!(!has(host, id, false));
}

fn is_refused(host: &TestHost, id: &str, words: &[&str]) {
    fails(&host.create(id), words);
}

#[test]
fn an_outside_process_cannot_be_a_pre_installed_plugin() {
    let host = host(REQUIRED, sample);
    takes_part(&host, "10-policy", true);
    let pid = || host.admin(&["plugins"])[0]["pid"].clone();
    let launched = pid();
    let _outside = Started::plugin(&host, "10-policy");
    is_turned_away(&host, "10-policy");
    let refusals = || {
        let rows = host.admin(&["status"])["refused_connections"].clone();
        let row = rows.as_array().into_iter().flatten().find(|row| row["why"] == "pre-installed");
        row.map_or(0, |row| row["count"].as_u64().unwrap())
    };
    wait_until("it has come again", || refusals() >= 2);
    host.logs(&["10-policy was refused"], 1);
    let metrics = String::from_utf8(host.call(&["nri", "metrics"]).stdout).unwrap();
    let counted = "nri_runc_plugin_connections_total{plugin=\"other\",result=\"refused\"} ";
    assert!(metrics.contains(counted), "{metrics}");
    assert_eq!(pid(), launched);
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("GREETING=hello"), "by the launched one");
    let findings = host.admin(&["check"]).to_string();
    assert!(findings.contains("plugin connections"), "{findings}");
}

#[test]
fn a_file_owns_its_name_before_and_between_its_runs() {
    let never = host(REQUIRED, silent);
    let _outside = Started::plugin(&never, "10-policy");
    is_turned_away(&never, "10-policy");
    is_refused(&never, "c1", &["the required plugin policy is not connected"]);
    let host = host(REQUIRED, sample);
    takes_part(&host, "10-policy", true);
    put(&host, "plugins/10-policy", "exit 3");
    let pid = host.admin(&["plugins"])[0]["pid"].as_i64().unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    wait_until("it is gone", || !has(&host, "10-policy", true));
    let _outside = Started::plugin(&host, "10-policy");
    is_turned_away(&host, "10-policy");
    is_refused(&host, "c1", &["the required plugin policy is not connected"]);
}

#[test]
fn a_file_that_cannot_be_started_keeps_its_name() {
    let host = host(REQUIRED, |host| {
        host.write("plugins/10-policy", "no program");
        symlink("nowhere", host.path("plugins/20-guard")).unwrap();
    });
    let _outside = [Started::plugin(&host, "10-policy"), Started::plugin(&host, "20-guard")];
    is_turned_away(&host, "10-policy");
    is_turned_away(&host, "20-guard");
    is_refused(&host, "c1", &["the required plugin policy is not connected"]);
    let _free = Started::plugin(&host, "30-free");
    takes_part(&host, "30-free", false);
}

#[test]
fn another_index_does_not_replace_a_pre_installed_plugin() {
    let validated = "[nri]\nplugin_registration_timeout = \"2s\"\n\
                     [nri.default_validator]\nenable = true\nrequired_plugins = [\"policy\"]\n";
    for more in [REQUIRED, validated] {
        let host = host(more, silent);
        let _outside = Started::plugin(&host, "11-policy");
        takes_part(&host, "11-policy", false);
        is_refused(&host, "c1", &["required plugin policy is pre-installed", "11-policy"]);
        assert_eq!(host.admin(&["status"])["required"][0]["connected"], false, "{more}");
        std::fs::remove_file(host.path("plugins/10-policy")).unwrap();
        wait_until("the name is anybody's", || {
            host.admin(&["status"])["required"][0]["connected"] == true
        });
        succeeds(&host.create("c2"));
    }
}

#[test]
fn a_pods_annotation_requires_the_pre_installed_plugin_too() {
    let validated = "[nri]\nplugin_registration_timeout = \"2s\"\n\
                     [nri.default_validator]\nenable = true\n";
    let host = host(validated, silent);
    let _outside = Started::plugin(&host, "11-policy");
    takes_part(&host, "11-policy", false);
    let document = |name: &str| {
        let key = "required-plugins.noderesource.dev";
        let own = format!("{{\"annotations\":{{\"{key}\":\"[{name}]\"}},");
        test_support::BUNDLE.replacen('{', &own, 1)
    };
    host.write("bundle/config.json", &document("policy"));
    fails(&host.create("c1"), &["required plugin policy is pre-installed", "11-policy"]);
    host.write("bundle/config.json", &document("11-policy"));
    succeeds(&host.create("c2"));
}

#[test]
fn a_displaceable_name_can_be_used_by_another_process() {
    let more = format!("{REQUIRED}displace = \"any\"\n");
    let host = host(&more, sample);
    takes_part(&host, "10-policy", true);
    let _outside = Started::plugin(&host, "10-policy");
    takes_part(&host, "10-policy", false);
    succeeds(&host.create("c1"));
    assert!(!host.read("fake/seen.json").contains("GREETING"), "the launched one was not asked");
    assert_eq!(host.logged(&["was refused"]), 0);
    // With the restriction the process is disconnected, and the file's process returns.
    host.configure(&host.path("fake/runc"), REQUIRED);
    succeeds(&host.call(&["nri", "reload"]));
    host.logs(&["10-policy is disconnected by the new configuration", "has this name"], 1);
    takes_part(&host, "10-policy", true);
}

#[test]
fn a_new_plugin_file_takes_over_a_contested_identity() {
    let host = host(REQUIRED, |_| {});
    // Three takeovers within a minute make the place contested.
    let _fighting: Vec<_> = (0..4)
        .map(|round| {
            let received = connect(host.path("nri.sock"), "10", "policy", Script::default());
            host.logs_at_least(&["10-policy is synchronized"], round + 1);
            received
        })
        .collect();
    succeeds(&host.create("c1"));
    sample(&host);
    takes_part(&host, "10-policy", true);
    succeeds(&host.create("c2"));
    assert!(host.read("fake/seen.json").contains("GREETING=hello"));
}

#[test]
fn a_reload_disconnects_a_plugin_that_may_no_longer_connect() {
    for (more, why) in [
        ("from = [\"exe:/nowhere\"]\n", "(plugin.policy.from)"),
        ("[nri]\nallowed_uids = [1]\n", "user 0 may not connect a plugin (nri.allowed_uids)"),
    ] {
        let host = host(REQUIRED, |_| {});
        let _outside = Started::plugin(&host, "10-policy");
        takes_part(&host, "10-policy", false);
        succeeds(&host.create("c1"));
        let text = format!("{REQUIRED}{more}");
        host.configure(&host.path("fake/runc"), &text);
        succeeds(&host.call(&["nri", "reload"]));
        host.logs(&["10-policy is disconnected by the new configuration", why], 1);
        assert!(!has(&host, "10-policy", false), "{more}");
        is_refused(&host, "c2", &["the required plugin policy is not connected"]);
        let required = host.admin(&["check"]);
        let row =
            required.as_array().unwrap().iter().find(|row| row["check"] == "required plugins");
        assert_eq!(row.unwrap()["ok"], false, "{more}");
    }
}

#[test]
fn a_reload_keeps_every_plugin_that_may_still_connect() {
    let host = host("", |_| {});
    let _outside = Started::plugin(&host, "10-policy");
    takes_part(&host, "10-policy", false);
    let received = host.plugin("20", "other", Script::default());
    let own = example("event_logger").display().to_string();
    let more = format!("[nri]\nallowed_uids = [0, 1]\n[plugin.policy]\nfrom = [\"exe:{own}\"]\n");
    host.configure(&host.path("fake/runc"), &more);
    succeeds(&host.call(&["nri", "reload"]));
    succeeds(&host.create("c1"));
    assert!(
        has(&host, "10-policy", false) && is_synchronized(&host.admin(&["plugins"]), "20-other")
    );
    assert_eq!(host.logged(&["disconnected"]), 0);
    drop(received);
}
