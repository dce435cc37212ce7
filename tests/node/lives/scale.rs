// SPDX-License-Identifier: Apache-2.0
//! The cost of many known containers: watching a thousand takes no processor time, and a create
//! takes the same time as ever. The daemon finds them on record, as copies of one record that it
//! wrote.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use test_support::{BUNDLE, BUSY, Script, Started, TestHost, in_status, wait_until};

use super::{runtime, say};

/// A host with one running container, `c0`, on record, and no daemon; `more` has lines of
/// configuration.
pub(super) fn with_a_record(more: &str) -> TestHost {
    let mut host = TestHost::new(more);
    host.put_program("fake/runc", &runtime());
    host.write("bundle/config.json", BUNDLE);
    host.start_daemon();
    assert!(host.create("c0").status.success());
    assert!(host.verb(&["start", "c0"]).status.success());
    wait_until("it runs", || host.admin(&["pods"])[0]["containers"][0]["state"] == "running");
    host.kill_daemon();
    host
}

/// The only record in a folder, and its file name.
fn record(host: &TestHost, folder: &str) -> (String, Value) {
    let folder = host.path("run/state").join(folder);
    let entry = std::fs::read_dir(folder).unwrap().flatten().next().unwrap();
    let name = entry.file_name().to_string_lossy().into_owned();
    (name, serde_json::from_slice(&std::fs::read(entry.path()).unwrap()).unwrap())
}

/// Puts a copy of `c0` on record for each process.
pub(super) fn put_on_record(host: &TestHost, pids: &[u32]) {
    let (name, container) = record(host, "containers");
    let (_, pod) = record(host, "pods");
    for (number, pid) in pids.iter().enumerate() {
        let id = format!("m{number}");
        let mut container = container.clone();
        container["key"]["id"] = id.as_str().into();
        container["incarnation"] = (number + 100).into();
        (container["init_pid"], container["init_start"]) = ((*pid).into(), Value::Null);
        for member in ["pod", "name", "bundle"] {
            container[member] = id.as_str().into();
        }
        let mut pod = pod.clone();
        pod["id"] = id.as_str().into();
        let file = name.replacen("c0", &id, 1);
        let state = host.path("run/state");
        write(&state.join("containers").join(file), &container);
        write(&state.join("pods").join(format!("{id}.json")), &pod);
        std::fs::create_dir_all(host.path("root").join(&id)).unwrap();
    }
}

fn write(path: &Path, record: &Value) {
    nri_runc::testing::files::replace(path, record.to_string().as_bytes()).unwrap();
}

pub(super) fn sleeper() -> Started {
    Started(Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap())
}

/// Processor time in ticks, and the number of wake-ups.
fn effort(pid: i32) -> (u64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    (ticks(11) + ticks(12), in_status(pid, "voluntary_ctxt_switches"))
}

fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Polling the containers would take longer.
const AT_ONCE: Duration = Duration::from_millis(100);

#[test]
fn a_thousand_containers_cost_no_wake_ups_and_their_ends_arrive() {
    let mut host = with_a_record(BUSY);
    host.start_daemon();
    let one = in_status(host.daemon_pid(), "VmRSS");
    host.kill_daemon();
    let mut sleepers: Vec<_> = (0..1000).map(|_| sleeper()).collect();
    let pids: Vec<u32> = sleepers.iter().map(|sleeper| sleeper.id()).collect();
    put_on_record(&host, &pids);
    host.start_daemon();
    let pid = host.daemon_pid();
    wait_until("all are watched", || descriptors(pid) > 1000);
    // On a busy machine the start takes longer.
    let (mut ticks, mut wakes) = (0, 0);
    wait_until("it is idle", || {
        let before = effort(pid);
        std::thread::sleep(Duration::from_secs(3));
        let after = effort(pid);
        (ticks, wakes) = (after.0 - before.0, after.1 - before.1);
        wakes <= 10 && ticks <= 2
    });
    let memory = in_status(pid, "VmRSS") - one;
    let open = descriptors(pid);
    say(&format!(
        "1000 containers: {wakes} wakes and {ticks} ticks in 3 s, {memory} KB, {open} fds"
    ));
    assert!(open < 1200, "{open} descriptors");
    let received = host.plugin("10", "witness", Script::default());
    let stops = || {
        let received = received.lock().unwrap();
        received.iter().filter(|line| line.starts_with("StopContainer")).count()
    };
    // The best of several attempts, because the machine may be busy.
    let mut best = Duration::MAX;
    for (number, sleeper) in sleepers.iter_mut().take(200).enumerate() {
        let begun = Instant::now();
        sleeper.kill().unwrap();
        while stops() <= number {
            assert!(begun.elapsed() < Duration::from_secs(120), "the event did not arrive");
            std::thread::sleep(Duration::from_millis(1));
        }
        best = best.min(begun.elapsed());
        if best < AT_ONCE {
            break;
        }
    }
    say(&format!("StopContainer {best:?} after the exit"));
    assert!(best < AT_ONCE, "{best:?}");
    sleepers.iter_mut().for_each(|sleeper| sleeper.kill().unwrap());
    wait_until("all ends are reported", || stops() >= 1000);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(stops(), 1000, "each once");
}

/// The daemon's processor time for some creates and deletes; it has no other work. Unlike elapsed
/// time it does not depend on the machine's load.
fn creates_take(host: &TestHost) -> Duration {
    let spent = || {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", host.daemon_pid()));
        let text = text.unwrap_or_default();
        let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
        Duration::from_nanos(nanoseconds.unwrap_or_default())
    };
    let before = spent();
    for _round in 0..20 {
        assert!(host.create("c1").status.success());
        assert!(host.verb(&["delete", "--force", "c1"]).status.success());
    }
    wait_until("it is removed", || host.admin(&["explain", "c1"])["state"] == "removed");
    spent() - before
}

#[test]
fn a_create_costs_no_more_with_ten_thousand_known_containers() {
    let mut host = with_a_record(BUSY);
    let one = sleeper();
    put_on_record(&host, &[one.id(); 10]);
    host.start_daemon();
    let few = creates_take(&host);
    let small = in_status(host.daemon_pid(), "VmRSS");
    host.kill_daemon();
    std::fs::create_dir_all(host.path("aside")).unwrap();
    for folder in ["containers", "pods"] {
        for entry in std::fs::read_dir(host.path("run/state").join(folder)).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with('m') {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
    put_on_record(&host, &[one.id(); 10_000]);
    let begun = Instant::now();
    host.start_daemon();
    say(&format!("with 10000 on record the daemon is ready after {:?}", begun.elapsed()));
    // The daemon checks them in the background.
    wait_until("all are watched", || descriptors(host.daemon_pid()) > 10_000);
    wait_until("it is idle", || {
        let before = effort(host.daemon_pid());
        std::thread::sleep(Duration::from_secs(1));
        effort(host.daemon_pid()).0 - before.0 <= 2
    });
    let many = creates_take(&host);
    let each = (in_status(host.daemon_pid(), "VmRSS").saturating_sub(small)) * 1024 / 10_000;
    let ratio = many.as_secs_f64() / few.as_secs_f64();
    say(&format!(
        "20 creates and deletes: {few:?} with 10 known, {many:?} with 10000: {ratio:.2}; {each} bytes each"
    ));
    // Work for each known container would make the ratio a hundred times as large; the rest is
    // noise.
    assert!(ratio < 4.0, "{ratio}");
    assert!(each < 10 << 10, "{each} bytes for each container");
}
