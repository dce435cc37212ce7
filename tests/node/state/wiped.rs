// SPDX-License-Identifier: Apache-2.0
//! The run directory is wiped while containers run: a living daemon writes everything again;
//! without one, the next daemon finds the containers in the runtime's state.

use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use test_support::adjustments::sets;
use test_support::{BUNDLE, TestHost, wait_until};

use super::{Script, bundle, files, run, shown, started, state, succeeds};

fn wipe(host: &TestHost) {
    // A living daemon writes again before the removal is finished.
    let _may_be_in_our_way = std::fs::remove_dir_all(host.path("run"));
}

/// A host on which all containers of the runtime were created by nri-runc, without its daemon.
fn ours() -> TestHost {
    let host = TestHost::default();
    let root = host.path("root").display().to_string();
    let more = format!("autostart = false\nruntime_roots = [\"{root}\"]");
    host.configure(&host.path("fake/runc"), &more);
    host
}

/// A daemon whose run directory was wiped while no daemon ran; it had three containers: `runs`,
/// `ended`, and `made`, which was not started. Also the events that its plugin received since.
fn wiped_with_three() -> (TestHost, Arc<Mutex<Vec<String>>>) {
    let mut host = ours();
    host.start_daemon();
    assert_eq!(host.admin(&["status"])["found"], 0);
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    for id in ["runs", "ended"] {
        run(&host, id);
    }
    bundle(&host, "made");
    succeeds(&host.create_from("made", "made"));
    succeeds(&host.verb(&["kill", "ended", "9"]));
    wait_until("it has ended", || state(&host, "ended") == "stopped");
    host.kill_daemon();
    wipe(&host);
    host.start_daemon();
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    (host, received)
}

#[test]
fn containers_of_a_wiped_run_directory_are_recovered() {
    let (host, received) = wiped_with_three();
    assert_eq!(host.admin(&["status"])["found"], 3);
    let states = ["runs", "ended", "made"].map(|id| state(&host, id));
    assert_eq!(states, ["running", "stopped", "created"]);
    succeeds(&host.verb(&["start", "made"]));
    wait_until("it runs", || state(&host, "made") == "running");
    succeeds(&host.verb(&["kill", "runs", "9"]));
    wait_until("its end is known", || state(&host, "runs") == "stopped");
    for id in ["runs", "ended", "made"] {
        succeeds(&host.verb(&["delete", "--force", id]));
    }
    wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
    wait_until("all is reported", || received.lock().unwrap().len() == 16);
    let received = received.lock().unwrap().clone();
    let mut known = received[..3].to_vec();
    known.sort();
    assert_eq!(known, ["Synchronize ended", "Synchronize made", "Synchronize runs"]);
    let of = |id: &str| -> Vec<&str> {
        let lines = received.iter().filter_map(|line| line.strip_suffix(&format!(" {id}")));
        lines.filter(|event| !event.contains("Pod")).skip(1).collect()
    };
    assert_eq!(of("runs"), ["StopContainer", "RemoveContainer"]);
    assert_eq!(of("ended"), ["RemoveContainer"]);
    let whole = ["StartContainer", "PostStartContainer", "StopContainer", "RemoveContainer"];
    assert_eq!(of("made"), whole);
}

#[test]
fn a_recovered_container_is_marked_on_every_screen() {
    let (host, _plugin) = wiped_with_three();
    let found = shown(&host, "runs");
    let pid: u64 = host.read("root/runs/pid").trim().parse().unwrap();
    assert_eq!((&found["found"], &found["pid"]), (&json!(true), &json!(pid)));
    let explained = host.admin(&["explain", "runs"]);
    assert_eq!((&explained["owners"], &explained["found"]), (&json!({}), &json!(true)));
    assert!(explained["skipped"].to_string().contains("run directory was deleted"), "{explained}");
    let page = host.call(&["nri", "explain", "runs"]).stdout;
    let page = String::from_utf8_lossy(&page).into_owned();
    assert!(page.contains("recovered after its record was lost; plugin changes unknown"), "{page}");
    let page = host.call(&["nri", "pods"]).stdout;
    assert_eq!(String::from_utf8_lossy(&page).matches("(recovered)").count(), 3);
}

#[test]
fn wiped_records_are_searched_once_per_boot() {
    let mut host = ours();
    host.start_daemon();
    run(&host, "c1");
    host.kill_daemon();
    wipe(&host);
    host.start_daemon();
    assert_eq!(shown(&host, "c1")["found"], true);
    host.kill_daemon();
    // A container that was created by the runtime directly is ignored.
    let root = host.path("root").display().to_string();
    let bundle = host.path("bundle").display().to_string();
    let mut runtime = std::process::Command::new(host.path("fake/runc"));
    let made = runtime.args(["--root", &root, "create", "--bundle", &bundle, "theirs"]).status();
    assert!(made.unwrap().success());
    host.start_daemon();
    assert_eq!(
        (host.admin(&["status"])["found"].clone(), state(&host, "theirs")),
        (json!(1), String::new())
    );
    assert_eq!(state(&host, "c1"), "running");
    // A container that is created again is no longer shown as recovered.
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    succeeds(&host.create_from("c1", "c1"));
    assert_eq!(
        (host.admin(&["status"])["found"].clone(), shown(&host, "c1")["found"].clone()),
        (json!(0), json!(false))
    );
}

#[test]
fn a_container_made_without_nri_runc_is_not_recovered() {
    let mut host = started("autostart = false");
    run(&host, "c1");
    host.kill_daemon();
    wipe(&host);
    host.start_daemon();
    // No evidence shows that this directory is nri-runc's, and no engine names nri-runc.
    assert_eq!(host.admin(&["pods"]), json!([]));
    succeeds(&host.verb(&["kill", "c1", "9"]));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    assert!(!host.path("root/c1").exists());
}

#[test]
fn bypassed_containers_are_taken_over_not_recovered() {
    let mut host = ours();
    run(&host, "c1");
    host.start_daemon();
    assert_eq!(
        (state(&host, "c1").as_str(), &shown(&host, "c1")["found"]),
        ("running", &json!(false))
    );
    assert_eq!(host.admin(&["status"])["bypassed"], 2);
}

#[test]
fn an_unreadable_container_prevents_no_other_recovery() {
    let mut host = ours();
    host.start_daemon();
    for id in ["good", "garbage", "homeless", "empty"] {
        run(&host, id);
    }
    host.kill_daemon();
    wipe(&host);
    host.write("root/garbage/state.json", "{\"init_process_pid\": ");
    std::fs::remove_file(host.path("homeless/config.json")).unwrap();
    std::fs::remove_file(host.path("root/empty/state.json")).unwrap();
    host.write("root/file", "");
    symlink(host.path("root/good"), host.path("root/link")).unwrap();
    host.start_daemon();
    assert_eq!(host.admin(&["status"])["found"], 1);
    assert_eq!(state(&host, "good"), "running");
    host.logs(&["homeless", "cannot be recovered"], 1);
}

/// A bundle as containerd writes it, below a private root.
fn task(host: &TestHost, id: &str, annotations: &Value, program: &str) -> String {
    let folder = format!("host/run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}");
    std::fs::create_dir_all(host.path(&folder).join("rootfs")).unwrap();
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = annotations.clone();
    host.write(&format!("{folder}/config.json"), &document.to_string());
    host.write(&format!("{folder}/runtime"), program);
    folder
}

#[test]
fn only_pods_of_a_registered_engine_are_recovered() {
    let mut host = TestHost::default();
    let host_root = host.path("host").display().to_string();
    std::fs::create_dir(host.path("host")).unwrap();
    for folder in ["proc", "sys"] {
        symlink(format!("/{folder}"), host.path("host").join(folder)).unwrap();
    }
    let more = format!("autostart = false\n[debug]\nhost_root = \"{host_root}\"\n");
    host.configure(&host.path("fake/runc"), &more);
    host.start_daemon();
    let pod = json!({
        "io.kubernetes.cri.container-type": "sandbox",
        "io.kubernetes.cri.sandbox-id": "pod",
        "io.kubernetes.cri.sandbox-name": "web",
        "io.kubernetes.cri.sandbox-namespace": "shop",
        "io.kubernetes.cri.sandbox-uid": "u",
    });
    let mut member = pod.clone();
    member["io.kubernetes.cri.container-type"] = json!("container");
    member["io.kubernetes.cri.container-name"] = json!("app");
    let root = host.path("host/run/containerd/runc/k8s.io").display().to_string();
    let verb = |words: &[&str]| host.call(&[&["--root", &root][..], words].concat());
    let own = std::env::var("NRI_RUNC_BINARY");
    let own = own.unwrap_or_else(|_| env!("CARGO_BIN_EXE_nri-runc").to_owned());
    for (id, annotations, program) in
        [("pod", &pod, own.as_str()), ("c1", &member, &own), ("theirs", &member, "/usr/sbin/runc")]
    {
        let bundle = host.path(&task(&host, id, annotations, program)).display().to_string();
        succeeds(&verb(&["create", "--bundle", &bundle, id]));
        succeeds(&verb(&["start", id]));
    }
    host.kill_daemon();
    wipe(&host);
    host.start_daemon();
    // Only the pods' records are lost now.
    host.kill_daemon();
    files(&host, "pods").iter().for_each(|path| std::fs::remove_file(path).unwrap());
    host.start_daemon();
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    assert_eq!(*received.lock().unwrap(), ["Synchronize app"]);
    let pods = host.admin(&["pods"]);
    assert_eq!(pods.as_array().unwrap().len(), 1, "{pods}");
    let shown = ["name", "namespace", "engine", "state"].map(|key| pods[0][key].clone());
    assert_eq!(shown, ["web", "shop", "containerd-cri", "ready"]);
    assert_eq!(host.admin(&["status"])["found"], 2);
    let root = host.path("host/run/containerd/runc/k8s.io").display().to_string();
    let verb = |words: &[&str]| host.call(&[&["--root", &root][..], words].concat());
    for id in ["c1", "pod", "theirs"] {
        succeeds(&verb(&["delete", "--force", id]));
    }
    wait_until("the pod's end is reported", || received.lock().unwrap().len() == 5);
    let ends =
        ["StopContainer app", "RemoveContainer app", "StopPodSandbox web", "RemovePodSandbox web"];
    assert_eq!(received.lock().unwrap()[1..], ends);
}

/// Checks the state after a living daemon has noticed the loss.
fn is_whole(host: &TestHost, pid: i32) {
    wait_until("it is found again", || host.admin(&["status"])["pid"] == pid);
    for kind in ["containers", "pods"] {
        wait_until("its records are", || files(host, kind).len() == 1);
    }
    let failures = || host.admin(&["status"])["failures"].to_string();
    wait_until("it is said", || failures().contains("the run directory was deleted"));
}

#[test]
fn a_running_daemon_restores_wiped_files() {
    for what in ["run", "run/state", "run/daemon.sock", "moved"] {
        let mut host = started("");
        let received = host.plugin("10", "env", sets("HELLO", "there"));
        run(&host, "c1");
        wait_until("it runs", || state(&host, "c1") == "running");
        let pid = host.daemon_pid();
        match what {
            "moved" => std::fs::rename(host.path("run"), host.path("was")).unwrap(),
            "run/daemon.sock" => std::fs::remove_file(host.path(what)).unwrap(),
            what => drop(std::fs::remove_dir_all(host.path(what))),
        }
        is_whole(&host, pid);
        // The next container uses this same daemon, and its plugin.
        run(&host, "c2");
        assert!(host.read("fake/seen.json").contains("HELLO=there"), "{what}");
        wait_until("it runs", || state(&host, "c2") == "running");
        assert_eq!(host.admin(&["status"])["pid"], pid, "{what}");
        // The next daemon has the same records.
        host.kill_daemon();
        host.start_daemon();
        let owners = host.admin(&["explain", "c1"])["owners"].clone();
        assert_eq!(
            (state(&host, "c1").as_str(), &owners["Env[HELLO]"]),
            ("running", &json!("10-env"))
        );
        assert_eq!(host.admin(&["status"])["found"], 0, "{what}");
        drop(received);
        let received = host.plugin("10", "env", Script::default());
        succeeds(&host.verb(&["delete", "--force", "c1"]));
        wait_until("its end is reported", || {
            received.lock().unwrap().contains(&"RemoveContainer c1".to_owned())
        });
    }
}

#[test]
fn bypasses_while_the_run_directory_is_wiped_are_noticed() {
    let mut host = started("");
    run(&host, "c1");
    let pid = host.daemon_pid();
    wipe(&host);
    is_whole(&host, pid);
    host.kill_daemon();
    host.configure(&host.path("fake/runc"), "autostart = false");
    run(&host, "c2");
    host.start_daemon();
    assert_eq!(state(&host, "c2"), "running");
    wipe(&host);
    is_gone_and_back(&host);
    assert!(["c1", "c2"].iter().all(|id| state(&host, id) == "running"));
}

fn is_gone_and_back(host: &TestHost) {
    wait_until("it answers again", || !host.admin(&["status"]).is_null());
    for kind in ["containers", "pods"] {
        wait_until("its records are there", || files(host, kind).len() == 2);
    }
}
