// SPDX-License-Identifier: Apache-2.0
//! What containerd 2.4.2's own NRI says of a pod, and what nri-runc says of the same pod on the
//! same containerd, live: two pods of different shape, three runtimes. Field by field, by the
//! rules of `tests/fidelity`; ids are words. Part of `make interop`, which builds the parts.

use std::io::Write;
use std::path::Path;

use test_support::compare::{self, Meant};
use test_support::tools;

use super::config::{self, Passes, Wanted};
use super::host::{self, Engine, Parts};
use super::pods::{self, Pod};
use super::recorder::{self, Recorder};

const ENGINE: &str = "containerd-2.4.2 live";
const HANDLERS: [(&str, Passes); 2] = [("lean", Passes::None), ("rich", Passes::All)];

/// What a recorder heard of each pod.
type Lives = Vec<(&'static str, Vec<(String, serde_json::Value)>)>;

fn shapes(engine: &Engine) -> [(&'static str, Pod); 2] {
    let (cgroup, dir) = (engine.cgroup(), engine.path(""));
    let dir = dir.display().to_string();
    let dir = Path::new(dir.trim_end_matches('/'));
    [("rich", pods::rich(cgroup, dir)), ("lean", pods::lean(cgroup))]
}

async fn heard(engine: &Engine, socket: &str) -> Lives {
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

/// The same containerd twice: with its own NRI and the runtime itself, then without it and with
/// us before the runtime.
async fn both(version: u8, containerd: &Path, tools: &Path, runc: &Path) -> (Lives, Lives) {
    let own = Wanted { version, handlers: &HANDLERS, runtime: runc, has_nri: true };
    let ours = Wanted { runtime: Path::new(env!("CARGO_BIN_EXE_nri-runc")), has_nri: false, ..own };
    let configuration = |dir: &Path| config::containerd(dir, &own);
    let parts = Parts { tools, containerd, runc, configuration: Some(&configuration) };
    let mut engine = Engine::of(&parts);
    let native = heard(&engine, "own.sock").await;
    engine.containerd.stop();
    let text = config::containerd(&engine.path(""), &ours);
    nri_runc::testing::files::replace(&engine.path("containerd.toml"), text.as_bytes()).unwrap();
    engine.containerd.run();
    let mut daemon = engine.start_daemon();
    let through = heard(&engine, "nri.sock").await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    (native, through)
}

/// A line for the table, and what is wrong.
fn compared(name: &str, result: &compare::Result) -> (String, Vec<String>) {
    let (fields, equal, percent) = (result.native, result.equal, result.percent());
    let lists = [("wrong", &result.wrong), ("absent", &result.absent), ("more", &result.more)];
    let mut problems = Vec::new();
    for (what, lines) in lists {
        problems.extend(lines.iter().map(|line| format!("{name} {what}: {line}")));
    }
    (format!("{name:<40} {fields:>6} {equal:>6}   {percent:>6.2}\n"), problems)
}

async fn lives_are_told_alike(version: u8, runc: &str) {
    let Some(tools) = host::tools() else { return };
    let Some(containerd) = tools::newer("containerd-2.4.2") else { return };
    let runtime = if runc == "runc" { Some(tools.clone()) } else { tools::newer(runc) };
    let Some(runtime) = runtime.map(|dir| dir.join("runc")) else { return };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md");
    let meant = compare::meant(&std::fs::read_to_string(page).unwrap());
    // What libcni keeps of our networks goes with the last of them, unless there was a folder.
    static HAD_NETWORKS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    let had_networks = *HAD_NETWORKS.get_or_init(|| Path::new("/var/lib/cni").exists());
    let (native, ours) = both(version, &containerd, &tools, &runtime).await;
    for folder in ["/var/lib/cni/results", "/var/lib/cni"] {
        let _left_as_found = (!had_networks).then(|| std::fs::remove_dir(folder));
    }
    let mut table =
        String::from("live                                     fields  equal  percent\n");
    let (mut problems, mut used) = (Vec::new(), std::collections::BTreeSet::new());
    for ((name, native), (_, ours)) in native.iter().zip(&ours) {
        let name = format!("containerd-2.4.2 v{version} {runc} {name}");
        for of in ["pod", "app", "helper"] {
            let (theirs, own) = (recorder::order(native, of), recorder::order(ours, of));
            if theirs != own {
                problems.push(format!("{name}: {of} heard {own:?}, of containerd {theirs:?}"));
            }
        }
        let (native, ours) = (recorder::told(native), recorder::told(ours));
        let result = compare::compare(ENGINE, &native, &ours, &meant);
        let (line, wrong) = compared(&name, &result);
        table += &line;
        problems.extend(wrong);
        used.extend(result.used);
    }
    let _nobody_reads = std::io::stderr().write_all(table.as_bytes());
    assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
    let idle = |(at, row): &(usize, &Meant)| row.is_live() && !used.contains(at);
    let idle: Vec<_> = meant.iter().enumerate().filter(idle).collect();
    assert!(idle.is_empty(), "rows of docs/compatibility.md that nothing needs: {idle:?}");
}

#[tokio::test]
async fn a_live_pod_is_told_as_containerds_own_nri_tells_it() {
    lives_are_told_alike(4, "runc").await;
}

#[tokio::test]
async fn a_live_pod_with_runc_1_5_is_told_as_containerds_own_nri_tells_it() {
    lives_are_told_alike(3, "runc-1.5.2").await;
}

#[tokio::test]
async fn a_live_pod_with_runc_1_6_is_told_as_containerds_own_nri_tells_it() {
    lives_are_told_alike(4, "runc-1.6.0-rc.1").await;
}
