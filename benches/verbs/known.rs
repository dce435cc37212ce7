// SPDX-License-Identifier: Apache-2.0
//! The costs of a daemon with many containers: updates of other containers, a creation beside
//! 10,000 known containers, and the synchronization of a newcomer with them.
//!
//! The known ones are records of one real process: the daemon checks each and watches it, but no
//! runtime has created them.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::memory::Memory;
use super::mover::{Mover, shares};
use super::report::Ratio;
use super::{Place, time};

const MANY: usize = 10_000;
const FEW: usize = 10;
const UPDATES: usize = 200;
const CREATIONS: usize = 60;

/// A plugin's update of a container, including the record on disk, against the runtime's `update`.
pub(crate) fn update_other(place: &Place) -> Ratio {
    let bundle = place.path("bundle").display().to_string();
    place.timed(&place.binary, &["create", "--bundle", &bundle, "c"]);
    std::thread::sleep(Duration::from_millis(300));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stub = runtime.block_on(async {
        let stub = Mover::default().joins(&place.path("nri.sock")).await;
        // Meanwhile the plugin is configured and synchronized.
        tokio::time::sleep(Duration::from_millis(500)).await;
        stub
    });
    let asks = stub.runtime();
    let mut rounds = Vec::new();
    for number in 0..UPDATES {
        let value = 1000 + u64::try_from(number).unwrap();
        let request = shares("c", value);
        let begun = Instant::now();
        let answer = runtime.block_on(async { asks.update_containers(&request).await.unwrap() });
        let ours = begun.elapsed().as_secs_f64();
        assert!(answer.failed.is_empty(), "an update failed");
        let value = (value + 1000).to_string();
        let theirs = place.timed(&place.runc, &["update", "--cpu-share", &value, "c"]);
        rounds.push((ours * 1e3, theirs));
    }
    stub.close();
    place.timed(&place.binary, &["delete", "--force", "c"]);
    let what = "a plugin's update of another container, its record on disk";
    time("update_other", what, "runc update", rounds)
}

/// A daemon that knows `count` containers besides those that are measured.
pub(crate) fn knowing(binary: &Path, tools: &Path, count: usize) -> Place {
    let mut place = Place::new(binary.to_owned(), tools);
    place.start_daemon();
    let bundle = place.path("bundle").display().to_string();
    let document = std::fs::read_to_string(place.path("bundle/config.json")).unwrap();
    // No runtime creates a container in a cgroup that has processes.
    let own = document.replace("/nri-runc-bench/c", &format!("/nri-runc-bench/k{count}"));
    place.write("bundle/config.json", &own);
    place.timed(&place.binary, &["create", "--bundle", &bundle, "k"]);
    place.write("bundle/config.json", &document);
    std::thread::sleep(Duration::from_millis(500));
    place.stop_daemon();
    // The records are in the folder of the first one.
    let (folder, name) = record_of(&place.path("run/state"), "k-").unwrap();
    let record: Value =
        serde_json::from_slice(&std::fs::read(folder.join(&name)).unwrap()).unwrap();
    let pods = folder.with_file_name("pods");
    let pod: Value = serde_json::from_slice(&std::fs::read(pods.join("k.json")).unwrap()).unwrap();
    let state = std::fs::read(place.path("root/k/state.json")).unwrap();
    for number in 0..count {
        let (id, mut record) = (format!("k{number}"), record.clone());
        record["key"]["id"] = json!(id);
        record["incarnation"] = json!(1000 + number);
        // Each is its own pod with a separate bundle, as in practice.
        (record["pod"], record["bundle"]) = (json!(id), json!(format!("/{id}")));
        let mut pod = pod.clone();
        pod["id"] = json!(id);
        nri_runc::testing::files::replace(
            &pods.join(format!("{id}.json")),
            pod.to_string().as_bytes(),
        )
        .unwrap();
        std::fs::create_dir(place.path("root").join(&id)).unwrap();
        place.write(&format!("root/{id}/state.json"), &String::from_utf8_lossy(&state));
        let file = folder.join(name.replacen("k-", &format!("{id}-"), 1));
        nri_runc::testing::files::replace(&file, record.to_string().as_bytes()).unwrap();
    }
    place.start_daemon();
    let known = || {
        let output = place.admin(&["nri", "status", "--json"]).output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        status["containers"].as_u64().unwrap_or(0)
    };
    while known() < u64::try_from(count).unwrap() {
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_secs(2)); // They are checked once.
    place
}

fn record_of(dir: &Path, prefix: &str) -> Option<(std::path::PathBuf, String)> {
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() {
            if let Some(found) = record_of(&entry.path(), prefix) {
                return Some(found);
            }
        } else if name.starts_with(prefix) && name.ends_with(".json") {
            return Some((dir.to_owned(), name));
        }
    }
    None
}

/// A creation beside many known containers, against one beside few; during a newcomer's Synchronize
/// with them; and the time until a restarted daemon knows them again.
pub(crate) fn beside_many(binary: &Path, tools: &Path) -> Vec<Ratio> {
    let mut places = [knowing(binary, tools, MANY), knowing(binary, tools, FEW)];
    let mut ratios = vec![create_among(&places)];
    ratios.extend(super::busy::during_synchronize(&places[0]));
    ratios.extend(again(&mut places));
    for place in &places {
        let _ended = place.command(&place.runc, &["delete", "--force", "k"]).status();
    }
    ratios
}

/// Daemons that start with many records, and with few: the time until they respond, and their
/// memory.
fn again(places: &mut [Place; 2]) -> [Ratio; 2] {
    let (mut time_of, mut memory_of) = ([0.0; 2], [0.0; 2]);
    for (which, place) in places.iter_mut().enumerate() {
        place.stop_daemon();
        let begun = Instant::now();
        place.start_daemon();
        place.await_plugins(0);
        time_of[which] = begun.elapsed().as_secs_f64() * 1e3;
        std::thread::sleep(Duration::from_secs(3)); // They are checked once.
        memory_of[which] = Memory::of(place.daemon_pid()).resident;
    }
    let (what, beside) = ("a daemon starts with 10,000 containers on record", "with 10");
    let [many, few] = memory_of;
    [
        time("start_10000", what, beside, vec![(time_of[0], time_of[1])]),
        Ratio {
            unit: "KiB",
            ..time("rss_10000", "its resident memory", beside, vec![(many, few)])
        },
    ]
}

fn create_among(places: &[Place; 2]) -> Ratio {
    let mut rounds = Vec::new();
    for round in 0..CREATIONS {
        let mut pair = [0.0; 2];
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let place = &places[which];
            let bundle = place.path("bundle").display().to_string();
            pair[which] = place.timed(&place.binary, &["create", "--bundle", &bundle, "c"]);
            place.timed(&place.binary, &["delete", "--force", "c"]);
        }
        rounds.push((pair[0], pair[1]));
    }
    let what = "`create` beside 10,000 known containers, wall time";
    time("create_10000_known", what, "beside 10", rounds)
}

/// A newcomer receives 10,000 containers, from nri-runc and from the adaptation in Go.
pub(crate) fn synchronize(go: &Path, dir: &Path) -> Ratio {
    super::chain::write_small_request(dir);
    let mut rounds = Vec::new();
    for _round in 0..5 {
        let ours = super::chain::synchronized(super::chain::ours(), dir, "ours", MANY);
        let theirs = super::chain::synchronized(Command::new(go), dir, "theirs", MANY);
        rounds.push((ours, theirs));
    }
    let what = "a new plugin receives 10,000 containers";
    time("synchronize_10000", what, "the Go adaptation v0.12.5", rounds)
}
