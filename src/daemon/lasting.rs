// SPDX-License-Identifier: Apache-2.0
//! Pods that no call ends: CRI-O without infrastructure containers keeps such a pod as a folder
//! (decision D20). The folder is watched; the pod ends when its document is gone and its last
//! container too. It only reads, and costs nothing between events.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use super::node::Node;
use super::{pods, watch};

/// How often a pod is looked for when the kernel has no watch left.
const WITHOUT_A_WATCH: Duration = Duration::from_secs(5);

/// Whether a pod is still there although none of its containers is.
pub(super) fn lasts(node: &Node, id: &str) -> bool {
    let store = node.store.borrow();
    let path = store.pod(id).and_then(|pod| pod.lives_with.as_ref());
    path.is_some_and(|path| node.host.path(path).exists())
}

/// Watches such a pod to its end; for any other pod it does nothing.
pub(super) fn follow(node: &Rc<Node>, id: &str) {
    let path = node.store.borrow().pod(id).and_then(|pod| pod.lives_with.clone());
    let Some(path) = path.map(|path| node.host.path(path)) else { return };
    // There is none when the folder went while nobody looked: the pod ends at once.
    let events = path.parent().and_then(watch_folder);
    let (node, id) = (Rc::clone(node), id.to_owned());
    tokio::task::spawn_local(async move {
        while path.exists() && node.store.borrow().pod(&id).is_some() {
            match &events {
                Some(events) => {
                    watch::readable(events).await;
                    take_in(events);
                }
                None => tokio::time::sleep(WITHOUT_A_WATCH).await,
            }
        }
        pods::end_if_empty(&node, &id).await;
    });
}

/// Follows all that an earlier daemon left on record.
pub(super) fn follow_all(node: &Rc<Node>) {
    let ids: Vec<String> = node.store.borrow().pods().map(|pod| pod.id.clone()).collect();
    for id in ids {
        follow(node, &id);
    }
}

fn watch_folder(folder: &Path) -> Option<OwnedFd> {
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let wanted = WatchFlags::DELETE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&events, folder, wanted).ok()?;
    Some(events)
}

/// Empties the queue.
pub(super) fn take_in(events: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut reader = Reader::new(events, &mut buffer);
    while reader.next().is_ok_and(|event| !event.events().contains(ReadFlags::QUEUE_OVERFLOW)) {}
}
