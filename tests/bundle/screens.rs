// SPDX-License-Identifier: Apache-2.0
//! What operators read: hostile names on every screen and in the log, help, tables.

use std::path::Path;

use nri_runc::plugin::api;
use serde_json::Value;

use super::player::Manner;
use super::rig::{BUNDLE, Rig};
use super::{env, started, succeeds};

/// Title of the terminal, clear screen, a second line, the other direction, nothing visible, C1.
const HOSTILE: &str =
    "x\u{1b}]0;owned\u{7}\u{1b}[2J\nfailure: forged\u{202e}\u{200b}\u{9b}31m\u{2066}";

/// Nothing but characters that a terminal shows, in lines.
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

fn hostile_plugin() -> Manner {
    let annotations = [(HOSTILE.to_owned(), format!("{HOSTILE}2"))].into();
    let adjust = api::ContainerAdjustment {
        annotations,
        env: vec![env(HOSTILE, HOSTILE)],
        ..Default::default()
    };
    Manner { adjust, ..Manner::default() }
}

#[test]
fn hostile_names_reach_no_screen_and_no_log_as_they_are() {
    let rig = started("");
    rig.write("bundle/config.json", &hostile_bundle());
    let _told = rig.plugin("10", "paints", hostile_plugin());
    succeeds(&rig.create("c1"));
    let refusing = Manner { refuses: Some(HOSTILE), ..Manner::default() };
    let _guard = rig.plugin("90", "guard", refusing);
    let output = rig.create("c2");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("90-guard refused"));
    is_printable("stderr of a refusal", &output.stderr);
    let entry: Value = serde_json::from_str(&rig.read("log.json")).unwrap();
    is_printable("--log as JSON", entry["msg"].as_str().unwrap().as_bytes());
    let (bundle, log) = (rig.path("bundle"), rig.path("log.text"));
    let (bundle, log) = (bundle.to_str().unwrap(), log.to_str().unwrap());
    let output = rig.verb(&["--log", log, "create", "--bundle", bundle, "c3"]);
    assert_eq!(output.status.code(), Some(1));
    is_printable("--log as text", rig.read("log.text").as_bytes());
    std::fs::create_dir_all(rig.path("plugins")).unwrap();
    rig.write(&format!("plugins/10-{HOSTILE}"), "#!/bin/sh\n");
    let name = format!("named{HOSTILE}");
    std::fs::create_dir(rig.path(&name)).unwrap();
    rig.write(&format!("{name}/config.json"), &hostile_bundle());
    let key = Value::from(HOSTILE);
    rig.write("adjust.json", &format!("{{\"annotations\": {{{key}: \"2\"}}}}"));
    let (named, adjust) = (rig.path(&name), rig.path("adjust.json"));
    let (named, adjust) = (named.to_str().unwrap(), adjust.to_str().unwrap());
    for words in [
        &["status"][..],
        &["plugins"],
        &["pods"],
        &["explain", "c1"],
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
        let output = rig.call(&[&["nri"][..], words].concat());
        is_printable(&format!("stdout of {words:?}"), &output.stdout);
        is_printable(&format!("stderr of {words:?}"), &output.stderr);
        assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{words:?} said nothing");
    }
    assert!(rig.logged(&["90-guard refused", "forged"]) > 0, "{}", rig.read("daemon.err"));
    is_printable("the log", rig.read("daemon.err").as_bytes());
}

#[test]
fn json_keeps_hostile_names_as_they_are() {
    let rig = started("");
    rig.write("bundle/config.json", &hostile_bundle());
    let _told = rig.plugin("10", "paints", hostile_plugin());
    succeeds(&rig.create("c1"));
    assert_eq!(rig.admin(&["pods"])[0]["name"], HOSTILE);
    let changes = rig.admin(&["explain", "c1"])["changes"].clone();
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
    let rig = Rig::new("");
    let help = rig.call(&["nri", "help"]);
    succeeds(&help);
    let text = String::from_utf8(help.stdout).unwrap();
    assert_eq!(rig.call(&["nri", "--help"]).stdout, text.as_bytes());
    assert!(text.contains("Usage: nri-runc nri [OPTIONS] <COMMAND>"), "{text}");
    for verb in ["status", "plugins", "pods", "explain", "check", "disable", "enable"] {
        assert!(text.contains(&format!("\n  {verb} ")), "{verb}: {text}");
        let own = rig.call(&["nri", "help", verb]);
        let own = String::from_utf8(own.stdout).unwrap();
        assert!(own.contains(&format!("Usage: nri-runc nri {verb}")), "{own}");
    }
    let wrong = rig.call(&["nri", "statsu"]);
    assert_eq!(wrong.status.code(), Some(2));
    let wrong = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.contains("Usage: nri-runc nri"), "{wrong}");
}

#[test]
fn help_fits_a_terminal_of_eighty_columns() {
    let rig = Rig::new("");
    let text = String::from_utf8(rig.call(&["nri", "help"]).stdout).unwrap();
    assert!(text.lines().count() > 15, "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
}

/// A program that is called by an engine stays the runtime's: its help is not ours to change.
#[test]
fn help_of_the_runtime_is_the_runtimes_own() {
    let rig = Rig::new("");
    let output = rig.call(&["--help"]);
    succeeds(&output);
    assert_eq!((output.stdout.len(), output.stderr.len()), (0, 0), "the rig's runtime is silent");
    assert!(rig.read("fake/argv").starts_with("--help\n"), "{}", rig.read("fake/argv"));
    assert!(Path::new(&rig.path("run")).read_dir().is_err(), "nothing was started or written");
}
