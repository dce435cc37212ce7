// SPDX-License-Identifier: Apache-2.0
//! Sixty concurrent creates at a slow plugin: they succeed container by container, and those that
//! cannot be served in time are refused immediately. Times are scaled down, but are long beside the
//! calls themselves on a busy machine: a plugin that takes 1.4 s, callers that wait 60 s.

use std::process::{Command, Stdio};
use std::sync::Mutex;

use test_support::responding_plugin::{RespondingPlugin, Response, SharedPlugin};
use test_support::{BUNDLE, TestHost, wait_until};

use crate::plugins::policies::connected;
use crate::{refused, started, succeeds};

const CONTAINERS: usize = 60;
/// Time that the plugin takes, in milliseconds.
const TAKES: u64 = 1400;

/// Time that callers wait, in seconds.
const CAP: u64 = 60;

/// Callers must not give up a daemon whose heartbeats are late.
const SILENCE: &str = "silence = \"120s\"\n";

/// The result for one container.
struct CreateResult {
    id: String,
    is_created: bool,
    printed: String,
}

/// Calls the wrapper concurrently with others.
fn verb(host: &TestHost, id: &str, words: &[&str]) -> bool {
    let printed = std::fs::File::create(host.path(&format!("{id}.err"))).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nri-runc"));
    command.env("NRI_RUNC_CONFIG", host.path("config.toml")).arg("--root").arg(host.path("root"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(printed);
    command.status().unwrap().success()
}

fn create(host: &TestHost, id: &str) -> CreateResult {
    let bundle = host.path(id);
    std::fs::create_dir_all(bundle.join("rootfs")).unwrap();
    nri_runc::testing::files::replace(&bundle.join("config.json"), BUNDLE.as_bytes()).unwrap();
    let is_created = verb(host, id, &["create", "--bundle", &bundle.display().to_string(), id]);
    CreateResult { id: id.to_owned(), is_created, printed: host.read(&format!("{id}.err")) }
}

/// Creates and starts all containers concurrently.
fn burst(host: &TestHost) -> Vec<CreateResult> {
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for number in 0..CONTAINERS {
            let all = &all;
            scope.spawn(move || {
                let came = create(host, &format!("c{number}"));
                if came.is_created {
                    assert!(verb(host, &came.id, &["start", &came.id]), "{}", came.id);
                }
                all.lock().unwrap().push(came);
            });
        }
    });
    all.into_inner().unwrap()
}

fn slow(host: &TestHost) -> SharedPlugin {
    let slow =
        connected(host, "10-policy", RespondingPlugin::always(Response::SleepAndSet(TAKES, "KEY")));
    // The daemon learns the plugin's response time from the first ones.
    for id in ["warm1", "warm2"] {
        assert!(create(host, id).is_created);
    }
    slow
}

fn settings(more: &str) -> String {
    format!(
        "[plugin.policy]\nstrikes = 0\n{more}\n\
         [debug]\ncreate_cap = \"{CAP}s\"\n{SILENCE}"
    )
}

fn is_adjusted(host: &TestHost, id: &str) -> bool {
    host.read(&format!("{id}/config.json")).contains("KEY=1")
}

#[test]
fn a_slow_plugin_in_a_burst_refuses_excess_creates_at_once() {
    let host = started(&settings("required = true"));
    let plugin = slow(&host);
    let came = burst(&host);
    let (created, others): (Vec<_>, Vec<_>) = came.iter().partition(|came| came.is_created);
    assert!(created.len() >= 4, "{} came through", created.len());
    assert!(others.len() >= 10, "{} were sent off", others.len());
    for came in &created {
        assert!(is_adjusted(&host, &came.id), "{} came past a required plugin", came.id);
    }
    for came in &others {
        assert_eq!(host.read(&format!("{}/config.json", came.id)), BUNDLE);
        assert!(
            came.printed.contains("policy") && !came.printed.contains("silent"),
            "{}",
            came.printed
        );
    }
    // The messages of callers that were refused before their time-out.
    let printed: Vec<&str> = others.iter().map(|came| came.printed.as_str()).collect();
    let at_once = printed.iter().filter(|printed| printed.contains("queued requests of"));
    assert!(at_once.count() >= 10, "{printed:#?}");
    // A container that is being created does not wait for those in the queue.
    let received = plugin.received();
    for came in &created {
        let at =
            |event: &str| received.iter().position(|line| *line == format!("{event} {}", came.id));
        let between = at("PostCreateContainer").unwrap() - at("CreateContainer").unwrap();
        assert!(between <= 25, "{} waited for {between} others", came.id);
    }
}

#[test]
fn a_burst_skips_a_busy_plugin_if_no_plugin_protects() {
    let host = started(&settings(""));
    let plugin = slow(&host);
    let came = burst(&host);
    for came in &came {
        assert!(came.is_created, "{}", came.printed);
    }
    let without: Vec<_> = came.iter().filter(|came| !is_adjusted(&host, &came.id)).collect();
    assert!((6..=57).contains(&without.len()), "{} went on without it", without.len());
    let received = plugin.received();
    let mut sent_off = 0;
    for came in &without {
        let skipped = host.admin(&["explain", &came.id])["skipped"].to_string();
        // On a busy machine some creates skip the plugin for another reason.
        if skipped.contains("queued requests of") {
            sent_off += 1;
            // The plugin receives no events of a container that it was not asked about.
            let names_it = |line: &String| line.ends_with(&format!("Container {}", came.id));
            assert!(!received.iter().any(names_it), "{}", came.id);
        }
    }
    assert!(sent_off >= 6, "{sent_off} of {} were sent off", without.len());
}

#[test]
fn a_slow_daemon_is_not_reported_silent_and_still_refuses() {
    let cap = format!("\"{CAP}s\"");
    let settings = settings("required = true").replace(&cap, "\"4s\"").replace(SILENCE, "");
    let host = started(&settings);
    let _slow = connected(&host, "10-policy", RespondingPlugin::always(Response::Hang));
    refused(&host, &host.create("c1"), &["the daemon took too long", "plugin policy is required"]);
}

#[test]
fn a_plugin_gets_requests_again_once_it_is_free() {
    let host = started(&settings("required = true"));
    let _slow = slow(&host);
    let came = burst(&host);
    assert!(came.iter().any(|came| !came.is_created));
    wait_until("it has answered everything", || create(&host, "later").is_created);
    assert!(is_adjusted(&host, "later"));
    succeeds(&host.verb(&["start", "later"]));
}
