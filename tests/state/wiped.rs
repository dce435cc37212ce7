// SPDX-License-Identifier: Apache-2.0
//! The run directory is wiped while containers run: a daemon that lives writes everything down
//! again; if none does, the next one finds the containers in the runtime's own state.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::rig::{BUNDLE, Rig, wait_until};
use super::{Manner, bundle, files, run, sets, shown, started, state, succeeds};

fn wipe(rig: &Rig) {
    // A daemon that lives is at it again before we have finished.
    let _may_be_in_our_way = std::fs::remove_dir_all(rig.path("run"));
}

/// A world in which all containers of the runtime are ours, without its daemon.
fn ours() -> Rig {
    let rig = Rig::new("");
    let root = rig.path("root").display().to_string();
    let more = format!("autostart = false\nruntime_roots = [\"{root}\"]");
    rig.configure(&rig.path("fake/runc"), &more);
    rig
}

#[test]
fn containers_of_a_wiped_run_directory_are_found_again_and_live_on() {
    let mut rig = ours();
    rig.start_daemon();
    assert_eq!(rig.admin(&["status"])["found"], 0);
    let _told = rig.plugin("10", "env", sets());
    for id in ["runs", "ended"] {
        run(&rig, id);
    }
    bundle(&rig, "made");
    succeeds(&rig.create_from("made", "made"));
    succeeds(&rig.verb(&["kill", "ended", "9"]));
    wait_until("it has ended", || state(&rig, "ended") == "stopped");
    rig.kill_daemon();
    wipe(&rig);
    rig.start_daemon();
    assert_eq!(rig.admin(&["status"])["found"], 3);
    let told = rig.plugin("10", "env", sets());
    let states = ["runs", "ended", "made"].map(|id| state(&rig, id));
    assert_eq!(states, ["running", "stopped", "created"]);
    let found = shown(&rig, "runs");
    let pid: u64 = rig.read("root/runs/pid").trim().parse().unwrap();
    assert_eq!((&found["found"], &found["pid"]), (&json!(true), &json!(pid)));
    let explained = rig.admin(&["explain", "runs"]);
    assert_eq!((&explained["owners"], &explained["found"]), (&json!({}), &json!(true)));
    assert!(explained["skipped"].to_string().contains("run directory was wiped"), "{explained}");
    let page = rig.call(&["nri", "explain", "runs"]).stdout;
    let page = String::from_utf8_lossy(&page).into_owned();
    assert!(page.contains("found again, owners unknown"), "{page}");
    let page = rig.call(&["nri", "pods"]).stdout;
    assert_eq!(String::from_utf8_lossy(&page).matches("(found again)").count(), 3);
    // Their later verbs are told as ever, each once.
    succeeds(&rig.verb(&["start", "made"]));
    wait_until("it runs", || state(&rig, "made") == "running");
    succeeds(&rig.verb(&["kill", "runs", "9"]));
    wait_until("its end is known", || state(&rig, "runs") == "stopped");
    for id in ["runs", "ended", "made"] {
        succeeds(&rig.verb(&["delete", "--force", id]));
    }
    wait_until("nobody knows of them", || rig.admin(&["pods"]) == json!([]));
    wait_until("all is told", || told.lock().unwrap().len() == 16);
    let told = told.lock().unwrap().clone();
    let mut known = told[..3].to_vec();
    known.sort();
    assert_eq!(known, ["Synchronize ended", "Synchronize made", "Synchronize runs"]);
    let of = |id: &str| -> Vec<&str> {
        let lines = told.iter().filter_map(|line| line.strip_suffix(&format!(" {id}")));
        lines.filter(|event| !event.contains("Pod")).skip(1).collect()
    };
    assert_eq!(of("runs"), ["StopContainer", "RemoveContainer"]);
    assert_eq!(of("ended"), ["RemoveContainer"]);
    let whole = ["StartContainer", "PostStartContainer", "StopContainer", "RemoveContainer"];
    assert_eq!(of("made"), whole);
}

#[test]
fn they_are_looked_for_once_in_a_boot_and_known_from_then_on() {
    let mut rig = ours();
    rig.start_daemon();
    run(&rig, "c1");
    rig.kill_daemon();
    wipe(&rig);
    rig.start_daemon();
    assert_eq!(shown(&rig, "c1")["found"], true);
    rig.kill_daemon();
    // Somebody uses the runtime itself: none of our business.
    let root = rig.path("root").display().to_string();
    let bundle = rig.path("bundle").display().to_string();
    #[expect(clippy::disallowed_methods, reason = "the runtime without us")]
    let mut runtime = std::process::Command::new(rig.path("fake/runc"));
    let made = runtime.args(["--root", &root, "create", "--bundle", &bundle, "theirs"]).status();
    assert!(made.unwrap().success());
    rig.start_daemon();
    assert_eq!(
        (rig.admin(&["status"])["found"].clone(), state(&rig, "theirs")),
        (json!(1), String::new())
    );
    assert_eq!(state(&rig, "c1"), "running");
    // Made anew it is not a found one any more.
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    succeeds(&rig.create_from("c1", "c1"));
    assert_eq!(
        (rig.admin(&["status"])["found"].clone(), shown(&rig, "c1")["found"].clone()),
        (json!(0), json!(false))
    );
}

#[test]
fn whoever_was_not_made_through_us_is_not_found() {
    let mut rig = started("autostart = false");
    run(&rig, "c1");
    rig.kill_daemon();
    wipe(&rig);
    rig.start_daemon();
    // Nobody says that this directory is ours, and no engine names us.
    assert_eq!(rig.admin(&["pods"]), json!([]));
    succeeds(&rig.verb(&["kill", "c1", "9"]));
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    assert!(!rig.path("root/c1").exists());
}

#[test]
fn what_went_past_the_daemon_is_adopted_not_found() {
    let mut rig = ours();
    run(&rig, "c1");
    rig.start_daemon();
    assert_eq!(
        (state(&rig, "c1").as_str(), &shown(&rig, "c1")["found"]),
        ("running", &json!(false))
    );
    assert_eq!(rig.admin(&["status"])["bypassed"], 2);
}

#[test]
fn what_cannot_be_understood_keeps_nobody_from_being_found() {
    let mut rig = ours();
    rig.start_daemon();
    for id in ["good", "garbage", "homeless", "empty"] {
        run(&rig, id);
    }
    rig.kill_daemon();
    wipe(&rig);
    rig.write("root/garbage/state.json", "{\"init_process_pid\": ");
    std::fs::remove_file(rig.path("homeless/config.json")).unwrap();
    std::fs::remove_file(rig.path("root/empty/state.json")).unwrap();
    rig.write("root/file", "");
    symlink(rig.path("root/good"), rig.path("root/link")).unwrap();
    rig.start_daemon();
    assert_eq!(rig.admin(&["status"])["found"], 1);
    assert_eq!(state(&rig, "good"), "running");
    assert_eq!(rig.logged(&["homeless", "cannot be found again"]), 1);
}

/// A bundle as containerd makes it, below a root of our own.
fn task(rig: &Rig, id: &str, annotations: &Value, program: &str) -> String {
    let folder = format!("host/run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}");
    std::fs::create_dir_all(rig.path(&folder).join("rootfs")).unwrap();
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = annotations.clone();
    rig.write(&format!("{folder}/config.json"), &document.to_string());
    rig.write(&format!("{folder}/runtime"), program);
    folder
}

#[test]
fn a_pod_whose_engine_names_us_is_found_and_one_of_another_runtime_is_not() {
    let mut rig = Rig::new("");
    let host = rig.path("host").display().to_string();
    std::fs::create_dir(rig.path("host")).unwrap();
    for folder in ["proc", "sys"] {
        symlink(format!("/{folder}"), rig.path("host").join(folder)).unwrap();
    }
    let more = format!("autostart = false---[debug]\nhost_root = \"{host}\"\n");
    rig.configure(&rig.path("fake/runc"), &more);
    rig.start_daemon();
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
    let root = rig.path("host/run/containerd/runc/k8s.io").display().to_string();
    let verb = |words: &[&str]| rig.call(&[&["--root", &root][..], words].concat());
    let own = std::env::var("NRI_RUNC_BINARY");
    let own = own.unwrap_or_else(|_| env!("CARGO_BIN_EXE_nri-runc").to_owned());
    for (id, annotations, program) in
        [("pod", &pod, own.as_str()), ("c1", &member, &own), ("theirs", &member, "/usr/sbin/runc")]
    {
        let bundle = rig.path(&task(&rig, id, annotations, program)).display().to_string();
        succeeds(&verb(&["create", "--bundle", &bundle, id]));
        succeeds(&verb(&["start", id]));
    }
    rig.kill_daemon();
    wipe(&rig);
    rig.start_daemon();
    let told = rig.plugin("10", "env", sets());
    assert_eq!(*told.lock().unwrap(), ["Synchronize app"]);
    let pods = rig.admin(&["pods"]);
    assert_eq!(pods.as_array().unwrap().len(), 1, "{pods}");
    let shown = ["name", "namespace", "engine", "state"].map(|key| pods[0][key].clone());
    assert_eq!(shown, ["web", "shop", "containerd-cri", "ready"]);
    assert_eq!(rig.admin(&["status"])["found"], 2);
    let root = rig.path("host/run/containerd/runc/k8s.io").display().to_string();
    let verb = |words: &[&str]| rig.call(&[&["--root", &root][..], words].concat());
    for id in ["c1", "pod", "theirs"] {
        succeeds(&verb(&["delete", "--force", id]));
    }
    wait_until("the pod's end is told", || told.lock().unwrap().len() == 5);
    let ends =
        ["StopContainer app", "RemoveContainer app", "StopPodSandbox web", "RemovePodSandbox web"];
    assert_eq!(told.lock().unwrap()[1..], ends);
}

/// What holds once a daemon that lives has noticed.
fn is_whole(rig: &Rig, pid: i32) {
    wait_until("it is found again", || rig.admin(&["status"])["pid"] == pid);
    wait_until("its records are", || files(rig, "containers").len() == 1);
    let failures = || rig.admin(&["status"])["failures"].to_string();
    wait_until("it is said", || failures().contains("the run directory was wiped"));
}

#[test]
fn a_daemon_that_lives_writes_everything_down_again_whatever_is_wiped() {
    for what in ["run", "run/state", "run/daemon.sock", "moved"] {
        let mut rig = started("");
        let told = rig.plugin("10", "env", sets());
        run(&rig, "c1");
        wait_until("it runs", || state(&rig, "c1") == "running");
        let pid = rig.daemon_pid();
        match what {
            "moved" => std::fs::rename(rig.path("run"), rig.path("was")).unwrap(),
            "run/daemon.sock" => std::fs::remove_file(rig.path(what)).unwrap(),
            what => drop(std::fs::remove_dir_all(rig.path(what))),
        }
        is_whole(&rig, pid);
        // The next container finds this very daemon, and its plugin.
        run(&rig, "c2");
        assert!(rig.read("fake/seen.json").contains("HELLO=there"), "{what}");
        wait_until("it runs", || state(&rig, "c2") == "running");
        assert_eq!(rig.admin(&["status"])["pid"], pid, "{what}");
        // And what it knew is there for its successor.
        rig.kill_daemon();
        rig.start_daemon();
        let owners = rig.admin(&["explain", "c1"])["owners"].clone();
        assert_eq!(
            (state(&rig, "c1").as_str(), &owners["Env[HELLO]"]),
            ("running", &json!("10-env"))
        );
        assert_eq!(rig.admin(&["status"])["found"], 0, "{what}");
        drop(told);
        let told = rig.plugin("10", "env", Manner::default());
        succeeds(&rig.verb(&["delete", "--force", "c1"]));
        wait_until("its end is told", || {
            told.lock().unwrap().contains(&"RemoveContainer c1".to_owned())
        });
    }
}

#[test]
fn what_goes_past_a_daemon_after_a_wipe_is_still_noticed() {
    let mut rig = started("");
    run(&rig, "c1");
    let pid = rig.daemon_pid();
    wipe(&rig);
    is_whole(&rig, pid);
    rig.kill_daemon();
    rig.configure(&rig.path("fake/runc"), "autostart = false");
    run(&rig, "c2");
    rig.start_daemon();
    assert_eq!(state(&rig, "c2"), "running");
    wipe(&rig);
    is_gone_and_back(&rig);
    assert!(["c1", "c2"].iter().all(|id| state(&rig, id) == "running"));
}

fn is_gone_and_back(rig: &Rig) {
    wait_until("it answers again", || !rig.admin(&["status"]).is_null());
    wait_until("its records are there", || files(rig, "containers").len() == 2);
}
