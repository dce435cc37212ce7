// SPDX-License-Identifier: Apache-2.0
//! The daemon's metrics: containerd's names for shared metrics, by the admin verb and over HTTP;
//! health and readiness; slow, many or faulty clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use nri_runc::plugin::api;
use serde_json::json;
use test_support::adjustments::{sets, update_of};
use test_support::{Script, TestHost, started, succeeds, wait_until};

const LISTENS: &str = "[metrics]\nlisten = \"127.0.0.1:0\"\n";

fn metrics(host: &TestHost) -> String {
    let output = host.call(&["nri", "metrics"]);
    succeeds(&output);
    String::from_utf8(output.stdout).unwrap()
}

/// The value of a row, 0 if it does not exist.
fn value(page: &str, row: &str) -> f64 {
    let line =
        page.lines().find(|line| line.strip_prefix(row).is_some_and(|rest| rest.starts_with(' ')));
    line.and_then(|line| line.rsplit(' ').next()).map_or(0.0, |number| number.parse().unwrap())
}

#[track_caller]
fn counts(page: &str, row: &str, wanted: f64) {
    let found = value(page, row);
    assert!((found - wanted).abs() < f64::EPSILON, "{row} is {found}, not {wanted}: {page}");
}

fn invocations(event: &str, status: &str, error: &str) -> String {
    format!(
        "containerd_nri_plugin_invocations_total{{plugin=\"10-a\",operation=\"{event}\",status=\"{status}\",error=\"{error}\"}}"
    )
}

/// The address at which the daemon reports that it serves metrics.
fn address(host: &TestHost) -> String {
    const SAYS: &str = "metrics are served at http://";
    wait_until("metrics are served", || host.logged(&[SAYS]) == 1);
    let log = host.read("daemon.err");
    let rest = log.split(SAYS).nth(1).unwrap();
    rest.split("/metrics").next().unwrap().to_owned()
}

fn ask(mut stream: impl Read + Write, request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn get(address: &str, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n");
    ask(TcpStream::connect(address).unwrap(), &request)
}

#[test]
fn each_request_is_counted_once_under_containerds_names() {
    let host = started("");
    let script = Script {
        updates: vec![update_of("c1", &json!({"cpu": {"shares": 300}}))],
        ..sets("A", "1")
    };
    let _plugin = host.plugin("10", "a", script);
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.call_with(
        &["--root", &host.path("root").display().to_string(), "update", "--resources", "-", "c1"],
        r#"{"cpu": {"shares": 200}}"#,
    ));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    let removed = invocations("RemovePodSandbox", "success", "");
    wait_until("the pod's end was reported", || value(&metrics(&host), &removed) > 0.5);
    let page = metrics(&host);
    for event in [
        "Synchronize",
        "RunPodSandbox",
        "CreateContainer",
        "PostCreateContainer",
        "StartContainer",
        "PostStartContainer",
        "UpdateContainer",
        "PostUpdateContainer",
        "StopContainer",
        "RemoveContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
    ] {
        counts(&page, &invocations(event, "success", ""), 1.0);
    }
    let wishes = "containerd_nri_plugin_adjustments_total{plugin=\"10-a\",operation=\"UpdateContainer\",type=\"update\"}";
    counts(&page, wishes, 1.0);
    counts(&page, "containerd_nri_active_plugins_total", 1.0);
    for verb in ["create", "start", "update", "delete"] {
        let row = format!("nri_runc_requests_total{{verb=\"{verb}\",outcome=\"proceeded\"}}");
        counts(&page, &row, 1.0);
        counts(&page, &format!("nri_runc_request_duration_seconds_count{{verb=\"{verb}\"}}"), 1.0);
    }
    counts(&page, "nri_runc_pods", 0.0);
    assert!(!page.contains("c1"), "no container is a label: {page}");
}

#[test]
fn a_time_out_counts_as_deadline_exceeded_and_as_a_skip() {
    let host = started("[plugin.a]\nrequest_timeout = \"3s\"\n");
    let _plugin = host.plugin("10", "a", Script { hangs: true, ..Script::default() });
    succeeds(&host.create("c1"));
    let page = metrics(&host);
    counts(&page, &invocations("CreateContainer", "error", "deadline_exceeded"), 1.0);
    let skip = "nri_runc_plugin_skips_total{plugin=\"10-a\",operation=\"CreateContainer\",reason=\"timeout\"}";
    counts(&page, skip, 1.0);
    counts(
        &page,
        "nri_runc_plugin_connections_total{plugin=\"10-a\",result=\"disconnected\"}",
        1.0,
    );
    counts(&page, "containerd_nri_active_plugins_total", 0.0);
}

#[test]
fn a_refusal_is_counted_with_its_status_and_its_plugin() {
    let host = started("");
    let _plugin = host.plugin(
        "10",
        "a",
        Script {
            refuses: Some("no"),
            status: Some(ttrpc::Code::INVALID_ARGUMENT),
            ..Script::default()
        },
    );
    assert!(!host.create("c1").status.success());
    let page = metrics(&host);
    counts(&page, &invocations("CreateContainer", "error", "invalid_argument"), 1.0);
    counts(&page, "nri_runc_plugin_refusals_total{plugin=\"10-a\",verb=\"create\"}", 1.0);
    counts(&page, "nri_runc_requests_total{verb=\"create\",outcome=\"refused\"}", 1.0);
}

#[test]
fn updates_and_evictions_of_others_are_counted_by_result() {
    let host = started("");
    let gone = api::ContainerEviction {
        container_id: "c1".to_owned(),
        reason: "room".to_owned(),
        ..Default::default()
    };
    let script = Script {
        updates: vec![update_of("nobody", &json!({"cpu": {"shares": 300}}))],
        evicts: vec![gone],
        ..Script::default()
    };
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    let _plugin = host.plugin("10", "a", script);
    succeeds(&host.create("c2"));
    let root = host.path("root").display().to_string();
    let update = r#"{"cpu": {"shares": 200}}"#;
    succeeds(&host.call_with(&["--root", &root, "update", "--resources", "-", "c2"], update));
    let page = metrics(&host);
    counts(&page, "nri_runc_plugin_updates_total{plugin=\"10-a\",result=\"failed\"}", 1.0);
    let evictions = "nri_runc_plugin_evictions_total{plugin=\"10-a\",result=\"begun\"}";
    counts(&page, evictions, 1.0);
}

#[test]
fn the_listener_serves_only_the_metrics_page() {
    let host = started(LISTENS);
    let at = address(&host);
    succeeds(&host.create("c1"));
    // The result of the create may be counted between the two requests.
    let mut page = String::new();
    wait_until("both are the same page", || {
        let (status, next) = get(&at, "/metrics");
        assert_eq!(status, 200);
        page = next;
        page == metrics(&host)
    });
    counts(&page, "nri_runc_requests_total{verb=\"create\",outcome=\"proceeded\"}", 1.0);
    assert_eq!(get(&at, "/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(get(&at, "/debug/pprof").0, 404);
    let post = "POST /metrics HTTP/1.1\r\nHost: node\r\nContent-Length: 2\r\n\r\nhi";
    assert_eq!(ask(TcpStream::connect(&at).unwrap(), post).0, 405);
}

#[test]
fn a_node_is_ready_once_its_required_plugins_connect() {
    let host = started(&format!("{LISTENS}[plugin.a]\nrequired = true\n"));
    let at = address(&host);
    let (status, why) = get(&at, "/readyz");
    assert_eq!((status, why.as_str()), (503, "the required plugin a is not connected\n"));
    counts(&metrics(&host), "nri_runc_missing_plugins", 1.0);
    let _plugin = host.plugin("10", "a", Script::default());
    assert_eq!(get(&at, "/readyz"), (200, "ok\n".to_owned()));
    counts(&metrics(&host), "nri_runc_missing_plugins", 0.0);
}

#[test]
fn a_socket_is_for_root_alone_and_replaces_a_stale_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let _host = started(&format!("[metrics]\nlisten = \"unix:{}\"\n", path.display()));
    wait_until("the socket is served", || UnixStream::connect(&path).is_ok());
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let request = "GET /healthz HTTP/1.0\r\n\r\n";
    assert_eq!(ask(UnixStream::connect(&path).unwrap(), request), (200, "ok\n".to_owned()));
}

#[test]
fn files_other_than_stale_sockets_stay() {
    let dir = tempfile::tempdir().unwrap();
    let file = tempfile::NamedTempFile::new_in(dir.path()).unwrap();
    let (file, socket) = (file.path().to_owned(), dir.path().join("used.sock"));
    let used = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, why) in [
        (&file, "a file that is not a socket exists at this path"),
        (&socket, "another process listens at this path"),
    ] {
        let host = started(&format!("[metrics]\nlisten = \"unix:{}\"\n", path.display()));
        wait_until("the failure is shown", || {
            host.admin(&["status"])["failures"].to_string().contains(why)
        });
    }
    assert!(file.metadata().unwrap().is_file());
    drop(used);
}

#[test]
fn a_node_with_a_mistyped_protection_is_not_ready() {
    let host = started(&format!("{LISTENS}[plugin.a]\nrequird = true\n"));
    let (status, why) = get(&address(&host), "/readyz");
    assert_eq!(status, 503, "{why}");
    assert!(why.contains("plugin.a.requird"), "{why}");
}

/// Connections that send half a request: more than are served at once.
const SLOW: usize = 200;
/// Maximum number of them that are open in the daemon, without its other descriptors.
const SERVED: usize = 16;

#[test]
fn slow_clients_block_no_probe_and_the_oldest_is_closed() {
    let host = started(LISTENS);
    let at = address(&host);
    let pid = host.admin(&["status"])["pid"].as_u64().unwrap();
    let count = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    let (sockets, threads) = (count("fd"), count("task"));
    let slow = |_number| {
        let mut stream = TcpStream::connect(&at).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").unwrap();
        stream
    };
    let mut silent: Vec<TcpStream> = (0..SLOW).map(slow).collect();
    assert_eq!(get(&at, "/healthz"), (200, "ok\n".to_owned()), "a probe is answered");
    wait_until("the further ones are closed", || count("fd") <= sockets + SERVED + 1);
    assert_eq!(count("task"), threads);
    let mut oldest = silent.remove(0);
    assert!(matches!(oldest.read(&mut [0; 1]), Ok(0) | Err(_)), "it was closed");
    let newest = silent.pop().unwrap();
    newest.set_nonblocking(true).unwrap();
    let waits = (&newest).read(&mut [0; 1]).unwrap_err();
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock, "the newest is served");
    succeeds(&host.create("c1"));
}

#[test]
fn a_malformed_or_large_http_request_ends_only_its_connection() {
    let host = started(LISTENS);
    let at = address(&host);
    for request in [
        "\0\0\0garbage\r\n\r\n".to_owned(),
        format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(64 << 10)),
    ] {
        let mut stream = TcpStream::connect(&at).unwrap();
        let _may_be_closed = stream.write_all(request.as_bytes());
        let mut response = Vec::new();
        let _may_be_reset = stream.read_to_end(&mut response);
        let text = String::from_utf8_lossy(&response).into_owned();
        assert!(!text.contains(" 200 "), "{text}");
    }
    assert_eq!(get(&at, "/healthz").0, 200);
}

#[test]
fn a_taken_metrics_address_is_a_failure_but_stops_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let host = started(&format!("[metrics]\nlisten = \"{at}\"\n"));
    succeeds(&host.create("c1"));
    let failures = host.admin(&["status"])["failures"].to_string();
    assert!(
        failures.contains(&format!("metrics cannot be served: listening at {at}")),
        "{failures}"
    );
}
