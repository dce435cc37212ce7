// SPDX-License-Identifier: Apache-2.0
//! The pod of a lifecycle, if it has one: its infrastructure container is created first and ended
//! last, by every spelling of a signal, by itself, or by a forced delete.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use test_support::{BUNDLE, wait_until};

use super::{Dice, Stage};

/// A started pod.
pub(super) struct LivePod {
    /// The ID of its infrastructure container.
    sandbox: String,
    name: String,
}

/// Number of pods so far: an engine gives no pod the ID of an earlier one.
static PODS: AtomicU64 = AtomicU64::new(0);

/// Creates and starts the infrastructure container, whether a daemon runs or not.
pub(super) fn begin(stage: &Stage, id: &str) -> LivePod {
    let number = PODS.fetch_add(1, Ordering::SeqCst);
    let pod =
        LivePod { sandbox: format!("{id}.pause.{number}"), name: format!("{id}.pod.{number}") };
    std::fs::create_dir_all(stage.host.path(&pod.sandbox)).unwrap();
    let words = stage.create_words(&pod.sandbox, &pod.of_kind("pause", "sandbox"));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert!(stage.call(&pod.sandbox, &words), "{}", pod.sandbox);
    assert!(stage.call(&pod.sandbox, &["start", &pod.sandbox]), "{}", pod.sandbox);
    pod
}

impl LivePod {
    /// The document of a member with this name.
    pub(super) fn document(&self, name: &str) -> String {
        self.of_kind(name, "container")
    }

    fn of_kind(&self, name: &str, kind: &str) -> String {
        let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
        document["annotations"] = json!({
            "io.kubernetes.cri.container-type": kind,
            "io.kubernetes.cri.sandbox-id": self.sandbox,
            "io.kubernetes.cri.sandbox-name": self.name,
            "io.kubernetes.cri.container-name": name,
        });
        document.to_string()
    }

    /// Stops and removes the pod, as the engine does.
    pub(super) fn end(&self, stage: &Stage, dice: &mut Dice) {
        let id = self.sandbox.as_str();
        match dice.throw(5) {
            0 => {} // Only deleted.
            1 => assert!(stage.call(id, &["kill", id, "KILL"])),
            2 => assert!(stage.call(id, &["kill", "--all", id, "9"])),
            3 => {
                assert!(stage.call(id, &["kill", id, "15"]));
                let _it_may_have_ended = stage.call(id, &["kill", id, "9"]);
            }
            _ => {
                let pid = stage.host.read(&format!("root/{id}/pid")).trim().parse().unwrap();
                let pid = nix::unistd::Pid::from_raw(pid);
                nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
            }
        }
        wait_until("its pod is deleted", || stage.call(id, &["delete", "--force", id]));
    }
}

/// Checks that each pod's events come once and in order, and its stop never before its member's.
#[track_caller]
pub(super) fn in_order(name: &str, received: &[String]) {
    const ORDER: [&str; 3] = ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"];
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut members: HashMap<&str, &str> = HashMap::new();
    for line in received {
        let Some((event, subject)) = line.split_once(' ') else { continue };
        let Some(place) = ORDER.iter().position(|known| *known == event) else {
            // An ID is used again: a container of Synchronize may be a later one, without this pod.
            match event {
                "Synchronize" => drop(members.remove(subject)),
                event => drop(members.insert(subject, event)),
            }
            continue;
        };
        // For a pod from before its connection, a plugin receives the remaining events.
        let is_next = match places.get(subject) {
            None => true,
            Some(before) => place == (before + 1) % ORDER.len(),
        };
        assert!(is_next, "{name}: {line} is out of order in {received:#?}");
        places.insert(subject, place);
        if event == "StopPodSandbox"
            && let Some((member, _)) = subject.split_once(".pod.")
            && let Some(last) = members.get(member)
        {
            let has_ended = matches!(*last, "StopContainer" | "RemoveContainer");
            assert!(has_ended, "{name}: {line} comes after {last} in {received:#?}");
        }
    }
}
