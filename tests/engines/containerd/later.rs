// SPDX-License-Identifier: Apache-2.0
//! The group of a CDI device in a process that containerd starts later, and plugins that need a
//! pod's network namespace at its stop.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use protobuf::MessageDyn;
use test_support::adjustments::{LOOK_AT_CLOSED_DEVICE, closed_device};
use test_support::cri::exec_sync::exec_sync;
use test_support::cri::{self, container, end_container, end_pod, pods, start};
use test_support::{Script, scripted_plugin, tools};

use super::config::{self, Passes, Wanted};
use super::host::{self, Engine, Parts};
use super::{create, run_pod};

fn connected(engine: &Engine, script: Script) -> Arc<Mutex<Vec<String>>> {
    let received = scripted_plugin::connect(engine.path("nri.sock"), "10", "later", script);
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    received
}

#[tokio::test]
async fn a_cdi_device_keeps_its_mode_and_an_exec_has_its_group() {
    let Some(tools) = host::tools() else { return };
    let engine = Engine::start(&tools);
    let dir = engine.path("").display().to_string();
    let script = closed_device(Path::new(dir.trim_end_matches('/')));
    let config = std::fs::read_to_string(engine.path("nri-runc.toml")).unwrap();
    let config = format!("{config}[cdi]\nspec_dirs = [\"{}\"]\n", engine.path("cdi").display());
    nri_runc::testing::files::replace(&engine.path("nri-runc.toml"), config.as_bytes()).unwrap();
    let mut daemon = engine.start_daemon();
    let _plugin = connected(&engine, script);
    let mut cri = engine.client().await;
    let pod_id = run_pod(&engine, &mut cri, "web").await;
    let app =
        create(&engine, &mut cri, &pod_id, "web", container("app", &["/bin/sleep", "1000"])).await;
    start(&mut cri, &app).await.unwrap();
    let words = ["/bin/sh", "-c", LOOK_AT_CLOSED_DEVICE];
    let printed = exec_sync(engine.containerd.channel().await, &app, &words).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&printed.stdout), "600 1:3\n0 4400\n", "{printed:?}");
    end_container(&mut cri, &app).await;
    end_pod(&mut cri, &pod_id).await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

/// The network namespace in a request.
fn network(request: &dyn MessageDyn) -> Option<String> {
    let request = scripted_plugin::json_of(request);
    let namespaces = request["pod"]["linux"]["namespaces"].as_array()?;
    let network = namespaces.iter().find(|namespace| namespace["type"] == "network")?;
    network["path"].as_str().map(str::to_owned)
}

/// Whether the network namespace at this path can be entered, and has its own loopback device.
fn can_be_entered(path: &str) -> bool {
    let mut entered = Command::new("nsenter");
    entered.arg(format!("--net={path}")).args(["cat", "/proc/self/net/dev"]);
    let output = entered.stdin(Stdio::null()).output().unwrap();
    output.status.success() && String::from_utf8_lossy(&output.stdout).contains("lo:")
}

#[tokio::test]
async fn a_plugin_enters_the_network_namespace_of_a_stopping_pod() {
    let Some(tools) = host::tools() else { return };
    let Some(containerd) = tools::newer("containerd-2.4.2") else { return };
    let configuration = |dir: &Path| {
        let runtime = Path::new(env!("CARGO_BIN_EXE_nri-runc"));
        let handlers = &[("rich", Passes::All)];
        config::containerd(dir, &Wanted { version: 3, handlers, runtime, has_nri: false })
    };
    let runc = tools.join("runc");
    let parts = Parts {
        tools: &tools,
        containerd: &containerd,
        runc: &runc,
        configuration: Some(&configuration),
    };
    let engine = Engine::of(&parts);
    let mut daemon = engine.start_daemon();
    let entered: Arc<Mutex<Vec<(String, bool)>>> = Arc::default();
    let notes = Arc::clone(&entered);
    let on_request = move |event: &str, request: &dyn MessageDyn| {
        if event.ends_with("PodSandbox") {
            let can = network(request).is_some_and(|path| can_be_entered(&path));
            notes.lock().unwrap().push((event.to_owned(), can));
        }
    };
    let script = Script { on_request: Some(Arc::new(on_request)), ..Script::default() };
    let received = connected(&engine, script);
    let mut cri = engine.client().await;
    let dir = engine.path("").display().to_string();
    let pod = pods::rich(engine.cgroup(), Path::new(dir.trim_end_matches('/')));
    for is_stopped_twice in [false, true] {
        received.lock().unwrap().clear();
        let id = cri::run_pod_with(&mut cri, pod.config.clone(), pod.handler).await;
        let app = cri::create(&mut cri, &id, pod.config.clone(), pod.app.clone()).await;
        start(&mut cri, &app).await.unwrap();
        if is_stopped_twice {
            // kubelet may repeat this, because the call is idempotent.
            let stop = super::messages::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
            cri.stop_pod_sandbox(stop).await.unwrap();
        }
        end_pod(&mut cri, &id).await;
        // An event may be recorded before the plugin has entered the namespace.
        engine.wait_until("the pod's end is reported", || {
            entered.lock().unwrap().iter().any(|(event, _)| event == "RemovePodSandbox")
        });
        let found = std::mem::take(&mut *entered.lock().unwrap());
        let events: Vec<&str> = found.iter().map(|(event, _)| event.as_str()).collect();
        assert_eq!(events, ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]);
        assert!(found[0].1 && found[1].1, "{found:?}\n{}", engine.log_tail());
        let received = received.lock().unwrap();
        let place = |event: &str| received.iter().position(|line| line.starts_with(event)).unwrap();
        assert!(place("StopContainer") < place("StopPodSandbox"), "{received:?}");
    }
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
