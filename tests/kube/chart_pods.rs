// SPDX-License-Identifier: Apache-2.0
//! Pods for the rows of the chart: one that prints its plugins' values, and a stream of pods.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::kubectl::{Namespace, run};
use super::manifests::{SHOWS_CARD, card, container, pod, spec};

/// The pause between two pods of a stream.
const PAUSE: Duration = Duration::from_millis(300);
/// Pods of a stream after the accompanied operation.
const AFTERWARDS: usize = 2;

/// Runs a pod through nri-runc and checks that its plugin was asked.
#[track_caller]
pub(super) fn adjusted_pod(space: &Namespace, name: &str) {
    space.apply(pod(name, &card(), &spec(&[container("app", SHOWS_CARD)])));
    is_adjusted(space, name);
}

/// Checks that it runs, and that its plugin was asked.
#[track_caller]
fn is_adjusted(space: &Namespace, name: &str) {
    space.waits(name, "condition=Ready", 90);
    assert_eq!(space.logs(name, "app"), "card=one\n", "{name} was created without the plugin");
}

/// Pods that are created one after the other until the end.
pub(super) struct Stream {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<String>>,
    space: &'static str,
}

impl Stream {
    pub(super) fn start(space: &'static str) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let namespace = Namespace::existing(space);
            let mut names = Vec::new();
            let mut left = AFTERWARDS;
            while left > 0 {
                left -= usize::from(over.load(Ordering::Relaxed));
                let name = format!("stream-{}", names.len());
                namespace.apply(pod(&name, &card(), &spec(&[container("app", SHOWS_CARD)])));
                names.push(name);
                std::thread::sleep(PAUSE);
            }
            names
        });
        Self { is_over, thread, space }
    }

    /// Ends it; checks that every pod was adjusted and deletes them. Returns their number.
    #[track_caller]
    pub(super) fn end(self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        let names = self.thread.join().unwrap();
        let space = Namespace::existing(self.space);
        for name in &names {
            is_adjusted(&space, name);
        }
        assert!(names.len() > AFTERWARDS, "no pod was created meanwhile");
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let words =
            [&["--namespace", self.space, "delete", "pod", "--wait=false"], &all[..]].concat();
        run(&words).unwrap();
        names.len()
    }
}
