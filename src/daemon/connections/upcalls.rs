// SPDX-License-Identifier: Apache-2.0
//! Answers the UpdateContainers requests that plugins send unprompted, those of a plugin one after the
//! other, and notes changed subscriptions. A plugin that replaces another connection cannot update before the
//! replacement (D41).

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::daemon::registry::connected::ConnectedPlugin;
use crate::daemon::registry::roster::UnregisteredPlugin;
use crate::daemon::resources::updates;
use crate::daemon::shared::Daemon;
use crate::limits;
use crate::plugin::api::extension::ALL_EXTENSION_EVENTS;
use crate::plugin::{PluginIdentity, Upcalls, api};

/// Receives the requests of one plugin, and queues them: they arrive on tasks that cannot use the
/// daemon's thread-bound state.
struct UpdateRequests {
    requests: tokio::sync::mpsc::Sender<Unsolicited>,
    registered: Arc<OnceLock<PluginIdentity>>,
    /// Makes the task that answers the requests also record whether plugins handle execs.
    subscribed: Arc<Notify>,
}

/// An unprompted UpdateContainers request.
struct Unsolicited {
    plugin: String,
    request: api::UpdateContainersRequest,
    reply: tokio::sync::oneshot::Sender<Result<api::UpdateContainersResponse, String>>,
}

/// The plugin of a connection, once it is registered.
#[derive(Clone, Default)]
pub(super) struct Registration(Rc<(RefCell<Weak<ConnectedPlugin>>, Notify)>);

impl Registration {
    /// Sets the plugin of the connection.
    pub(super) fn set(&self, connected: &Rc<ConnectedPlugin>) {
        let (plugin, is_set) = &*self.0;
        *plugin.borrow_mut() = Rc::downgrade(connected);
        is_set.notify_waiters();
    }

    /// Returns the plugin, as long as its connection lasts.
    pub(super) fn connected(&self) -> Option<Rc<ConnectedPlugin>> {
        self.0.0.borrow().upgrade()
    }

    /// Waits until the connection's plugin is synchronized; false if it disconnects before. The
    /// wait never ends if no plugin registers.
    pub(super) async fn wait_until_synchronized(&self) -> bool {
        let plugin = loop {
            let is_set = self.0.1.notified();
            match self.connected() {
                Some(plugin) => break plugin,
                None => is_set.await,
            }
        };
        plugin.wait_until_synchronized().await
    }
}

pub(super) fn upcalls(
    daemon: &Rc<Daemon>,
    unregistered: &UnregisteredPlugin,
    registration: &Registration,
) -> Arc<dyn Upcalls> {
    let (sender, mut requests) = tokio::sync::mpsc::channel::<Unsolicited>(limits::PLUGIN_REQUESTS);
    let (daemon, registration) = (Rc::clone(daemon), registration.clone());
    let subscribed = Arc::new(Notify::new());
    let subscriptions = Arc::clone(&subscribed);
    tokio::task::spawn_local(async move {
        loop {
            let unsolicited = tokio::select! {
                next = requests.recv() => next,
                () = subscriptions.notified() => {
                    daemon.keep_execs_file();
                    continue;
                }
            };
            let Some(unsolicited) = unsolicited else { break };
            // The plugin may have stopped waiting.
            if unsolicited.reply.is_closed() {
                continue;
            }
            let reply = match may_ask(&registration, &unsolicited.plugin).await {
                Ok(plugin) => {
                    updates::carry_out_unsolicited(&daemon, &plugin, unsolicited.request).await
                }
                Err(why) => Err(why),
            };
            let _plugin_is_gone = unsolicited.reply.send(reply);
            // The next request may be queued already: other tasks get a turn first.
            tokio::task::yield_now().await;
        }
    });
    let registered = Arc::clone(&unregistered.registered);
    Arc::new(UpdateRequests { requests: sender, registered, subscribed })
}

/// Returns the requesting plugin once its updates can be applied. If the plugin is still replacing another
/// connection, waits until it has replaced it, at most half of the plugin's request time-out, because
/// the request may come from a handler that must return first.
async fn may_ask(registration: &Registration, id: &str) -> Result<Rc<ConnectedPlugin>, String> {
    let plugin = registration.connected();
    let plugin = plugin.ok_or_else(|| format!("{id} has not been configured yet"))?;
    if plugin.is_successor() {
        let at_most = plugin.connection().timeout() / 2;
        let _in_time = tokio::time::timeout(at_most, plugin.wait_until_synchronized()).await;
        if plugin.is_synchronizing() {
            return Err(format!(
                "{id} is not synchronized yet: the earlier process is still registered"
            ));
        }
    }
    Ok(plugin)
}

#[async_trait::async_trait]
impl Upcalls for UpdateRequests {
    fn registered(&self, plugin: &PluginIdentity) {
        let _only_once = self.registered.set(plugin.clone());
    }

    fn extension_events(&self) -> u32 {
        ALL_EXTENSION_EVENTS.into_iter().fold(0, |bits, event| bits | event.bit())
    }

    fn subscribed(&self, _plugin: &PluginIdentity, _events: u32) {
        self.subscribed.notify_one();
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
