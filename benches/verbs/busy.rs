// SPDX-License-Identifier: Apache-2.0
//! The cost of a creation while the daemon is busy with an unrelated plugin: a newcomer that
//! receives 10,000 containers, or one that requests a thousand updates a second.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, oneshot};

use super::memory::Memory;
use super::mover::{Mover, shares};
use super::report::Ratio;
use super::{Place, time};

const ROUNDS: usize = 30;

/// Time that a slow newcomer takes for each part of Synchronize; its limit is two seconds.
const THINKS: Duration = Duration::from_millis(1500);

/// Seconds for which a plugin sends updates, unless `NRI_RUNC_BENCH_SECONDS` sets them, and the
/// interval of its requests.
const FLOOD: u64 = 20;
const EACH: Duration = Duration::from_millis(1);
const OWED: usize = 256;

/// Duration of the creations without load, with which those under load are compared.
const QUIET: Duration = Duration::from_secs(4);

fn create(place: &Place) -> f64 {
    let bundle = place.path("bundle").display().to_string();
    let took = place.timed(&place.binary, &["create", "--bundle", &bundle, "c"]);
    place.timed(&place.binary, &["delete", "--force", "c"]);
    took
}

/// A plugin in a separate thread, until it is dropped.
struct Beside {
    leave: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Beside {
    /// Returns when `work` reports that it has begun.
    fn start<W>(work: impl FnOnce(Sender<()>) -> W + Send + 'static) -> Self
    where
        W: Future<Output = ()>,
    {
        let ((begins, begun), (leave, left)) = (channel(), oneshot::channel());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async move {
                tokio::select! {
                    () = work(begins) => {}
                    _ = left => {}
                }
            });
        });
        begun.recv().unwrap();
        Self { leave: Some(leave), thread: Some(thread) }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _has_left = self.leave.take().map(|leave| leave.send(()));
        let _joined = self.thread.take().map(JoinHandle::join);
    }
}

/// Creations right after the registration of a newcomer, which receives all containers of `place`.
pub(crate) fn during_synchronize(place: &Place) -> [Ratio; 2] {
    let rounds = |thinks: Duration| {
        let mut rounds = Vec::new();
        for _round in 0..ROUNDS {
            let quiet = create(place);
            let socket = place.path("nri.sock");
            let newcomer = Beside::start(move |begins| async move {
                let stub = Mover { thinks }.joins(&socket).await;
                begins.send(()).unwrap();
                stub.closed().await;
            });
            rounds.push((create(place), quiet));
            drop(newcomer);
            std::thread::sleep(Duration::from_millis(100));
        }
        rounds
    };
    let quick = "`create` while a new plugin receives 10,000 containers, wall time";
    let slow = "the same, of a newcomer that thinks for 1.5 s about each part";
    let beside = "no plugin connects";
    [
        time("create_during_synchronize", quick, beside, rounds(Duration::ZERO)),
        time("create_during_slow_synchronize", slow, beside, rounds(THINKS)),
    ]
}

/// Requests an update every millisecond without waiting for earlier results, unless too many are outstanding;
/// counts the results.
async fn flood(socket: &Path, begins: Sender<()>, answered: Arc<AtomicU64>) {
    let stub = Mover::default().joins(socket).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    begins.send(()).unwrap();
    let (mut ticks, owed) = (tokio::time::interval(EACH), Arc::new(Semaphore::new(OWED)));
    for value in 0_u64.. {
        ticks.tick().await;
        let Ok(owed) = Arc::clone(&owed).try_acquire_owned() else { continue };
        let (asks, answered) = (stub.runtime(), Arc::clone(&answered));
        tokio::spawn(async move {
            // There is no answer if the request waited too long, or the plugin disconnects.
            if let Ok(answer) = asks.update_containers(&shares("u", 1000 + value % 1000)).await {
                assert!(answer.failed.is_empty(), "an update failed");
                answered.fetch_add(1, Ordering::Relaxed);
            }
            drop(owed);
        });
    }
}

/// Creations during a plugin's flood, the daemon's memory then, and the number of completed
/// updates.
pub(crate) fn during_updates(place: &Place) -> [Ratio; 3] {
    let bundle = place.path("bundle").display().to_string();
    let document = std::fs::read_to_string(place.path("bundle/config.json")).unwrap();
    place.write("bundle/config.json", &document.replace("/nri-runc-bench/c", "/nri-runc-bench/u"));
    place.timed(&place.binary, &["create", "--bundle", &bundle, "u"]);
    place.write("bundle/config.json", &document);
    let creates = |span: Duration| {
        let begun = Instant::now();
        let mut took = Vec::new();
        while begun.elapsed() < span {
            took.push(create(place));
        }
        took
    };
    let seconds = std::env::var("NRI_RUNC_BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    let seconds = seconds.unwrap_or(FLOOD);
    let quiet = creates(QUIET);
    let (answered, socket) = (Arc::new(AtomicU64::new(0)), place.path("nri.sock"));
    let count = Arc::clone(&answered);
    let plugin = Beside::start(move |begins| async move { flood(&socket, begins, count).await });
    // Memory that the first updates allocate once does not count as growth.
    std::thread::sleep(Duration::from_secs(1));
    let before = Memory::of(place.daemon_pid()).resident;
    let (begun, first) = (Instant::now(), answered.load(Ordering::Relaxed));
    let during = creates(Duration::from_secs(seconds));
    let done = (answered.load(Ordering::Relaxed) - first) as f64 / begun.elapsed().as_secs_f64();
    let after = Memory::of(place.daemon_pid()).resident;
    drop(plugin);
    place.timed(&place.binary, &["delete", "--force", "u"]);
    let rounds = during.into_iter().zip(quiet.into_iter().cycle()).collect();
    let what = "`create` while a plugin asks for 1000 updates a second, wall time";
    let asked = 1.0 / EACH.as_secs_f64();
    let kept_up = time("updates_done", "of these updates", "asked for", vec![(done, asked)]);
    let memory = "our resident memory after these updates";
    let memory = time("rss_during_updates", memory, "in the beginning", vec![(after, before)]);
    [
        time("create_during_updates", what, "nobody asks", rounds),
        Ratio { unit: "/s", rises: true, ..kept_up },
        Ratio { unit: "KiB", ..memory },
    ]
}
