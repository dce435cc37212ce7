// SPDX-License-Identifier: Apache-2.0
//! Assigns slots to connections in their handshake (D11). When all are taken, the peer with the most
//! connections loses one. A plugin's handshake takes only milliseconds, and the plugin keeps its slot that
//! long even while other processes flood the socket.
//!
//! A peer is identified by user, cgroup and process, compared in this order and level by level:
//! many processes of a container, or child cgroups that it made, are one peer.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tokio::sync::Notify;

use crate::limits;

/// Maximum number of levels of a cgroup's path that are compared; a container may nest more.
const LEVELS: usize = 12;

/// The occupied slots, the oldest connection first.
#[derive(Clone, Default)]
pub(super) struct Slots(Rc<RefCell<VecDeque<Rc<Slot>>>>);

/// The slot of one connection, released on drop.
pub(super) struct Taken {
    slots: Slots,
    slot: Rc<Slot>,
}

struct Slot {
    /// The user, the parts of the cgroup's path, and the process.
    peer: Vec<String>,
    pid: i32,
    is_lost: Cell<bool>,
    lost: Notify,
}

impl Slots {
    /// Takes a slot for a process of this user and cgroup. If none is free, the peer with the most
    /// connections loses a slot, which may be this one.
    pub(super) fn take(&self, uid: u32, cgroup: &str, pid: i32) -> Taken {
        let mut peer = vec![uid.to_string()];
        let levels = cgroup.split('/').filter(|part| !part.is_empty()).take(LEVELS);
        peer.extend(levels.map(ToOwned::to_owned));
        // A cgroup's name cannot contain a slash, so this name is unique.
        peer.push(format!("/{pid}"));
        let slot = Rc::new(Slot { peer, pid, is_lost: Cell::new(false), lost: Notify::new() });
        let mut slots = self.0.borrow_mut();
        slots.push_back(Rc::clone(&slot));
        if slots.len() > limits::REGISTERING
            && let Some(at) = crowding(&slots)
            && let Some(crowding) = slots.remove(at)
        {
            crowding.is_lost.set(true);
            crowding.lost.notify_one();
        }
        drop(slots);
        Taken { slots: self.clone(), slot }
    }
}

impl Taken {
    pub(super) fn pid(&self) -> i32 {
        self.slot.pid
    }

    pub(super) fn is_lost(&self) -> bool {
        self.slot.is_lost.get()
    }

    /// Completes when the slot is lost.
    pub(super) async fn lost(&self) {
        self.slot.lost.notified().await;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_lost() {
            self.slots.0.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.slot));
        }
    }
}

/// Returns the index of the oldest connection of the largest group, which is chosen level by level.
fn crowding(slots: &VecDeque<Rc<Slot>>) -> Option<usize> {
    // A process with more than half of the slots is in the largest group of every level: if the newest
    // connection is its, it is found quickly.
    let newest = slots.back()?;
    let is_its = |slot: &Rc<Slot>| slot.pid == newest.pid && slot.peer == newest.peer;
    if slots.iter().filter(|slot| is_its(slot)).count() > slots.len() / 2 {
        return slots.iter().position(is_its);
    }
    let mut group: Vec<usize> = (0..slots.len()).collect();
    for level in 0.. {
        let mut parts: BTreeMap<Option<&String>, Vec<usize>> = BTreeMap::new();
        for at in group.iter().copied() {
            parts.entry(slots[at].peer.get(level)).or_default().push(at);
        }
        // Picks the largest group; among groups of equal size, the one with the oldest connection.
        let largest = parts.into_values().max_by_key(|part| (part.len(), usize::MAX - part[0]))?;
        let is_a_process = slots[largest[0]].peer.len() <= level + 1;
        if is_a_process {
            return largest.first().copied();
        }
        group = largest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flood(slots: &Slots, count: i32, cgroup: impl Fn(i32) -> String) -> Vec<Taken> {
        (0..count).map(|number| slots.take(0, &cgroup(number), number)).collect()
    }

    fn is_open(taken: &Taken) -> bool {
        !taken.is_lost()
    }

    #[test]
    fn the_peer_with_the_most_connections_loses_its_oldest() {
        let slots = Slots::default();
        let honest = slots.take(0, "/system.slice/plugin.service", 1);
        let flood: Vec<Taken> = (0..1000).map(|_| slots.take(0, "/user.slice/x", 7)).collect();
        assert!(is_open(&honest), "it was there first");
        let late = slots.take(0, "/system.slice/other.service", 2);
        assert!(is_open(&honest) && is_open(&late));
        assert!(!is_open(&flood[0]) && is_open(&flood[999]), "the oldest go");
        assert_eq!(slots.0.borrow().len(), limits::REGISTERING);
    }

    #[test]
    fn processes_and_cgroups_of_one_container_are_one_peer() {
        let slots = Slots::default();
        let honest = slots.take(0, "/kubepods/poda/c1", 1);
        let inside = |number| format!("/kubepods/podb/c2/made/{number}");
        let _flood = flood(&slots, 500, inside);
        let _more = flood(&slots, 500, |number| format!("/kubepods/podb/c2/{number}"));
        let late = slots.take(0, "/kubepods/poda/c1", 2);
        assert!(is_open(&honest) && is_open(&late));
        let host = slots.take(0, "/", 3);
        let _again = flood(&slots, 500, inside);
        assert!(is_open(&honest) && is_open(&late) && is_open(&host));
    }

    #[test]
    fn another_users_flood_takes_no_slot_of_root() {
        let slots = Slots::default();
        let honest = slots.take(0, "/user.slice/x", 1);
        let flood: Vec<Taken> =
            (0..500).map(|pid| slots.take(1000, "/user.slice/x", pid)).collect();
        assert!(is_open(&honest) && is_open(&flood[499]));
    }

    #[test]
    fn a_slot_is_freed_when_its_holder_is_dropped() {
        let slots = Slots::default();
        for _round in 0..10 {
            let taken = flood(&slots, 64, |_| "/".to_owned());
            assert!(taken.iter().all(is_open), "no connection was closed");
        }
        assert!(slots.0.borrow().is_empty());
    }
}
