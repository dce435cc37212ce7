// SPDX-License-Identifier: Apache-2.0
//! UpdateContainers requests, which a plugin sends on its own: answered one after the other.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use crate::daemon::node::Node;
use crate::daemon::registry::roster::UnregisteredPlugin;
use crate::daemon::resources::updates;
use crate::plugin::{PluginIdentity, Upcalls, api};

/// Requests of one plugin that may wait for their turn; the plugin is held back beyond that.
const QUEUED: usize = 32;

/// The requests of one plugin. They arrive on tasks outside of the thread-bound state, so they are
/// queued and answered.
struct UpdateRequests {
    requests: tokio::sync::mpsc::Sender<Unsolicited>,
    registered: Arc<OnceLock<PluginIdentity>>,
}

/// One UpdateContainers request on its way to the node.
struct Unsolicited {
    plugin: String,
    request: api::UpdateContainersRequest,
    reply: tokio::sync::oneshot::Sender<Result<api::UpdateContainersResponse, String>>,
}

pub(super) fn upcalls(node: &Rc<Node>, unregistered: &UnregisteredPlugin) -> Arc<dyn Upcalls> {
    let (sender, mut requests) = tokio::sync::mpsc::channel::<Unsolicited>(QUEUED);
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        while let Some(unsolicited) = requests.recv().await {
            // The plugin may have given up meanwhile.
            if unsolicited.reply.is_closed() {
                continue;
            }
            let reply = updates::unsolicited(&node, &unsolicited.plugin, unsolicited.request).await;
            let _plugin_is_gone = unsolicited.reply.send(reply);
            // The next may be there already: other tasks get a turn first.
            tokio::task::yield_now().await;
        }
    });
    Arc::new(UpdateRequests { requests: sender, registered: Arc::clone(&unregistered.registered) })
}

#[async_trait::async_trait]
impl Upcalls for UpdateRequests {
    fn registered(&self, plugin: &PluginIdentity) {
        let _only_once = self.registered.set(plugin.clone());
    }

    async fn update_containers(
        &self,
        plugin: &PluginIdentity,
        request: api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse, String> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let unsolicited = Unsolicited { plugin: plugin.to_string(), request, reply };
        self.requests.send(unsolicited).await.map_err(|_gone| "the daemon is ending".to_owned())?;
        answer.await.map_err(|_gone| "the daemon is ending".to_owned())?
    }
}
