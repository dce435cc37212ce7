// SPDX-License-Identifier: Apache-2.0
//! Output for operators: hostile names on every screen and in the log, help, tables.

use std::path::Path;

use nri_plugin::{Adjustment, Resources};
use serde_json::{Value, json};
use test_support::{BUNDLE, SILENT, Script, TestHost, skip, wait_until};

use crate::{sets, started, succeeds};

/// The terminal's title, clear screen, a second line, reversed direction, invisible characters, C1.
const HOSTILE: &str =
    "x\u{1b}]0;owned\u{7}\u{1b}[2J\nfailure: forged\u{202e}\u{200b}\u{9b}31m\u{2066}";

/// Checks that all characters are visible on a terminal, in lines.
#[track_caller]
fn is_printable(what: &str, bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap();
    for line in text.lines() {
        let odd = line.chars().find(|c| !matches!(c, ' '..='~' | '\t'));
        assert!(odd.is_none(), "{what}: {odd:?} in {line:?}");
        assert!(!line.starts_with("failure: forged"), "{what}: a line was forged: {text:?}");
    }
}

/// A bundle whose owner gives everything a hostile name.
fn hostile_bundle() -> String {
    let name = Value::from(HOSTILE);
    let keys = ["pod-name", "pod-namespace", "container-name", "annotation/a"];
    let annotations: Vec<String> =
        keys.iter().map(|key| format!("\"nri-runc.dev/{key}\": {name}")).collect();
    let annotations = format!("\"annotations\": {{{}, {name}: {name}}},", annotations.join(", "));
    BUNDLE.replacen('{', &format!("{{{annotations}"), 1)
}

fn hostile_plugin() -> Adjustment {
    Adjustment::new().annotation(HOSTILE, &format!("{HOSTILE}2")).env(HOSTILE, HOSTILE)
}

#[test]
fn hostile_names_are_escaped_on_screens_and_in_logs() {
    let host = started("");
    host.write("bundle/config.json", &hostile_bundle());
    let _plugin = host.plugin("10", "paints", hostile_plugin());
    succeeds(&host.create("c1"));
    let refusing = Script { refuses: Some(HOSTILE), ..Script::default() };
    let _guard = host.plugin("90", "guard", refusing);
    let output = host.create("c2");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("90-guard refused"));
    is_printable("stderr of a refusal", &output.stderr);
    let entry: Value = serde_json::from_str(&host.read("log.json")).unwrap();
    is_printable("--log as JSON", entry["msg"].as_str().unwrap().as_bytes());
    let (bundle, log) = (host.path("bundle"), host.path("log.text"));
    let (bundle, log) = (bundle.to_str().unwrap(), log.to_str().unwrap());
    let output = host.verb(&["--log", log, "create", "--bundle", bundle, "c3"]);
    assert_eq!(output.status.code(), Some(1));
    is_printable("--log as text", host.read("log.text").as_bytes());
    std::fs::create_dir_all(host.path("plugins")).unwrap();
    host.write(&format!("plugins/10-{HOSTILE}"), "#!/bin/sh\n");
    let name = format!("named{HOSTILE}");
    std::fs::create_dir(host.path(&name)).unwrap();
    host.write(&format!("{name}/config.json"), &hostile_bundle());
    let key = Value::from(HOSTILE);
    host.write("adjust.json", &format!("{{\"annotations\": {{{key}: \"2\"}}}}"));
    let (named, adjust) = (host.path(&name), host.path("adjust.json"));
    let (named, adjust) = (named.to_str().unwrap(), adjust.to_str().unwrap());
    for words in [
        &["status"][..],
        &["plugins"],
        &["pods"],
        &["pods", "-o", "wide"],
        &["pods", "-o", "name"],
        &["pods", "-o", "yaml"],
        &["pods", "--label", HOSTILE],
        &["explain", "c1"],
        &["explain", "c1", "-o", "yaml"],
        &["explain", "c1", "--show-env"],
        &["explain", "c2"],
        &["explain", HOSTILE],
        &["check"],
        &["adjust", "--bundle", named, "--apply", adjust],
        &["adjust", "--bundle", HOSTILE],
        &["replay", HOSTILE],
        &["install", "docker", "--dry-run", "--name", HOSTILE],
        &["install", "docker", "--dry-run", "--engine-config", HOSTILE],
        &["uninstall", "docker", "--root", HOSTILE],
        &["disable"],
        &["enable"],
        &[HOSTILE],
        &["--config", HOSTILE, "status"],
    ] {
        let output = host.call(&[&["nri"][..], words].concat());
        is_printable(&format!("stdout of {words:?}"), &output.stdout);
        is_printable(&format!("stderr of {words:?}"), &output.stderr);
        assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{words:?} said nothing");
    }
    host.logs_at_least(&["90-guard refused", "forged"], 1);
    is_printable("the log", host.read("daemon.err").as_bytes());
}

#[test]
fn json_keeps_hostile_names_unchanged() {
    let host = started("");
    host.write("bundle/config.json", &hostile_bundle());
    let _plugin = host.plugin("10", "paints", hostile_plugin());
    succeeds(&host.create("c1"));
    assert_eq!(host.admin(&["pods"])[0]["name"], HOSTILE);
    let changes = host.admin(&["explain", "c1"])["changes"].clone();
    let is_it = |change: &Value| change["field"] == format!("annotations[{HOSTILE}]");
    let change = changes.as_array().into_iter().flatten().find(|change| is_it(change));
    assert_eq!(
        change.map(|change| &change["after"]),
        Some(&format!("{HOSTILE}2").into()),
        "{changes}"
    );
}

#[test]
fn help_calls_itself_nri_runc_nri_and_lists_every_verb() {
    let host = TestHost::default();
    let help = host.call(&["nri", "help"]);
    succeeds(&help);
    let text = String::from_utf8(help.stdout).unwrap();
    assert_eq!(host.call(&["nri", "--help"]).stdout, text.as_bytes());
    assert!(text.contains("Usage: nri-runc nri [OPTIONS] <COMMAND>"), "{text}");
    for verb in ["status", "plugins", "pods", "explain", "check", "disable", "enable"] {
        assert!(text.contains(&format!("\n  {verb} ")), "{verb}: {text}");
        let own = host.call(&["nri", "help", verb]);
        let own = String::from_utf8(own.stdout).unwrap();
        assert!(own.contains(&format!("Usage: nri-runc nri {verb}")), "{own}");
    }
    let wrong = host.call(&["nri", "statsu"]);
    assert_eq!(wrong.status.code(), Some(2));
    let wrong = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.contains("Usage: nri-runc nri"), "{wrong}");
}

#[test]
fn completion_needs_no_daemon_and_knows_its_shells() {
    let host = TestHost::default();
    for (shell, word) in
        [("bash", "COMPREPLY"), ("zsh", "#compdef nri-runc"), ("fish", "complete -c")]
    {
        let output = host.call(&["nri", "completion", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{shell}");
        assert!(script.contains(word) && script.contains("uninstall"), "{shell}: {script}");
    }
    assert!(!host.path("run").exists(), "no daemon was started");
    let wrong = host.call(&["nri", "completion", "tcsh"]);
    assert_eq!((wrong.status.code(), wrong.stdout.len()), (Some(2), 0));
}

#[test]
fn help_fits_a_terminal_of_eighty_columns() {
    let host = TestHost::default();
    let help = |words: &[&str]| String::from_utf8(host.call(words).stdout).unwrap();
    let text = help(&["nri", "help"]);
    assert!(text.lines().count() > 15, "{text}");
    let commands = text.split("Commands:").nth(1).unwrap().lines().skip(1);
    let verbs: Vec<&str> = commands.map_while(|line| line.split_whitespace().next()).collect();
    assert!(verbs.len() > 14 && verbs.contains(&"replay"), "{verbs:?}");
    for page in verbs.iter().map(|verb| help(&["nri", verb, "--help"])).chain([text.clone()]) {
        for line in page.lines() {
            assert!(line.chars().count() <= 80, "{line:?}");
        }
    }
}

/// `nri-runc --help` prints the runtime's help unchanged, as an engine expects.
#[test]
fn help_of_the_runtime_is_the_runtimes_own() {
    let host = TestHost::default();
    let output = host.call(&["--help"]);
    succeeds(&output);
    assert_eq!((output.stdout.len(), output.stderr.len()), (0, 0), "the host's runtime is silent");
    assert!(host.read("fake/argv").starts_with("--help\n"), "{}", host.read("fake/argv"));
    assert!(Path::new(&host.path("run")).read_dir().is_err(), "nothing was started or written");
}

/// Creates the container `app` of the pod `web` in `namespace`.
fn create_app(host: &TestHost, namespace: &str, id: &str) {
    let keys = format!(
        "\"annotations\": {{\"nri-runc.dev/pod-namespace\": \"{namespace}\",
         \"nri-runc.dev/pod-id\": \"pod-of-{id}\",
         \"nri-runc.dev/pod-name\": \"web\", \"nri-runc.dev/container-name\": \"app\"}},"
    );
    let bundle = format!("bundle-{id}");
    std::fs::create_dir_all(host.path(&bundle).join("rootfs")).unwrap();
    host.write(&format!("{bundle}/config.json"), &BUNDLE.replacen('{', &format!("{{{keys}"), 1));
    succeeds(&host.create_from(&bundle, id));
}

fn page(host: &TestHost, words: &[&str]) -> String {
    let output = host.call(&[&["nri"][..], words].concat());
    succeeds(&output);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_exact_id_wins_over_the_beginning_of_another() {
    let host = started("");
    succeeds(&host.create("b11e5a2b"));
    {
        let refusing = Script { refuses: Some("not signed"), ..Script::default() };
        let _plugin = host.plugin("90", "guard", refusing);
        assert_eq!(host.create("b1").status.code(), Some(1));
    }
    let explained = host.admin(&["explain", "b1"]);
    assert_eq!(explained["id"], "b1", "{explained}");
    assert!(explained["refused"].to_string().contains("not signed"), "{explained}");
    assert_eq!(host.admin(&["explain", "b11"])["id"], "b11e5a2b");
}

/// A daemon with an `app` of `shop` (c1) and a later one of `stage` (c2).
fn with_two_apps() -> TestHost {
    let host = started("");
    create_app(&host, "shop", "c1");
    create_app(&host, "stage", "c2");
    host
}

#[test]
fn a_container_is_found_by_each_of_its_names() {
    let host = with_two_apps();
    for wanted in ["shop/app", "shop/c1", "shop/web/app", "c1"] {
        assert_eq!(host.admin(&["explain", wanted])["id"], "c1", "{wanted}");
    }
}

#[test]
fn an_ambiguous_name_lists_the_containers_newest_first() {
    let host = with_two_apps();
    for wanted in ["app", "c"] {
        let output = host.call(&["nri", "explain", wanted]);
        assert_eq!(output.status.code(), Some(1), "{wanted}");
        let (table, line) = (output.stdout, String::from_utf8(output.stderr).unwrap());
        let table = String::from_utf8(table).unwrap();
        let rows: Vec<&str> = table.lines().collect();
        assert!(rows[0].starts_with("ID") && rows[0].contains("STATE"), "{table}");
        assert!(rows[1].starts_with("c2 ") && rows[1].contains("stage/web/app"), "{table}");
        assert!(rows[2].starts_with("c1 ") && rows[2].contains("created"), "{table}");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("is ambiguous") && !line.contains("daemon"), "{line}");
    }
}

#[test]
fn json_lists_the_matches_of_an_ambiguous_name() {
    let host = with_two_apps();
    let document = host.admin(&["explain", "app"]);
    assert_eq!(document["matches"][0]["id"], "c2", "{document}");
    assert!(document["matches"][0]["created_time"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn a_reused_name_means_the_running_container() {
    let host = with_two_apps();
    succeeds(&host.verb(&["delete", "--force", "c2"]));
    wait_until("it is removed", || host.admin(&["explain", "c2"])["state"] == "removed");
    let document = host.admin(&["explain", "app"]);
    assert_eq!((&document["id"], &document["earlier"][0]["id"]), (&json!("c1"), &json!("c2")));
}

#[test]
fn a_name_of_several_attempts_means_the_last_one() {
    let host = started("");
    let _plugin = host.plugin("90", "guard", Script { refuses: Some("no"), ..Script::default() });
    let names = json!({"nri-runc.dev/pod-namespace": "shop", "nri-runc.dev/pod-name": "web",
        "nri-runc.dev/container-name": "app"});
    let document = BUNDLE.replacen('{', &format!("{{\"annotations\": {names},"), 1);
    std::fs::create_dir_all(host.path("again/rootfs")).unwrap();
    host.write("again/config.json", &document);
    for id in ["r1", "r2", "r3"] {
        assert_eq!(host.create_from("again", id).status.code(), Some(1));
    }
    for wanted in ["app", "shop/web/app"] {
        let document = host.admin(&["explain", wanted]);
        assert_eq!((&document["id"], &document["earlier"][0]["id"]), (&json!("r3"), &json!("r2")));
        assert!(document["refused"][0].as_str().unwrap().contains("90-guard"), "{document}");
    }
    let page = host.call(&["nri", "explain", "app"]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("90-guard refused: no (the bundle is unchanged) [NR012]\n"), "{page}");
    let prefix = host.call(&["nri", "explain", "r"]);
    assert_eq!(prefix.status.code(), Some(1), "a prefix may mean any of them");
}

#[test]
fn a_refusal_has_its_code_in_the_engines_log_and_in_status() {
    let host = started("");
    let _guard = host.plugin("90", "guard", Script { refuses: Some("no"), ..Script::default() });
    let bundle = host.path("bundle").display().to_string();
    for (format, end) in [("json", "[NR012]\""), ("text", "[NR012]\"\n")] {
        let log = host.path("runtime.log").display().to_string();
        let _absent_at_first = std::fs::remove_file(&log);
        let words = ["--log", &log, "--log-format", format, "create", "--bundle", &bundle, "c1"];
        let output = host.verb(&words);
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.starts_with("nri-runc: cannot create c1: 90-guard refused: no ("), "{line}");
        assert!(line.ends_with(") [NR012]\n") && line.matches("[NR").count() == 1, "{line}");
        assert!(host.read("runtime.log").contains(end), "{}", host.read("runtime.log"));
    }
    assert!(host.logged(&["create c1: 90-guard refused: no", "[NR012]"]) > 0);
    let status = String::from_utf8(host.call(&["nri", "status"]).stdout).unwrap();
    assert!(status.contains(" 90-guard refused: no") && status.contains("[NR012]"), "{status}");
    let document = host.admin(&["status"]).to_string();
    assert!(!document.contains("[NR"), "documents keep the text alone: {document}");
}

#[test]
fn a_line_of_the_runtime_and_a_wrong_command_line_have_no_code() {
    let host = started("");
    host.write("fake/fail", "");
    let output = host.create("c1");
    let usage = host.call(&["nri", "no-such-verb"]);
    assert_eq!((usage.status.code(), output.status.success()), (Some(2), false));
    for text in [output.stderr, usage.stderr] {
        let text = String::from_utf8(text).unwrap();
        assert!(!text.is_empty() && !text.contains("[NR"), "{text}");
    }
}

#[test]
fn a_refused_container_has_the_time_of_its_refusal() {
    let host = started("");
    let _plugin = host.plugin("90", "guard", Script { refuses: Some("no"), ..Script::default() });
    for id in ["bad1", "bad2"] {
        assert_eq!(host.create(id).status.code(), Some(1));
    }
    let document = host.admin(&["explain", "bad1"]);
    assert!(document["refused_at"].as_i64() > Some(0), "{document}");
    assert!(document["refused_time"].as_str().is_some_and(|time| time.ends_with('Z')));
    assert_eq!(document["created_at"], 0, "{document}");
    assert!(page(&host, &["explain", "bad1"]).contains("(refused 2"));
    // Two objects match: a table with their ages.
    let output = host.call(&["nri", "explain", "bad"]);
    let table = String::from_utf8(output.stdout).unwrap();
    let ages: Vec<&str> =
        table.lines().skip(1).filter_map(|row| row.split(' ').next_back()).collect();
    assert_eq!((ages.len(), ages.contains(&"-")), (2, false), "{table}");
}

#[test]
fn an_unknown_name_fails_without_the_daemon() {
    let host = started("");
    let output = host.call(&["nri", "explain", "nowhere"]);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(line.contains("matches nowhere") && !line.contains("nri restart"), "{line}");
    let away = TestHost::default().call(&["nri", "explain", "nowhere"]);
    let line = String::from_utf8(away.stderr).unwrap();
    assert!(line.contains("is not running") && line.contains("nri restart"), "{line}");
}

#[test]
fn changes_are_listed_with_times_in_plugin_order() {
    let host = started("");
    let _second = host.plugin("20", "second", sets("AAA", "2"));
    let first = Adjustment::new().env("ZZZ", "1").resources(Resources::new().cpu_shares(1024));
    let _first = host.plugin("10", "first", first);
    succeeds(&host.create("c1"));
    let explained = host.admin(&["explain", "c1"]);
    let changes = explained["changes"].as_array().unwrap();
    let fields: Vec<&str> = changes.iter().map(|c| c["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["process.env[ZZZ]", "process.env[AAA]"], "{explained}");
    for change in changes {
        let (at, time) = (change["at"].as_i64().unwrap(), change["time"].as_str().unwrap());
        assert_eq!(nri_runc::testing::text::rfc3339_nanos(at).as_deref(), Some(time));
    }
    assert_eq!(explained["owners"]["CPUShares"], "10-first", "it owns what it set all the same");
    let page = page(&host, &["explain", "c1"]);
    assert!(page.contains("CreateContainer, 20") && page.contains("Z ("), "{page}");
    assert!(page.find("10-first") < page.find("20-second"), "{page}");
}

#[test]
fn plugins_are_called_by_index_and_then_by_arrival() {
    let host = started("");
    let plugins = [("10", "zeta"), ("10", "alpha"), ("05", "late")];
    let _plugin = plugins.map(|(index, name)| host.plugin(index, name, sets(name, "1")));
    succeeds(&host.create("c1"));
    let explained = host.admin(&["explain", "c1"]);
    let changes = explained["changes"].as_array().unwrap();
    let asked: Vec<&str> = changes.iter().map(|c| c["plugin"].as_str().unwrap()).collect();
    assert_eq!(asked, ["05-late", "10-zeta", "10-alpha"], "{explained}");
}

#[test]
fn status_names_the_command_that_shows_the_log() {
    let host = started("[log]\ntarget = \"file\"\n");
    let received = host.admin(&["status"])["log"].as_str().unwrap_or_default().to_owned();
    let file = host.path("run/daemon.log").display().to_string();
    assert_eq!(received, format!("tail -n 50 {file}"));
    assert!(page(&host, &["status"]).contains(&received));
}

#[test]
fn nri_disable_is_shown_and_logged() {
    let host = started("");
    assert!(page(&host, &["status"]).contains("switched on:    yes"));
    let printed = page(&host, &["disable"]);
    assert!(printed.contains("reboot") && printed.lines().count() == 1, "{printed}");
    assert_eq!(host.admin(&["status"])["disabled"], true);
    let status = page(&host, &["status"]);
    assert!(status.contains("NO, disabled by nri-runc nri disable"), "{status}");
    host.logs(&["disabled by", "process"], 1);
    succeeds(&host.call(&["nri", "enable"]));
    assert_eq!(host.admin(&["status"])["disabled"], false);
    host.logs(&["enabled again by"], 1);
}

#[test]
fn nri_disable_names_the_protections_that_it_bypasses() {
    let host = TestHost::new(
        "[plugin.policy]\nrequired = true\n[plugin.other]\non_failure = \"refuse\"\n\
         [nri.default_validator]\nenable = true\nrequired_plugins = [\"guard\"]\n",
    );
    let printed = page(&host, &["disable"]);
    for what in [
        "not enforced while disabled: plugin other has on_failure",
        "plugin policy is required",
        "plugin guard is required by the default validator",
    ] {
        assert!(printed.contains(what), "{printed}");
    }
    assert_eq!(host.admin(&["disable"])["bypassed"].as_array().unwrap().len(), 4);
    assert_eq!(host.admin(&["enable"])["bypassed"], serde_json::json!([]));
}

#[test]
fn nri_disable_is_logged_even_without_a_daemon() {
    let host = TestHost::new("[log]\ntarget = \"file\"");
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&host.call(&["nri", "enable"]));
    let log = host.read("run/daemon.log");
    assert!(log.contains("disabled by") && log.contains("enabled again by"), "{log}");
    let configured = TestHost::new("[nri]\ndisable = true");
    let printed = page(&configured, &["enable"]);
    assert!(printed.contains("still disabled"), "{printed}");
}

/// A daemon whose plugin `slow` was disconnected for time-outs.
fn with_a_plugin_that_went() -> TestHost {
    let host = started(&format!("{SILENT}[plugin.slow]\non_failure = \"skip\""));
    drop(host.plugin("10", "slow", Script { hangs: true, ..Script::default() }));
    succeeds(&host.create("c1"));
    wait_until("it is gone", || host.admin(&["plugins"])[0]["state"] == "gone");
    host
}

#[test]
fn a_disconnected_plugin_shows_its_failures_and_the_reason() {
    let host = with_a_plugin_that_went();
    let row = host.admin(&["plugins"])[0].clone();
    assert_eq!((&row["failures"], &row["timeouts"]), (&json!(1), &json!(1)), "{row}");
    assert!(row["reason"].to_string().contains("CreateContainer"), "{row}");
    assert!(row["gone_time"].as_str().unwrap().ends_with('Z'), "{row}");
}

#[test]
fn the_page_of_plugins_shows_policies_and_fits_a_terminal() {
    let host = with_a_plugin_that_went();
    let text = page(&host, &["plugins"]);
    let is_reported = |words: &str| text.contains(words);
    assert!(is_reported("skip (configuration)") && is_reported("10-slow: disconnected "), "{text}");
    assert!(is_reported("last failure"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn only_the_wide_page_of_plugins_has_their_events() {
    let host = with_a_plugin_that_went();
    assert!(!page(&host, &["plugins"]).contains("RunPodSandbox"));
    let wide = page(&host, &["plugins", "-o", "wide"]);
    assert!(wide.contains("RunPodSandbox") && wide.contains(", connected "), "{wide}");
    let json = page(&host, &["plugins", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()[0]["name"], "slow");
}

#[test]
fn ids_of_engines_are_short_and_wide_ones_are_whole() {
    let host = started("");
    let id = "b1".repeat(32);
    succeeds(&host.create(&id));
    let short = page(&host, &["pods"]);
    assert!(short.contains(&id[..13]) && !short.contains(&id), "{short}");
    assert!(short.contains("AGE"), "{short}");
    assert!(page(&host, &["pods", "-o", "wide"]).contains(&id));
    let made = &host.admin(&["pods"])[0]["containers"][0];
    assert!(made["created_at"].as_i64().unwrap() > 0 && made["created_time"].is_string(), "{made}");
}

/// Each verb prints one line to a user without permission, and judges nothing that it could not
/// read.
#[test]
fn verbs_that_need_root_fail_in_one_line_without_it() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !nix::unistd::geteuid().is_root() {
        return skip::machine_lacks("another user can be played by root alone");
    }
    let host = started("");
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = temp.path().join("nri-runc");
    // Copied by another process: a child of another test would hold the program open for writing.
    let mut copy = std::process::Command::new("cp");
    assert!(copy.arg(test_support::program::nri_runc()).arg(&program).status().unwrap().success());
    for words in [
        &["status"][..],
        &["plugins"],
        &["pods"],
        &["explain", "c1"],
        &["check"],
        &["disable"],
        &["enable"],
        &["install", "docker"],
        &["uninstall", "docker"],
        &["daemon"],
        &["replay", "--record", "/tmp/never"],
    ] {
        let mut command = std::process::Command::new(&program);
        command.arg("nri").args(words).env("NRI_RUNC_CONFIG", host.path("config.toml"));
        let output = command.uid(65534).gid(65534).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {line}");
        assert_eq!(
            line, "nri-runc: this command must be run as root (use sudo) [NR225]\n",
            "{words:?}"
        );
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn adjust_prints_json_on_request() {
    let host = TestHost::default();
    host.write("adjust.json", "{\"annotations\": {\"a\": \"b\"}}");
    let (bundle, file) = (host.path("bundle"), host.path("adjust.json"));
    let words = ["adjust", "--bundle", bundle.to_str().unwrap(), "--apply", file.to_str().unwrap()];
    let document: Value =
        serde_json::from_str(&page(&host, &[&words[..], &["--json"]].concat())).unwrap();
    assert_eq!(document["adjust"]["annotations"]["a"], "b");
    let spec = [&["nri"][..], &words, &["--output", "spec"]].concat();
    assert_eq!(host.call(&spec).status.code(), Some(0));
    assert_eq!(host.call(&[&spec[..], &["--json"]].concat()).status.code(), Some(2));
}

#[test]
fn admin_commands_print_one_json_document() {
    let host = started("");
    succeeds(&host.create("c1"));
    let bundle = host.path("bundle").display().to_string();
    for words in [
        &["status"] as &[&str],
        &["plugins"],
        &["pods"],
        &["explain", "c1"],
        &["check"],
        &["adjust", "--bundle", &bundle],
        &["disable"],
        &["enable"],
        &["restart"],
        &["stop"],
    ] {
        let output = host.call(&[&["nri", "--json"][..], words].concat());
        let document = serde_json::from_slice::<Value>(&output.stdout);
        assert!(document.is_ok(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
