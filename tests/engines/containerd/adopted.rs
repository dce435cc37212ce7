// SPDX-License-Identifier: Apache-2.0
//! A pod that containerd made while no daemon could be asked: the next daemon finds sandbox and
//! container with their names, and a plugin hears of their end.

use test_support::Script;

use super::host::{self, Engine};
use super::{container, create, end_pod, run_pod, start};

#[tokio::test]
async fn a_pod_that_went_past_an_absent_daemon_is_adopted() {
    let Some(tools) = host::tools() else { return };
    let engine = Engine::start(&tools);
    let file = engine.path("nri-runc.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = format!("autostart = false\n{text}");
    nri_runc::testing::files::replace(&file, text.as_bytes()).unwrap();
    let mut cri = engine.client().await;
    let pod = run_pod(&engine, &mut cri, "web").await;
    let app = create(&engine, &mut cri, &pod, "web", container("app", &["/bin/sleep", "1000"]));
    let app = app.await;
    start(&mut cri, &app).await.unwrap();

    let mut daemon = engine.start_daemon();
    let told = test_support::scripted_plugin::connect(
        engine.path("nri.sock"),
        "10",
        "late",
        Script::default(),
    );
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    assert_eq!(*told.lock().unwrap(), ["Synchronize app"], "{}", engine.log_tail());
    let pods = engine.admin(&["pods"]);
    assert_eq!(
        (pods[0]["name"].as_str(), pods[0]["namespace"].as_str()),
        (Some("web"), Some("shop"))
    );
    assert_eq!(pods[0]["containers"][0]["state"], "running");
    end_pod(&mut cri, &pod).await;
    engine.wait_until("the pod's end is told", || super::heard(&told, "RemovePodSandbox web"));
    let wanted = [
        "Synchronize app",
        "StopContainer app",
        "StopPodSandbox web",
        "RemoveContainer app",
        "RemovePodSandbox web",
    ];
    assert_eq!(*told.lock().unwrap(), wanted);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
