// SPDX-License-Identifier: Apache-2.0
//! The engine's `update` beside plugins that own some values: what the runtime writes, what stays,
//! and what does not return.

use serde_json::{Value, json};

use super::super::{is_done, succeeds, wait_until};
use super::{place, show};

/// The engine's change, its request, and the content of the files.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// The cases, whose results are equal with both runtimes.
#[rustfmt::skip]
const CASES: &[Case] = &[
    ("memory raised", r#"{"memory": {"limit": 100663296}}"#, &[("memory.max", "100663296")]),
    ("memory and swap", r#"{"memory": {"limit": 50331648, "swap": 83886080}}"#, &[("memory.max", "50331648"), ("memory.swap.max", "33554432")]),
    ("reservation", r#"{"memory": {"reservation": 8388608}}"#, &[("memory.low", "8388608")]),
    ("quota and period", r#"{"cpu": {"quota": 50000, "period": 100000}}"#, &[("cpu.max", "50000 100000")]),
    ("quota lowered", r#"{"cpu": {"quota": 20000, "period": 100000}}"#, &[("cpu.max", "20000 100000")]),
    ("cpus", r#"{"cpu": {"cpus": "1"}}"#, &[("cpuset.cpus", "1")]),
    ("cpus raised", r#"{"cpu": {"cpus": "0-1"}}"#, &[("cpuset.cpus", "0-1")]),
    ("its own shares again", r#"{"cpu": {"shares": 1024}}"#, &[("cpu.max", "20000 100000")]),
];

/// The values that the plugin owns throughout: 300 shares are a weight of 12.
const OWNED: [(&str, &str); 3] =
    [("cpu.weight", "12"), ("pids.max", "33"), ("memory.high", "50331648")];

fn owned() -> Value {
    json!({"cpu": {"shares": 300}, "pids": {"limit": 33}, "unified": {"memory.high": "50331648"}})
}

fn engine(runtime: &str) {
    let Some(mut place) = place(runtime) else { return };
    let first =
        json!({"memory": {"limit": 67_108_864}, "cpu": {"shares": 1024}, "pids": {"limit": 100}});
    place.run("c1", &first);
    let asking = place.asker();
    assert!(is_done(&asking, "c1", &owned()));
    // These values are in force by default, and crun refuses an update with them.
    let idle = json!({"memory": {"useHierarchy": true, "kernel": -1}});
    assert!(is_done(&asking, "c1", &idle));
    for (case, request, files) in CASES {
        succeeds(&place.update("c1", &serde_json::from_str(request).unwrap()));
        place.all_say("c1", files);
        place.all_say("c1", &OWNED);
        show(runtime, &format!("the engine changes {case}"), "ok");
    }
    // The kernel refuses: the runtime may have written a part, but no value of a plugin.
    let wrong = json!({"cpu": {"cpus": "4000", "shares": 700}, "pids": {"limit": 44}});
    assert!(!place.update("c1", &wrong).status.success());
    wait_until("what the plugin owns is there again", || place.wrong("c1", &OWNED).is_empty());
    show(runtime, "the engine is refused", "ok");
    // The daemon dies, and all values stay.
    place.host.kill_daemon();
    place.host.start_daemon();
    succeeds(
        &place.update("c1", &json!({"memory": {"limit": 83_886_080}, "pids": {"limit": 100}})),
    );
    place.all_say("c1", &[("memory.max", "83886080")]);
    place.all_say("c1", &OWNED);
    show(runtime, "a daemon that was killed knows what plugins own", "ok");
    // A deliberate change takes precedence: 900 shares are 35.
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 900}})));
    place.all_say("c1", &[("cpu.weight", "35"), OWNED[1], OWNED[2]]);
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"].get("CPUShares"), None, "{explained}");
    show(runtime, "the engine wins by a deliberate change", "ok");
    // The next container has the same ID.
    succeeds(&place.host.verb(&["delete", "--force", "c1"]));
    wait_until("it is gone", || place.state("c1").is_none());
    place.run("c1", &first);
    place.all_say("c1", &[("cpu.weight", "39"), ("pids.max", "100"), ("memory.high", "max")]);
    let state = place.host.verb(&["state", "c1"]);
    assert!(String::from_utf8_lossy(&state.stdout).contains("running"));
    show(runtime, "nothing stale comes back with the name", "ok");
}

fn verbs(runtime: &str) {
    let Some(place) = place(runtime) else { return };
    let first = json!({"cpu": {"shares": 1024}, "pids": {"limit": 100}});
    place.run("c1", &first);
    let asking = place.asker();
    assert!(is_done(&asking, "c1", &owned()));
    for verb in ["state", "pause", "resume"] {
        succeeds(&place.host.verb(&[verb, "c1"]));
        place.all_say("c1", &OWNED);
        show(runtime, &format!("{verb} brings nothing back"), "ok");
    }
    // The runtime has the values of the creation in its state, until the engine's next update
    // corrects it.
    succeeds(&place.update("c1", &json!({"memory": {"reservation": 8_388_608}})));
    place.all_say("c1", &OWNED);
    if runtime == "runc" {
        let state: Value = serde_json::from_str(&place.host.read("root/c1/state.json")).unwrap();
        let known = &state["config"]["cgroups"];
        assert_eq!((&known["pids_limit"], &known["cpu_weight"]), (&json!(33), &json!(12)));
        show(runtime, "its own record has what the plugin owns", "ok");
    }
    succeeds(&place.host.verb(&["delete", "--force", "c1"]));
    wait_until("it is gone", || place.state("c1").is_none());
    place.run("c1", &first);
    wait_until("what the plugin set is set again", || place.wrong("c1", &OWNED).is_empty());
    show(runtime, "a restart under the same id gets what the plugin owns", "ok");
}

fn at_once(runtime: &str) {
    let Some(place) = place(runtime) else { return };
    place.run("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 1000}}));
    let asking = place.asker();
    let rounds: Vec<u64> = (1..=8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in &rounds {
                let both = json!({"cpu": {"quota": 10_000 + n}, "memory": {"reservation": (2000 + n) * 4096}});
                assert!(is_done(&asking, "c1", &both));
            }
        });
        for n in &rounds {
            succeeds(&place.update("c1", &json!({"pids": {"limit": 1000 + n}})));
        }
    });
    let reservation = (2008 * 4096).to_string();
    place.all_say("c1", &[("cpu.max", "10008 100000"), ("memory.low", &reservation)]);
    place.all_say("c1", &[("pids.max", "1008"), ("cpu.weight", "39")]);
    show(runtime, "the engine and a plugin at once", "ok");
}

#[test]
fn owned_values_survive_every_engine_update_on_v2_with_runc() {
    engine("runc");
}

#[test]
fn owned_values_survive_every_engine_update_on_v2_with_crun() {
    engine("crun");
}

#[test]
fn concurrent_updates_end_in_a_legal_order_on_v2_with_runc() {
    at_once("runc");
}

#[test]
fn concurrent_updates_end_in_a_legal_order_on_v2_with_crun() {
    at_once("crun");
}

#[test]
fn no_verb_or_restart_restores_an_old_value_on_v2_with_runc() {
    verbs("runc");
}

#[test]
fn no_verb_or_restart_restores_an_old_value_on_v2_with_crun() {
    verbs("crun");
}
