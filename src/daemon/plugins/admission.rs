// SPDX-License-Identifier: Apache-2.0
//! Plugins come to the table: external ones through the socket, pre-installed ones from
//! `launcher.rs`.
//! Handshakes run side by side and are bounded; a connection that never registers disturbs
//! nobody. It decides who may sit (D11, D13), and what a newcomer is synchronized with (D15).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::chain::ChainedPlugin;
use crate::error::quoted;
use crate::plugin::{
    self, Encoded, EncodedSnapshot, Outcome, Plugin, PluginIdentity, Settings, Upcalls, api,
};
use crate::state::Container;
use crate::text::counted;

use crate::daemon::node::Node;
use crate::daemon::node::messages;
use crate::daemon::plugins::returning;
use crate::daemon::registry::relay::Guest;
use crate::daemon::registry::roster::Newcomer;

/// Connections that may be registering at once (D11).
const WAITING_ROOM: usize = 64;

/// Requests of one plugin that wait for their turn; it does not come to have more in hand.
const ORDERS: usize = 32;

/// Containers of a snapshot that are encoded while others wait.
const AT_ONCE: usize = 100;

/// The NRI version that we speak.
pub const NRI_VERSION: &str = "v0.12.5";

/// Those who are registering, longest first, each with a way to be sent off.
type WaitingRoom = Rc<RefCell<VecDeque<Rc<Notify>>>>;

/// Accepts plugins for ever.
pub(crate) async fn accept(node: Rc<Node>, listener: UnixListener) {
    let waiting = WaitingRoom::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("the plugin socket: {}", crate::error::in_our_words(&error));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if !may_connect(&node, &stream) {
            continue;
        }
        let place = take_place(&waiting);
        let (node, waiting) = (Rc::clone(&node), Rc::clone(&waiting));
        tokio::task::spawn_local(async move {
            let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
            let settings = settings(&node);
            let newcomer = node.relay.roster.enters(None, pid);
            let upcalls = upcalls(&node, &newcomer);
            let pid = pid.unwrap_or(0);
            let shaken = tokio::select! {
                shaken = plugin::handshake(stream, None, &settings, upcalls) => Some(shaken),
                () = place.notified() => None,
            };
            drop(newcomer);
            waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, &place));
            match shaken {
                Some(Ok(plugin)) => sit_down(&node, plugin, false).await,
                Some(Err(error)) => info!("a plugin connection of process {pid} ended: {error}"),
                None => warn!(
                    "{WAITING_ROOM} connections have not registered yet: the one that waited longest, of process {pid}, was closed"
                ),
            }
        });
    }
}

/// A place for a newcomer. Where all are taken, who has waited longest without a word has to go:
/// a plugin that means it registers within milliseconds, even while others flood us.
fn take_place(waiting: &WaitingRoom) -> Rc<Notify> {
    let mut waiting = waiting.borrow_mut();
    if waiting.len() >= WAITING_ROOM
        && let Some(longest) = waiting.pop_front()
    {
        longest.notify_one();
    }
    let place = Rc::new(Notify::new());
    waiting.push_back(Rc::clone(&place));
    place
}

fn may_connect(node: &Node, stream: &UnixStream) -> bool {
    let Ok(peer) = stream.peer_cred() else { return false };
    let is_allowed = node.config.allowed_uids.contains(&peer.uid());
    if !is_allowed {
        warn!("user {} may not connect a plugin (nri.allowed_uids)", peer.uid());
    }
    is_allowed
}

/// What plugins are told about us.
pub(crate) fn settings(node: &Node) -> Settings {
    Settings {
        registration_timeout: node.config.registration_timeout,
        request_timeout: node.config.request_timeout,
        runtime_name: node.config.runtime_name.clone(),
        runtime_version: format!("v{}", env!("CARGO_PKG_VERSION")),
        nri_version: NRI_VERSION.to_owned(),
    }
}

/// Synchronizes a registered plugin and lets it take part; watches it to its end.
pub(crate) async fn sit_down(node: &Rc<Node>, plugin: Plugin, launched: bool) {
    let id = plugin.id();
    if let Some(old) = node.relay.find(&id) {
        if !old.is_doubtful() {
            warn!("{id} is already connected: the new connection was refused");
            plugin.disconnect("a plugin of the same name is already connected");
            return;
        }
        info!("{id} reconnected and replaces the old connection");
        old.seat.plugin.disconnect("it reconnected");
        node.relay.remove(&old, "it reconnected");
    }
    // Snapshot and seat in one step: what happens from here on reaches the newcomer as events.
    let (pods, containers, known) = node.snapshot_shared();
    let settings = node.config.plugin(plugin.index(), plugin.name());
    let mistake = node.config.unreliable();
    let seat =
        ChainedPlugin::new(plugin, launched, &settings).with_unknown_rights(mistake.as_deref());
    let guest = node.relay.seat(seat, known);
    let counts = (counted(pods.len(), "pod"), counted(containers.len(), "container"));
    let snapshot = EncodedSnapshot { pods, containers: encoded(containers).await };
    if !synchronize(node, &guest, snapshot).await {
        guest.seat.plugin.disconnect("it could not be synchronized");
        node.relay.remove(&guest, &guest.seat.plugin.closed().await);
        return;
    }
    node.relay.catch_up(&guest).await;
    info!("{id} is synchronized with {} and {}", counts.0, counts.1);
    remember_who_is_here(node);
    node.plugins_came.notify_waiters();
    let why = guest.seat.plugin.closed().await;
    node.relay.remove(&guest, &why);
    record_protecting_plugins(node);
    // Its process, where it is ours, must not outlive its connection.
    guest.seat.plugin.disconnect("its connection has ended");
    info!("{id} disconnected: {}", quoted(&why));
}

/// Records as they are sent. They are of one moment, so that it may take its time: between some
/// and the next others have their turn.
async fn encoded(containers: Vec<Rc<Container>>) -> Vec<Encoded> {
    let mut encoded = Vec::with_capacity(containers.len());
    for some in containers.chunks(AT_ONCE) {
        encoded.extend(some.iter().map(|container| messages::container_encoded(container)));
        tokio::task::yield_now().await;
    }
    encoded
}

async fn synchronize(node: &Rc<Node>, guest: &Rc<Guest>, snapshot: EncodedSnapshot) -> bool {
    let outcome = guest.seat.plugin.synchronize_encoded(&snapshot).await;
    drop(snapshot);
    let why = match outcome {
        Outcome::Answered(response) => {
            crate::daemon::resources::updates::synchronized(node, guest, response).await;
            return true;
        }
        Outcome::Refused(text) | Outcome::Unimplemented(text) => {
            format!("refused: {}", quoted(&text))
        }
        Outcome::TimedOut => "did not answer in time".to_owned(),
        Outcome::Gone(why) => format!("went away ({})", quoted(&why)),
        Outcome::NotConnected | Outcome::Busy(_) => "went away".to_owned(),
    };
    node.note_failure(
        &format!("{} could not be synchronized: it {why}", guest.seat.id()),
        &guest.seat.id(),
    );
    false
}

/// The connected plugins are on record: creates wait for them after a restart (D14).
pub(crate) fn remember_who_is_here(node: &Node) {
    returning::remember(node);
    record_protecting_plugins(node);
}

/// Records the connected plugins that protect containers on their own account, for wrappers that
/// find no daemon. A daemon that ends leaves the list: its plugins go because it does.
pub(crate) fn record_protecting_plugins(node: &Node) {
    if node.ending.get() {
        return;
    }
    let mut list = String::new();
    for seat in node.relay.seats() {
        if seat.plugin.is_validator() {
            list.push_str(&format!("{} validates adjustments\n", seat.id()));
        } else if seat.policy().refuses_by_declaration() {
            list.push_str(&format!("{} declares that its silence refuses\n", seat.id()));
        }
    }
    let path = node.config.protecting_plugins();
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    if recorded != list {
        let written = crate::files::replace(&path, list.as_bytes());
        crate::daemon::node::log_failure("recording the plugins that protect containers", written);
    }
}

/// Plugins of the last daemon have the registration time-out to come back; afterwards the list
/// of those that protect containers is of the present ones.
pub(crate) async fn record_protecting_plugins_later(node: Rc<Node>) {
    tokio::time::sleep(node.config.registration_timeout).await;
    record_protecting_plugins(&node);
}

/// Requests that plugins make of us. They arrive on tasks of their own, outside of our thread-
/// bound state, so they are handed over and answered.
struct Desk {
    orders: tokio::sync::mpsc::Sender<UpdateOrder>,
    registered: Arc<OnceLock<PluginIdentity>>,
}

/// One UpdateContainers request on its way to the node.
pub(crate) struct UpdateOrder {
    plugin: String,
    request: api::UpdateContainersRequest,
    reply: tokio::sync::oneshot::Sender<Result<api::UpdateContainersResponse, String>>,
}

pub(crate) fn upcalls(node: &Rc<Node>, newcomer: &Newcomer) -> Arc<dyn Upcalls> {
    let (sender, mut orders) = tokio::sync::mpsc::channel::<UpdateOrder>(ORDERS);
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        while let Some(order) = orders.recv().await {
            // The plugin may have given up meanwhile.
            if order.reply.is_closed() {
                continue;
            }
            let reply =
                crate::daemon::resources::updates::unsolicited(&node, &order.plugin, order.request)
                    .await;
            let _plugin_is_gone = order.reply.send(reply);
            // The next may be there already: first whoever else has something to do.
            tokio::task::yield_now().await;
        }
    });
    Arc::new(Desk { orders: sender, registered: Arc::clone(&newcomer.registered) })
}

#[async_trait::async_trait]
impl Upcalls for Desk {
    fn registered(&self, plugin: &PluginIdentity) {
        let _only_once = self.registered.set(plugin.clone());
    }

    async fn update_containers(
        &self,
        plugin: &PluginIdentity,
        request: api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse, String> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let order = UpdateOrder { plugin: plugin.to_string(), request, reply };
        self.orders.send(order).await.map_err(|_gone| "the daemon is ending".to_owned())?;
        answer.await.map_err(|_gone| "the daemon is ending".to_owned())?
    }
}
