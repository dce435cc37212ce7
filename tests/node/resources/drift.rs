// SPDX-License-Identifier: Apache-2.0
//! Drift of a real container: another process writes its cgroup, or its own process lowers a limit. `drift`
//! reports it, and the daemon restores the configured fields. It needs no systemd; on v1 and v2.

use std::path::PathBuf;

use nri_plugin::{Adjustment, Resources};
use serde_json::{Value, json};
use test_support::adjustments::just_so_many_files;

use super::{Place, anywhere, is_done, succeeds, wait_until};

const BACK: &str = "[drift]\nreapply = [\"PidsLimit\"]\nevery = \"1s\"\n";

/// A file of the container's cgroup, at its place on this host.
fn path(place: &Place, controller: &str, file: &str) -> PathBuf {
    let cgroup = place.real.cgroup("c1");
    let v1 = PathBuf::from(format!("/sys/fs/cgroup/{controller}{cgroup}/{file}"));
    if v1.exists() { v1 } else { format!("/sys/fs/cgroup{cgroup}/{file}").into() }
}

/// Writes a value from another process.
fn write(place: &Place, controller: &str, file: &str, value: &str) {
    let path = path(place, controller, file).display().to_string();
    let words = ["-c", &format!("echo {value} > {path}")];
    let output = std::process::Command::new("sh").args(words).output().unwrap();
    assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
}

fn text(place: &Place, controller: &str, file: &str) -> String {
    std::fs::read_to_string(path(place, controller, file)).unwrap().trim_end().to_owned()
}

/// The file of the memory limit, which accepts a lower value on each host; a CPU set would not, because a
/// host may have one CPU.
fn memory_file(place: &Place) -> &'static str {
    let v1 = "memory.limit_in_bytes";
    if path(place, "memory", v1).exists() { v1 } else { "memory.max" }
}

/// The exit code, the rows, and standard error.
fn drift(place: &Place, words: &[&str]) -> (Option<i32>, Value, String) {
    let output = place.host.call(&[&["nri", "drift", "-o", "json"][..], words].concat());
    let rows = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), rows, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A container whose plugin sets its CPUs and limits its processes and files; its process then lowers the
/// number of files itself.
fn pinned(more: &str) -> Option<Place> {
    let place = anywhere("runc", more)?;
    let resources = Resources::new().cpus("0").mems("0").memory_limit(256 << 20).pids_limit(77);
    let adjust = just_so_many_files(Adjustment::new().resources(resources));
    let _plugin = place.host.plugin("10", "pins", adjust);
    place.prepare("c1", &json!({"pids": {"limit": 100}}));
    let file = place.host.path("c1/config.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    document["process"]["args"] = json!(["sh", "-c", "ulimit -n 99; exec sleep 1000"]);
    place.host.write("c1/config.json", &document.to_string());
    succeeds(&place.host.create_from("c1", "c1"));
    place.settled("c1");
    Some(place)
}

#[test]
fn a_foreign_write_is_reported_and_sets_the_exit_code() {
    let Some(place) = pinned("") else { return };
    assert_eq!(drift(&place, &[]), (Some(0), json!([]), String::new()));
    write(&place, "pids", "pids.max", "5");
    let (code, rows, printed) = drift(&place, &["c1"]);
    let row = json!([{
        "container_id": "c1", "field": "PidsLimit", "owner": "10-pins", "expected": "77",
        "actual": "5", "writer": null, "process": false, "file": path(&place, "pids", "pids.max"),
    }]);
    assert_eq!((code, &rows, printed.as_str()), (Some(3), &row, ""));
    let page = place.host.call(&["nri", "drift"]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(page.contains("PidsLimit") && page.lines().count() == 2, "{page}");
    let metrics = place.host.call(&["nri", "metrics"]);
    let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
    assert!(metrics.contains("nri_runc_drift{place=\"cgroup\"} 1\n"), "{metrics}");
    // An update of the engine also contains the plugin's value.
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 512}})));
    wait_until("the update brought it back", || drift(&place, &[]).0 == Some(0));
    assert_eq!(text(&place, "pids", "pids.max"), "77");
}

#[test]
fn a_limit_that_the_process_lowered_itself_is_marked() {
    let Some(place) = pinned("") else { return };
    succeeds(&place.host.verb(&["start", "c1"]));
    wait_until("the process lowered its limit", || drift(&place, &["c1"]).0 == Some(3));
    let (_, rows, _) = drift(&place, &["c1"]);
    let row = &rows[0];
    assert_eq!((&row["field"], &row["process"]), (&json!("Rlimits[RLIMIT_NOFILE]"), &json!(true)));
    assert_eq!((&row["expected"], &row["actual"]), (&json!("321:321"), &json!("99:99")));
    assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
}

#[test]
fn only_configured_fields_are_restored() {
    let Some(place) = pinned("") else { return };
    let log = place.host.path("audit.log");
    let audit = format!("{BACK}[audit]\ntarget = \"file\"\npath = \"{}\"\n", log.display());
    place.host.configure(place.real.runc(), &audit);
    succeeds(&place.host.call(&["nri", "reload"]));
    let memory = memory_file(&place);
    write(&place, "memory", memory, "134217728");
    write(&place, "pids", "pids.max", "5");
    wait_until("it is put back", || text(&place, "pids", "pids.max") == "77");
    assert_eq!(text(&place, "memory", memory), "134217728", "it is not named");
    let lines = || place.host.admin(&["audit"]).as_array().cloned().unwrap_or_default();
    wait_until("the audit log has it", || {
        lines().iter().any(|line| {
            (line["event"] == "drift" && line["plugin"] == "10-pins")
                && (line["field"] == "cgroup:pids.max" && line["from"] == "5" && line["to"] == "77")
        })
    });
    let explained = place.host.admin(&["explain", "c1"]).to_string();
    assert!(explained.contains("\"event\":\"drift\""), "{explained}");
    place.host.logs(&["MemLimit is 134217728, not 268435456 as 10-pins set it"], 1);
}

/// Starts a daemon that restores values, with this fault at the write, and an audit log.
fn faulty(place: &mut Place, fault: &str) {
    let path = |name: &str| place.host.path(name).display().to_string();
    let more = format!(
        "{BACK}[audit]\ntarget = \"file\"\npath = \"{}\"\n[debug]\nfault = \"@{}\"\n",
        path("audit.log"),
        path("fault"),
    );
    place.host.configure(place.real.runc(), &more);
    place.host.write("fault", &format!("daemon.cgroup:{fault}"));
    place.host.kill_daemon();
    place.host.start_daemon();
}

#[test]
fn a_value_that_cannot_be_restored_is_reported_and_retried() {
    let Some(mut place) = pinned("") else { return };
    faulty(&mut place, "fail");
    write(&place, "pids", "pids.max", "5");
    place.host.logs_at_least(&["PidsLimit could not be restored"], 1);
    let is_noted = || place.host.admin(&["audit"]).to_string().contains("\"skipped\"");
    wait_until("the audit log has it", is_noted);
    assert_eq!(text(&place, "pids", "pids.max"), "5");
    place.host.write("fault", "");
    wait_until("it is put back", || text(&place, "pids", "pids.max") == "77");
}

#[test]
fn the_next_daemon_repeats_an_interrupted_write() {
    let Some(mut place) = pinned("") else { return };
    faulty(&mut place, "kill");
    write(&place, "pids", "pids.max", "5");
    let stat = format!("/proc/{}/stat", place.host.daemon_pid());
    let has_died = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "));
    wait_until("the daemon has died", has_died);
    assert_eq!(text(&place, "pids", "pids.max"), "5");
    place.host.write("fault", "");
    place.host.kill_daemon();
    place.host.start_daemon();
    wait_until("the next one puts it back", || text(&place, "pids", "pids.max") == "77");
}

#[test]
fn drift_fails_for_unknown_containers_and_skips_unowned_values() {
    let Some(mut place) = anywhere("runc", "") else { return };
    place.run("c1", &json!({"pids": {"limit": 100}}));
    write(&place, "pids", "pids.max", "50");
    assert_eq!(drift(&place, &["c1"]), (Some(0), json!([]), String::new()));
    let asking = place.asker();
    assert!(is_done(&asking, "c1", &json!({"pids": {"limit": 55}})));
    write(&place, "pids", "pids.max", "50");
    assert_eq!(drift(&place, &["c1"]).0, Some(3));
    let (code, _, printed) = drift(&place, &["nobody"]);
    assert!(code == Some(1) && printed.contains("no container matches nobody"), "{printed}");
    place.host.kill_daemon();
    let (code, _, printed) = drift(&place, &[]);
    assert!(code == Some(1) && printed.contains("the daemon is not running"), "{printed}");
}
