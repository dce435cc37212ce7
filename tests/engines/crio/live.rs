// SPDX-License-Identifier: Apache-2.0
//! Compares the messages of CRI-O's own NRI about a pod with those of nri-runc about the same pod
//! on the same CRI-O, live: two pods of different shape, one with an infrastructure container.
//! Field by field, by the rules of `tests/bundle/fidelity`; IDs are replaced by words.

use std::path::Path;

use test_support::compare;
use test_support::cri::Cri;
use test_support::cri::pods::{self, Pod};
use test_support::recorder::{Life, Recorder, assert_alike, compare_lives};

use super::host::CrioHost;

const ENGINE: &str = "crio-1.36 live";

fn shapes(host: &CrioHost) -> [(&'static str, Pod); 2] {
    let (cgroup, dir) = (host.cgroup(), host.path(""));
    let dir = dir.display().to_string();
    let rich = pods::rich(&cgroup, Path::new(dir.trim_end_matches('/')));
    [("rich", Pod { handler: "", ..rich }), ("lean", pods::lean(&cgroup))]
}

async fn observe(host: &CrioHost, cri: &mut Cri) -> Vec<Life> {
    let recorder = Recorder::connect(host.seen("/run/nri/nri.sock"));
    let mut lives = Vec::new();
    for (_, pod) in shapes(host) {
        let ids = pods::live(cri, &pod).await;
        recorder.wait_for("RemovePodSandbox");
        lives.push(recorder.life(&ids));
    }
    lives
}

#[tokio::test]
async fn a_live_pods_events_equal_those_of_crios_own_nri() {
    let Some(mut host) = CrioHost::new() else { return };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md");
    let meant = compare::meant(&std::fs::read_to_string(page).unwrap());
    host.configure_runtime();
    let mut cri = host.start().await;
    let native = observe(&host, &mut cri).await;
    host.nri(&["install", "crio", "--take-over-nri", "--default"]).unwrap();
    let mut cri = host.restart().await;
    host.start_daemon();
    let ours = observe(&host, &mut cri).await;
    let lives = ["rich", "lean"].into_iter().zip(native.iter().zip(&ours));
    let lives = lives.map(|(name, (native, ours))| {
        compare_lives(ENGINE, &format!("{ENGINE} {name}"), native, ours, &meant)
    });
    assert_alike(ENGINE, &lives.collect::<Vec<_>>(), &meant);
}
