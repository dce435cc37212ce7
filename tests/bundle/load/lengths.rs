// SPDX-License-Identifier: Apache-2.0
//! Texts and lists whose length a plugin or a tenant chooses, with the built binary: a refusal stays a
//! refusal, a registration costs little, an operator sees everything, and the notes of operations without
//! a daemon are bounded.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use nri_runc::plugin::{Event, api};
use protobuf::Message as _;
use serde_json::{Map, Value, json};
use test_support::{
    BUNDLE, BUSY, Script, TestHost, in_status, is_synchronized, started, wait_until,
};

use crate::{refused, succeeds};

#[test]
fn a_refusal_of_any_length_refuses_the_create() {
    for length in [400 << 10, 3 << 20] {
        let host = started(BUSY);
        let phrase = "is a directory ";
        let long: &'static str = Box::leak(phrase.repeat(length / phrase.len()).into_boxed_str());
        let _plugin =
            host.plugin("10", "guard", Script { refuses: Some(long), ..Script::default() });
        let cut = format!("({} bytes)", long.len());
        refused(&host, &host.create("c1"), &["10-guard refused", "is_a_directory", &cut]);
        let plugin = host.admin(&["plugins"])[0].clone();
        assert_eq!((&plugin["timeouts"], &plugin["failures"]), (&json!(0), &json!(1)), "{plugin}");
        let explained = host.admin(&["explain", "c1"]).to_string();
        assert!(explained.contains(&cut) && explained.len() < 64 << 10, "{}", explained.len());
        let logged: Vec<usize> = host.read("daemon.err").lines().map(str::len).collect();
        assert!(logged.iter().all(|line| *line < 64 << 10), "{logged:?}");
    }
}

#[test]
fn a_validators_rejection_of_any_length_refuses_the_create() {
    let host = started(BUSY);
    let rejects = Some("no such process ".repeat(200_000));
    let events = Some(Event::ValidateContainerAdjustment.bit());
    let script = Script { rejects, events, ..Script::default() };
    let _plugin = host.plugin("10", "judge", script);
    refused(&host, &host.create("c1"), &["10-judge rejected", "(3200000 bytes)"]);
}

/// A ttRPC message in one frame of the trunk, of any length.
fn frame(connection: u32, number: u32, kind: u8, message: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| u32::try_from(bytes).unwrap().to_be_bytes();
    let header = [&length(message.len())[..], &number.to_be_bytes(), &[kind, 0]].concat();
    let frame = [&connection.to_be_bytes()[..], &length(header.len() + message.len())].concat();
    [&frame, &header, message].concat()
}

/// A refusal with this length in ttRPC's count.
fn refusal(length: usize) -> Vec<u8> {
    let body = |words: usize| {
        let status = ttrpc::get_status(ttrpc::Code::UNKNOWN, "n".repeat(words));
        let answer = ttrpc::Response { status: Some(status).into(), ..Default::default() };
        answer.write_to_bytes().unwrap()
    };
    body(length - (body(length).len() - length))
}

/// A plugin without a library that answers each CreateContainer with these bytes in one frame.
fn answers_creates(mut stream: UnixStream, answer: &[u8]) -> std::io::Result<()> {
    let number = |bytes: &[u8]| bytes[..4].iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    stream.write_all(&registration(8))?;
    let mut requests = Vec::new();
    loop {
        let mut header = [0; 8];
        stream.read_exact(&mut header)?;
        let mut payload = vec![0; usize::try_from(number(&header[4..])).unwrap()];
        stream.read_exact(&mut payload)?;
        if number(&header) != 1 {
            continue; // The response to its registration.
        }
        requests.extend(payload);
        let whole = 10 + requests.first_chunk().map_or(0, |length: &[u8; 4]| number(length));
        let whole = usize::try_from(whole).unwrap();
        if requests.len() < whole {
            continue;
        }
        let request: Vec<u8> = requests.drain(..whole).collect();
        let asked = ttrpc::Request::parse_from_bytes(&request[10..]).unwrap();
        let events = Event::CreateContainer.bit();
        let configured = api::ConfigureResponse { events, ..Default::default() };
        let usual = |payload| ttrpc::Response { payload, ..Default::default() };
        let bytes = match asked.method.as_str() {
            "CreateContainer" => answer.to_vec(),
            "Configure" => usual(configured.write_to_bytes().unwrap()).write_to_bytes().unwrap(),
            _ => usual(Vec::new()).write_to_bytes().unwrap(),
        };
        stream.write_all(&frame(1, number(&request[4..8]), 2, &bytes))?;
    }
}

#[test]
fn a_refusal_above_the_protocols_limit_refuses_too() {
    const LIMIT: usize = 4 << 20;
    for (length, wanted) in [
        (LIMIT - 1, "10-nnnnnnnn refused: nnnn"),
        (LIMIT, "10-nnnnnnnn refused: nnnn"),
        (LIMIT + 1, "its answer cannot be read: it has 4194315 bytes, too many"),
    ] {
        let host = started(BUSY);
        let stream = UnixStream::connect(host.path("nri.sock")).unwrap();
        let ends = stream.try_clone().unwrap();
        let plugin = std::thread::spawn(move || answers_creates(stream, &refusal(length)));
        wait_until("it takes part", || is_synchronized(&host.admin(&["plugins"]), "10-nnnnnnnn"));
        for id in ["c1", "c2"] {
            host.write("log.json", "");
            refused(&host, &host.create(id), &[wanted]);
        }
        let shown = host.admin(&["plugins"])[0].clone();
        assert_eq!((&shown["timeouts"], &shown["failures"]), (&json!(0), &json!(2)), "{shown}");
        ends.shutdown(std::net::Shutdown::Both).unwrap();
        plugin.join().unwrap().unwrap_err();
    }
}

/// A registration in a frame of the trunk, with a name of this length.
fn registration(name: usize) -> Vec<u8> {
    let request = api::RegisterPluginRequest {
        plugin_idx: "10".to_owned(),
        plugin_name: "n".repeat(name),
        ..Default::default()
    };
    let request = ttrpc::Request {
        service: "nri.pkg.api.v1alpha1.Runtime".to_owned(),
        method: "RegisterPlugin".to_owned(),
        payload: request.write_to_bytes().unwrap(),
        ..Default::default()
    };
    frame(2, 1, 1, &request.write_to_bytes().unwrap())
}

#[test]
fn names_of_many_megabytes_are_refused_and_cost_no_memory() {
    let host = started(BUSY);
    let before = in_status(host.daemon_pid(), "VmHWM");
    let long = registration(3_900_000);
    let connections = 160;
    let speak = |_| {
        let (path, long) = (host.path("nri.sock"), long.clone());
        std::thread::spawn(move || {
            let mut stream = UnixStream::connect(path).unwrap();
            // The daemon disconnects before it has read everything.
            stream.write_all(&long).is_ok()
        })
    };
    let speakers: Vec<_> = (0..connections).map(speak).collect();
    let taken = speakers.into_iter().map(|one| one.join().unwrap());
    assert_eq!(taken.filter(|is_taken| *is_taken).count(), 0, "a long name was read to its end");
    let grown = in_status(host.daemon_pid(), "VmHWM").saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} kB more");
    assert!(host.read("daemon.err").len() < 300 * connections, "{}", host.read("daemon.err"));
    wait_until("none is left", || host.admin(&["plugins"]) == json!([]));
    // Meanwhile a plugin registers.
    let _plugin = host.plugin("10", "env", Script::default());
    assert!(!host.admin(&["status"]).is_null() && !host.admin(&["metrics"]).is_null());
}

#[test]
fn a_long_but_readable_name_is_refused_in_a_short_line() {
    let host = started(BUSY);
    let mut stream = UnixStream::connect(host.path("nri.sock")).unwrap();
    stream.write_all(&registration(200)).unwrap();
    let (mut answer, mut piece) = (String::new(), [0; 4096]);
    while !answer.contains("longer than 64 bytes") {
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{answer}");
        answer += &String::from_utf8_lossy(&piece[..length]);
    }
    drop(stream);
    assert!(!host.read("daemon.err").contains(&"n".repeat(100)));
    wait_until("it is gone", || host.admin(&["plugins"]) == json!([]));
}

#[test]
fn a_plugin_file_with_a_long_name_is_skipped_with_one_line() {
    let mut host = TestHost::default();
    std::fs::create_dir_all(host.path("plugins")).unwrap();
    for number in 0..50 {
        host.put_program(&format!("plugins/10-{}{number}", "n".repeat(200)), "#!/bin/sh\n");
    }
    host.start_daemon();
    host.logs(&["was skipped: invalid plugin name", "longer than 64 bytes"], 20);
    let rest = "30 more files in the plugin folder cannot be used";
    host.logs(&[rest], 1);
    let rows = host.admin(&["check"]);
    let rows = rows.as_array().unwrap().iter();
    let skipped = rows.filter(|row| row["check"] == "pre-installed plugins" && row["ok"] == false);
    let skipped: Vec<&Value> = skipped.map(|row| &row["detail"]).collect();
    assert_eq!((skipped.len(), skipped.last()), (21, Some(&&json!(rest))), "{skipped:?}");
    assert_eq!(host.admin(&["plugins"]), json!([]));
}

/// Writes a bundle with annotations below the host's folder.
fn annotated(host: &TestHost, name: &str, annotations: Value) {
    let mut bundle: Value = serde_json::from_str(BUNDLE).unwrap();
    bundle["annotations"] = annotations;
    std::fs::create_dir_all(host.path(name).join("rootfs")).unwrap();
    host.write(&format!("{name}/config.json"), &bundle.to_string());
}

#[test]
fn an_operator_sees_all_pods_with_labels_of_any_length() {
    let host = started(BUSY);
    // Far more than a frame between daemon and command may hold.
    for number in 0..10 {
        let label = format!("é\"{number}").repeat(250_000);
        annotated(&host, "long", json!({"nri-runc.dev/label/app": label}));
        succeeds(&host.create_from("long", &format!("c{number}")));
    }
    let pods = host.admin(&["pods"]);
    let ids = pods.as_array().unwrap().iter().map(|pod| pod["id"].as_str().unwrap());
    let wanted: Vec<String> = (0..10).map(|number| format!("c{number}")).collect();
    assert_eq!(ids.collect::<Vec<_>>(), wanted);
    for (number, pod) in pods.as_array().unwrap().iter().enumerate() {
        let label = pod["labels"]["app"].as_str().unwrap();
        assert_eq!(label.len(), 1_000_000, "{number}");
        assert!(label.ends_with(&format!("é\"{number}")), "{number}");
    }
    assert_eq!(host.admin(&["top"])["pods"]["known"], 10);
    for verb in ["status", "plugins", "metrics"] {
        assert!(!host.admin(&[verb]).is_null(), "{verb}");
    }
    assert_eq!(host.admin(&["explain", "c9"])["id"], "c9");
}

#[test]
fn long_tenant_annotations_cost_few_lines_and_little_memory() {
    let host = started(&format!("{BUSY}[nri.default_validator]\nenable = true\n"));
    let length = 250_000;
    let shapes = ["a,", "\"", "[", "{\"a\":", "\\", "is a directory ", "é\n", "- a\n", "/../"];
    let long = |shape: &str| shape.repeat(length / shape.len());
    let many: Map<String, Value> =
        (0..5_000).map(|n| (format!("nri-runc.dev/label/k{n}"), json!(format!("v{n}")))).collect();
    let mut cases: Vec<Value> = shapes
        .iter()
        .map(|shape| json!({"example.org/long": long(shape), "nri-runc.dev/label/l": long(shape)}))
        .collect();
    cases.push(Value::Object(many));
    let input: usize = cases.iter().map(|annotations| annotations.to_string().len()).sum();
    for (number, annotations) in cases.into_iter().enumerate() {
        let lines = host.read("daemon.err").lines().count();
        annotated(&host, "long", annotations);
        let id = format!("c{number}");
        succeeds(&host.create_from("long", &id));
        assert!(!host.admin(&["explain", &id]).is_null(), "{number}");
        let more = host.read("daemon.err").lines().count() - lines;
        assert_eq!(more, 0, "{number}");
    }
    // The size of each, for the pod and for the container: a label takes four times its length, an
    // annotation that is no label twice.
    let records: u64 = ["containers", "pods"]
        .iter()
        .flat_map(|kind| std::fs::read_dir(host.path("run/state").join(kind)).unwrap())
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    let input = u64::try_from(input).unwrap();
    assert!(records < 4 * input, "{records} bytes of records for {input} bytes of annotations");
}

#[test]
fn a_container_with_too_many_annotations_is_refused() {
    let host = started(BUSY);
    let many = |count: usize| -> Value {
        let annotations = (0..count).map(|number| (format!("k{number}"), json!("")));
        annotations.collect::<Map<_, _>>().into()
    };
    annotated(&host, "more", many(10_001));
    let output = host.create_from("more", "c2");
    let wanted = "config.json has 10001 annotations, and at most 10000 are allowed";
    refused(&host, &output, &["cannot create c2", wanted, "nothing was changed or started"]);
    annotated(&host, "many", many(10_000));
    succeeds(&host.create_from("many", "c1"));
    let pods = host.admin(&["pods"]);
    assert_eq!(pods.as_array().map(Vec::len), Some(1), "{pods}");
}

#[test]
fn a_pod_that_requires_too_many_plugins_is_refused() {
    let host = started(&format!("{BUSY}[nri.default_validator]\nenable = true\n"));
    let names: Vec<String> = (0..60_000).map(|number| format!("p{number}")).collect();
    let annotations = json!({"required-plugins.noderesource.dev": json!(names).to_string()});
    annotated(&host, "long", annotations);
    let output = host.create_from("long", "c1");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(line.contains("60000 names, and at most 64 are allowed"), "{line}");
}

/// The number of notes that are kept of commands without a daemon.
const NOTES: usize = 2048;

fn notes(host: &TestHost) -> usize {
    let names = std::fs::read_dir(host.path("run/bypassed")).into_iter().flatten().flatten();
    names.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "json")).count()
}

/// A host without a daemon and with more notes than are kept; the oldest is of the container `lives`.
fn with_too_many_notes() -> TestHost {
    let mut host = TestHost::default();
    let root = host.path("root").display().to_string();
    let more = format!("autostart = false\nruntime_roots = [\"{root}\"]");
    host.configure(&host.path("fake/runc"), &more);
    // The daemon marks the run directory as used. With an unmarked one, the next daemon would
    // search for containers.
    host.start_daemon();
    host.kill_daemon();
    std::fs::create_dir_all(host.path("lives/rootfs")).unwrap();
    host.write("lives/config.json", BUNDLE);
    succeeds(&host.create_from("lives", "lives"));
    succeeds(&host.verb(&["start", "lives"]));
    // The notes are of one container that crashed repeatedly, and all have the same time.
    let folder = std::fs::read_dir(host.path("run/bypassed")).unwrap().flatten();
    let mut names: Vec<_> = folder.map(|entry| entry.path()).collect();
    names.sort();
    let last = std::fs::read_to_string(names.last().unwrap()).unwrap();
    let mut crashed: Value = serde_json::from_str(&last).unwrap();
    crashed["id"] = "crashed".into();
    crashed["question"] = json!([]);
    let at = crashed["at"].as_u64().unwrap();
    host.write("crashed", &crashed.to_string());
    for number in 1..=NOTES {
        let name = format!("run/bypassed/{:020}-7.json", at + u64::try_from(number).unwrap());
        std::fs::hard_link(host.path("crashed"), host.path(&name)).unwrap();
    }
    assert_eq!(notes(&host), NOTES + 2);
    host
}

#[test]
fn notes_of_bypassed_commands_are_bounded_and_counted() {
    let host = with_too_many_notes();
    succeeds(&host.create("c1"));
    assert_eq!((notes(&host), host.read("run/bypassed/dropped").as_str()), (NOTES, "3"));
    succeeds(&host.verb(&["start", "c1"]));
    assert_eq!((notes(&host), host.read("run/bypassed/dropped").as_str()), (NOTES, "4"));
    let rows = host.admin(&["check"]);
    let row = rows.as_array().unwrap().iter().find(|row| row["check"] == "bypassed").unwrap();
    assert!(row["detail"].to_string().contains("left no note"), "{row}");
}

#[test]
fn a_note_omits_resources_that_are_too_long() {
    let host = TestHost::default();
    host.configure(&host.path("fake/runc"), "autostart = false");
    succeeds(&host.create("c1"));
    for (length, is_kept) in [(700 << 10, true), (1 << 20, false)] {
        let resources = json!({"unified": {"memory.high": "9".repeat(length)}});
        host.write("resources", &resources.to_string());
        let file = host.path("resources").display().to_string();
        succeeds(&host.verb(&["update", "--resources", &file, "c1"]));
        let folder = std::fs::read_dir(host.path("run/bypassed")).unwrap().flatten();
        let newest = folder.map(|entry| entry.path()).max().unwrap();
        let text = std::fs::read_to_string(newest).unwrap();
        let note: Value = serde_json::from_str(&text).unwrap();
        let has_all = note["question"].as_str().is_some_and(|question| !question.is_empty());
        assert!(note["verb"] == "update" && has_all && text.len() <= 1 << 20, "{}", text.len());
        assert_eq!(note["resources"].is_string(), is_kept, "{length}");
    }
}

#[test]
fn the_next_daemon_finds_a_container_without_its_note() {
    let mut host = with_too_many_notes();
    succeeds(&host.create("c1"));
    host.start_daemon();
    let state = || host.admin(&["explain", "lives"])["state"].clone();
    wait_until("it is on record", || state() == "running");
    let explained = host.admin(&["explain", "lives"]);
    assert!(explained["skipped"].to_string().contains("its note was not kept"), "{explained}");
    assert_eq!(host.admin(&["explain", "c1"])["state"], "created");
    let status = host.admin(&["status"]);
    let unadjusted = status["unadjusted"].as_array().unwrap();
    assert!(unadjusted.contains(&json!("lives")) && unadjusted.contains(&json!("c1")), "{status}");
    host.logs(&["3 commands ran without plugins and left no note"], 1);
    assert!(status["failures"].to_string().contains("left no note"), "{status}");
    assert!(status["bypassed"].as_u64().unwrap() > 3, "{status}");
    assert!(!host.path("run/bypassed/dropped").exists());
    let received = host.plugin("10", "witness", Script::default());
    assert!(received.lock().unwrap().iter().any(|event| event == "Synchronize lives"));
}
