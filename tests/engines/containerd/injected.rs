// SPDX-License-Identifier: Apache-2.0
//! Injections and an exec rule, in a pod's container of containerd and without a plugin.

use test_support::cri::exec_sync::exec_sync;
use test_support::cri::{container, end_container, end_pod, start};
use test_support::injected::{FILE, SETTINGS, WANTED};

use super::host::{self, Engine};
use super::messages::KeyValue;
use super::{create, run_pod};

#[tokio::test]
async fn a_containerd_container_has_injections_and_exec_rules() {
    let Some(tools) = host::tools() else { return };
    let engine = Engine::start(&tools);
    let replace = nri_runc::testing::files::replace;
    replace(&engine.path(FILE), b"from the node").unwrap();
    let file = engine.path("nri-runc.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    let settings = SETTINGS.replace("SOURCE", &engine.path(FILE).display().to_string());
    replace(&file, format!("{before}{settings}").as_bytes()).unwrap();
    let mut daemon = engine.start_daemon();
    let mut cri = engine.client().await;
    let pod_id = run_pod(&engine, &mut cri, "web").await;
    let mut app = container("app", &["/bin/sleep", "1000"]);
    app.envs.push(KeyValue { key: "OWN".into(), value: "kept".into() });
    let app = create(&engine, &mut cri, &pod_id, "web", app).await;
    start(&mut cri, &app).await.unwrap();
    let channel = engine.containerd.channel().await;
    let words = ["/bin/cat", "/proc/1/environ", "/corp.pem"];
    let printed = exec_sync(channel.clone(), &app, &words).await.unwrap();
    let inside = String::from_utf8_lossy(&printed.stdout);
    for wanted in WANTED {
        assert!(inside.contains(wanted), "{wanted} is not in {inside}");
    }
    for words in [&["/bin/sh", "-c", "true"][..], &["/bin/../bin/cat", "/corp.pem"]] {
        let error = exec_sync(channel.clone(), &app, words).await.unwrap_err().to_string();
        assert!(error.contains("cat alone"), "{words:?}: {error}");
    }
    end_container(&mut cri, &app).await;
    end_pod(&mut cri, &pod_id).await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
