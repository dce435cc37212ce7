// SPDX-License-Identifier: Apache-2.0
//! The log and the audit log in a real journal: operators filter them by fields and by priority,
//! `audit` reads them, and messages of another user are not taken for nri-runc's. It needs systemd
//! as the first process: the second boot of `make vm`.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use test_support::adjustments::{limits_processes, sets};
use test_support::tools;

use super::scopes::{Scopes, unstarted_with};
use super::{succeeds, wait_until};

const CONFIG: &str = "[nri]\nplugin_request_timeout = \"20s\"\n[log]\ntarget = \"journal\"\n\
    [audit]\ntarget = \"journal\"\n[[rule]]\nname = \"no limits\"\nplugins = [\"limits\"]\n\
    deny = [\"PidsLimit\"]\n";

const FORGED: &str = "{\"version\":1,\"action\":\"applied\",\"reason\":\"forged\"}";

/// An unprivileged user.
const NOBODY: u32 = 65534;

fn journalctl(words: &[&str]) -> String {
    let mut command = Command::new("journalctl");
    let output: Output = command.args(["--quiet", "--output=cat"]).args(words).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A machine with a journal, and a daemon that writes into it.
fn journaled() -> Option<Scopes> {
    let mut scopes = unstarted_with("runc", CONFIG)?;
    scopes.systemctl(&["start", "systemd-journald.socket"]);
    scopes.place.host.start_daemon();
    Some(scopes)
}

/// Waits for a line of the audit log about a container with this action, and returns its lines.
fn audited(scopes: &Scopes, id: &str, action: &str) -> Vec<Value> {
    let mut lines = Vec::new();
    wait_until("the line is in the journal", || {
        lines = scopes.place.host.admin(&["audit", "--container", id]).as_array().unwrap().clone();
        lines.iter().any(|line| line["action"] == action)
    });
    lines
}

#[test]
fn refusals_are_found_in_the_journal_by_field_and_by_priority() {
    let Some(scopes) = journaled() else { return };
    let _plugin = scopes.place.host.plugin("10", "limits", limits_processes(42));
    let id = format!("{}refused", scopes.prefix());
    assert!(!scopes.create(&id, &json!({})).status.success());
    let refused = audited(&scopes, &id, "refused");
    assert_eq!(
        (&refused[0]["rule"], &refused[0]["plugin"]),
        (&json!("no limits"), &json!("10-limits"))
    );
    let container = format!("NRI_CONTAINER_ID={id}");
    let found = journalctl(&["-t", "nri-runc-audit", "NRI_RULE=no limits", &container]);
    assert_eq!(found.lines().count(), 1, "{found}");
    assert_eq!(serde_json::from_str::<Value>(&found).unwrap()["action"], "refused");
    assert_eq!(journalctl(&["-t", "nri-runc-audit", "NRI_RULE=another", &container]), "");
    wait_until("the error is in the journal", || {
        let errors = journalctl(&["-t", "nri-runc", "-p", "err"]);
        errors.lines().any(|line| line.contains(&id) && line.contains("no limits"))
    });
    let errors = journalctl(&["-t", "nri-runc", "-p", "err"]);
    assert!(!errors.contains("is synchronized"), "what is no error is not among them: {errors}");
}

#[test]
fn another_users_journal_entry_is_not_an_audit_line() {
    let Some(scopes) = journaled() else { return };
    let _plugin = scopes.place.host.plugin("20", "env", sets("GREETING", "hello"));
    let id = format!("{}applied", scopes.prefix());
    succeeds(&scopes.create(&id, &json!({})));
    // By whichever of these tests runs first.
    let _is_there = std::os::unix::fs::symlink("/run/systemd/journal/dev-log", "/dev/log");
    let busybox = tools::find_in_guest(&["busybox"]).unwrap().join("busybox");
    let forging = Command::new(busybox)
        .args(["logger", "-t", "nri-runc-audit", FORGED])
        .uid(NOBODY)
        .stdout(Stdio::null())
        .output();
    succeeds(&forging.unwrap());
    wait_until("the forged line has arrived", || {
        journalctl(&["-t", "nri-runc-audit"]).lines().any(|line| line == FORGED)
    });
    let lines = audited(&scopes, &id, "applied");
    assert_eq!(
        (&lines[0]["field"], &lines[0]["to"]),
        (&json!("process.env[GREETING]"), &json!("(hidden)"))
    );
    let all = scopes.place.host.admin(&["audit"]);
    let all = all.as_array().unwrap();
    assert!(all.iter().all(|line| line["reason"] != "forged"), "{all:?}");
}

#[test]
fn audit_follows_a_real_journal() {
    let Some(scopes) = journaled() else { return };
    let host = &scopes.place.host;
    let _plugin = host.plugin("10", "limits", limits_processes(42));
    let [before, after] = ["before", "after"].map(|name| format!("{}{name}", scopes.prefix()));
    assert!(!scopes.create(&before, &json!({})).status.success());
    audited(&scopes, &before, "refused");
    host.write("followed", "");
    let followed = std::fs::File::options().append(true).open(host.path("followed")).unwrap();
    let words = ["nri", "audit", "--follow", "--plugin", "limits", "-o", "json"];
    let mut follow = host.spawn_kept(&words, Some(Stdio::from(followed)), "follow.err");
    let has = |id: &str| {
        let lines = host.read("followed");
        lines.lines().filter(|line| line.contains("\"refused\"") && line.contains(id)).count()
    };
    wait_until("what is there is printed", || has(&before) == 1);
    assert_eq!(has(&after), 0);
    assert!(!scopes.create(&after, &json!({})).status.success());
    wait_until("what is written then is printed", || has(&after) == 1);
    assert!(follow.try_wait().unwrap().is_none(), "{}", host.read("follow.err"));
    follow.kill().unwrap();
    follow.wait().unwrap();
    assert_eq!((has(&before), host.read("follow.err").as_str()), (1, ""));
}
