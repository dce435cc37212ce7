// SPDX-License-Identifier: Apache-2.0
//! Unusual lifecycles: an infrastructure container that dies alone, reused IDs, deletes of
//! containers that never existed, a delete before the start, a host restart.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use test_support::{BUNDLE, Script, TestHost, has_received, task, wait_until};

use crate::{life, sets, started, succeeds};

/// Kills the container's process without a command of the runtime.
fn dies(host: &TestHost, pid_file: &str) {
    let pid: i32 = host.read(pid_file).trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).unwrap();
}

fn wait_until_no_pod_is_known(host: &TestHost) {
    wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
}

/// Writes a bundle of the pod `web`, as a Kubernetes engine writes it.
fn member(host: &TestHost, folder: &str, kind: &str) {
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = json!({
        "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.sandbox-id": "pause",
        "io.kubernetes.cri.sandbox-name": "web",
        "io.kubernetes.cri.container-name": folder,
    });
    std::fs::create_dir_all(host.path(&task(folder))).unwrap();
    host.write(&format!("{}/config.json", task(folder)), &document.to_string());
}

#[test]
fn a_pod_stops_with_its_last_container_if_pause_dies_first() {
    let host = started("");
    let received = host.plugin("10", "witness", Script::default());
    for (folder, kind) in [("pause", "sandbox"), ("app", "container"), ("helper", "container")] {
        member(&host, folder, kind);
        succeeds(&host.create_from(&task(folder), folder));
        succeeds(&host.verb(&["start", folder]));
        wait_until("the start is settled", || {
            let is_pause = folder == "pause" && has_received(&received, "RunPodSandbox web");
            is_pause || has_received(&received, &format!("PostStartContainer {folder}"))
        });
    }
    dies(&host, "root/pause/pid");
    succeeds(&host.verb(&["delete", "--force", "pause"]));
    for folder in ["app", "helper"] {
        assert!(!has_received(&received, "StopPodSandbox web"), "{:?}", received.lock().unwrap());
        dies(&host, &format!("root/{folder}/pid"));
        wait_until("the stop is reported", || {
            has_received(&received, &format!("StopContainer {folder}"))
        });
        if folder == "helper" {
            wait_until("the pod stops with its last member", || {
                has_received(&received, "StopPodSandbox web")
            });
        }
        succeeds(&host.verb(&["delete", folder]));
        wait_until("the end is reported", || {
            has_received(&received, &format!("RemoveContainer {folder}"))
        });
    }
    wait_until_no_pod_is_known(&host);
    let received = received.lock().unwrap();
    let mut wanted = vec!["RunPodSandbox web".to_owned()];
    let of = |folder: &str, events: std::ops::Range<usize>| life(folder)[events].to_vec();
    wanted.extend([of("app", 1..5), of("helper", 1..5), of("app", 5..7)].concat());
    // The last member's exit stops the pod, before its removal.
    wanted.extend(
        [of("helper", 5..6), of("web", 7..8), of("helper", 6..7), of("web", 8..9)].concat(),
    );
    assert_eq!(*received, wanted);
}

#[test]
fn a_pod_ends_with_its_pause_if_that_exits_last() {
    let host = started("");
    let received = host.plugin("10", "witness", Script::default());
    member(&host, "pause", "sandbox");
    member(&host, "app", "container");
    for folder in ["pause", "app"] {
        succeeds(&host.create_from(&task(folder), folder));
        succeeds(&host.verb(&["start", folder]));
    }
    wait_until("the start is reported", || has_received(&received, "PostStartContainer app"));
    // kubelet's order of stopping a pod: the infrastructure process exits, the member is deleted,
    // then the infrastructure container.
    dies(&host, "root/pause/pid");
    succeeds(&host.verb(&["delete", "--force", "app"]));
    wait_until("the end is reported", || has_received(&received, "RemoveContainer app"));
    wait_until("the pod's stop is reported", || has_received(&received, "StopPodSandbox web"));
    assert!(!has_received(&received, "RemovePodSandbox web"));
    succeeds(&host.verb(&["delete", "--force", "pause"]));
    wait_until_no_pod_is_known(&host);
    let received = received.lock().unwrap();
    let place = |event: &str| received.iter().position(|line| line == event).unwrap();
    assert!(place("StopContainer app") < place("StopPodSandbox web"), "{received:?}");
    assert_eq!(received.last().map(String::as_str), Some("RemovePodSandbox web"));
    assert_eq!(received.len(), 9, "{received:?}");
}

#[test]
fn a_reused_container_id_has_its_own_events() {
    let host = started("");
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    let patched = BUNDLE.replace("\"A=1\"]", "\"A=1\",\"HELLO=there\"]");
    for is_deleted in [true, false] {
        succeeds(&host.create("c1"));
        succeeds(&host.verb(&["start", "c1"]));
        wait_until("the start is reported", || has_received(&received, "PostStartContainer c1"));
        if is_deleted {
            succeeds(&host.verb(&["delete", "--force", "c1"]));
        } else {
            dies(&host, "root/c1/pid");
            std::fs::remove_dir_all(host.path("root/c1")).unwrap();
        }
        succeeds(&host.create("c1"));
        assert_eq!(host.read("fake/seen.json"), patched, "adjusted once");
        wait_until("the second creation is reported", || {
            received.lock().unwrap().iter().filter(|e| *e == "PostCreateContainer c1").count() == 2
        });
        let wanted = [life("c1"), life("c1")[..3].to_vec()].concat();
        assert_eq!(*received.lock().unwrap(), wanted, "deleted: {is_deleted}");
        succeeds(&host.verb(&["delete", "--force", "c1"]));
        wait_until_no_pod_is_known(&host);
        received.lock().unwrap().clear();
    }
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
}

#[test]
fn a_delete_of_an_unknown_container_goes_to_the_runtime() {
    let host = started("");
    let received = host.plugin("10", "witness", Script::default());
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    succeeds(&host.verb(&["delete", "c1"]));
    assert_eq!(host.admin(&["pods"]), json!([]));
    assert!(received.lock().unwrap().is_empty());
    assert_eq!(host.read("fake/argv").matches("delete").count(), 2);
}

#[test]
fn a_container_that_dies_before_its_start_is_stopped_once() {
    let host = started("");
    let received = host.plugin("10", "witness", Script::default());
    succeeds(&host.create("c1"));
    wait_until("the creation is reported", || has_received(&received, "PostCreateContainer c1"));
    dies(&host, "root/c1/pid");
    wait_until("the stop is reported", || has_received(&received, "StopContainer c1"));
    // The runtime may start it or fail: its result does not matter.
    let _words_of_the_runtime = host.verb(&["start", "c1"]);
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until_no_pod_is_known(&host);
    let mut wanted = life("c1");
    wanted.retain(|event| !event.starts_with("Start") && !event.starts_with("PostStart"));
    assert_eq!(*received.lock().unwrap(), wanted);
}

#[test]
fn exec_and_query_commands_send_the_daemon_no_request() {
    let host = started("");
    let received = host.plugin("10", "witness", Script::default());
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    wait_until("the start is reported", || has_received(&received, "PostStartContainer c1"));
    let before = host.admin(&["status"])["requests"].clone();
    for _probe in 0..3 {
        for words in [&["exec", "c1", "true"][..], &["state", "c1"], &["ps", "c1"], &["list"]] {
            succeeds(&host.verb(words));
        }
        succeeds(&host.call(&["features"]));
    }
    assert_eq!(host.admin(&["status"])["requests"], before);
    assert_eq!(*received.lock().unwrap(), life("c1")[..5]);
}

/// `/run` need not be a tmpfs: records of an earlier boot are ignored.
#[test]
fn records_from_before_a_host_restart_are_ignored() {
    let mut host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    wait_until("the create is settled", || {
        host.admin(&["pods"])[0]["containers"][0]["state"] == "created"
    });
    host.kill_daemon();
    dies(&host, "root/c1/pid");
    std::fs::remove_dir_all(host.path("root/c1")).unwrap();
    let now = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let mut changed = 0;
    for kind in ["containers", "pods"] {
        for entry in std::fs::read_dir(host.path("run/state").join(kind)).unwrap().flatten() {
            let name = format!("run/state/{kind}/{}", entry.file_name().to_string_lossy());
            let text = host.read(&name).replace(now.trim(), "00000000-an-earlier-boot");
            host.write(&name, &text);
            changed += 1;
        }
    }
    assert_eq!(changed, 2);
    host.start_daemon();
    assert_eq!(host.admin(&["pods"]), json!([]));
    let received = host.plugin("20", "witness", Script::default());
    assert!(received.lock().unwrap().is_empty());
    succeeds(&host.create("c1"));
    wait_until("the creation is reported", || has_received(&received, "PostCreateContainer c1"));
    assert_eq!(*received.lock().unwrap(), life("c1")[..3]);
    assert_eq!(std::fs::read_dir(host.path("run/state/containers")).unwrap().count(), 1);
}

#[test]
fn a_container_deleted_while_the_daemon_was_away_is_removed() {
    let mut host = started("");
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    wait_until("the start is settled", || {
        host.admin(&["pods"])[0]["containers"][0]["state"] == "running"
    });
    host.kill_daemon();
    host.configure(&host.path("fake/runc"), "autostart = false");
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    host.start_daemon();
    wait_until_no_pod_is_known(&host);
    let received = host.plugin("10", "witness", Script::default());
    assert!(received.lock().unwrap().is_empty());
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
}

/// A runtime whose files are unknown: its `state` shows whether it has the container. It knows one, which must be
/// called `yes`.
fn of_unknown_runtime() -> (TestHost, Arc<Mutex<Vec<String>>>) {
    let mut host = TestHost::default();
    host.put_program(
        "fake/gvisor",
        "#!/bin/sh\n\
         dir=$(dirname \"$0\")\n\
         case $3 in\n\
         create|run) case \"$*\" in *no) exit 1 ;; esac\n\
         ! [ -e \"$dir/pid\" ] || exit 1\n\
         sleep 300 </dev/null >/dev/null 2>&1 & echo $! >\"$dir/pid\"\n\
         while [ -e \"$dir/waits\" ]; do sleep 0.02; done\n\
         ! [ -e \"$dir/undone\" ] || { kill -9 $!; rm \"$dir/pid\"; exit 1; }\n\
         ! [ -e \"$dir/stops\" ] || exit 1\n\
         case \"$*\" in *create*|*--detach*) ;; *) wait; rm \"$dir/pid\"; exit 3 ;; esac ;;\n\
         state) [ \"$4\" = yes ] || exit 1; status=running; ! [ -e \"$dir/stops\" ] || status=created\n\
         echo \"{\\\"pid\\\": $(cat \"$dir/pid\"), \\\"status\\\": \\\"$status\\\"}\"; : >\"$dir/asked\" ;;\n\
         delete) kill -9 \"$(cat \"$dir/pid\")\"; rm \"$dir/pid\" ;;\n\
         esac\n",
    );
    host.configure(&host.path("fake/gvisor"), "");
    host.start_daemon();
    let received = host.plugin("10", "witness", Script::default());
    (host, received)
}

#[test]
fn a_create_by_an_unknown_runtime_is_confirmed_by_its_state() {
    let (host, received) = of_unknown_runtime();
    let bundle = host.path("bundle").display().to_string();
    succeeds(&host.verb(&["create", "--bundle", &bundle, "yes"]));
    wait_until("its creation is reported", || has_received(&received, "PostCreateContainer yes"));
    // The runtime refuses an ID that exists; the first container stays.
    assert!(!host.verb(&["create", "--bundle", &bundle, "yes"]).status.success());
    assert!(!has_received(&received, "RemoveContainer yes"));
    succeeds(&host.verb(&["delete", "--force", "yes"]));
    wait_until("its end is reported", || has_received(&received, "RemoveContainer yes"));
    assert!(!host.verb(&["create", "--bundle", &bundle, "no"]).status.success());
    wait_until("the creation is undone", || has_received(&received, "RemoveContainer no"));
    assert!(!has_received(&received, "PostCreateContainer no"));
}

#[test]
fn a_run_that_stops_before_start_leaves_a_created_container() {
    let (host, received) = of_unknown_runtime();
    host.write("fake/stops", "");
    let bundle = host.path("bundle").display().to_string();
    assert!(!host.verb(&["run", "--detach", "--bundle", &bundle, "yes"]).status.success());
    let state = || host.admin(&["pods"])[0]["containers"][0]["state"].clone();
    wait_until("the creation is settled", || state() == "created");
    assert!(!has_received(&received, "PostStartContainer yes"));
    std::fs::remove_file(host.path("fake/stops")).unwrap();
    succeeds(&host.verb(&["start", "yes"]));
    wait_until("its start is reported", || has_received(&received, "PostStartContainer yes"));
    succeeds(&host.verb(&["delete", "--force", "yes"]));
    wait_until("its end is reported", || has_received(&received, "RemoveContainer yes"));
}

#[test]
fn a_detached_run_by_an_unknown_runtime_is_shown_as_running() {
    let (host, received) = of_unknown_runtime();
    let bundle = host.path("bundle").display().to_string();
    succeeds(&host.verb(&["run", "--detach", "--bundle", &bundle, "yes"]));
    wait_until("its start is reported", || has_received(&received, "PostStartContainer yes"));
    assert_eq!(host.admin(&["pods"])[0]["containers"][0]["state"], "running");
    succeeds(&host.verb(&["delete", "--force", "yes"]));
    wait_until("its end is reported", || has_received(&received, "RemoveContainer yes"));
    assert!(!host.verb(&["run", "--detach", "--bundle", &bundle, "no"]).status.success());
    wait_until("the creation is undone", || has_received(&received, "RemoveContainer no"));
    assert!(!has_received(&received, "PostStartContainer no"));
}

#[test]
fn a_foreground_run_by_an_unknown_runtime_is_followed() {
    let (host, received) = of_unknown_runtime();
    let bundle = host.path("bundle").display().to_string();
    let mut run = host.spawn(&["run", "--bundle", &bundle, "yes"]);
    wait_until("its start is reported", || has_received(&received, "PostStartContainer yes"));
    assert_eq!(host.admin(&["pods"])[0]["containers"][0]["state"], "running");
    dies(&host, "fake/pid");
    assert_eq!(run.wait().unwrap().code(), Some(3));
    wait_until("its end is reported", || has_received(&received, "RemoveContainer yes"));
    assert_eq!(host.admin(&["explain", "yes"])["refused"], json!([]));
}

#[test]
fn an_undone_start_by_an_unknown_runtime_is_not_reported() {
    let (host, received) = of_unknown_runtime();
    for file in ["stops", "waits", "undone"] {
        host.write(&format!("fake/{file}"), "");
    }
    let bundle = host.path("bundle").display().to_string();
    let mut run = host.spawn(&["run", "--bundle", &bundle, "yes"]);
    wait_until("the created container is seen", || host.path("fake/asked").exists());
    std::fs::remove_file(host.path("fake/waits")).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(1));
    wait_until("the creation is undone", || has_received(&received, "RemoveContainer yes"));
    assert!(!has_received(&received, "PostStartContainer yes"));
}
