// SPDX-License-Identifier: Apache-2.0
//! Documents that runc accepts and strict parsers refuse. Without an adjustment they reach the
//! runtime unchanged; with one they are edited so that runc reads the intended values, or refused
//! with the position of the problem.

use std::sync::{Arc, Mutex};

use test_support::{BUNDLE, Script, TestHost};

use crate::{refused, sets, started, succeeds};

/// Documents that runc 1.1.5, 1.5.2 and 1.6.0-rc.1 accept, and whether `process.env` can be edited
/// in each.
fn odd_documents() -> Vec<(&'static str, Vec<u8>, bool)> {
    let plain = BUNDLE.trim_end();
    let with = |member: &str| format!("{},{member}}}", &plain[..plain.len() - 1]).into_bytes();
    let in_env = |bytes: &[u8]| {
        let (before, after) = plain.split_once("\"A=1\"").unwrap();
        [before.as_bytes(), b"\"A=1\",", bytes, after.as_bytes()].concat()
    };
    vec![
        ("trailing bytes", [plain.as_bytes(), b" {\"process\": 1 \xff\0"].concat(), true),
        ("a lone surrogate", in_env(br#""B=\ud800""#), true),
        ("bytes that are no UTF-8", in_env(b"\"B=\xff\xfe\""), true),
        ("null in a list", in_env(b"null"), true),
        ("null as an annotation", with(r#""annotations": {"a": null}"#), true),
        ("a number that is too large", with(r#""x": 1e999"#), true),
        ("depth", with(&format!("\"x\": {}{}", "[".repeat(9000), "]".repeat(9000))), true),
        (
            "a member that is there twice",
            with(r#""annotations": {"a": "1"}, "annotations": {}"#),
            true,
        ),
        ("process twice", with(r#""process": {"args": ["other"]}"#), false),
        ("Process", with(r#""Process": {"args": ["other"]}"#), false),
    ]
}

fn write(host: &TestHost, bytes: &[u8]) {
    nri_runc::testing::files::replace(&host.path("bundle/config.json"), bytes).unwrap();
}

fn seen(host: &TestHost) -> Vec<u8> {
    std::fs::read(host.path("fake/seen.json")).unwrap()
}

#[test]
fn unadjusted_odd_documents_reach_the_runtime_unchanged() {
    let host = started("");
    let _plugin = host.plugin("10", "witness", Script::default());
    for (index, (what, bytes, _)) in odd_documents().into_iter().enumerate() {
        write(&host, &bytes);
        let output = host.create(&format!("c{index}"));
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(seen(&host) == bytes, "{what} was changed");
    }
}

#[test]
fn an_odd_document_is_edited_as_runc_reads_it_or_refused() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    for (index, (what, bytes, is_editable)) in odd_documents().into_iter().enumerate() {
        write(&host, &bytes);
        let output = host.create(&format!("c{index}"));
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        if is_editable {
            assert!(output.status.success(), "{what}: {line}");
            let seen = String::from_utf8_lossy(&seen(&host)).into_owned();
            assert_eq!(seen.matches("\"HELLO=there\"]").count(), 1, "{what}: {seen}");
        } else {
            assert!(!output.status.success(), "{what} was edited");
            assert!(line.contains("ambiguous: process is spelt \"process\", "), "{what}: {line}");
            assert!(std::fs::read(host.path("bundle/config.json")).unwrap() == bytes, "{what}");
        }
    }
}

#[test]
fn a_plugin_receives_what_runc_reads_under_any_member_spelling() {
    let host = started("");
    let received: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = Arc::clone(&received);
    let on_request: test_support::scripted_plugin::OnRequest = Arc::new(move |event, request| {
        if event == "CreateContainer" {
            notes.lock().unwrap().push(format!("{request:?}"));
        }
    });
    let _plugin =
        host.plugin("10", "witness", Script { on_request: Some(on_request), ..Script::default() });
    let hidden = BUNDLE.trim_end();
    let hidden = format!(
        "{},\"Process\": {{\"args\": [\"hidden\"]}}, \"ANNOTATIONS\": {{\"k\": \"hidden-too\"}}}}",
        &hidden[..hidden.len() - 1]
    );
    write(&host, hidden.as_bytes());
    succeeds(&host.create("c1"));
    let received = received.lock().unwrap().join("");
    assert!(received.contains("hidden") && received.contains("hidden-too"), "{received}");
    assert!(!received.contains("\"sleep\""), "{received}");
}

#[test]
fn a_member_that_runc_merges_into_an_earlier_one_is_refused() {
    let host = started("");
    let plain = BUNDLE.trim_end();
    for (again, place) in [
        (r#""mounts": [{"destination": "/hidden", "source": "/"}], "mounts": [{}]"#, "mounts"),
        (r#""hooks": {"poststop": [{"path": "/x"}], "poststop": [null]}"#, "hooks.poststop"),
        (r#""process": {"args": ["sh"], "args": [null]}"#, "process.args"),
    ] {
        write(&host, format!("{},{again}}}", &plain[..plain.len() - 1]).as_bytes());
        let output = host.create("c1");
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        let wanted = format!("ambiguous: {place} occurs more than once");
        assert!(!output.status.success() && line.contains(&wanted), "{line}");
        assert_eq!(host.read("fake/argv"), "");
    }
    host.write("bundle/config.json", BUNDLE);
    succeeds(&host.create("c1"));
    std::fs::remove_file(host.path("fake/argv")).unwrap();
    host.write("resources", r#"{"memory": {"limit": 1, "limit": null}}"#);
    let file = host.path("resources").display().to_string();
    let output = host.verb(&["update", "--resources", &file, "c1"]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    let wanted = "the requested resources contain memory.limit more than once";
    assert!(!output.status.success() && line.contains(wanted), "{line}");
    assert_eq!(host.read("fake/argv"), "", "the runtime ran");
}

#[test]
fn a_symbolic_link_is_followed_but_never_replaced() {
    let host = started("");
    host.write("engines.json", BUNDLE);
    let link = host.path("bundle/config.json");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(host.path("engines.json"), &link).unwrap();
    succeeds(&host.create("c1"));
    assert_eq!(seen(&host), BUNDLE.as_bytes());
    std::fs::remove_file(host.path("fake/argv")).unwrap();
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    let output = host.create("c2");
    refused(&host, &output, &["10-env", "Env[HELLO]", "config.json is a symbolic link"]);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn a_document_runc_refuses_is_refused_with_line_and_column() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    for bytes in [&b"{\n \"a\": 1,}"[..], b"\n\xef\xbb\xbf{}", b"{\n\"a\": \"\0\"}"] {
        write(&host, bytes);
        let output = host.create("c1");
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && line.contains("line 2 column"), "{line}");
    }
}
