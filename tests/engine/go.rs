// SPDX-License-Identifier: Apache-2.0
//! A pod on containerd with a plugin on the official Go stub (NRI v0.12.5), where Go is there:
//! neither the engine nor the plugin knows of us.

use std::process::{Child, Command, Stdio};

use test_support::golang;

use super::host::{self, Engine};
use super::{container, create, end_pod, pid_of, run_pod, start};

struct Plugin(Child);

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "the Go side of the test")]
fn connect(engine: &Engine, program: &std::path::Path) -> Plugin {
    let mut command = Command::new(program);
    command.arg("-socket").arg(engine.path("nri.sock"));
    command.arg("-out").arg(engine.path("told"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let plugin = Plugin(command.spawn().unwrap());
    engine.wait_until("the Go plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
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
    let told = || std::fs::read_to_string(engine.path("told")).unwrap_or_default();
    engine.wait_until("the pod's end is told", || told().contains("RemovePodSandbox"));
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
    assert_eq!(told().lines().collect::<Vec<_>>(), wanted);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
