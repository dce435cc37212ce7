// SPDX-License-Identifier: Apache-2.0
//! Pods and containers that plugins adjust, refuse and follow: checked inside and in the cgroups,
//! through restarts of CRI-O and of the daemon.

use test_support::adjustments::{bind_mount, every_kind};
use test_support::cri::exec_sync::exec_sync;
use test_support::cri::{self, Cri, container, pods};
use test_support::{Script, has_received};

use super::host::{CrioHost, SOCKET};
use super::messages::LinuxContainerResources;
use super::{HANDLER, pod, register, registered, run};

fn adjusting(host: &CrioHost) -> Script {
    every_kind(512, "/dev/nri-null", 3).mount(bind_mount(&host.path("data"), "/data")).into()
}

fn look_inside(host: &CrioHost, id: &str, pid: u64) {
    let of = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    host.wait_until("the program runs", || of("environ").contains("FROM=pod"));
    assert!(of("environ").contains("HELLO=there"), "{}", of("environ"));
    assert_eq!(of("root/data/hello"), "mounted by a plugin\n");
    let limits = of("limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert!(files.contains("123") && files.contains("321"), "{files}");
    assert_eq!(of("oom_score_adj").trim(), "950");
    let device = std::fs::metadata(format!("/proc/{pid}/root/dev/nri-null")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::rdev(&device), (1 << 8) | 3);
    assert_eq!(host.cgroup_file("cpu", id, "cpu.shares"), "512");
    let limit = host.cgroup_file("memory", id, "memory.limit_in_bytes");
    assert_eq!(limit, (32_u64 << 20).to_string());
}

fn events_of(received: &[String], name: &str) -> Vec<String> {
    let ends = format!(" {name}");
    received.iter().filter_map(|line| line.strip_suffix(&ends)).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_pod_on_crio_is_adjusted_and_has_all_events() {
    let Some((host, cri)) = registered().await else { return };
    is_adjusted_and_has_all_events(host, cri).await;
}

#[tokio::test]
async fn a_pod_on_crio_and_crun_is_adjusted_and_has_all_events() {
    let Some(host) = CrioHost::new().filter(CrioHost::configure_crun) else { return };
    let (host, cri) = register(host).await;
    is_adjusted_and_has_all_events(host, cri).await;
}

async fn is_adjusted_and_has_all_events(host: CrioHost, mut cri: Cri) {
    host.start_daemon();
    let received = host.plugin("10", "adjust", adjusting(&host));
    let (pod_id, app) = run(&host, &mut cri, "web", HANDLER).await;
    let pid = cri::info(&mut cri, &app).await["pid"].as_u64().unwrap();
    look_inside(&host, &app, pid);
    let channel = cri::connect(host.seen(SOCKET)).await;
    let printed = exec_sync(channel, &app, &["/bin/cat", "/data/hello"]).await.unwrap();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), "mounted by a plugin\n");

    let memory = LinuxContainerResources { memory_limit_in_bytes: 48 << 20, ..Default::default() };
    pods::update(&mut cri, &app, memory).await.unwrap();
    let limit = || host.cgroup_file("memory", &app, "memory.limit_in_bytes");
    host.wait_until("the update is there", || limit() == (48_u64 << 20).to_string());
    assert_eq!(host.cgroup_file("cpu", &app, "cpu.shares"), "512", "the plugin's value was undone");

    let short = container("short", &["/bin/sleep", "0.3"]);
    let short = cri::create(&mut cri, &pod_id, pod(&host, "web"), short).await;
    cri::start(&mut cri, &short).await.unwrap();
    host.wait_until("the exit is reported", || has_received(&received, "StopContainer short"));

    cri::end_container(&mut cri, &app).await;
    cri::end_pod(&mut cri, &pod_id).await;
    host.wait_until("the pod's end is reported", || {
        has_received(&received, "RemovePodSandbox web")
    });
    let received = received.lock().unwrap().clone();
    let begin = ["CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer"];
    let updated = ["UpdateContainer", "PostUpdateContainer"];
    let end = ["StopContainer", "RemoveContainer"];
    assert_eq!(events_of(&received, "app"), [&begin[..], &updated, &end].concat(), "{received:?}");
    assert_eq!(events_of(&received, "short"), [&begin[..], &end].concat(), "{received:?}");
    let of_pod = ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"];
    assert_eq!(events_of(&received, "web"), of_pod, "{received:?}");
    host.wait_until("it is forgotten", || host.nri(&["pods"]) == Ok(serde_json::json!([])));
}

#[tokio::test]
async fn restarts_of_crio_and_the_daemon_lose_no_event() {
    let Some((mut host, mut cri)) = registered().await else { return };
    host.start_daemon();
    let received = host.plugin("10", "adjust", adjusting(&host));
    let (pod_id, app) = run(&host, &mut cri, "web", HANDLER).await;
    let mut cri = host.restart().await;
    host.kill_daemon();
    host.start_daemon();
    let again = host.plugin("10", "adjust", adjusting(&host));
    let known = host.nri(&["pods"]).unwrap();
    assert_eq!(known[0]["containers"][0]["id"], app.as_str(), "{known:#}");
    assert_eq!(host.cgroup_file("cpu", &app, "cpu.shares"), "512");
    cri::end_container(&mut cri, &app).await;
    cri::end_pod(&mut cri, &pod_id).await;
    host.wait_until("the pod's end is reported", || has_received(&again, "RemovePodSandbox web"));
    let (received, again) = (received.lock().unwrap().clone(), again.lock().unwrap().clone());
    let begin = ["CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer"];
    assert_eq!(events_of(&received, "app"), begin, "{received:?}");
    let after = ["Synchronize", "StopContainer", "RemoveContainer"];
    assert_eq!(events_of(&again, "app"), after, "{again:?}");
}
