// SPDX-License-Identifier: Apache-2.0
//! The watch over CRI-O's folders handles the pod events that other rooms send.

use std::rc::Rc;

use crate::daemon::node::Node;
use crate::daemon::node::queues::PodNews;
use crate::daemon::pods::{crio_added, crio_removed};

/// Follows every pod that has a folder, and watches for others beside it. Never ends.
pub(crate) async fn watch(node: Rc<Node>) {
    let Some(mut news) = node.watches.crio.news.receive() else { return };
    while let Some(news) = news.recv().await {
        match news {
            PodNews::LookOut => crio_added::look_out(&node),
            PodNews::MemberEnded(id) => crio_removed::member_ended(&node, &id),
            PodNews::Announced(id) => {
                crio_removed::follow(&node, &id);
                let pod = node.records.read().pod(&id).and_then(|pod| pod.lives_with.clone());
                if let Some(document) = pod {
                    crio_added::learn(&node, &document);
                }
            }
        }
    }
}
