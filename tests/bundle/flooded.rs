// SPDX-License-Identifier: Apache-2.0
//! Connections to the plugin socket by the thousand: plugins register beside them, and what they cost
//! in lines, labels and rows is bounded.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use nri_runc::plugin::Event;
use nri_runc::plugin::stub::{PluginHandler, Stub};
use serde_json::Value;
use test_support::example::example;
use test_support::{Started, TestHost, is_synchronized, started, wait_until};

/// A plugin in a process of its own; one that connects while the kernel's queue is full tries again.
#[expect(clippy::disallowed_methods, reason = "the plugins under test")]
fn plugin(host: &TestHost, id: &str) -> Started {
    let socket = host.path("nri.sock").display().to_string();
    let mut command = Command::new(example("event_logger"));
    command.args(["--reconnect", "--id", id, "--socket", &socket]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Started(command.spawn().unwrap())
}

#[test]
fn a_plugin_registers_beside_a_flood_of_connections() {
    let host = started("");
    let is_over = Arc::new(AtomicBool::new(false));
    // Some keep all slots taken, others come and go. Not so many that the kernel's queue is always full:
    // no process can be told from another there.
    let dial = |socket: &std::path::Path| UnixStream::connect(socket);
    let socket = host.path("nri.sock");
    let _silent: Vec<_> = (0..80).map(|_| dial(&socket)).collect();
    let flood = {
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                let _closed_at_once = dial(&socket);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        })
    };
    host.logs_at_least(&["connections have not registered yet"], 10);
    let ids: Vec<String> = (10..20).map(|index| format!("{index}-honest")).collect();
    let _plugins: Vec<Started> = ids.iter().map(|id| plugin(&host, id)).collect();
    wait_until("all take part", || {
        let plugins = host.admin(&["plugins"]);
        ids.iter().all(|id| is_synchronized(&plugins, id))
    });
    is_over.store(true, Ordering::SeqCst);
    flood.join().unwrap();
    assert!(host.logged(&["connections have not registered yet"]) <= 20, "ten a minute");
}

struct Nothing;

#[async_trait]
impl PluginHandler for Nothing {
    fn events(&self) -> &[Event] {
        &[Event::RemoveContainer]
    }
}

/// Registers under each of these names, one after the other; none may take part.
fn register(host: &TestHost, ids: impl Iterator<Item = String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for id in ids {
            let stream = tokio::net::UnixStream::connect(host.path("nri.sock")).await.unwrap();
            if let Ok(stub) = Stub::serve(stream, &id, "", Arc::new(Nothing)).await {
                stub.closed().await;
            }
        }
    });
}

#[test]
fn a_flood_of_refused_plugins_has_few_lines_and_no_labels() {
    let own = example("event_logger").display().to_string();
    let mut host = TestHost::new("");
    let audit = host.path("audit.log").display().to_string();
    let more = format!(
        "---[audit]\ntarget = \"file\"\npath = \"{audit}\"\n[plugin.\"*\"]\nfrom = [\"exe:{own}\"]\n"
    );
    host.configure(&host.path("fake/runc"), &more);
    host.start_daemon();
    register(&host, (0..300).map(|number| format!("10-made-up-{number}")));
    let refused = |host: &TestHost| {
        let rows = host.admin(&["status"])["refused_connections"].clone();
        let row = rows.as_array().into_iter().flatten().find(|row| row["why"] == "from");
        row.map_or(0, |row| row["count"].as_u64().unwrap())
    };
    wait_until("all were refused", || refused(&host) == 300);
    let honest = plugin(&host, "10-honest");
    wait_until("it takes part", || is_synchronized(&host.admin(&["plugins"]), "10-honest"));
    assert_eq!(host.logged(&["made-up", "was refused"]), 10);
    let metrics = String::from_utf8(host.call(&["nri", "metrics"]).stdout).unwrap();
    assert!(!metrics.contains("made-up"), "{metrics}");
    assert!(metrics.contains("{plugin=\"other\",result=\"refused\"} 300"), "{metrics}");
    assert!(metrics.contains("{plugin=\"10-honest\",result=\"synchronized\"} 1"), "{metrics}");
    let rows = host.admin(&["plugins"]);
    assert!(rows.as_array().unwrap().len() <= 17, "{rows}");
    let failures = host.admin(&["status"])["failures"].clone();
    assert_eq!(failures.as_array().map(Vec::len), Some(1), "{failures}");
    wait_until("it is audited", || host.read("audit.log").contains("10-honest"));
    let lines = host.read("audit.log");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rejected: Vec<Value> = lines.filter(|line| line["action"] == "rejected").collect();
    assert_eq!(rejected.len(), 10, "{rejected:?}");
    assert_eq!(rejected[0]["plugin"], "10-made-up-0");
    drop(honest);
}

#[test]
fn a_refused_connection_takes_no_row_of_the_plugin() {
    let own = example("event_logger").display().to_string();
    let more =
        format!("---plugin_request_timeout = \"200ms\"\n[plugin.slow]\nfrom = [\"exe:{own}\"]\n");
    let host = started(&more);
    let mut slow = plugin(&host, "10-slow");
    wait_until("it takes part", || is_synchronized(&host.admin(&["plugins"]), "10-slow"));
    slow.0.kill().unwrap();
    wait_until("it is gone", || host.admin(&["plugins"])[0]["state"] == "gone");
    register(&host, ["10-slow".to_owned()].into_iter());
    let rows = host.admin(&["plugins"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
    assert_eq!(rows[0]["refused"], false, "the row of the plugin stays: {rows}");
}
