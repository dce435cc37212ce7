// SPDX-License-Identifier: Apache-2.0
//! `events`: the events of a node as lines for other programs; readers that are slow, too many or
//! reconnecting; and the clients of docs/events.md.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use nri_runc::testing::link::{DaemonResponse, PROTOCOL, WrapperRequest, read_frame};
use serde_json::{Value, json};
use test_support::adjustments::update_of;
use test_support::{BUNDLE, Script, Started, TestHost, fails, skip, started, succeeds, wait_until};

use crate::rules::pod_container;

fn read(text: &str) -> Vec<Value> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn events(host: &TestHost, words: &[&str]) -> Vec<Value> {
    let output = host.call(&[&["nri", "events", "-o", "json"], words].concat());
    succeeds(&output);
    read(&String::from_utf8(output.stdout).unwrap())
}

/// Each event as its kind and subject.
fn lines_of(events: &[Value]) -> Vec<String> {
    let about = |event: &Value| {
        let of = |member: &str| event[member].as_str().unwrap().to_owned();
        let parts = ["kind", "plugin", "pod", "container_id"].map(of);
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    };
    events.iter().map(about).collect()
}

/// A reader that follows, and its output.
struct Following(Started);

impl Following {
    fn begin(host: &TestHost, words: &[&str]) -> Self {
        let out = std::fs::File::create_new(host.path("followed")).unwrap();
        let words = [&["nri", "events", "-o", "json", "--follow"], words].concat();
        Self(Started(host.spawn_kept(&words, Some(out.into()), "follower.err")))
    }

    fn read(host: &TestHost) -> Vec<Value> {
        read(&host.read("followed"))
    }
}

fn live(host: &TestHost, id: &str) {
    succeeds(&host.create(id));
    succeeds(&host.verb(&["start", id]));
    succeeds(&host.verb(&["kill", id, "9"]));
    succeeds(&host.verb(&["delete", id]));
}

#[test]
fn a_containers_events_are_streamed_exactly_once() {
    let host = started("");
    let _plugin = host.plugin("10", "a", Script::default());
    live(&host, "c1");
    wait_until("the pod is over", || {
        lines_of(&events(&host, &[])).contains(&"pod_removed c1".into())
    });
    let life = events(&host, &[]);
    let wanted = [
        "connected 10-a",
        "pod_running c1",
        "created c1 c1",
        "started c1 c1",
        "exited c1 c1",
        "removed c1 c1",
        "pod_stopped c1",
        "pod_removed c1",
    ];
    assert_eq!(lines_of(&life), wanted);
    // No engine has written it, and a `delete` may come before the kernel's report.
    let codes = [Value::Null, json!(137)];
    let code = life[4].get("exit_code");
    assert!(code.is_some_and(|code| codes.contains(code)), "{}", life[4]);
    let rest = events(&host, &["--since", life[5]["cursor"].as_str().unwrap()]);
    assert_eq!(rest, life[6..]);
    // A refused container has neither a created nor a removed event.
    let _guard = host.plugin("20", "guard", Script { refuses: Some("no"), ..Script::default() });
    fails(&host.create("c2"), &["20-guard refused"]);
    let last = life[7]["cursor"].as_str().unwrap();
    let rest = events(&host, &["--since", last]);
    assert_eq!(lines_of(&rest)[0], "connected 20-guard");
    let refused = rest.iter().find(|event| event["kind"] == "refused").unwrap();
    assert_eq!((&refused["event"], &refused["plugin"]), (&json!("create"), &json!("20-guard")));
    assert!(refused["reason"].as_str().unwrap().contains("no"), "{refused}");
    assert!(rest.iter().all(|event| event["kind"] != "created" && event["kind"] != "removed"));
}

/// The shim writes the file with the exit code into the bundle.
#[test]
fn the_end_of_a_container_has_its_exit_code() {
    let host = started("");
    let bundle = "io.containerd.runtime.v2.task/default/c1";
    std::fs::create_dir_all(host.path(bundle)).unwrap();
    host.write(&format!("{bundle}/config.json"), BUNDLE);
    succeeds(&host.create_from(bundle, "c1"));
    succeeds(&host.verb(&["start", "c1"]));
    let pid: u64 = host.read("pid").trim().parse().unwrap();
    let exit = json!({"Timestamp": "2026-01-02T03:04:05Z", "Pid": pid, "Status": 137});
    host.write(&format!("{bundle}/exit.json"), &exit.to_string());
    succeeds(&host.verb(&["kill", "c1", "9"]));
    let ended = || events(&host, &["--kind", "exited"]);
    wait_until("it has ended", || !ended().is_empty());
    assert_eq!(ended()[0]["exit_code"], 137, "{:?}", ended());
    succeeds(&host.verb(&["delete", "c1"]));
    let removed = || events(&host, &["--kind", "removed"]);
    wait_until("it is removed", || !removed().is_empty());
    assert_eq!(removed()[0]["exit_code"], 137, "{:?}", removed());
}

#[test]
fn updates_are_events_but_repeated_values_are_not() {
    let host = started("");
    for id in ["c1", "c2"] {
        succeeds(&host.create(id));
        succeeds(&host.verb(&["start", id]));
    }
    let updates = vec![update_of("c2", &json!({"cpu": {"shares": 512}}))];
    let asking = Script { updates, ..Script::default() };
    let _plugin = host.plugin("10", "a", asking);
    let root = host.path("root").display().to_string();
    let update = ["--root", &root, "update", "--resources", "-", "c1"];
    for _repeated in 0..2 {
        succeeds(&host.call_with(&update, r#"{"cpu":{"shares":77}}"#));
    }
    let updated = || {
        let mut events = events(&host, &["--kind", "updated"]);
        events.retain(|event| event["kind"] == "updated");
        lines_of(&events)
    };
    succeeds(&host.verb(&["kill", "c1", "9"]));
    wait_until("the other is updated", || updated().len() >= 2);
    let mut updated = updated();
    updated.sort();
    assert_eq!(updated, ["updated 10-a c2 c2", "updated c1 c1"]);
}

#[test]
fn a_plugin_that_exits_has_a_disconnected_event() {
    let host = started("");
    let _gone = host.plugin("30", "leaves", Script { leaves: true, ..Script::default() });
    let _refused_or_created = host.create("c1");
    let left = || lines_of(&events(&host, &["--kind", "disconnected"]));
    wait_until("it has left", || !left().is_empty());
    assert_eq!(left(), ["disconnected 30-leaves"]);
}

#[test]
fn filters_of_pods_select_what_a_follower_prints() {
    let host = started("");
    let follower = Following::begin(&host, &["-n", "shop", "--kind", "created,exited"]);
    for (namespace, id) in [("stage", "d1"), ("shop", "c1")] {
        let bundle = pod_container(&host, namespace, id);
        succeeds(&host.create_from(&bundle, id));
    }
    wait_until("an event is printed", || !Following::read(&host).is_empty());
    let event = &Following::read(&host)[0];
    assert_eq!((&event["namespace"], &event["container_id"]), (&json!("shop"), &json!("c1")));
    follower.0.signal(Signal::SIGTERM);
    let page = host.call(&["nri", "events", "--pod", "shop/pod-of-c1"]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.starts_with("TIME ") && !page.contains("stage"), "{page}");
    for (words, code, line) in [
        (&["--since", "yesterday"][..], 2, "expected the cursor of an event"),
        (&["--kind", "died"], 2, "possible values"),
    ] {
        let output = host.call(&[&["nri", "events"], words].concat());
        assert_eq!(output.status.code(), Some(code));
        assert!(String::from_utf8_lossy(&output.stderr).contains(line), "{words:?}");
    }
    assert_eq!(
        String::from_utf8(host.call(&["nri", "events", "--since", "now"]).stdout).unwrap(),
        "no events\n"
    );
}

#[test]
fn a_follower_continues_after_a_restart_and_notes_the_gap() {
    let mut host = started("");
    let _follower = Following::begin(&host, &[]);
    live(&host, "c1");
    wait_until("the life is printed", || {
        lines_of(&Following::read(&host)).contains(&"pod_removed c1".into())
    });
    host.kill_daemon();
    wait_until("it is missed", || host.read("follower.err").contains("waiting for it"));
    host.start_daemon();
    live(&host, "c2");
    wait_until("the next life is printed", || {
        lines_of(&Following::read(&host)).contains(&"pod_removed c2".into())
    });
    let received = lines_of(&Following::read(&host));
    let at = received.iter().position(|event| event == "lost").unwrap();
    assert_eq!((at, &*received[at + 1]), (7, "pod_running c2"), "{received:?}");
    assert_eq!(Following::read(&host)[at]["lost"], Value::Null);
    assert_eq!(host.read("follower.err").lines().count(), 1, "{}", host.read("follower.err"));
}

#[test]
fn a_follower_without_events_continues_and_notes_the_gap() {
    for since in ["now", "0"] {
        let mut host = started("");
        let follower = Following::begin(&host, &["--since", since]);
        let descriptors = format!("/proc/{}/fd", follower.0.id());
        wait_until("it is connected", || {
            let mut all = std::fs::read_dir(&descriptors).unwrap().flatten();
            all.any(|one| {
                let target = std::fs::read_link(one.path()).unwrap_or_default();
                target.display().to_string().starts_with("socket:")
            })
        });
        // The daemon answers requests in order.
        host.admin(&["status"]);
        host.kill_daemon();
        wait_until("it is missed", || host.read("follower.err").contains("waiting for it"));
        host.start_daemon();
        live(&host, "c1");
        let wanted = ["lost", "pod_running c1"];
        wait_until("both are printed", || Following::read(&host).len() >= wanted.len());
        assert_eq!(lines_of(&Following::read(&host))[..2], wanted, "{since}");
    }
}

#[test]
fn a_paused_reader_delays_nothing_and_gets_a_lost_line() {
    let host = started("");
    let follower = Following::begin(&host, &[]);
    live(&host, "first");
    wait_until("it follows", || !Following::read(&host).is_empty());
    follower.0.signal(Signal::SIGSTOP);
    // A tenant chooses the longest labels that an event has.
    let keys = json!({"nri-runc.dev/pod-namespace": "shop", "nri-runc.dev/pod-name": "web",
        "nri-runc.dev/pod-id": "long", "nri-runc.dev/label/app": "\u{1b}".repeat(4000)});
    let long = BUNDLE.replacen('{', &format!("{{\"annotations\": {keys},"), 1);
    host.write("bundle/config.json", &long);
    let mut count = 0;
    let metrics = || String::from_utf8(host.call(&["nri", "metrics"]).stdout).unwrap();
    while events(&host, &[]).first().is_none_or(|event| event["pod"] == "first") || count < 20 {
        live(&host, &format!("c{count}"));
        count += 1;
    }
    assert!(metrics().contains("nri_runc_events_lost_total 0"), "it has not come to it");
    follower.0.signal(Signal::SIGCONT);
    let last = format!("removed web c{}", count - 1);
    wait_until("it has read the rest", || lines_of(&Following::read(&host)).contains(&last));
    let read = Following::read(&host);
    let lost = read.iter().find(|event| event["kind"] == "lost").unwrap();
    let missed = lost["lost"].as_u64().unwrap();
    let numbers = read.iter().map(|event| {
        event["cursor"].as_str().unwrap().split_once('-').unwrap().1.parse::<u64>().unwrap()
    });
    let numbers: Vec<u64> = numbers.collect();
    assert_eq!(
        numbers.last().unwrap() - missed + 1,
        numbers.len() as u64,
        "each is there or counted"
    );
    assert!(metrics().contains(&format!("nri_runc_events_lost_total {missed}")), "{missed}");
}

/// Sends a request as a foreign program does; returns the first response.
fn ask(host: &TestHost, question: &Value) -> (DaemonResponse, UnixStream) {
    let mut stream = UnixStream::connect(host.path("run/daemon.sock")).unwrap();
    let question = WrapperRequest {
        protocol: PROTOCOL,
        admin: question.to_string(),
        ..WrapperRequest::default()
    };
    stream.write_all(&question.encode()).unwrap();
    let frame = read_frame(&mut stream).unwrap();
    (DaemonResponse::decode(&frame).unwrap(), stream)
}

#[test]
fn excess_readers_and_invalid_cursors_are_refused() {
    let host = started("");
    let question = json!({"verb": "events", "follow": true});
    let mut streams = Vec::new();
    let refusal = loop {
        match ask(&host, &question) {
            (DaemonResponse::Admin(_), stream) => streams.push(stream),
            (DaemonResponse::Refuse(line), _) => break line,
            (other, _) => panic!("{other:?}"),
        }
    };
    assert_eq!(streams.len(), 16);
    assert!(refusal.contains("16 programs already read events"), "{refusal}");
    succeeds(&host.call(&["nri", "events"]));
    drop(streams.pop());
    wait_until("there is room again", || {
        matches!(ask(&host, &question).0, DaemonResponse::Admin(_))
    });
    drop(streams);
    for since in ["", "5m", "x-1", "-"] {
        let (answer, _) = ask(&host, &json!({"verb": "events", "since": since, "follow": true}));
        let DaemonResponse::Refuse(line) = answer else { panic!("{since}: {answer:?}") };
        assert!(line.contains("not the cursor of an event"), "{line}");
    }
    succeeds(&host.create("c1"));
}

/// The program in this language on the page.
fn of_page(language: &str) -> String {
    let page = std::fs::read_to_string(test_support::program::project().join("docs/events.md"));
    let page = page.unwrap();
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("\n```").unwrap().0.to_owned() + "\n"
}

/// Runs the program, compiled by `build` if given; `None` after printing why it is skipped.
fn client(host: &TestHost, language: &str, file: &str, build: &[&str]) -> Option<Started> {
    host.write(file, &of_page(language));
    let (source, program) = (host.path(file), host.path("client"));
    let mut client = Command::new(&program);
    match build.split_first() {
        None => {
            client = Command::new("python3");
            client.arg(&source);
        }
        Some((compiler, words)) => {
            let mut compile = Command::new(compiler);
            compile.args(words).arg("-o").arg(&program).arg(&source).env("GOFLAGS", "-mod=mod");
            match compile.current_dir(host.path("")).output() {
                Err(why) => return lacks(language, &why.to_string()),
                Ok(built) => {
                    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
                }
            }
        }
    }
    let out = std::fs::File::create_new(host.path("printed")).unwrap();
    client.arg(host.path("run/daemon.sock")).stdin(Stdio::null()).stdout(out);
    match client.spawn() {
        Ok(client) => Some(Started(client)),
        Err(why) => lacks(language, &why.to_string()),
    }
}

fn lacks(language: &str, why: &str) -> Option<Started> {
    let why = format!("no {language} for the client of docs/events.md: {why}");
    if language == "go" {
        skip::go_lacks(&why);
    } else {
        skip::machine_lacks(&why);
    }
    None
}

/// Checks that the client prints the events of a daemon, and those of the next one.
fn follows_two_daemons(language: &str, file: &str, build: &[&str]) {
    let mut host = started("");
    live(&host, "c1");
    let Some(_client) = client(&host, language, file, build) else { return };
    let prints = |host: &TestHost, line: &str| {
        wait_until(line, || host.read("printed").lines().any(|printed| printed.trim() == line));
    };
    prints(&host, "pod_removed c1");
    host.kill_daemon();
    host.start_daemon();
    live(&host, "c2");
    prints(&host, "pod_removed c2");
    let printed = host.read("printed");
    let lines: Vec<&str> = printed.lines().map(str::trim).collect();
    assert_eq!(lines[1..3], ["created c1 c1", "started c1 c1"], "{printed}");
    assert_eq!(lines[7..9], ["lost", "pod_running c2"], "{printed}");
}

#[test]
fn the_python_client_in_events_md_follows_two_daemons() {
    follows_two_daemons("python", "client.py", &[]);
}

#[test]
fn the_go_client_in_events_md_follows_two_daemons() {
    follows_two_daemons("go", "client.go", &["go", "build"]);
}

#[test]
fn the_rust_client_in_events_md_follows_two_daemons() {
    follows_two_daemons("rust", "client.rs", &["rustc", "--edition=2024"]);
}
