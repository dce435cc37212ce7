// SPDX-License-Identifier: Apache-2.0
//! The ways in which a container of Docker ends, or never begins.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use test_support::{Script, succeeds, wait_until};

use super::engine::{Docker, IMAGE, reason, signal, text};
use super::{LIFE, events, has_received, listening, requests};

/// Maximum time between the exit of a process and the plugin's event: 100 ms, and a margin for a
/// busy machine.
const SOON: Duration = Duration::from_secs(2);

/// Ends the container `name` and measures the time between the exit of its process and the plugin's
/// event.
fn ends(docker: &Docker, seen: &std::sync::Mutex<Vec<String>>, name: &str, words: &[&str]) {
    let pid = docker.inspect(name)["State"]["Pid"].as_u64().unwrap();
    // A zombie has no command line: the process has exited, whichever process reaps it.
    let alive =
        || std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty());
    let ended = std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            wait_until("its process ends", || !alive());
            let ended = Instant::now();
            wait_until("its end is reported", || {
                has_received(seen, &format!("StopContainer {name}"))
            });
            ended.elapsed()
        });
        docker.output_of(words);
        watching.join().unwrap()
    });
    assert!(ended < SOON, "{name}: {ended:?}");
}

#[test]
fn each_end_of_a_container_sends_one_event_promptly() {
    let Some(docker) = Docker::new() else { return };
    let (script, deliveries) = listening(Script::default());
    let seen = docker.host.plugin("10", "witness", script);
    for (name, words) in [
        ("stopped", &["stop", "--time=1", "stopped"][..]),
        ("killed", &["kill", "killed"]),
        ("forced", &["rm", "--force", "forced"]),
    ] {
        docker.runs(name, &[]);
        ends(&docker, &seen, name, words);
        wait_until("its removal is reported", || {
            has_received(&seen, &format!("RemovePodSandbox {name}"))
        });
        assert_eq!(events(&seen, name), LIFE, "{name}");
    }
    // A container that exits by itself, whose code Docker shows.
    let run = ["run", "--runtime=nri-runc", "--name=alone", IMAGE, "/bin/sh", "-c", "exit 3"];
    assert_eq!(docker.call(&run).status.code(), Some(3));
    wait_until("its removal is reported", || has_received(&seen, "RemovePodSandbox alone"));
    assert_eq!(events(&seen, "alone"), LIFE);
    for stop in requests(&deliveries, "StopContainer") {
        let container = &stop["container"];
        assert_eq!(container["state"], "CONTAINER_STOPPED");
        let name = container["name"].as_str().unwrap();
        // If neither containerd (1.6) nor the kernel (before 6.15) knows the code, the event has
        // none.
        if name != "forced" && !container["exitCode"].is_null() {
            let code = docker.inspect(name)["State"]["ExitCode"].clone();
            assert_eq!(container["exitCode"], code, "{name}");
        }
    }
    docker.output_of(&["rm", "stopped", "killed", "alone"]);
    docker.nothing_is_left();
    // A `rm` of an exited container is no event: the runtime had deleted it at its exit.
    assert_eq!(events(&seen, "alone").len(), LIFE.len());
}

#[test]
fn each_restart_by_docker_is_a_separate_lifecycle() {
    let Some(docker) = Docker::new() else { return };
    let (script, deliveries) = listening(Script::default());
    let seen = docker.host.plugin("10", "witness", script);
    let run = ["run", "--detach", "--runtime=nri-runc", "--name=web", "--restart=on-failure:2"];
    let id = docker.output_of(&[&run[..], &[IMAGE, "/bin/sh", "-c", "exit 3"]].concat());
    wait_until("Docker has given up", || {
        let inspect = docker.inspect("web");
        inspect["RestartCount"] == 2 && inspect["State"]["Status"] == "exited"
    });
    let ends = || events(&seen, "web").iter().filter(|event| *event == "RemovePodSandbox").count();
    wait_until("the last end is reported", || ends() == 3);
    assert_eq!(events(&seen, "web"), LIFE.repeat(3));
    let ids = requests(&deliveries, "CreateContainer");
    assert!(ids.iter().all(|create| create["container"]["id"] == id.as_str()), "{ids:?}");
    docker.output_of(&["rm", "web"]);
    docker.nothing_is_left();
}

#[test]
fn a_create_of_a_missing_program_is_undone_and_reported() {
    let Some(docker) = Docker::new() else { return };
    let seen = docker.host.plugin("10", "witness", Script::default());
    let run = ["run", "--runtime=nri-runc", "--name=web", IMAGE, "/bin/no-such"];
    let output = docker.call(&run);
    assert_eq!(output.status.code(), Some(127), "{}", text(&output));
    let plain = ["run", "--runtime=runc", "--name=plain", IMAGE, "/bin/no-such"];
    let plain = docker.call(&plain);
    // Docker's log follows, with a time.
    let line = reason(&output);
    assert!(line.contains("no-such"), "{}", text(&output));
    assert_eq!(line, reason(&plain), "as without us");
    wait_until("the undoing is reported", || has_received(&seen, "RemovePodSandbox web"));
    let undone = ["RunPodSandbox", "CreateContainer", "StopContainer", "RemoveContainer"];
    assert_eq!(events(&seen, "web"), [&undone[..], &LIFE[7..]].concat());
    docker.output_of(&["rm", "web", "plain"]);
    docker.no_container_is_left();
}

#[test]
fn a_daemon_started_for_a_docker_container_outlives_it() {
    let Some(mut docker) = Docker::before_install() else { return };
    docker.installs(&[]);
    docker.start();
    docker.import_image();
    let id = docker.runs("web", &[]);
    let pid = docker.host.admin(&["status"])["pid"].as_i64().unwrap();
    assert_eq!(docker.host.admin(&["pods"])[0]["containers"][0]["state"], "running");
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(!cgroup.contains(&id), "{cgroup}");
    let seen = docker.host.plugin("10", "late", Script::default());
    assert_eq!(events(&seen, "web"), ["Synchronize"]);
    docker.output_of(&["rm", "--force", "web"]);
    docker.stop();
    docker.start();
    docker.output_of(&["run", "--rm", "--runtime=nri-runc", "--name=next", IMAGE, "/bin/true"]);
    wait_until("its life is reported", || has_received(&seen, "RemovePodSandbox next"));
    assert_eq!(events(&seen, "next"), LIFE);
    assert_eq!(events(&seen, "web"), [&["Synchronize"], &LIFE[5..]].concat());
    assert_eq!(docker.host.admin(&["status"])["pid"], pid);
    docker.nothing_is_left();
}

/// containerd's monitor of a container.
fn shim(id: &str) -> i32 {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok());
    let is_its = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        words.contains("containerd-shim") && words.contains(id)
    };
    pids.into_iter().find(is_its).unwrap()
}

#[test]
fn events_are_sent_once_across_restarts_of_docker_and_monitors() {
    let Some(mut docker) = Docker::new() else { return };
    let (script, deliveries) = listening(Script::default());
    let seen = docker.host.plugin("10", "witness", script);
    let id = docker.runs("web", &[]);
    docker.runs("other", &[]);
    let running = |docker: &Docker| docker.inspect("web")["State"]["Running"] == json!(true);
    let pid = docker.inspect("web")["State"]["Pid"].clone();
    docker.stop();
    docker.start();
    wait_until("Docker has found it again", || running(&docker));
    assert_eq!(docker.inspect("web")["State"]["Pid"], pid);
    assert_eq!(events(&seen, "web"), LIFE[..5]);

    let socket = docker.task(&id, "address");
    signal(shim(&id), Signal::SIGKILL);
    // containerd takes five seconds to clean up. If the machine is too busy for that, no process
    // ends the container, and there is no event.
    let gave_up = || docker.host.read("dockerd.log").contains("failed to clean up after shim");
    wait_until("its end is reported", || has_received(&seen, "RemovePodSandbox web") || gave_up());
    if !gave_up() {
        wait_until("Docker has seen it", || !running(&docker));
        docker.output_of(&["rm", "--force", "web"]);
        assert_eq!(events(&seen, "web"), LIFE);
    }
    let stops = requests(&deliveries, "StopContainer");
    let is_running = |stop: &Value| stop["container"]["state"] == "CONTAINER_RUNNING";
    assert!(!stops.iter().any(is_running), "{stops:?}");

    // Files that a killed monitor leaves outside of the private folders.
    let _gone = std::fs::remove_file(socket.trim_start_matches("unix://"));

    // The other container was not affected, and ends after the restart as usual.
    assert_eq!(events(&seen, "other"), LIFE[..5]);
    docker.output_of(&["rm", "--force", "other"]);
    wait_until("its end is reported", || has_received(&seen, "RemovePodSandbox other"));
    assert_eq!(events(&seen, "other"), LIFE);
    if !gave_up() {
        docker.nothing_is_left();
    }
}

/// Docker drops such a container without calling a runtime.
#[test]
fn a_container_that_docker_dropped_can_be_forgotten() {
    let Some(docker) = Docker::new() else { return };
    let seen = docker.host.plugin("10", "witness", Script::default());
    // The runtime is deleted: if only its name were wrong, the last valid runtime would stay in
    // force.
    let (folder, runc) = (docker.host.path("own"), docker.tools().join("runc"));
    std::fs::create_dir(&folder).unwrap();
    let own = folder.join("runc");
    std::os::unix::fs::symlink(&runc, &own).unwrap();
    docker.host.configure(&own, "");
    succeeds(&docker.host.call(&["nri", "reload"]));
    let id = docker.runs("web", &[]);
    std::fs::remove_file(&own).unwrap();
    // Docker kills the process itself, and may fail to find it a moment later.
    wait_until("Docker gives it up", || docker.call(&["rm", "--force", "web"]).status.success());
    wait_until("its process ends", || has_received(&seen, "StopContainer web"));
    assert_eq!(docker.output_of(&["ps", "--all", "--quiet"]), "");
    let forget = |more: &[&str]| docker.host.call(&[&["nri", "forget", &id][..], more].concat());
    let refused = forget(&[]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("the runtime still has"), "{}", text(&refused));
    // The container keeps no registration, because Docker will never call nri-runc for it. A file
    // that names no runtime would leave the daemon's settings in force, which do not have this root.
    docker.host.configure(&runc, "");
    let planned = docker.registers("uninstall", &["--dry-run"]);
    docker.host.configure(&own, "");
    assert!(planned.status.success(), "{}", text(&planned));
    let forgotten = forget(&["--force"]);
    assert!(forgotten.status.success(), "{}", text(&forgotten));
    assert_eq!(docker.host.admin(&["pods"]), json!([]));
    wait_until("its removal is reported", || has_received(&seen, "RemovePodSandbox web"));
    assert_eq!(events(&seen, "web"), LIFE);
    // Files that Docker and its containerd have left.
    let root = docker.host.path("exec/runtime-runc/moby").display().to_string();
    std::os::unix::fs::symlink(&runc, &own).unwrap();
    succeeds(&docker.host.call(&["--root", &root, "delete", "--force", &id]));
}
