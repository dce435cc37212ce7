// SPDX-License-Identifier: Apache-2.0
//! Watches CRI-O's folders and handles the pod events that other modules send.

use std::rc::Rc;

use crate::daemon::pods::{crio_added, crio_removed};
use crate::daemon::shared::Daemon;
use crate::daemon::shared::queues::PodNews;

/// Handles queued pod events. Never ends.
pub(crate) async fn watch(daemon: Rc<Daemon>) {
    let Some(mut news) = daemon.watches.crio.news.receive() else { return };
    while let Some(news) = news.recv().await {
        match news {
            PodNews::LookOut => crio_added::look_out(&daemon),
            PodNews::MemberEnded(id) => crio_removed::check_pod(&daemon, &id),
            PodNews::Announced(id) => {
                crio_removed::follow(&daemon, &id);
                let pod = daemon.records.read().pod(&id).and_then(|pod| pod.lives_with.clone());
                if let Some(document) = pod {
                    crio_added::learn(&daemon, &document);
                }
            }
        }
    }
}
