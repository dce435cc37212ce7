// SPDX-License-Identifier: Apache-2.0
//! Encodes the pods and containers that a connecting plugin receives. On a node with thousands of
//! containers this is more work than a create, so it gives way to running verbs.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::daemon::shared::{Daemon, messages};
use crate::plugin::{Encoded, EncodedSnapshot};
use crate::state::{Container, Pod};

/// Pods or containers that are encoded in a row before other tasks get a turn.
const AT_ONCE: usize = 32;

/// Containers whose freezers are read before other tasks get a turn.
const LOOKED_AT_ONCE: usize = 128;

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
    // Few containers are paused, so all are encoded as running while the paused ones are being
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

/// The turns in which a snapshot is encoded.
struct Turns<'d> {
    daemon: &'d Daemon,
    /// The time until which the encoding gives way to verbs.
    until: Instant,
}

impl Turns<'_> {
    /// Gives other tasks a turn, and waits, up to the time limit, while runtimes change containers.
    async fn next(&self) {
        tokio::task::yield_now().await;
        while self.daemon.lanes.have_runtimes() && Instant::now() < self.until {
            tokio::time::sleep(PAUSE).await;
        }
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
        let mut paused = Vec::new();
        for (chunk, some) in containers.chunks(LOOKED_AT_ONCE).enumerate() {
            if chunk > 0 {
                self.next().await;
            }
            let found = self.daemon.paused_among(some).await;
            paused.extend(found.into_iter().map(|at| chunk * LOOKED_AT_ONCE + at));
        }
        paused
    }
}
