// SPDX-License-Identifier: Apache-2.0
//! A changed configuration of a running daemon: changes that a reload applies or refuses, changes that
//! need a restart, and the output that operators see.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::process::Output;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use test_support::adjustments::sets;
use test_support::{Script, TestHost, has_received, is_synchronized, wait_until};

use super::{fails, started, succeeds};

fn configure(host: &TestHost, more: &str) {
    host.configure(&host.path("fake/runc"), more);
}

fn reload(host: &TestHost) -> Output {
    host.call(&["nri", "reload"])
}

/// Reloads; checks that keys change and none needs a restart; returns them.
#[track_caller]
fn applies(host: &TestHost) -> Vec<String> {
    let document = host.admin(&["reload"]);
    assert_eq!((&document["applied"], &document["restart_needed"]), (&json!(true), &json!([])));
    let changed = document["changed"].as_array().into_iter().flatten();
    let keys: Vec<String> = changed.map(|one| one["key"].as_str().unwrap().to_owned()).collect();
    assert!(!keys.is_empty());
    keys
}

fn pid(host: &TestHost) -> Value {
    host.admin(&["status"])["pid"].clone()
}

/// The value of a row of the metrics.
fn metric(host: &TestHost, name: &str) -> Option<u64> {
    let page = String::from_utf8(host.call(&["nri", "metrics"]).stdout).unwrap();
    page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

fn hang_up(host: &TestHost) {
    kill(Pid::from_raw(host.daemon_pid()), Signal::SIGHUP).unwrap();
}

fn with_env() -> Script {
    sets("HELLO", "there")
}

#[test]
fn sighup_reloads_the_configuration_and_is_logged() {
    let host = started("[log]\nlevel = \"info\"\n");
    let before = pid(&host);
    hang_up(&host);
    wait_until("it is logged", || host.logged(&["reloaded: nothing has changed"]) == 1);
    configure(&host, "[log]\nlevel = \"warn\"\n[plugin.a]\ndeny = [\"Env\"]\nstrikes = 2\n");
    hang_up(&host);
    wait_until("the level is applied", || {
        host.admin(&["status"])["configuration"]["log_level"] == "warn"
    });
    // The line itself has a level that is not logged from then on.
    let words = ["applied log.level, plugin.a.deny, plugin.a.strikes"];
    host.logs(&words, 1);
    configure(&host, "[log]\nlevel = \"debug\"\nformat = \"json\"\n[plugin.a]\ndeny = [\"Env\"]\n");
    hang_up(&host);
    wait_until("it is logged", || {
        host.logged(&["{", "applied log.format, log.level, plugin.a.strikes"]) == 1
    });
    assert_eq!(host.admin(&["status"])["configuration"]["changed"], json!([]));
    assert_eq!(pid(&host), before, "the daemon goes on");
    assert_eq!(metric(&host, "nri_runc_reloads_total{outcome=\"applied\"}"), Some(2));
    assert_eq!(metric(&host, "nri_runc_reloads_total{outcome=\"unchanged\"}"), Some(1));
}

#[test]
fn a_broken_file_changes_nothing_and_is_named() {
    let host = started("");
    for (more, at) in [
        (
            "[plugin.a]\ndeny = \"Env\"\n[log]\nlevel = \"debug\"\n",
            "config.toml:10:8: plugin.a.deny",
        ),
        ("[log]\nlevel = \"debug\"\n[plugin.a]\nrequird = true\n", "config.toml:12:1: unknown key"),
        ("[log]\nlevel = \"debug\"\nformat = \"xml\"\n", "config.toml:11:10: log.format: must be"),
        ("[nri.default_validator]\nenabled = true\n", "config.toml:10:1: unknown key"),
        ("[plugin.a\n", "config.toml:9:"),
    ] {
        configure(&host, more);
        fails(&reload(&host), &["not reloaded, the previous one stays in force", at]);
        fails(&host.call(&["nri", "reload", "--dry-run"]), &["previous one stays in force", at]);
        hang_up(&host);
        wait_until("it is logged", || host.logged(&["not reloaded", at]) == 2);
        assert_eq!(host.admin(&["status"])["configuration"]["log_level"], "info");
    }
    let refused = "nri_runc_reloads_total{outcome=\"refused\"}";
    assert_eq!(metric(&host, refused), Some(10), "a dry run is none");
    succeeds(&host.create("c1"));
}

#[test]
fn an_unknown_key_that_protects_nothing_is_a_warning() {
    let host = started("");
    configure(&host, "[log]\nlevl = 1\n[eviction]\nper_minute = 3\n");
    let output = reload(&host);
    succeeds(&output);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page.starts_with("warning: ") && page.contains("config.toml:10:1: unknown key"),
        "{page}"
    );
    assert!(page.contains("\n-eviction.per_minute = 10\n+eviction.per_minute = 3\n"), "{page}");
}

#[test]
fn a_dry_run_shows_the_difference_and_changes_nothing() {
    let host = started("[plugin.a]\nstrikes = 1\n");
    configure(&host, "runtime_roots = [\"/x\"]\n[log]\nlevel = \"debug\"\n");
    let output = host.call(&["nri", "reload", "--dry-run"]);
    succeeds(&output);
    let wanted = "would be reloaded:\n-log.level = \"info\"\n+log.level = \"debug\"\n\
                  -plugin.a.strikes = 1\nneeds a restart (nri-runc nri restart):\n\
                  -runtime_roots = []\n+runtime_roots = [\"/x\"]\n";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), wanted);
    let status = host.admin(&["status"]);
    assert_eq!(status["configuration"]["log_level"], "info");
    let changed = json!(["log.level", "plugin.a.strikes", "runtime_roots"]);
    assert_eq!(status["configuration"]["changed"], changed);
}

#[test]
fn a_reload_names_each_section_that_is_new_changed_or_removed() {
    let rules = |deny: &str| format!("[[rule]]\nname = \"no env\"\ndeny = [\"{deny}\"]\n");
    let exec_rule = "[[exec_rule]]\nname = \"x\"\nterminal = true\n";
    let host = started(&format!("{}{exec_rule}", rules("Env")));
    let injection = "[[inject]]\nname = \"CA\"\nenv = { A = \"b\" }\n";
    configure(&host, &format!("{}{injection}", rules("Mounts")));
    let wanted = "exec_rule \"x\": removed\n-exec_rule \"x\" = {name = \"x\", terminal = true}\n\
                  rule \"no env\": deny changed\n\
                  -rule \"no env\" = {deny = [\"Env\"], name = \"no env\"}\n\
                  +rule \"no env\" = {deny = [\"Mounts\"], name = \"no env\"}\n\
                  inject \"CA\": new\n+inject \"CA\" = {env.A = \"b\", name = \"CA\"}\n";
    for (words, head) in [(&["--dry-run"][..], "would be reloaded"), (&[], "reloaded")] {
        let output = host.call(&[&["nri", "reload"][..], words].concat());
        succeeds(&output);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{head}:\n{wanted}"));
    }
    let line =
        "applied exec_rule \"x\": removed, rule \"no env\": deny changed, inject \"CA\": new";
    host.logs(&[line], 1);
    let nothing = host.call(&["nri", "reload"]);
    assert_eq!(String::from_utf8(nothing.stdout).unwrap(), "nothing has changed\n");
    // A section with a mistake changes nothing, and is reported with its position.
    configure(&host, &format!("{}{}", rules("Enw"), injection.replace("b", "c")));
    fails(&reload(&host), &["previous one stays in force", "rule.deny: \"Enw\" is not a field"]);
    host.logs(&["inject \"CA\": env.A changed"], 0);
}

#[test]
fn keys_that_need_a_restart_are_named_and_unchanged() {
    let mut host = TestHost::default();
    let fault = |point: &str| format!("[debug]\nfault = \"{point}:fail\"\n");
    host.start_daemon();
    configure(&host, &fault("daemon.record"));
    for _again in 0..2 {
        let document = host.admin(&["reload"]);
        assert_eq!(document["restart_needed"], json!(["debug.fault"]), "{document}");
        succeeds(&host.create("c1"));
        succeeds(&host.verb(&["delete", "--force", "c1"]));
    }
    let output = reload(&host);
    succeeds(&output);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page.contains("nothing that a reload applies") && page.contains("debug.fault"),
        "{page}"
    );
    host.kill_daemon();
    host.start_daemon();
    fails(&host.create("c2"), &["daemon.record"]);
}

#[test]
fn without_a_daemon_there_is_nothing_to_reload() {
    let host = TestHost::default();
    let output = reload(&host);
    succeeds(&output);
    assert!(String::from_utf8(output.stdout).unwrap().contains("is not running"));
    host.write("config.toml", "[plugin.a\n");
    fails(&reload(&host), &["the configuration has an error", "config.toml:1:", "is not running"]);
}

#[test]
fn the_rights_of_a_connected_plugin_change_and_it_stays() {
    let host = started("");
    let received = host.plugin("10", "env", with_env());
    succeeds(&host.create("c1"));
    assert!(host.read("bundle/config.json").contains("HELLO=there"));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    configure(&host, "[plugin.env]\ndeny = [\"Env\"]\n");
    assert_eq!(applies(&host), ["plugin.env.deny"]);
    fails(&host.create("c2"), &["10-env", "Env"]);
    configure(&host, "");
    assert_eq!(applies(&host), ["plugin.env.deny"]);
    succeeds(&host.create("c3"));
    assert!(host.read("fake/seen-c3.json").contains("HELLO=there"));
    let synchronized =
        received.lock().unwrap().iter().filter(|e| e.starts_with("Synchronize")).count();
    assert_eq!(synchronized, 0, "it was never synchronized anew");
    assert!(is_synchronized(&host.admin(&["plugins"]), "10-env"));
}

#[test]
fn a_plugins_settings_change_while_it_is_connected() {
    let host = started("[nri]\nplugin_request_timeout = \"60s\"\n[plugin.slow]\nstrikes = 0\n");
    let script = Script { hangs: true, ..Script::default() };
    let _plugin = host.plugin("10", "slow", script);
    let more = "[nri]\nplugin_request_timeout = \"3s\"\n[plugin.slow]\nstrikes = 0\n\
                on_failure = \"refuse\"\nconcurrency = 4\n";
    configure(&host, more);
    let keys = applies(&host);
    assert_eq!(keys.len(), 3, "{keys:?}");
    fails(&host.create("c1"), &["10-slow", "did not answer CreateContainer in time"]);
    let plugins = host.admin(&["plugins"]);
    assert_eq!(plugins[0]["failure_policy"]["on_failure"], "refuse");
    assert_eq!(plugins[0]["failure_policy"]["on_failure_from"], "configuration");
    configure(&host, &more.replace("refuse", "skip"));
    assert_eq!(applies(&host), ["plugin.slow.on_failure"]);
    succeeds(&host.create("c2"));
    configure(&host, &more.replace("strikes = 0", "strikes = 1").replace("refuse", "skip"));
    assert_eq!(applies(&host), ["plugin.slow.strikes"]);
    succeeds(&host.create("c3"));
    wait_until("it is disconnected", || host.admin(&["plugins"])[0]["state"] == "gone");
}

#[test]
fn a_plugin_can_become_required_and_the_validator_strict() {
    let host = started("");
    configure(&host, "[plugin.guard]\nrequired = true\n");
    assert_eq!(applies(&host), ["plugin.guard.required"]);
    fails(&host.create("c1"), &["the required plugin guard is not connected"]);
    configure(&host, "[nri.default_validator]\nenable = true\nrequired_plugins = [\"watch\"]\n");
    assert_eq!(applies(&host).len(), 3);
    fails(&host.create("c2"), &["watch"]);
    assert_eq!(host.admin(&["status"])["required"][0]["plugin"], "watch");
    configure(&host, "");
    applies(&host);
    succeeds(&host.create("c3"));
}

#[test]
fn the_plugin_socket_moves_and_connected_plugins_stay() {
    let host = started("");
    let received = host.plugin("10", "a", Script::default());
    let at = |name: &str, more: &str| {
        let text = host.read("config.toml");
        let old = text.lines().find(|line| line.starts_with("socket_path")).unwrap().to_owned();
        let new = format!("socket_path = \"{}\"\n{more}", host.path(name).display());
        host.write("config.toml", &text.replace(&old, &new));
    };
    at("other.sock", "");
    assert_eq!(applies(&host), ["nri.socket_path"]);
    assert!(!host.path("nri.sock").exists() && host.path("other.sock").exists());
    let other = test_support::connect(host.path("other.sock"), "20", "b", Script::default());
    wait_until("it is synchronized", || is_synchronized(&host.admin(&["plugins"]), "20-b"));
    succeeds(&host.create("c1"));
    assert!(
        has_received(&received, "CreateContainer c1") && has_received(&other, "CreateContainer c1")
    );
    at("other.sock", "socket_mode = \"0660\"\n");
    assert_eq!(applies(&host), ["nri.socket_mode"]);
    let mode = std::fs::metadata(host.path("other.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    // Another process listens there: nothing changes, including the other changed keys.
    let _engine = UnixListener::bind(host.path("taken.sock")).unwrap();
    at("taken.sock", "exempt_namespaces = []\n");
    let text = host.read("config.toml");
    host.write("config.toml", &text.replace("exempt_namespaces = []\n", "wait_for = [\"x\"]\n"));
    fails(&reload(&host), &["previous one stays in force", "nri.socket_path", "listens on"]);
    assert!(host.path("other.sock").exists());
    let third = test_support::connect(host.path("other.sock"), "30", "c", Script::default());
    wait_until("it is synchronized", || is_synchronized(&host.admin(&["plugins"]), "30-c"));
    drop(third);
    at("other.sock", "disable_connections = true\n");
    assert_eq!(applies(&host), ["nri.disable_connections", "nri.wait_for"]);
    assert!(!host.path("other.sock").exists());
    assert_eq!(host.admin(&["status"])["plugin_socket_state"]["state"], "off");
    at("nri.sock", "");
    let text = host.read("config.toml");
    host.write("config.toml", &text.replace("disable_connections = true\n", ""));
    applies(&host);
    assert!(host.path("nri.sock").symlink_metadata().unwrap().file_type().is_socket());
    assert!(is_synchronized(&host.admin(&["plugins"]), "10-a"), "it never noticed");
}

#[test]
fn metrics_move_unless_the_new_listener_fails() {
    let host = started("");
    let at = |name: &str, more: &str| {
        let path = host.path(name).display().to_string();
        configure(&host, &format!("{more}[metrics]\nlisten = \"unix:{path}\"\n"));
    };
    at("one.sock", "");
    assert_eq!(applies(&host), ["metrics.listen"]);
    assert!(host.path("one.sock").exists());
    at("two.sock", "");
    assert_eq!(applies(&host), ["metrics.listen"]);
    assert!(!host.path("one.sock").exists() && host.path("two.sock").exists());
    let _other = UnixListener::bind(host.path("three.sock")).unwrap();
    at("three.sock", "[log]\nlevel = \"debug\"\n");
    fails(&reload(&host), &["metrics.listen", "another process listens at this path"]);
    assert_eq!(host.admin(&["status"])["configuration"]["log_level"], "info");
    assert!(host.path("two.sock").exists());
    configure(&host, "");
    assert_eq!(applies(&host), ["metrics.listen"]);
    assert!(!host.path("two.sock").exists());
}

#[test]
fn pre_installed_plugins_change_with_the_configured_folder() {
    let host = started("");
    std::fs::create_dir_all(host.path("elsewhere")).unwrap();
    let sample = test_support::example("demo_plugin");
    std::os::unix::fs::symlink(sample, host.path("elsewhere/10-greeter")).unwrap();
    let text = host.read("config.toml");
    let (old, new) = (host.path("plugins"), host.path("elsewhere"));
    host.write(
        "config.toml",
        &text.replace(&old.display().to_string(), &new.display().to_string()),
    );
    assert_eq!(applies(&host), ["nri.plugin_path"]);
    wait_until("it is started", || is_synchronized(&host.admin(&["plugins"]), "10-greeter"));
    host.write("config.toml", &text);
    applies(&host);
    wait_until("it is stopped", || host.admin(&["plugins"])[0]["state"] == "gone");
}

#[test]
fn creates_during_reloads_neither_fail_nor_wait() {
    let host = started("");
    let _plugin = host.plugin("10", "env", with_env());
    let text = |strikes: usize| format!("[plugin.env]\nstrikes = {strikes}\n");
    std::thread::scope(|scope| {
        let reloads = scope.spawn(|| {
            for strikes in 0..30 {
                configure(&host, &text(strikes + 1));
                kill(Pid::from_raw(host.daemon_pid()), Signal::SIGHUP).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        for round in 0..12 {
            let id = format!("c{round}");
            succeeds(&host.create(&id));
            // What the runtime read: the end of the container before may restore the bundle's document after that.
            assert!(host.read(&format!("fake/seen-{id}.json")).contains("HELLO=there"), "{id}");
            succeeds(&host.verb(&["delete", "--force", &id]));
        }
        reloads.join().unwrap();
    });
    wait_until("the last one is in force", || {
        host.admin(&["reload"]);
        host.admin(&["plugins"])[0]["failure_policy"]["strikes"] == 30
    });
}

#[test]
fn wrappers_that_find_a_broken_file_use_the_last_valid_one() {
    let mut host = TestHost::default();
    host.start_daemon();
    configure(&host, "on_daemon_failure = \"fail\"\nautostart = false\n");
    assert_eq!(applies(&host), ["autostart", "on_daemon_failure"]);
    host.kill_daemon();
    let broken = host.read("config.toml") + "[plugin.a\n";
    host.write("config.toml", &broken);
    fails(&host.create("c1"), &["nri-runc"]);
    assert!(!host.path("fake/calls").exists() || !host.read("fake/calls").contains("create"));
}
