// SPDX-License-Identifier: Apache-2.0
//! The audit log: a line for each value that a plugin changed, that was refused or skipped, and for
//! each plugin that connects, disconnects or is refused; full disks and hostile tenants; `audit`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use nri_runc::plugin::api;
use serde_json::{Value, json};
use test_support::adjustments::{env, sets, update_of};
use test_support::{Script, Started, TestHost, succeeds, wait_until};

/// A host that keeps an audit log, with `more` lines of configuration.
fn host(more: &str) -> TestHost {
    let mut host = TestHost::default();
    let path = host.path("log/audit.log");
    let audit = format!("[audit]\ntarget = \"file\"\npath = \"{}\"\n{more}", path.display());
    host.configure(&host.path("fake/runc"), &audit);
    host.start_daemon();
    host
}

fn lines(host: &TestHost, filter: &[&str]) -> Vec<Value> {
    let lines = host.admin(&[&["audit"], filter].concat());
    lines.as_array().cloned().unwrap_or_default()
}

/// Waits for lines with this action, which a thread of the daemon writes, and returns them.
fn with_action(host: &TestHost, action: &str) -> Vec<Value> {
    let mut found = Vec::new();
    wait_until("the line is written", || {
        found = lines(host, &[]);
        found.retain(|line| line["action"] == action);
        !found.is_empty()
    });
    found
}

fn fields(lines: &[Value]) -> Vec<&str> {
    let mut fields: Vec<&str> = lines.iter().filter_map(|line| line["field"].as_str()).collect();
    fields.sort_unstable();
    fields
}

fn update(host: &TestHost, id: &str, resources: &str) {
    let root = host.path("root").display().to_string();
    succeeds(&host.call_with(&["--root", &root, "update", "--resources", "-", id], resources));
}

#[test]
fn each_applied_value_is_a_line_with_its_plugin_and_no_secret() {
    let host = host("");
    let mut script = sets("TOKEN", "s3cret");
    script.adjust.annotations = [("a".to_owned(), "b".to_owned())].into();
    let _plugin = host.plugin("10", "a", script);
    succeeds(&host.create("c1"));
    let applied = with_action(&host, "applied");
    assert_eq!(fields(&applied), ["annotations[a]", "process.env[TOKEN]"], "{applied:?}");
    for line in &applied {
        assert_eq!(line["version"], 1);
        assert_eq!((&line["plugin"], &line["event"]), (&json!("10-a"), &json!("CreateContainer")));
        assert_eq!((&line["container_id"], &line["pod_id"]), (&json!("c1"), &json!("c1")));
        assert_eq!(line["engine"], "plain");
        assert!(line["time"].as_str().unwrap().ends_with('Z'));
        let is_env = line["field"] != "annotations[a]";
        assert_eq!(line["to"], if is_env { "(hidden)" } else { "b" });
        assert_eq!(line["from"], Value::Null);
    }
    let file = host.path("log/audit.log").metadata().unwrap();
    assert_eq!(file.mode() & 0o777, 0o600);
    assert!(!host.read("log/audit.log").contains("s3cret"));
    let page = host.call(&["nri", "audit", "--container", "c1"]);
    succeeds(&page);
    let page = String::from_utf8(page.stdout).unwrap();
    let row = page.lines().find(|row| row.contains("annotations[a]")).unwrap();
    assert!(row.contains("applied       10-a") && row.ends_with("- -> b"), "{row}");
    assert!(page.starts_with("TIME  ") && page.matches("TIME").count() == 1, "{page}");
}

#[test]
fn values_never_in_force_have_no_applied_line() {
    let host = host("");
    let _sets = host.plugin("10", "a", sets("A1", "1"));
    let refuses = Script { refuses: Some("not today"), only: Some("c1"), ..Script::default() };
    let _refuses = host.plugin("20", "guard", refuses);
    assert!(!host.create("c1").status.success());
    let refused = with_action(&host, "refused");
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(
        (&refused[0]["plugin"], &refused[0]["event"]),
        (&json!("20-guard"), &json!("create"))
    );
    assert!(refused[0]["reason"].as_str().unwrap().contains("not today"));
    assert_eq!(refused[0]["container_id"], "c1");
    assert!(lines(&host, &[]).iter().all(|line| line["action"] != "applied"));
}

#[test]
fn an_update_without_a_cgroup_is_audited_as_skipped() {
    let host = host("");
    let script = Script {
        updates: vec![
            update_of("c1", &json!({"cpu": {"shares": 300}})),
            update_of("nobody", &json!({"cpu": {"shares": 300}})),
        ],
        ..Script::default()
    };
    let _plugin = host.plugin("10", "a", script);
    succeeds(&host.create("c1"));
    update(&host, "c1", r#"{"cpu": {"shares": 200}}"#);
    let applied = with_action(&host, "applied");
    assert_eq!(fields(&applied), ["linux.resources.cpu.shares"], "{applied:?}");
    let line = &applied[0];
    assert_eq!((&line["from"], &line["to"]), (&json!(1024), &json!(300)));
    assert_eq!((&line["plugin"], &line["event"]), (&json!("10-a"), &json!("UpdateContainer")));
    let skipped = with_action(&host, "skipped");
    assert_eq!(
        (&skipped[0]["plugin"], &skipped[0]["container_id"]),
        (&json!("10-a"), &json!("nobody"))
    );
}

#[test]
fn a_refused_field_is_a_line_with_the_field_and_the_rule() {
    let rule = "[[rule]]\nname = \"no env\"\nplugins = [\"a\"]\ndeny = [\"Env\"]\n";
    let host = host(&format!("{rule}[plugin.b]\ndeny = [\"Env\"]\n"));
    let member = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
    for (index, name, rule) in [("10", "a", "no env"), ("20", "b", "")] {
        let _plugin = host.plugin(index, name, Script { only: Some(name), ..sets("A", "1") });
        assert!(!host.create(name).status.success());
        wait_until("the line is written", || {
            let lines = lines(&host, &["--container", name]);
            let refused = lines.iter().find(|line| line["action"] == "refused");
            let printed = |line: &Value| ["plugin", "field", "rule"].map(|name| member(line, name));
            let wanted = [format!("{index}-{name}"), "Env".to_owned(), rule.to_owned()];
            refused.is_some_and(|line| printed(line) == wanted)
        });
    }
}

#[test]
fn a_value_refused_by_the_runtime_is_a_line_with_its_field() {
    let host = host("");
    let mut script = Script::default();
    let sysctl = [("kernel.shm_rmid_forced".to_owned(), "1".to_owned())].into();
    script.adjust.linux.mut_or_insert_default().sysctl = sysctl;
    let _plugin = host.plugin("10", "a", script);
    let words = "{\"level\":\"error\",\"msg\":\"sysctl kernel.shm_rmid_forced: no\"}\n";
    host.write("fake/fail", words);
    assert!(!host.create("c1").status.success());
    let refused = with_action(&host, "refused");
    assert_eq!((&refused[0]["plugin"], &refused[0]["event"]), (&json!("10-a"), &json!("create")));
    assert_eq!(refused[0]["field"], "linux.sysctl[kernel.shm_rmid_forced]");
    assert!(lines(&host, &[]).iter().all(|line| line["action"] != "applied"));
}

#[test]
fn a_skipped_plugin_has_an_audit_line() {
    let host = host("[plugin.a]\nrequest_timeout = \"3s\"\n");
    let _plugin = host.plugin("10", "a", Script { hangs: true, ..Script::default() });
    succeeds(&host.create("c1"));
    let skipped = with_action(&host, "skipped");
    assert_eq!(
        (&skipped[0]["plugin"], &skipped[0]["container_id"]),
        (&json!("10-a"), &json!("c1"))
    );
    assert_eq!(skipped[0]["event"], "CreateContainer");
    let gone = with_action(&host, "disconnected");
    assert_eq!(gone[0]["plugin"], "10-a");
}

#[test]
fn connected_disconnected_and_refused_plugins_are_audited() {
    let host = host("");
    let leaves = Script { leaves: true, ..Script::default() };
    let _plugin = host.plugin("10", "a", leaves);
    let connected = with_action(&host, "connected");
    assert_eq!(connected[0]["plugin"], "10-a");
    let why = connected[0]["reason"].as_str().unwrap();
    assert!(why.contains(&format!("process {}", std::process::id())), "{why}");
    succeeds(&host.create("c1"));
    assert_eq!(with_action(&host, "disconnected")[0]["plugin"], "10-a");
    std::fs::create_dir(host.path("plugins")).unwrap();
    host.put_program("broken", "#!/bin/sh\nexit 3\n");
    std::fs::rename(host.path("broken"), host.path("plugins/30-broken")).unwrap();
    let rejected = with_action(&host, "rejected");
    assert_eq!(rejected[0]["plugin"], "30-broken");
    assert!(rejected[0]["reason"].as_str().unwrap().contains("could not be started"));
}

#[test]
fn an_eviction_is_an_audit_line() {
    let host = host("");
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    let gone = api::ContainerEviction {
        container_id: "c1".to_owned(),
        reason: "room".to_owned(),
        ..Default::default()
    };
    let script = Script {
        updates: vec![update_of("c2", &json!({"cpu": {"shares": 300}}))],
        evicts: vec![gone],
        ..Script::default()
    };
    let _plugin = host.plugin("10", "a", script);
    succeeds(&host.create("c2"));
    update(&host, "c2", r#"{"cpu": {"shares": 200}}"#);
    let evicted = with_action(&host, "evicted");
    assert_eq!((&evicted[0]["plugin"], &evicted[0]["reason"]), (&json!("10-a"), &json!("room")));
    assert_eq!(evicted[0]["container_id"], "c1");
    let output = host.call(&["nri", "events", "-o", "json", "--kind", "evicted"]);
    let event: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&event["plugin"], &event["container_id"]), (&json!("10-a"), &json!("c1")));
}

#[test]
fn nothing_that_a_plugin_names_forges_a_line_or_moves_a_cursor() {
    let host = host("");
    let hostile = "x\n{\"action\":\"applied\",\"plugin\":\"00-forged\"}\r\u{1b}[2J\u{9b}\u{202e}";
    let mut script = Script::default();
    script.adjust.annotations = [(hostile.to_owned(), hostile.to_owned())].into();
    let _plugin = host.plugin("10", "a", script);
    succeeds(&host.create("c1"));
    let applied = with_action(&host, "applied");
    assert_eq!(applied.len(), 1, "{applied:?}");
    assert_eq!((&applied[0]["plugin"], &applied[0]["to"]), (&json!("10-a"), &json!(hostile)));
    let is_plain = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n'));
    assert!(is_plain(host.read("log/audit.log").as_bytes()));
    let page = host.call(&["nri", "audit"]).stdout;
    assert!(is_plain(&page), "{}", String::from_utf8_lossy(&page));
    assert_eq!(page.split(|byte| *byte == b'\n').filter(|row| row.starts_with(b"x")).count(), 0);
}

#[test]
fn a_failing_disk_fails_no_container_and_is_reported_once() {
    let mut host = TestHost::default();
    let path = host.path("log/audit.log");
    std::fs::create_dir_all(&path).unwrap(); // A folder at the path refuses writes like a full disk, even to root.
    let audit = format!("[audit]\ntarget = \"file\"\npath = \"{}\"\n", path.display());
    host.configure(&host.path("fake/runc"), &audit);
    host.start_daemon();
    let _plugin = host.plugin("10", "a", sets("A1", "1"));
    for id in ["c1", "c2", "c3"] {
        succeeds(&host.create(id));
    }
    let failures = || {
        let status = host.admin(&["status"]);
        let failures = status["failures"].as_array().cloned().unwrap_or_default();
        let is_its = |failure: &Value| failure["what"].as_str().unwrap().contains("audit log");
        failures.into_iter().filter(is_its).collect::<Vec<Value>>()
    };
    wait_until("status shows it", || !failures().is_empty());
    assert_eq!(failures()[0]["count"], 1, "{:?}", failures());
    let metrics = String::from_utf8(host.call(&["nri", "metrics"]).stdout).unwrap();
    assert!(metrics.contains("nri_runc_audit_lines_total{result=\"lost\"} 4"), "{metrics}");
    std::fs::remove_dir(&path).unwrap();
    succeeds(&host.create("c4"));
    let lost = with_action(&host, "lost");
    assert_eq!(lost[0]["reason"], "4 lines could not be written");
    let page = host.call(&["nri", "audit", "--container", "c4"]).stdout;
    let page = String::from_utf8_lossy(&page).into_owned();
    assert!(page.contains("lost") && page.contains("c4"), "a gap concerns every search: {page}");
}

#[test]
fn rotated_files_are_searched_too_and_their_number_is_limited() {
    let host = host("max_size = \"256Ki\"\nmax_files = 3\n");
    let mut script = Script::default();
    script.adjust.annotations =
        (0..400).map(|number| (format!("key{number}"), "v".repeat(500))).collect();
    let _plugin = host.plugin("10", "a", script);
    for number in 0..8 {
        succeeds(&host.create(&format!("c{number}")));
    }
    wait_until("the last line is written", || {
        lines(&host, &["--container", "c7"])
            .iter()
            .any(|line| line["field"] == "annotations[key399]")
            && lines(&host, &["--container", "c7"]).len() == 400
    });
    let mut names: Vec<_> = std::fs::read_dir(host.path("log")).unwrap().flatten().collect();
    names.sort_by_key(std::fs::DirEntry::file_name);
    let sizes: Vec<u64> = names.iter().map(|name| name.metadata().unwrap().len()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(sizes.iter().all(|size| *size <= 256 << 10), "{sizes:?}");
    let times: Vec<String> =
        lines(&host, &[]).iter().map(|line| line["time"].to_string()).collect();
    assert!(times.len() > 400 && times.is_sorted(), "oldest first, across files");
}

#[test]
fn audit_finds_lines_by_pod_plugin_and_time_without_a_daemon() {
    let mut host = host("");
    let mut script = sets("A1", "1");
    script.adjust.env.push(env("A2", "2"));
    let _plugin = host.plugin("10", "a", script);
    succeeds(&host.create("c1"));
    succeeds(&host.create("c2"));
    wait_until("both are written", || lines(&host, &["--pod", "c2"]).len() == 2);
    host.kill_daemon();
    assert_eq!(lines(&host, &["--pod", "c1"]).len(), 2);
    assert_eq!(lines(&host, &["--pod", "plain/c1"]).len(), 2, "{:?}", lines(&host, &[]));
    assert_eq!(lines(&host, &["--plugin", "a", "--since", "1h"]).len(), 5);
    assert_eq!(lines(&host, &["--since", "2999-01-01"]), Vec::<Value>::new());
    let none = host.call(&["nri", "audit", "--pod", "nobody"]);
    succeeds(&none);
    assert_eq!(String::from_utf8_lossy(&none.stdout), "no entries\n");
    let wrong = host.call(&["nri", "audit", "--since", "yesterday"]);
    assert_eq!(wrong.status.code(), Some(2));
    let text = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(text.contains("'yesterday' for '--since <TIME>': not an age such as 90s"), "{text}");
    // Several actions, and an unknown one.
    let actions = |words: &[&str]| -> Vec<Value> {
        lines(&host, words).iter().map(|line| line["action"].clone()).collect()
    };
    assert_eq!(actions(&["--action", "connected"]), ["connected"]);
    assert_eq!(actions(&["--action", "refused,applied", "--pod", "c1"]), ["applied"; 2]);
    assert_eq!(actions(&["--action", "refused"]), Vec::<Value>::new());
    let wrong = host.call(&["nri", "audit", "--action", "denied"]);
    assert_eq!(wrong.status.code(), Some(2));
    let text = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(text.contains("[possible values: applied, refused, would_refuse, "), "{text}");
}

#[test]
fn without_an_audit_log_the_audit_command_names_the_setting() {
    let mut host = TestHost::default();
    let path = host.path("log/audit.log");
    let audit = format!("[audit]\npath = \"{}\"\n", path.display());
    host.configure(&host.path("fake/runc"), &audit);
    host.start_daemon();
    let _plugin = host.plugin("10", "a", sets("A1", "1"));
    succeeds(&host.create("c1"));
    assert!(!path.exists());
    let output = host.call(&["nri", "audit"]);
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.contains("the audit log is off") && line.contains("audit.target"), "{line}");
}

#[test]
fn a_reload_opens_the_audit_log_and_closes_it() {
    let mut host = TestHost::default();
    host.start_daemon();
    let _plugin = host.plugin("10", "a", sets("A1", "1"));
    succeeds(&host.create("before"));
    let path = host.path("log/audit.log");
    let on = format!("[audit]\ntarget = \"file\"\npath = \"{}\"\n", path.display());
    host.configure(&host.path("fake/runc"), &on);
    succeeds(&host.call(&["nri", "reload"]));
    succeeds(&host.create("while"));
    assert_eq!(with_action(&host, "applied")[0]["container_id"], "while");
    host.configure(&host.path("fake/runc"), &on.replace("\"file\"", "\"\""));
    succeeds(&host.call(&["nri", "reload"]));
    succeeds(&host.create("after"));
    let ids: Vec<Value> =
        lines(&host, &[]).into_iter().map(|line| line["container_id"].clone()).collect();
    assert_eq!(ids, ["while"]);
}

/// `audit --follow`: its lines; its standard error is in the file `follow.err`.
struct Follower {
    process: Started,
    lines: Receiver<String>,
}

impl Follower {
    fn start(host: &TestHost, words: &[&str]) -> Self {
        let words = [&["nri", "audit", "--follow"], words].concat();
        Self::of(|output| host.spawn_kept(&words, Some(output), "follow.err"))
    }

    /// Starts `audit --follow` on the journal that a program in this folder prints.
    fn on_journal(host: &TestHost, folder: &str) -> Self {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = std::process::Command::new(test_support::program::nri_runc());
        command.args(["nri", "audit", "--follow"]).stdin(Stdio::null());
        command.env("PATH", format!("{}:{path}", host.path(folder).display()));
        command.env("NRI_RUNC_CONFIG", host.path("config.toml"));
        command.stderr(std::fs::File::create(host.path("follow.err")).unwrap());
        Self::of(|output| command.stdout(output).spawn().unwrap())
    }

    fn of(spawn: impl FnOnce(Stdio) -> Child) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        let process = Started(spawn(Stdio::from(writer)));
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(reader).lines().map_while(Result::ok);
            lines.all(|line| sender.send(line).is_ok())
        });
        Self { process, lines }
    }

    /// Drops the receiver: at the next line the reading thread ends and closes the command's
    /// output.
    fn drop_receiver(&mut self) {
        self.lines = std::sync::mpsc::channel().1;
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(120)).expect("a line is printed")
    }

    /// Waits for the end; returns the exit code and the standard error.
    fn ends(mut self, host: &TestHost) -> (Option<i32>, String) {
        wait_until("it ends", || self.process.try_wait().unwrap().is_some());
        (self.process.wait().unwrap().code(), host.read("follow.err"))
    }
}

#[test]
fn follow_prints_old_lines_and_then_new_ones_across_rotations() {
    let host = host("max_size = \"256Ki\"\nmax_files = 8\n");
    let mut script = Script::default();
    script.adjust.annotations =
        (0..300).map(|number| (format!("key{number}"), "v".repeat(500))).collect();
    let _plugin = host.plugin("10", "a", script);
    succeeds(&host.create("c0"));
    with_action(&host, "applied");
    let follower = Follower::start(&host, &["--plugin", "a", "-o", "json"]);
    let next = || -> Value { serde_json::from_str(&follower.line()).unwrap() };
    assert_eq!(next()["action"], "connected");
    for id in ["c0", "c1", "c2"] {
        if id != "c0" {
            succeeds(&host.create(id));
        }
        for number in 0..300 {
            let line = next();
            assert_eq!(
                (&line["container_id"], &line["action"]),
                (&json!(id), &json!("applied")),
                "{number}"
            );
        }
    }
    assert!(host.path("log/audit.log.2").exists(), "files were set aside meanwhile");
}

#[test]
fn follow_waits_for_the_first_line_and_ends_with_its_reader() {
    let host = host("");
    let mut follower = Follower::start(&host, &["--pod", "c1"]);
    let _plugin = host.plugin("10", "a", sets("A1", "1"));
    succeeds(&host.create("c2"));
    succeeds(&host.create("c1"));
    assert!(follower.line().starts_with("TIME "));
    let line = follower.line();
    assert!(line.contains("plain/c1") && line.ends_with("- -> (hidden)"), "{line}");
    follower.drop_receiver();
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    succeeds(&host.create("c1"));
    let (code, printed) = follower.ends(&host);
    assert_eq!((code, printed.as_str()), (Some(0), ""));
}

#[test]
fn follow_fails_where_no_log_is_kept_or_a_prefix_means_several() {
    let mut host = TestHost::default();
    let path = host.path("log/audit.log");
    let (code, printed) = Follower::start(&host, &[]).ends(&host);
    assert!(code == Some(1) && printed.contains("the audit log is off"), "{code:?} {printed}");
    let audit = format!("[audit]\ntarget = \"file\"\npath = \"{}\"\n", path.display());
    host.configure(&host.path("fake/runc"), &audit);
    host.start_daemon();
    let _plugin = host.plugin("10", "a", sets("A1", "1"));
    succeeds(&host.create("abc1"));
    with_action(&host, "applied");
    let follower = Follower::start(&host, &["--container", "abc"]);
    assert!(follower.line().starts_with("TIME ") && follower.line().contains("abc1"));
    succeeds(&host.create("abc2"));
    let (code, printed) = follower.ends(&host);
    assert!(
        code == Some(1) && printed.contains("the ID prefix is ambiguous: 2 containers"),
        "{printed}"
    );
}

#[test]
fn follow_reads_a_growing_journal_and_ends_with_its_reader() {
    let host = TestHost::default();
    host.configure(&host.path("fake/runc"), "[audit]\ntarget = \"journal\"\n");
    let journal = host.path("journal").display().to_string();
    let printed = host.path("said").display().to_string();
    host.put_program(
        "fake/journalctl",
        &format!("#!/bin/sh\necho \"$$ $*\" >'{printed}'\nexec tail -n +1 -f '{journal}'\n"),
    );
    let line = |plugin: &str| format!("{{\"action\":\"connected\",\"plugin\":\"{plugin}\"}}\n");
    host.write("journal", &line("10-a"));
    let append = |text: &str| {
        let mut file = std::fs::File::options().append(true).open(&journal).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    let mut follower = Follower::on_journal(&host, "fake");
    assert!(follower.line().starts_with("TIME "));
    assert!(follower.line().ends_with("connected     10-a              -"));
    append("no line of ours\n");
    append(&line("20-b"));
    assert!(follower.line().ends_with("connected     20-b              -"));
    let words = host.read("said");
    assert!(words.contains("--follow --lines=all") && words.contains("_UID="), "{words}");
    follower.drop_receiver();
    append(&line("30-c"));
    let (code, errors) = follower.ends(&host);
    assert_eq!(
        (code, errors.as_str()),
        (Some(0), "nri-runc: 1 line of the audit log could not be read [NR485]\n")
    );
    let journalctl = words.split(' ').next().unwrap().to_owned();
    assert!(!std::path::Path::new("/proc").join(journalctl).exists(), "journalctl goes with it");
}

#[test]
fn follow_fails_if_journalctl_fails() {
    let host = TestHost::default();
    host.configure(&host.path("fake/runc"), "[audit]\ntarget = \"journal\"\n");
    host.put_program("fake/journalctl", "#!/bin/sh\nexit 3\n");
    let (code, printed) = Follower::on_journal(&host, "fake").ends(&host);
    assert!(code == Some(1) && printed.contains("journalctl failed (exit status: 3)"), "{printed}");
}

#[test]
fn follow_in_yaml_is_a_document_for_each_line() {
    let host = host("");
    let _plugin = host.plugin("10", "a", sets("A1", "1"));
    let follower = Follower::start(&host, &["-o", "yaml"]);
    assert_eq!((follower.line().as_str(), follower.line().as_str()), ("---", "version: 1"));
}
