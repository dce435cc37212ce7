// SPDX-License-Identifier: Apache-2.0
//! Thousands of connections to the plugin socket: plugins still register, and the connections' log
//! lines, labels and rows are bounded.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nri_plugin::Stub;
use serde_json::{Value, json};
use test_support::adjustments::{sets, update_of};
use test_support::example::example;
use test_support::responding_plugin::{RespondingPlugin, Response};
use test_support::{
    Script, Started, TestHost, connect, is_synchronized, started, succeeds, wait_until,
};

use crate::rules::host::{Asker, pod_container};

/// Registrations are slow on a busy machine.
const PATIENT: &str = "[nri]\nplugin_registration_timeout = \"10m\"\n";

/// The maximum number of log lines for one reason since `since`: ten a minute, however slow the
/// machine is.
pub(crate) fn ten_a_minute(since: Instant) -> usize {
    10 * minutes_begun(since)
}

fn minutes_begun(since: Instant) -> usize {
    usize::try_from(since.elapsed().as_secs() / 60).unwrap() + 1
}

#[test]
fn a_plugin_registers_during_a_flood_of_connections() {
    let (host, since) = (started(PATIENT), Instant::now());
    let is_over = Arc::new(AtomicBool::new(false));
    // Some connections occupy all slots, others open and close. They must not fill the kernel's
    // queue, in which the daemon cannot distinguish processes.
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
    let _plugins: Vec<Started> = ids.iter().map(|id| Started::plugin(&host, id)).collect();
    wait_until("all take part", || {
        let plugins = host.admin(&["plugins"]);
        ids.iter().all(|id| is_synchronized(&plugins, id))
    });
    is_over.store(true, Ordering::SeqCst);
    flood.join().unwrap();
    assert!(host.logged(&["connections have not registered yet"]) <= ten_a_minute(since));
}

/// Registers under each of these names in turn; all are refused.
fn register(host: &TestHost, ids: impl Iterator<Item = String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for id in ids {
            let stream = tokio::net::UnixStream::connect(host.path("nri.sock")).await.unwrap();
            if let Ok(stub) =
                Stub::serve(stream, &id, "", Arc::new(RespondingPlugin::always(Response::Answer)))
                    .await
            {
                stub.closed().await;
            }
        }
    });
}

#[test]
fn a_flood_of_refused_plugins_has_few_lines_and_no_labels() {
    let own = example("event_logger").display().to_string();
    let mut host = TestHost::default();
    let audit = host.path("audit.log").display().to_string();
    let more = format!(
        "{PATIENT}[audit]\ntarget = \"file\"\npath = \"{audit}\"\n[plugin.\"*\"]\nfrom = [\"exe:{own}\"]\n"
    );
    host.configure(&host.path("fake/runc"), &more);
    host.start_daemon();
    let since = Instant::now();
    register(&host, (0..300).map(|number| format!("10-made-up-{number}")));
    let refused = |host: &TestHost| {
        let rows = host.admin(&["status"])["refused_connections"].clone();
        let row = rows.as_array().into_iter().flatten().find(|row| row["why"] == "from");
        row.map_or(0, |row| row["count"].as_u64().unwrap())
    };
    wait_until("all were refused", || refused(&host) == 300);
    let honest = Started::plugin(&host, "10-honest");
    wait_until("it takes part", || is_synchronized(&host.admin(&["plugins"]), "10-honest"));
    let lines = host.logged(&["made-up", "was refused"]);
    assert!((10..=ten_a_minute(since)).contains(&lines), "{lines}");
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
    assert!((10..=ten_a_minute(since)).contains(&rejected.len()), "{rejected:?}");
    assert_eq!(rejected[0]["plugin"], "10-made-up-0");
    drop(honest);
}

#[test]
fn a_refused_connection_does_not_replace_the_plugins_row() {
    let own = example("event_logger").display().to_string();
    let more = format!("[plugin.slow]\nfrom = [\"exe:{own}\"]\n");
    let host = started(&more);
    let mut slow = Started::plugin(&host, "10-slow");
    wait_until("it takes part", || is_synchronized(&host.admin(&["plugins"]), "10-slow"));
    slow.0.kill().unwrap();
    wait_until("it is gone", || host.admin(&["plugins"])[0]["state"] == "gone");
    register(&host, ["10-slow".to_owned()].into_iter());
    let rows = host.admin(&["plugins"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
    assert_eq!(rows[0]["refused"], false, "the row of the plugin stays: {rows}");
}

#[test]
fn after_128_plugins_only_a_configured_one_is_accepted() {
    const MOST: usize = 128;
    let host = started(&format!("{PATIENT}[plugin.named]\nstrikes = 0\n"));
    let taking_part = || {
        let plugins = host.admin(&["plugins"]);
        let rows = plugins.as_array().into_iter().flatten();
        rows.filter(|row| row["state"] == "synchronized").count()
    };
    // Registers in groups of 16, so that the plugins do not take each other's slots.
    for connected in (16..=MOST).step_by(16) {
        for number in connected - 16..connected {
            connect(host.path("nri.sock"), "10", &format!("many{number}"), Script::default());
        }
        wait_until("they take part", || taking_part() == connected);
    }
    register(&host, ["10-late".to_owned()].into_iter());
    wait_until("the refusal is shown", || {
        let refused = host.admin(&["status"])["refused_connections"].to_string();
        refused.contains("\"full\"") && refused.contains("[plugin.NAME]")
    });
    host.logs(&["10-late was refused: 128 plugins are already connected"], 1);
    assert!(!is_synchronized(&host.admin(&["plugins"]), "10-late"));
    let _plugin = host.plugin("10", "named", Script::default());
    assert_eq!(taking_part(), MOST + 1);
}

#[test]
fn failed_requests_of_one_plugin_have_few_lines_of_each_kind() {
    const REQUESTS: usize = 30;
    let mut host = TestHost::default();
    let audit = host.path("audit.log").display().to_string();
    // A permitted eviction fails only once the container's exit is known.
    let more = format!(
        "[audit]\ntarget = \"file\"\npath = \"{audit}\"\n[plugin.\"*\"]\nevict = \"deny\"\n"
    );
    host.configure(&host.path("fake/runc"), &more);
    host.start_daemon();
    let since = Instant::now();
    succeeds(&host.create("c1"));
    let (asker, script) = Asker::new();
    let _plugin = host.plugin("10", "asks", script);
    for number in 0..REQUESTS {
        let unknown = format!("unknown-{number}");
        asker.ask(vec![update_of(&unknown, &json!({"cpu": {"shares": 7}}))], &[&unknown, "c1"]);
    }
    // Another plugin still gets its lines. Once its line is in both logs, all earlier lines are written.
    let (other, script) = Asker::new();
    let _plugin = host.plugin("20", "other", script);
    other.ask(Vec::new(), &["c1"]);
    host.logs(&["20-other", "its eviction failed"], 1);
    let noted = |words: &[&str]| {
        let lines = host.read("audit.log");
        lines.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    };
    wait_until("it is audited", || noted(&["20-other", "its eviction failed"]) == 1);
    let most = 20 * minutes_begun(since);
    let updates = host.logged(&["10-asks", "unknown-", "an update requested"]);
    // Known and unknown containers count as one kind.
    let unknown = host.logged(&["10-asks", "unknown-", "eviction"]);
    let known = host.logged(&["10-asks", "c1", "its eviction failed"]);
    let shown = format!(
        "{updates} updates, {unknown} and {known} evictions, {most} of a kind at most:\n{}\n{}",
        host.read("daemon.err"),
        host.read("audit.log")
    );
    assert!((20..=most).contains(&updates), "{shown}");
    assert!((20..=most).contains(&(unknown + known)) && unknown > 0 && known > 0, "{shown}");
    assert!((20..=most).contains(&noted(&["unknown-"])), "{shown}");
}

#[test]
fn rules_in_audit_mode_have_few_lines_and_explain_has_all() {
    const CONTAINERS: usize = 25;
    let rule = "[[rule]]\nname = \"no env\"\ndeny = [\"Env\"]\nmode = \"audit\"\n";
    let (host, since) = (started(rule), Instant::now());
    let _plugin = host.plugin("10", "a", sets("HELLO", "there"));
    let ids: Vec<String> = (0..CONTAINERS).map(|number| format!("c{number}")).collect();
    for id in &ids {
        succeeds(&host.create_from(&pod_container(&host, "prod", id), id));
    }
    let lines = host.logged(&["a rule in audit mode would refuse it"]);
    assert!((20..=20 * minutes_begun(since)).contains(&lines), "{lines}");
    let last = host.admin(&["explain", ids.last().unwrap()]);
    assert_eq!(last["would_refuse"][0]["rule"], "no env", "{last}");
}
