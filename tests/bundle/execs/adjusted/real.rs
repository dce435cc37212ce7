// SPDX-License-Identifier: Apache-2.0
//! The real runc: the environment and limits of a later process, read inside the container. crun is
//! tested in the guest of `make vm` (`tests/node/resources/v2/later.rs`).

use std::path::{Path, PathBuf};

use nri_plugin::Adjustment;
use nri_runc::plugin::api;
use serde_json::{Value, json};
use test_support::adjustments::{
    LOOK_AT_CLOSED_DEVICE, closed_device as closed_device_of, just_so_many_files,
};
use test_support::real_runtime::RealRuntime;
use test_support::{Script, TestHost, started, succeeds, tools};

/// Prints every value that a plugin can set, one per line.
const LOOK: &str = "echo hello=$HELLO a=$A gone=$GONE; ulimit -Sn; ulimit -Hn; \
                    cat /proc/self/oom_score_adj";

fn changing(more: impl FnOnce(&mut api::LinuxContainerAdjustment)) -> Script {
    let adjustment = Adjustment::new().env("HELLO", "there").env("A", "2").remove_env("GONE");
    let adjustment = just_so_many_files(adjustment.oom_score_adj(700));
    adjustment.edit(|adjust| more(adjust.linux.mut_or_insert_default())).into()
}

/// The container's process as the engine writes it, with another command.
fn process(document: &Value, script: &str) -> Value {
    let mut process = document["process"].clone();
    process["args"] = json!(["sh", "-c", script]);
    process
}

/// A running container `c1` with that runtime.
fn run(host: &TestHost, real: &RealRuntime, runtime: &Path, script: Script) -> Value {
    host.configure(runtime, "");
    let _plugin = host.plugin("10", "all", script);
    let mut document = real.document("c1", &["sleep", "1000"]);
    document["process"]["env"] = json!(["PATH=/bin", "A=1", "GONE=1"]);
    document["process"]["oomScoreAdj"] = json!(600);
    host.write("bundle/config.json", &document.to_string());
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    document
}

/// The output of a later process with that document.
fn output_of(host: &TestHost, process: &Value) -> Vec<String> {
    let file = super::process(host, &process.to_string());
    let output = host.verb(&["exec", "--process", &file, "c1"]);
    succeeds(&output);
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn looks_inside(runtime: &Path) {
    let host = started("");
    let dir = host.path("").display().to_string();
    let Some(real) = RealRuntime::new(Path::new(dir.trim_end_matches('/'))) else { return };
    let document = run(&host, &real, runtime, changing(|_| {}));
    let process = process(&document, LOOK);
    let name = runtime.display();
    let wanted = ["hello=there a=2 gone=", "321", "321", "700"];
    assert_eq!(output_of(&host, &process), wanted, "{name}");
    // The caller's values take precedence; the OOM score is always the container's.
    let mut asked = process.clone();
    asked["env"] = json!(["PATH=/bin", "A=mine", "GONE=mine"]);
    asked["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "hard": 99, "soft": 99}]);
    assert_eq!(
        output_of(&host, &asked)[..3],
        ["hello=there a=mine gone=mine", "99", "99"],
        "{name}"
    );
    // Without a process document, runc takes the process from the container's document, which is
    // patched.
    let output = host.verb(&["exec", "c1", "sh", "-c", LOOK]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.lines().collect::<Vec<_>>(), wanted, "{name}");
    // For a container that is gone, the runtime reports its own error.
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    assert!(!host.verb(&["exec", "--process", "/nowhere", "c1"]).status.success());
}

fn closed_device(runtime: &Path) {
    let mut host = TestHost::default();
    let dir = host.path("").display().to_string();
    let dir = Path::new(dir.trim_end_matches('/'));
    let Some(real) = RealRuntime::new(dir) else { return };
    let specs = format!("[cdi]\nspec_dirs = [\"{}\"]", dir.join("cdi").display());
    host.configure(runtime, &specs);
    host.start_daemon();
    let _plugin = host.plugin("10", "device", closed_device_of(dir));
    let document = real.document("c1", &["sleep", "1000"]);
    host.write("bundle/config.json", &document.to_string());
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    let process = process(&document, LOOK_AT_CLOSED_DEVICE);
    let name = runtime.display();
    assert_eq!(output_of(&host, &process), ["600 1:3", "0 4400"], "{name}");
    // Another user has the groups that the caller sets.
    let mut asked = process.clone();
    asked["user"] = json!({"uid": 7, "gid": 8});
    assert_eq!(output_of(&host, &asked), ["600 1:3", "8"], "{name}");
    asked["user"] = json!({"uid": 0, "gid": 0, "additionalGids": [9]});
    assert_eq!(output_of(&host, &asked)[1], "0 9", "{name}");
    succeeds(&host.verb(&["delete", "--force", "c1"]));
}

#[test]
fn an_exec_has_the_group_of_a_restricted_device_with_runc() {
    let Some(tools) = tools::find(&["runc"]) else { return };
    closed_device(&tools.join("runc"));
}

#[test]
fn an_exec_has_the_group_of_a_restricted_device_with_runc_1_5() {
    newer("runc-1.5.2").iter().for_each(|runc| closed_device(runc));
}

fn newer(name: &str) -> Option<PathBuf> {
    tools::newer(name).map(|dir| dir.join("runc"))
}

#[test]
fn a_later_process_has_the_plugins_values_with_runc() {
    let Some(tools) = tools::find(&["runc"]) else { return };
    looks_inside(&tools.join("runc"));
}

#[test]
fn a_later_process_has_the_plugins_values_with_runc_1_5() {
    newer("runc-1.5.2").iter().for_each(|runc| looks_inside(runc));
}

#[test]
fn a_later_process_has_the_plugins_values_with_runc_1_6() {
    newer("runc-1.6.0-rc.1").iter().for_each(|runc| looks_inside(runc));
}

/// Checks the nice value, scheduling policy and I/O priority of a process by the kernel's report.
fn scheduled(runtime: &Path) {
    let host = started("");
    let dir = host.path("").display().to_string();
    let Some(real) = RealRuntime::new(Path::new(dir.trim_end_matches('/'))) else { return };
    let script = changing(|linux| {
        let scheduler = api::LinuxScheduler {
            policy: api::LinuxSchedulerPolicy::SCHED_BATCH.into(),
            nice: 7,
            ..Default::default()
        };
        let priority = api::LinuxIOPriority {
            class: api::IOPrioClass::IOPRIO_CLASS_BE.into(),
            priority: 6,
            ..Default::default()
        };
        linux.scheduler = Some(scheduler).into();
        linux.io_priority = Some(priority).into();
    });
    let document = run(&host, &real, runtime, script);
    // Fields of `stat` after the program's name: nice is the 17th, the policy the 39th.
    let look = "set -- $(cat /proc/self/stat); shift 2; echo $17 ${39}";
    let look = look.replace("$17", "${17}");
    let printed = output_of(&host, &process(&document, &look));
    assert_eq!(printed, ["7 3"], "{}", runtime.display());
    let file = super::process(&host, &process(&document, "exec sleep 1000").to_string());
    let pid_file = host.path("later.pid").display().to_string();
    let words = ["exec", "--detach", "--pid-file", &pid_file, "--process", &file, "c1"];
    succeeds(&host.verb(&words));
    let pid: i64 = host.read("later.pid").trim().parse().unwrap();
    assert_eq!(io_priority(pid), (2 << 13) | 6, "{}", runtime.display());
    succeeds(&host.verb(&["delete", "--force", "c1"]));
}

#[expect(unsafe_code, reason = "no crate at hand has ioprio_get")]
fn io_priority(pid: i64) -> i64 {
    const OF_PROCESS: i64 = 1;
    // SAFETY: the call takes and gives numbers only.
    unsafe { nix::libc::syscall(nix::libc::SYS_ioprio_get, OF_PROCESS, pid) }
}

#[test]
fn an_exec_has_the_plugins_scheduling_with_runc_1_5() {
    newer("runc-1.5.2").iter().for_each(|runc| scheduled(runc));
}

#[test]
fn an_exec_has_the_plugins_scheduling_with_runc_1_6() {
    newer("runc-1.6.0-rc.1").iter().for_each(|runc| scheduled(runc));
}
