// SPDX-License-Identifier: Apache-2.0
//! A pod on containerd with a plugin on the official Go stub (NRI v0.12.5), if Go is installed:
//! neither the engine nor the plugin knows nri-runc. Two processes of the plugin run, as in a
//! rolling DaemonSet.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use test_support::cri::Cri;
use test_support::{Started, golang};

use super::host::{self, Engine};
use super::{container, create, end_container, end_pod, pid_of, run_pod, start};

fn connect(engine: &Engine, program: &std::path::Path) -> Started {
    process(engine, program, "told", "yes")
}

/// Starts a process of the plugin, and waits until it is synchronized. It writes its events to the
/// file `told`, and sets each container's variable to this value.
fn process(engine: &Engine, program: &std::path::Path, received: &str, value: &str) -> Started {
    let mut command = Command::new(program);
    command.arg("-socket").arg(engine.path("nri.sock"));
    command.arg("-out").arg(engine.path(received)).arg("-value").arg(value);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let plugin = Started(command.spawn().unwrap());
    engine.wait_until("the Go plugin is synchronized", || {
        let row = engine.admin(&["plugins"])[0].clone();
        row["state"] == "synchronized" && row["pid"] == plugin.0.id()
    });
    plugin
}

#[tokio::test]
async fn a_pod_on_containerd_is_adjusted_by_a_plugin_on_the_go_stub() {
    let Some(tools) = host::tools() else { return };
    let Some(program) = golang::program("recorder") else { return };
    let engine = Engine::start(&tools);
    let mut daemon = engine.start_daemon();
    let _plugin = connect(&engine, &program);
    let mut cri = engine.client().await;
    let pod = run_pod(&engine, &mut cri, "web").await;
    let app = create(&engine, &mut cri, &pod, "web", container("app", &["/bin/sleep", "1000"]));
    let app = app.await;
    start(&mut cri, &app).await.unwrap();
    let environment = format!("/proc/{}/environ", pid_of(&mut cri, &app).await);
    engine.wait_until("the program sees what the plugin added", || {
        std::fs::read_to_string(&environment).unwrap().contains("FROM_GO=yes")
    });
    end_pod(&mut cri, &pod).await;
    let received = || std::fs::read_to_string(engine.path("told")).unwrap_or_default();
    engine.wait_until("the pod's end is reported", || received().contains("RemovePodSandbox"));
    let wanted = [
        "RunPodSandbox web",
        "CreateContainer app",
        "PostCreateContainer app",
        "StartContainer app",
        "PostStartContainer app",
        "StopContainer app",
        "StopPodSandbox web",
        "RemoveContainer app",
        "RemovePodSandbox web",
    ];
    assert_eq!(received().lines().collect::<Vec<_>>(), wanted);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

/// Creates and starts a container; returns which process of the plugin set its variable.
async fn run(engine: &Engine, cri: &mut Cri, pod: &str, name: &str) -> (String, String) {
    let config = container(name, &["/bin/sleep", "1000"]);
    let id = create(engine, cri, pod, "web", config).await;
    start(cri, &id).await.unwrap();
    let environment = format!("/proc/{}/environ", pid_of(cri, &id).await);
    let environment = || std::fs::read_to_string(&environment).unwrap();
    engine.wait_until("the program runs", || environment().contains("FROM=pod"));
    let environment = environment();
    let value = environment.split('\0').find_map(|pair| pair.strip_prefix("FROM_GO="));
    (id, value.unwrap_or("no plugin").to_owned())
}

/// The load ends by itself, whatever happens to its test.
const MOST: usize = 200;

/// Runs containers one after the other until `is_over`; each must have been adjusted. Returns the
/// number of containers that each process adjusted.
async fn load(engine: &Engine, pod: &str, is_over: &AtomicBool) -> [usize; 2] {
    let mut cri = engine.client().await;
    let mut counts = [0, 0];
    let mut after = 0;
    while after < 3 && counts[0] + counts[1] < MOST {
        after += usize::from(is_over.load(Ordering::SeqCst));
        let name = format!("c{}", counts[0] + counts[1]);
        let (id, value) = run(engine, &mut cri, pod, &name).await;
        let which = ["old", "new"].iter().position(|known| *known == value);
        assert!(which.is_some(), "{name} has the variable of {value}");
        counts[which.unwrap_or_default()] += 1;
        end_container(&mut cri, &id).await;
    }
    counts
}

#[tokio::test]
async fn a_second_go_process_takes_over_under_load_without_a_gap() {
    let Some(tools) = host::tools() else { return };
    let Some(program) = golang::program("recorder") else { return };
    let engine = Engine::start(&tools);
    let mut daemon = engine.start_daemon();
    let mut old = process(&engine, &program, "told-old", "old");
    let mut cri = engine.client().await;
    let pod = run_pod(&engine, &mut cri, "web").await;
    let (_first, value) = run(&engine, &mut cri, &pod, "first").await;
    assert_eq!(value, "old");
    let received = |name: &str| std::fs::read_to_string(engine.path(name)).unwrap_or_default();
    let is_over = AtomicBool::new(false);
    let (_new, [by_old, by_new]) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(load(&engine, &pod, &is_over))
        });
        let old_has_received = |what: &str| received("told-old").contains(what);
        engine.wait_until("containers come and go", || old_has_received("StopContainer c1"));
        let new = process(&engine, &program, "told-new", "new");
        engine.wait_until("the old process was shut down", || old_has_received("Shutdown"));
        engine.wait_until("the old process has ended", || old.0.try_wait().unwrap().is_some());
        is_over.store(true, Ordering::SeqCst);
        (new, load.join().unwrap())
    });
    assert!(by_old > 0 && by_new >= 2, "{by_old} containers by the old one, {by_new} by the new");
    end_pod(&mut cri, &pod).await;
    engine.wait_until("the pod's end is reported", || {
        received("told-new").contains("RemovePodSandbox")
    });
    each_event_came_once(&received("told-old"));
    each_event_came_once(&received("told-new"));
    let new = received("told-new");
    let of_first: Vec<&str> = new.lines().filter_map(|line| line.strip_suffix(" first")).collect();
    assert_eq!(of_first, ["Synchronize", "StopContainer", "RemoveContainer"], "{new}");
    assert!(!received("told-old").contains("StopContainer first"));
    // The newcomer has received the end of every container that began before its takeover.
    let count = |event: &str, name: &str| {
        let line = format!("{event} {name}");
        new.lines().filter(|received| *received == line).count()
    };
    let is_open = |name: &str| {
        count("Synchronize", name) + count("CreateContainer", name) > count("RemoveContainer", name)
    };
    let left = (0..by_old + by_new).filter(|number| is_open(&format!("c{number}"))).count();
    assert_eq!(left, 0, "{new}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

/// Checks that one process receives no event of a container twice.
#[track_caller]
fn each_event_came_once(received: &str) {
    let mut lines: Vec<&str> = received.lines().collect();
    lines.sort_unstable();
    let twice = lines.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None, "{received}");
}
