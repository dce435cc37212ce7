// SPDX-License-Identifier: Apache-2.0
//! Later processes, with runc and crun on cgroup v2: the values that a plugin set on the container's process
//! are found inside, and the caller's values take precedence. `tests/bundle/execs/adjusted` covers newer
//! runtimes.

use super::super::succeeds;
use super::{place, show};
use nri_plugin::Adjustment;
use serde_json::json;
use test_support::adjustments::just_so_many_files;

/// Prints every value that a plugin sets here, one per line.
const LOOK: &str = "echo hello=$HELLO a=$A path=$PATH; ulimit -Sn; ulimit -Hn; \
                    cat /proc/self/oom_score_adj";

fn changing() -> Adjustment {
    let adjustment = Adjustment::new().env("HELLO", "there").env("A", "2");
    just_so_many_files(adjustment.oom_score_adj(700))
}

fn later(runtime: &str) {
    let Some(mut place) = place(runtime) else { return };
    let _plugin = place.host.plugin("10", "later", changing());
    place.run("c1", &json!({}));
    let own = place.real.document("c1", &["sh", "-c", LOOK])["process"].clone();
    let mut asked = own.clone();
    asked["env"] = json!(["PATH=/bin", "A=mine", "HELLO=mine"]);
    asked["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "hard": 99, "soft": 99}]);
    asked["oomScoreAdj"] = json!(800);
    let printed = |place: &super::Place, process: &serde_json::Value| {
        place.host.write("process", &process.to_string());
        let file = place.host.path("process").display().to_string();
        let output = place.host.verb(&["exec", "--process", &file, "c1"]);
        succeeds(&output);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // crun gives a later process the OOM score of its caller, whatever the document has.
    let seen = if runtime == "crun" { 3 } else { 4 };
    let set = &["hello=there a=2 path=/bin", "321", "321", "700"][..seen];
    assert_eq!(printed(&place, &own)[..seen], *set);
    show(runtime, "a later process has what a plugin set", "ok");
    assert_eq!(printed(&place, &asked)[..3], ["hello=mine a=mine path=/bin", "99", "99"]);
    show(runtime, "a later process has what its caller asks for", "ok");
    let output = place.host.verb(&["exec", "c1", "sh", "-c", LOOK]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Without a document, crun gives a process the container's environment and none of its limits.
    let seen_without = if runtime == "crun" { 1 } else { seen };
    assert_eq!(text.lines().collect::<Vec<_>>()[..seen_without], set[..seen_without]);
    show(runtime, "a later process without a document has what a plugin set", "ok");
    place.host.kill_daemon();
    assert_eq!(printed(&place, &own)[..seen], *set);
    show(runtime, "a later process without a daemon has what a plugin set", "ok");
    place.host.start_daemon();
    succeeds(&place.host.verb(&["delete", "--force", "c1"]));
}

#[test]
fn a_later_process_has_the_plugins_values_on_v2_with_runc() {
    later("runc");
}

#[test]
fn a_later_process_has_the_plugins_values_on_v2_with_crun() {
    later("crun");
}
