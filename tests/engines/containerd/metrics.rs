// SPDX-License-Identifier: Apache-2.0
//! Compares the NRI metrics of containerd 2.4.2 during one pod's lifecycle with those of nri-runc
//! for the same pod, plugins and containerd: the four metrics have the same rows, numbers and
//! buckets. Part of `make interop`, which builds that containerd.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use serde_json::json;
use test_support::adjustments::update_of;
use test_support::cri::pods;
use test_support::recorder::Recorder;
use test_support::{Script, scripted_plugin, tools};

use super::config::{self, Passes, Wanted};
use super::host::{self, Engine, Parts};

const HANDLERS: [(&str, Passes); 2] = [("lean", Passes::None), ("rich", Passes::All)];

/// Rows by name and labels, and the bounds of each histogram's buckets.
#[derive(Debug, PartialEq)]
struct Counted {
    rows: BTreeMap<(String, BTreeMap<String, String>), f64>,
    bounds: BTreeSet<String>,
}

/// The four metrics of a page, without times, which differ in each run.
fn counted(page: &str) -> Counted {
    let mut counted = Counted { rows: BTreeMap::new(), bounds: BTreeSet::new() };
    for line in page.lines().filter(|line| line.starts_with("containerd_nri_")) {
        let (row, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = row.split_once('{').unwrap_or((row, "}"));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        let labels: BTreeMap<String, String> = labels
            .map(|label| label.split_once('=').unwrap())
            .map(|(label, value)| (label.to_owned(), value.trim_matches('"').to_owned()))
            .collect();
        if let Some(bound) = labels.get("le") {
            // OpenMetrics writes 1 as 1.0.
            let bound: f64 = bound.parse().unwrap();
            counted.bounds.insert(format!("{name} {bound}"));
        } else if !name.ends_with("_sum") {
            counted.rows.insert((name.to_owned(), labels), value.parse().unwrap());
        }
    }
    counted
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn page(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    // HTTP 1.0, so that the page is not chunked.
    let request = "GET /v1/metrics HTTP/1.0\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

/// A plugin that receives everything, one that requests an update of another container, and one
/// that fails an event which can no longer be refused.
fn connect_plugins(socket: &Path) -> Recorder {
    let recorder = Recorder::connect(socket.to_owned());
    let mut update = update_of("nobody", &json!({"cpu": {"shares": 300}}));
    update.ignore_failure = true;
    let asks = Script { leaves_room: vec![update], ..Script::default() };
    let fails = Script {
        refuses: Some("no"),
        status: Some(ttrpc::Code::INVALID_ARGUMENT),
        at: Some("PostStartContainer".to_owned()),
        ..Script::default()
    };
    for (index, name, script) in [("20", "asks", asks), ("30", "fails", fails)] {
        let _plugin = scripted_plugin::connect(PathBuf::from(socket), index, name, script);
    }
    recorder
}

/// Waits until a row of the page has at least this number.
fn wait_for_row(
    engine: &Engine,
    mut read: impl FnMut() -> String,
    row: &str,
    least: f64,
) -> String {
    let mut text = String::new();
    engine.wait_until(row, || {
        text = read();
        let rows = text.lines().filter(|line| line.starts_with(row));
        let sum: f64 = rows.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        sum >= least
    });
    text
}

/// The pages' numbers after one pod's lifecycle with these plugins.
async fn life(engine: &Engine, socket: &str, read: impl Fn() -> String) -> Counted {
    let recorder = connect_plugins(&engine.path(socket));
    wait_for_row(engine, &read, "containerd_nri_active_plugins_total", 3.0);
    let mut cri = engine.client().await;
    pods::live(&mut cri, &pods::lean(engine.cgroup())).await;
    recorder.wait_for("RemovePodSandbox");
    // Plugins are asked in order, so the last one marks the end.
    let last = "containerd_nri_plugin_invocations_total{";
    let is_reported = |page: &str| {
        page.lines().any(|line| {
            line.starts_with(last) && line.contains("30-fails") && line.contains("RemovePodSandbox")
        })
    };
    let mut text = String::new();
    engine.wait_until("the pod's end was counted", || {
        text = read();
        is_reported(&text)
    });
    counted(&text)
}

#[tokio::test]
async fn metrics_of_a_pod_equal_those_of_containerds_own_nri() {
    let Some(tools) = host::tools() else { return };
    let Some(containerd) = tools::newer("containerd-2.4.2") else { return };
    let runc = tools.join("runc");
    let address = free_address();
    let metrics =
        format!("\n[plugins.\"io.containerd.server.v1.metrics\"]\n  address = \"{address}\"\n");
    let own = Wanted { version: 4, handlers: &HANDLERS, runtime: &runc, has_nri: true };
    let ours = Wanted { runtime: Path::new(env!("CARGO_BIN_EXE_nri-runc")), has_nri: false, ..own };
    let configuration = |dir: &Path| config::containerd(dir, &own) + &metrics;
    let (tools, containerd) = (tools.as_path(), containerd.as_path());
    let parts = Parts { tools, containerd, runc: &runc, configuration: Some(&configuration) };
    let mut engine = Engine::of(&parts);
    let theirs = life(&engine, "own.sock", || page(&address)).await;
    engine.containerd.stop();
    let text = config::containerd(&engine.path(""), &ours);
    nri_runc::testing::files::replace(&engine.path("containerd.toml"), text.as_bytes()).unwrap();
    engine.containerd.run();
    let mut daemon = engine.start_daemon();
    let ask = || engine.admin(&["metrics"])["text"].as_str().unwrap_or_default().to_owned();
    let own = life(&engine, "nri.sock", ask).await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let total: f64 = theirs.rows.values().sum();
    assert!(total > 100.0 && theirs.bounds.len() == 12, "{theirs:?}");
    let keys: BTreeSet<_> = theirs.rows.keys().chain(own.rows.keys()).collect();
    let differing: Vec<String> = keys
        .into_iter()
        .filter(|key| theirs.rows.get(*key) != own.rows.get(*key))
        .map(|key| {
            format!("{key:?}: {:?}, containerd {:?}", own.rows.get(key), theirs.rows.get(key))
        })
        .collect();
    assert!(differing.is_empty(), "{differing:#?}");
    assert_eq!(own.bounds, theirs.bounds);
}
