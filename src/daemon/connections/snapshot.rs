// SPDX-License-Identifier: Apache-2.0
//! Encodes the pods and containers that a connecting plugin receives. On a node with thousands of
//! containers this is more work than a create, so it gives way to running verbs.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::daemon::shared::{Daemon, messages};
use crate::plugin::{Encoded, EncodedSnapshot};
use crate::state::{Container, Pod};

/// Pods or containers that are encoded in a row before other tasks get a turn.
const AT_ONCE: usize = 32;

/// Longest time for which the encoding of one snapshot gives way to runtimes.
const GIVES_WAY: Duration = Duration::from_secs(1);

/// Interval at which a snapshot that gives way checks whether runtimes still run.
const PAUSE: Duration = Duration::from_millis(2);

/// Encodes these records, which stay as they are meanwhile: a change replaces a record in the store.
pub(super) async fn encode(
    daemon: &Daemon,
    pods: &[Rc<Pod>],
    containers: &[Rc<Container>],
) -> EncodedSnapshot {
    let turns = Turns { daemon, until: Instant::now() + GIVES_WAY };
    let encode_all = async {
        let pods = turns.encode(pods, messages::pod_encoded).await;
        let of_container = |container: &Container| messages::container_encoded(container, false);
        EncodedSnapshot { pods, containers: turns.encode(containers, of_container).await }
    };
    // Few containers are paused, so all are encoded as if none were, while the paused ones are being
    // found; these are then encoded again.
    let (paused, mut encoded) = tokio::join!(turns.find_paused(containers), encode_all);
    for at in paused {
        if let (Some(place), Some(container)) = (encoded.containers.get_mut(at), containers.get(at))
        {
            *place = messages::container_encoded(container, true);
        }
    }
    encoded
}

struct Turns<'d> {
    daemon: &'d Daemon,
    /// The time until which the encoding gives way to verbs.
    until: Instant,
}

impl Turns<'_> {
    /// Gives other tasks a turn, and waits, up to the time limit, while runtimes change containers.
    async fn next(&self) {
        tokio::task::yield_now().await;
        while self.gives_way() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn gives_way(&self) -> bool {
        self.daemon.lanes.have_runtimes() && Instant::now() < self.until
    }

    async fn encode<T>(&self, all: &[Rc<T>], encode: impl Fn(&T) -> Encoded) -> Vec<Encoded> {
        let mut encoded = Vec::with_capacity(all.len());
        for some in all.chunks(AT_ONCE) {
            if !encoded.is_empty() {
                self.next().await;
            }
            encoded.extend(some.iter().map(|record| encode(record)));
        }
        encoded
    }

    /// Returns the indexes of the paused containers.
    async fn find_paused(&self, containers: &[Rc<Container>]) -> Vec<usize> {
        let is_long = containers.len() > AT_ONCE;
        let hold = Arc::new(AtomicBool::new(false));
        let hold_when_due = async {
            loop {
                hold.store(is_long && self.gives_way(), Ordering::Relaxed);
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::select! {
            paused = self.daemon.paused_among(containers, &hold, self.until.into_std()) => paused,
            () = hold_when_due => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argv::Verb;
    use crate::config::Config;
    use crate::daemon::shared::lane::PendingVerb;
    use crate::state::{ContainerKey, Store};

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn encoding_a_snapshot_waits_for_runtimes_up_to_a_limit() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::open(&temp.path().join("state"), "boot").unwrap().0;
        let config = Config { run_dir: temp.path().join("run"), ..Config::default() };
        let host = config.host();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(tokio::task::LocalSet::new().run_until(async {
            let daemon = Daemon::new(config, host, store);
            let all: Vec<Rc<usize>> = (0..2 * AT_ONCE).map(Rc::new).collect();
            let encode = async |limit: Duration, count: usize, waits: bool, what: &str| {
                let turns = Turns { daemon: &daemon, until: Instant::now() + limit };
                let encode_all = turns.encode(&all[..count], |_| Encoded::default());
                let patience = if waits { SHORT } else { LONG };
                let encoded = tokio::time::timeout(patience, encode_all).await;
                assert_eq!(encoded.ok().map(|all| all.len()), (!waits).then_some(count), "{what}");
            };
            let key = ContainerKey { root: "/run/runc".to_owned(), id: "c".to_owned() };
            let lane = daemon.lane(&key);
            let runs = |verb: Verb| {
                let process = std::fs::File::open("/dev/null").unwrap();
                let process = (std::process::id(), process.into());
                let pending = PendingVerb::new(&daemon.host, &key, (verb, 1), process);
                lane.pending.replace(vec![Rc::new(pending)]);
            };
            runs(Verb::Create);
            encode(LONG, all.len(), true, "it waits for the create").await;
            encode(LONG, AT_ONCE, false, "a short one does not").await;
            encode(Duration::ZERO, all.len(), false, "its time to wait is over").await;
            runs(Verb::Run);
            encode(LONG, all.len(), false, "a foreground run may last for days").await;
            lane.pending.take();
            encode(LONG, all.len(), false, "nothing runs").await;
        }));
    }
}
