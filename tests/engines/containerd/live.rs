// SPDX-License-Identifier: Apache-2.0
//! Compares the messages of containerd 2.4.2's own NRI about a pod with those of nri-runc about the
//! same pod on the same containerd, live: two pods of different shape, three runtimes. Field by
//! field, by the rules of `tests/bundle/fidelity`; IDs are replaced by words. Part of `make
//! interop`, which builds the parts.

use std::path::Path;

use test_support::cri::pods::{self, Pod};
use test_support::recorder::{Life, Recorder, assert_alike, compare_lives};
use test_support::{compare, tools};

use super::config::{self, Passes, Wanted};
use super::host::{self, Engine, Parts};

const ENGINE: &str = "containerd-2.4.2 live";
const HANDLERS: [(&str, Passes); 2] = [("lean", Passes::None), ("rich", Passes::All)];

/// The events that a recorder received of each pod.
type Lives = Vec<(&'static str, Life)>;

fn shapes(engine: &Engine) -> [(&'static str, Pod); 2] {
    let (cgroup, dir) = (engine.cgroup(), engine.path(""));
    let dir = dir.display().to_string();
    let dir = Path::new(dir.trim_end_matches('/'));
    [("rich", pods::rich(cgroup, dir)), ("lean", pods::lean(cgroup))]
}

async fn observe(engine: &Engine, socket: &str) -> Lives {
    let recorder = Recorder::connect(engine.path(socket));
    let mut cri = engine.client().await;
    let mut lives = Lives::new();
    for (name, pod) in shapes(engine) {
        let ids = pods::live(&mut cri, &pod).await;
        recorder.wait_for("RemovePodSandbox");
        lives.push((name, recorder.life(&ids)));
    }
    lives
}

/// Runs the same containerd twice: with its own NRI and the plain runtime, then without it and with
/// nri-runc before the runtime.
async fn both(version: u8, containerd: &Path, tools: &Path, runc: &Path) -> (Lives, Lives) {
    let own = Wanted { version, handlers: &HANDLERS, runtime: runc, has_nri: true };
    let ours = Wanted { runtime: Path::new(env!("CARGO_BIN_EXE_nri-runc")), has_nri: false, ..own };
    let configuration = |dir: &Path| config::containerd(dir, &own);
    let parts = Parts { tools, containerd, runc, configuration: Some(&configuration) };
    let mut engine = Engine::of(&parts);
    let native = observe(&engine, "own.sock").await;
    engine.containerd.stop();
    let text = config::containerd(&engine.path(""), &ours);
    nri_runc::testing::files::replace(&engine.path("containerd.toml"), text.as_bytes()).unwrap();
    engine.containerd.run();
    let mut daemon = engine.start_daemon();
    let through = observe(&engine, "nri.sock").await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    (native, through)
}

async fn lives_are_equal(version: u8, runc: &str) {
    let Some(tools) = host::tools() else { return };
    let Some(containerd) = tools::newer("containerd-2.4.2") else { return };
    let runtime = if runc == "runc" { Some(tools.clone()) } else { tools::newer(runc) };
    let Some(runtime) = runtime.map(|dir| dir.join("runc")) else { return };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md");
    let meant = compare::meant(&std::fs::read_to_string(page).unwrap());
    let (native, ours) = both(version, &containerd, &tools, &runtime).await;
    let named = |name: &str| format!("containerd-2.4.2 v{version} {runc} {name}");
    let lives = native.iter().zip(&ours).map(|((name, native), (_, ours))| {
        compare_lives(ENGINE, &named(name), native, ours, &meant)
    });
    assert_alike(ENGINE, &lives.collect::<Vec<_>>(), &meant);
}

#[tokio::test]
async fn a_live_pods_events_equal_those_of_containerds_own_nri() {
    lives_are_equal(4, "runc").await;
}

#[tokio::test]
async fn with_runc_1_5_the_events_equal_those_of_containerds_own_nri() {
    lives_are_equal(3, "runc-1.5.2").await;
}

#[tokio::test]
async fn with_runc_1_6_the_events_equal_those_of_containerds_own_nri() {
    lives_are_equal(4, "runc-1.6.0-rc.1").await;
}
