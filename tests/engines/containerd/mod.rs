// SPDX-License-Identifier: Apache-2.0
//! A real containerd calls nri-runc instead of runc, through its CRI; a plugin that does not know
//! nri-runc changes the containers; the real runc runs the result. The tests check the values inside.

mod adopted;
mod compared;
mod config;
mod critest;
mod ctr;
mod effect;
mod go;
mod host;
mod installed;
mod kubelet;
mod later;
mod live;
mod metrics;
mod nerdctl;
mod own_nri;
mod rendered;
mod samples;
mod stories;
mod template;
pub(crate) mod tested;
mod verbs;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use host::Engine;
use test_support::adjustments::{bind_mount, every_kind};
use test_support::cri::generated as messages;
use test_support::cri::{self, Cri, container, end_container, end_pod, start};
use test_support::{Script, has_received};

fn pod(engine: &Engine, name: &str) -> messages::PodSandboxConfig {
    cri::pod(engine.cgroup(), name)
}

async fn run_pod(engine: &Engine, cri: &mut Cri, name: &str) -> String {
    cri::run_pod(cri, pod(engine, name)).await
}

async fn create(
    engine: &Engine,
    cri: &mut Cri,
    pod_id: &str,
    pod_name: &str,
    config: messages::ContainerConfig,
) -> String {
    cri::create(cri, pod_id, pod(engine, pod_name), config).await
}

async fn pid_of(cri: &mut Cri, id: &str) -> u64 {
    cri::info(cri, id).await["pid"].as_u64().unwrap()
}

fn adjusting(engine: &Engine) -> Script {
    every_kind(512, "/dev/nri-null", 3).mount(bind_mount(&engine.path("data"), "/data")).into()
}

fn cgroup_file(engine: &Engine, controller: &str, id: &str, file: &str) -> String {
    test_support::cgroup::read(engine.cgroup(), ("cri-containerd", id), (controller, file))
}

fn look_inside(engine: &Engine, id: &str, pid: u64) {
    // The engine is done when init is released, which executes its program a moment later.
    let environ = format!("/proc/{pid}/environ");
    let environ = || std::fs::read_to_string(&environ).unwrap();
    engine.wait_until("the program runs", || environ().contains("FROM=pod"));
    let environ = environ();
    let environ: Vec<&str> = environ.split('\0').collect();
    assert!(environ.contains(&"HELLO=there") && environ.contains(&"FROM=pod"), "{environ:?}");
    let hello = std::fs::read_to_string(format!("/proc/{pid}/root/data/hello")).unwrap();
    assert_eq!(hello, "mounted by a plugin\n");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert!(files.contains("123") && files.contains("321"), "{files}");
    let score = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert_eq!(score.trim(), "950");
    let device = std::fs::metadata(format!("/proc/{pid}/root/dev/nri-null")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::rdev(&device), (1 << 8) | 3);
    assert_eq!(cgroup_file(engine, "cpu", id, "cpu.shares"), "512");
    assert_eq!(
        cgroup_file(engine, "memory", id, "memory.limit_in_bytes"),
        (32_u64 << 20).to_string()
    );
}

#[tokio::test]
async fn a_pod_on_containerd_is_adjusted_and_has_all_events() {
    let Some(tools) = host::tools() else { return };
    let engine = Engine::start(&tools);
    let mut daemon = engine.start_daemon();
    let received = test_support::scripted_plugin::connect(
        engine.path("nri.sock"),
        "10",
        "adjust",
        adjusting(&engine),
    );
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    let mut cri = engine.client().await;
    let pod_id = run_pod(&engine, &mut cri, "web").await;
    assert_eq!(*received.lock().unwrap(), ["RunPodSandbox web"], "{}", engine.log_tail());

    let app =
        create(&engine, &mut cri, &pod_id, "web", container("app", &["/bin/sleep", "1000"])).await;
    start(&mut cri, &app).await.unwrap();
    let pid = pid_of(&mut cri, &app).await;
    look_inside(&engine, &app, pid);
    the_engines_update_keeps_what_the_plugin_owns(&engine, &mut cri, &app).await;

    let short =
        create(&engine, &mut cri, &pod_id, "web", container("short", &["/bin/sleep", "0.3"])).await;
    start(&mut cri, &short).await.unwrap();
    an_exit_is_reported_once_and_promptly(&engine, &received);

    end_container(&mut cri, &app).await;
    end_pod(&mut cri, &pod_id).await;
    engine.wait_until("the pod's end is reported", || {
        has_received(&received, "RemovePodSandbox web")
    });
    let received = received.lock().unwrap().clone();
    let updated = ["UpdateContainer", "PostUpdateContainer"];
    for (name, between) in [("app", &updated[..]), ("short", &[])] {
        let events: Vec<&str> =
            received.iter().filter_map(|e| e.strip_suffix(&format!(" {name}"))).collect();
        let begin =
            ["CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer"];
        let end = ["StopContainer", "RemoveContainer"];
        assert_eq!(events, [&begin[..], between, &end[..]].concat(), "{name}");
    }
    // The engine removes containers with their pod, in no particular order.
    let place = |line: &str| received.iter().position(|received| received == line).unwrap();
    for removed in ["RemoveContainer app", "RemoveContainer short"] {
        assert!(place("StopContainer app") < place(removed), "{received:?}");
        assert!(place(removed) < place("RemovePodSandbox web"), "{received:?}");
    }
    assert!(place("RemoveContainer app") < place("StopPodSandbox web"), "{received:?}");
    assert!(place("StopPodSandbox web") < place("RemoveContainer short"), "{received:?}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

async fn the_engines_update_keeps_what_the_plugin_owns(engine: &Engine, cri: &mut Cri, id: &str) {
    let resources =
        messages::LinuxContainerResources { memory_limit_in_bytes: 48 << 20, ..Default::default() };
    let request = messages::UpdateContainerResourcesRequest {
        container_id: id.to_owned(),
        linux: Some(resources),
    };
    cri.update_container_resources(request).await.unwrap();
    engine.wait_until("the update is there", || {
        cgroup_file(engine, "memory", id, "memory.limit_in_bytes") == (48_u64 << 20).to_string()
    });
    assert_eq!(
        cgroup_file(engine, "cpu", id, "cpu.shares"),
        "512",
        "the plugin's value was undone"
    );
    let pods = engine.admin(&["pods"]);
    assert_eq!(
        (pods[0]["namespace"].as_str(), pods[0]["uid"].as_str()),
        (Some("shop"), Some("uid-web"))
    );
    assert_eq!(pods[0]["engine"], "containerd-cri");
}

fn an_exit_is_reported_once_and_promptly(engine: &Engine, received: &Arc<Mutex<Vec<String>>>) {
    let pid = engine.admin(&["pods"])[0]["containers"]
        .as_array()
        .and_then(|list| list.iter().find(|c| c["name"] == "short")?["pid"].as_u64())
        .unwrap_or(0);
    // A zombie has no command line: the process has exited, whichever process reaps it.
    let alive =
        || std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty());
    engine.wait_until("the process ends", || !alive());
    let ended = Instant::now();
    engine.wait_until("the stop is reported", || has_received(received, "StopContainer short"));
    // The plugin receives it within 100 ms on an idle machine; a polling daemon would need its
    // minute.
    assert!(ended.elapsed() < Duration::from_secs(50), "{:?}", ended.elapsed());
}
