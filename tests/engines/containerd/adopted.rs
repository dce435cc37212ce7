// SPDX-License-Identifier: Apache-2.0
//! A pod that containerd created while no daemon could be asked: the next daemon finds sandbox and
//! container with their names, and a plugin receives their end.

use test_support::Script;

use super::host::{self, Engine};
use super::{container, create, end_pod, pod, run_pod, start};

#[tokio::test]
async fn a_pod_created_without_the_daemon_is_adopted() {
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
    let received = test_support::scripted_plugin::connect(
        engine.path("nri.sock"),
        "10",
        "late",
        Script::default(),
    );
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    assert_eq!(*received.lock().unwrap(), ["Synchronize app"], "{}", engine.log_tail());
    let pods = engine.admin(&["pods"]);
    assert_eq!(
        (pods[0]["name"].as_str(), pods[0]["namespace"].as_str()),
        (Some("web"), Some("shop"))
    );
    assert_eq!(pods[0]["containers"][0]["state"], "running");
    end_pod(&mut cri, &pod).await;
    engine.wait_until("the pod's end is reported", || {
        super::has_received(&received, "RemovePodSandbox web")
    });
    let wanted = [
        "Synchronize app",
        "StopContainer app",
        "StopPodSandbox web",
        "RemoveContainer app",
        "RemovePodSandbox web",
    ];
    assert_eq!(*received.lock().unwrap(), wanted);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

/// Shows plugins the whole node, including this engine's state directory.
fn shows_node(engine: &Engine) {
    let file = engine.path("nri-runc.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("[nri]\n", "[nri]\nscope = \"node\"\n");
    let root = engine.path("runc/*").display().to_string();
    let text = format!("autostart = false\ndebug.runtime_roots = [\"{root}\"]\n{text}");
    nri_runc::testing::files::replace(&file, text.as_bytes()).unwrap();
}

#[tokio::test]
async fn a_pod_of_another_handler_is_shown_and_updated_and_ends() {
    let Some(tools) = host::tools() else { return };
    let engine = Engine::start(&tools);
    shows_node(&engine);
    let mut cri = engine.client().await;
    let before = test_support::cri::run_pod_with(&mut cri, pod(&engine, "before"), "plain").await;
    let sleep = ["/bin/sleep", "1000"];
    let app = create(&engine, &mut cri, &before, "before", container("app", &sleep)).await;
    start(&mut cri, &app).await.unwrap();

    let _daemon = engine.start_daemon();
    let shares = serde_json::json!({"cpu": {"shares": 321}});
    let wants = vec![test_support::adjustments::update_of(&app, &shares)];
    let received = test_support::scripted_plugin::connect(
        engine.path("nri.sock"),
        "10",
        "node",
        Script { wants, ..Script::default() },
    );
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    assert_eq!(*received.lock().unwrap(), ["Synchronize app"], "{}", engine.log_tail());
    let pods = engine.admin(&["pods"]);
    let names = (pods[0]["name"].as_str(), pods[0]["namespace"].as_str());
    assert_eq!(names, (Some("before"), Some("shop")), "by containerd's records");
    let state = engine.path(&format!("runc/k8s.io/{app}/state.json"));
    engine.wait_until("runc's own state has the plugin's value", || {
        let state = std::fs::read_to_string(&state).unwrap_or_default();
        state.contains("\"cpu_shares\":321")
    });
    let explained = engine.admin(&["explain", &app]);
    assert!(explained["skipped"].to_string().contains("created without nri-runc"), "{explained}");

    let after = test_support::cri::run_pod_with(&mut cri, pod(&engine, "after"), "plain").await;
    let new = create(&engine, &mut cri, &after, "after", container("new", &sleep)).await;
    start(&mut cri, &new).await.unwrap();
    engine
        .wait_until("it is announced", || super::has_received(&received, "PostStartContainer new"));
    end_pod(&mut cri, &before).await;
    end_pod(&mut cri, &after).await;
    engine.wait_until("the ends are reported", || {
        super::has_received(&received, "RemovePodSandbox after")
    });
    let received = received.lock().unwrap().clone();
    let of = |names: [&str; 2]| -> Vec<String> {
        let is_of = |line: &&String| names.iter().any(|name| line.ends_with(&format!(" {name}")));
        received.iter().filter(is_of).cloned().collect()
    };
    let ends = |pod: &str, app: &str| {
        let lines = ["StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"];
        lines.map(|event| format!("{event} {}", if event.contains("Pod") { pod } else { app }))
    };
    let wanted = [&["Synchronize app".to_owned()][..], &ends("before", "app")].concat();
    assert_eq!(of(["before", "app"]), wanted);
    let begins = [
        "RunPodSandbox after",
        "PostCreateContainer new",
        "StartContainer new",
        "PostStartContainer new",
    ];
    let begins = begins.map(str::to_owned);
    assert_eq!(of(["after", "new"]), [&begins[..], &ends("after", "new")].concat());
}
