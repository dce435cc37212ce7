// SPDX-License-Identifier: Apache-2.0
//! Lives that do not go by the book: a pod whose infrastructure dies alone, ids that come back,
//! deletes of what never was, ends before the beginning, a host that was restarted.

use serde_json::{Value, json};

use super::player::Manner;
use super::rig::{BUNDLE, Rig, wait_until};
use super::{life, sets, started, succeeds};

fn heard(told: &std::sync::Mutex<Vec<String>>, event: &str) -> bool {
    told.lock().unwrap().iter().any(|known| known == event)
}

/// The process dies, by nobody's verb.
fn dies(rig: &Rig, id: &str) {
    let pid: i32 = rig.read(&format!("root/{id}/pid")).trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).unwrap();
}

fn nobody_knows_of_it(rig: &Rig) {
    wait_until("nobody knows of it", || rig.admin(&["pods"]) == json!([]));
}

/// A bundle as a Kubernetes engine writes it, of the pod `web`.
fn member(rig: &Rig, folder: &str, kind: &str) {
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = json!({
        "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.sandbox-id": "pause",
        "io.kubernetes.cri.sandbox-name": "web",
        "io.kubernetes.cri.container-name": folder,
    });
    std::fs::create_dir_all(rig.path(folder)).unwrap();
    rig.write(&format!("{folder}/config.json"), &document.to_string());
}

#[test]
fn a_pod_whose_pause_dies_alone_ends_with_its_last_container() {
    let rig = started("");
    let told = rig.plugin("10", "witness", Manner::default());
    for (folder, kind) in [("pause", "sandbox"), ("app", "container"), ("helper", "container")] {
        member(&rig, folder, kind);
        succeeds(&rig.create_from(folder, folder));
        succeeds(&rig.verb(&["start", folder]));
        wait_until("the start is settled", || {
            let is_pause = folder == "pause" && heard(&told, "RunPodSandbox web");
            is_pause || heard(&told, &format!("PostStartContainer {folder}"))
        });
    }
    dies(&rig, "pause");
    succeeds(&rig.verb(&["delete", "--force", "pause"]));
    for folder in ["app", "helper"] {
        assert!(!heard(&told, "StopPodSandbox web"), "{:?}", told.lock().unwrap());
        dies(&rig, folder);
        wait_until("the stop is told", || heard(&told, &format!("StopContainer {folder}")));
        succeeds(&rig.verb(&["delete", folder]));
        wait_until("the end is told", || heard(&told, &format!("RemoveContainer {folder}")));
    }
    nobody_knows_of_it(&rig);
    let told = told.lock().unwrap();
    let mut wanted = vec!["RunPodSandbox web".to_owned()];
    let of = |folder: &str, events: std::ops::Range<usize>| life(folder)[events].to_vec();
    wanted.extend(
        [of("app", 1..5), of("helper", 1..5), of("app", 5..7), of("helper", 5..7)].concat(),
    );
    wanted.extend(of("web", 7..9));
    assert_eq!(*told, wanted);
}

#[test]
fn a_pod_whose_pause_goes_last_ends_with_it() {
    let rig = started("");
    let told = rig.plugin("10", "witness", Manner::default());
    member(&rig, "pause", "sandbox");
    member(&rig, "app", "container");
    for folder in ["pause", "app"] {
        succeeds(&rig.create_from(folder, folder));
        succeeds(&rig.verb(&["start", folder]));
    }
    wait_until("the start is told", || heard(&told, "PostStartContainer app"));
    // The order in which kubelet's stop arrives: the pause dies, the member is deleted, the pause.
    dies(&rig, "pause");
    succeeds(&rig.verb(&["delete", "--force", "app"]));
    wait_until("the end is told", || heard(&told, "RemoveContainer app"));
    assert!(!heard(&told, "StopPodSandbox web"));
    succeeds(&rig.verb(&["delete", "--force", "pause"]));
    nobody_knows_of_it(&rig);
    let told = told.lock().unwrap();
    assert_eq!(told[told.len() - 2..], ["StopPodSandbox web", "RemovePodSandbox web"]);
    assert_eq!(told.len(), 9, "{told:?}");
}

#[test]
fn an_id_that_comes_back_has_a_life_of_its_own_whether_it_was_deleted_or_lost() {
    let rig = started("");
    let told = rig.plugin("10", "env", sets("HELLO", "there"));
    let patched = BUNDLE.replace("\"A=1\"]", "\"A=1\",\"HELLO=there\"]");
    for is_deleted in [true, false] {
        succeeds(&rig.create("c1"));
        succeeds(&rig.verb(&["start", "c1"]));
        wait_until("the start is told", || heard(&told, "PostStartContainer c1"));
        if is_deleted {
            succeeds(&rig.verb(&["delete", "--force", "c1"]));
        } else {
            dies(&rig, "c1");
            std::fs::remove_dir_all(rig.path("root/c1")).unwrap();
        }
        succeeds(&rig.create("c1"));
        assert_eq!(rig.read("fake/seen.json"), patched, "adjusted once");
        wait_until("the second creation is told", || {
            told.lock().unwrap().iter().filter(|e| *e == "PostCreateContainer c1").count() == 2
        });
        let wanted = [life("c1"), life("c1")[..3].to_vec()].concat();
        assert_eq!(*told.lock().unwrap(), wanted, "deleted: {is_deleted}");
        succeeds(&rig.verb(&["delete", "--force", "c1"]));
        nobody_knows_of_it(&rig);
        told.lock().unwrap().clear();
    }
    assert_eq!(rig.read("bundle/config.json"), BUNDLE);
}

#[test]
fn a_delete_of_what_never_was_is_the_runtimes_business_alone() {
    let rig = started("");
    let told = rig.plugin("10", "witness", Manner::default());
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    succeeds(&rig.verb(&["delete", "c1"]));
    assert_eq!(rig.admin(&["pods"]), json!([]));
    assert!(told.lock().unwrap().is_empty());
    assert_eq!(rig.read("fake/argv").matches("delete").count(), 2);
}

#[test]
fn a_container_that_dies_before_its_start_is_stopped_once_and_never_started() {
    let rig = started("");
    let told = rig.plugin("10", "witness", Manner::default());
    succeeds(&rig.create("c1"));
    wait_until("the creation is told", || heard(&told, "PostCreateContainer c1"));
    dies(&rig, "c1");
    wait_until("the stop is told", || heard(&told, "StopContainer c1"));
    // Whatever the runtime says to it.
    let _words_of_the_runtime = rig.verb(&["start", "c1"]);
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    nobody_knows_of_it(&rig);
    let mut wanted = life("c1");
    wanted.retain(|event| !event.starts_with("Start") && !event.starts_with("PostStart"));
    assert_eq!(*told.lock().unwrap(), wanted);
}

#[test]
fn probes_cost_the_daemon_nothing() {
    let rig = started("");
    let told = rig.plugin("10", "witness", Manner::default());
    succeeds(&rig.create("c1"));
    succeeds(&rig.verb(&["start", "c1"]));
    wait_until("the start is told", || heard(&told, "PostStartContainer c1"));
    let before = rig.admin(&["status"])["requests"].clone();
    for _probe in 0..3 {
        for words in [&["exec", "c1", "true"][..], &["state", "c1"], &["ps", "c1"], &["list"]] {
            succeeds(&rig.verb(words));
        }
        succeeds(&rig.call(&["features"]));
    }
    assert_eq!(rig.admin(&["status"])["requests"], before);
    assert_eq!(*told.lock().unwrap(), life("c1")[..5]);
}

/// `/run` need not be a tmpfs: what an earlier boot left there means nothing.
#[test]
fn after_a_restart_of_the_host_nothing_of_before_is_believed() {
    let mut rig = started("");
    let _told = rig.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&rig.create("c1"));
    wait_until("the create is settled", || {
        rig.admin(&["pods"])[0]["containers"][0]["state"] == "created"
    });
    rig.kill_daemon();
    dies(&rig, "c1");
    std::fs::remove_dir_all(rig.path("root/c1")).unwrap();
    let now = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let mut changed = 0;
    for kind in ["containers", "pods"] {
        for entry in std::fs::read_dir(rig.path("run/state").join(kind)).unwrap().flatten() {
            let name = format!("run/state/{kind}/{}", entry.file_name().to_string_lossy());
            let text = rig.read(&name).replace(now.trim(), "00000000-an-earlier-boot");
            rig.write(&name, &text);
            changed += 1;
        }
    }
    assert_eq!(changed, 2);
    rig.start_daemon();
    assert_eq!(rig.admin(&["pods"]), json!([]));
    let told = rig.plugin("20", "witness", Manner::default());
    assert!(told.lock().unwrap().is_empty());
    succeeds(&rig.create("c1"));
    wait_until("the creation is told", || heard(&told, "PostCreateContainer c1"));
    assert_eq!(*told.lock().unwrap(), life("c1")[..3]);
    assert_eq!(std::fs::read_dir(rig.path("run/state/containers")).unwrap().count(), 1);
}

#[test]
fn what_ended_and_was_deleted_while_the_daemon_was_away_is_not_shown_as_living() {
    let mut rig = started("");
    succeeds(&rig.create("c1"));
    succeeds(&rig.verb(&["start", "c1"]));
    wait_until("the start is settled", || {
        rig.admin(&["pods"])[0]["containers"][0]["state"] == "running"
    });
    rig.kill_daemon();
    rig.configure(&rig.path("fake/runc"), "autostart = false");
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    rig.start_daemon();
    nobody_knows_of_it(&rig);
    let told = rig.plugin("10", "witness", Manner::default());
    assert!(told.lock().unwrap().is_empty());
    assert_eq!(rig.read("bundle/config.json"), BUNDLE);
}
