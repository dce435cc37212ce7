// SPDX-License-Identifier: Apache-2.0
//! Plugins register: external ones through the socket, pre-installed ones from `launcher.rs`.
//!
//! Handshakes run side by side and are bounded; a connection that never registers delays no other.
//! D11 says which plugins may connect, D15 what they are synchronized with, D41 what becomes of a
//! connected plugin with the same identity (`takeover.rs`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use crate::audit::AuditAction;
use crate::chain::ChainedPlugin;
use crate::daemon::node::events::{self, Moment};
use crate::daemon::node::{Node, log_failure, messages};
use crate::daemon::plugins::origin::PluginPeer;
use crate::daemon::plugins::returning;
use crate::daemon::plugins::takeover::{self, Takeover};
use crate::daemon::plugins::upcalls::{Registration, upcalls};
use crate::daemon::registry::NRI_VERSION;
use crate::daemon::registry::connected::{ConnectedPlugin, Subject};
use crate::daemon::registry::process_name;
use crate::daemon::resources::updates;
use crate::error::quoted;
use crate::files;
use crate::host::Point;
use crate::limits;
use crate::plugin::mux::CLOSED;
use crate::plugin::{self, Encoded, EncodedSnapshot, Outcome, Plugin, Settings, api};
use crate::presence::IfThere;
use crate::state::{Container, HiddenFrom};
use crate::text::counted;

/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that may be registering at once (D11).
const MAX_REGISTERING: usize = 64;

/// Containers of a snapshot that are encoded before other tasks get a turn.
const AT_ONCE: usize = 100;

/// Connections that are registering, oldest first, each with a way to close it.
type Registering = Rc<RefCell<VecDeque<Rc<Notify>>>>;

/// Accepts connections of plugins. Never ends.
pub(crate) async fn accept(node: Rc<Node>, listener: UnixListener) {
    let waiting = Registering::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("the plugin socket: {}", crate::error::in_our_words(&error));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if !may_connect(&node, &stream) {
            continue;
        }
        let slot = take_slot(&waiting);
        let (node, waiting) = (Rc::clone(&node), Rc::clone(&waiting));
        tokio::task::spawn_local(async move {
            let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
            // Before the first word of it: later the process may be another.
            let peer = PluginPeer::of(&node, &stream);
            let settings = settings(&node);
            let unregistered = node.registry.roster.enters(None, pid);
            let registration = Registration::default();
            let upcalls = upcalls(&node, &unregistered, &registration);
            let pid = pid.unwrap_or(0);
            let handshake = tokio::select! {
                handshake = plugin::handshake(stream, None, &settings, upcalls) => Some(handshake),
                () = slot.notified() => None,
            };
            let registered = unregistered.registered.get().map(ToString::to_string);
            drop(unregistered);
            waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, &slot));
            if !matches!(handshake, Some(Ok(_))) {
                registered.iter().for_each(|id| node.registry.note_failed(id));
            }
            match handshake {
                Some(Ok(plugin)) => match may_be(&node, &plugin, &peer) {
                    Ok(()) => admit(&node, plugin, false, &registration).await,
                    Err(why) => {
                        node.registry.note_failed(&plugin.id());
                        plugin.disconnect(&why);
                    }
                },
                // `check` and `install` connect to find out who listens.
                Some(Err(error)) if registered.is_none() && error.to_string() == CLOSED => {
                    debug!("process {pid} connected to the plugin socket and left");
                }
                Some(Err(error)) => info!("a plugin connection of process {pid} ended: {error}"),
                None => warn!(
                    "{MAX_REGISTERING} connections have not registered yet: the one that waited longest, of process {pid}, was closed"
                ),
            }
        });
    }
}

/// Takes a slot for a connection that registers. If all are taken, the oldest connection is closed:
/// a real plugin registers within milliseconds, even while others flood the socket.
fn take_slot(waiting: &Registering) -> Rc<Notify> {
    let mut waiting = waiting.borrow_mut();
    if waiting.len() >= MAX_REGISTERING
        && let Some(longest) = waiting.pop_front()
    {
        longest.notify_one();
    }
    let slot = Rc::new(Notify::new());
    waiting.push_back(Rc::clone(&slot));
    slot
}

fn may_connect(node: &Node, stream: &UnixStream) -> bool {
    let Ok(peer) = stream.peer_cred() else { return false };
    let is_allowed = node.config().allowed_uids.contains(&peer.uid());
    if !is_allowed {
        let why = format!("user {} may not connect a plugin (nri.allowed_uids)", peer.uid());
        warn!("{why}");
        node.audit_plugin(AuditAction::Rejected, "", &why);
    }
    is_allowed
}

/// Whether this process may be that plugin (`[plugin.NAME] from`). A refusal is reported.
fn may_be(node: &Node, plugin: &Plugin, peer: &PluginPeer) -> Result<(), String> {
    let origins = node.config().plugin(plugin.index(), plugin.name()).from;
    peer.check(&origins).map_err(|why| {
        let id = plugin.id();
        let reason =
            format!("it may not connect under this name: {why} (plugin.{}.from)", plugin.name());
        node.report.metrics.plugins().count_connection(&id, "refused");
        node.audit_plugin(AuditAction::Rejected, &id, &reason);
        if node.registry.roster.note_refused(plugin, &reason) {
            node.report.note_failure(&format!("{id} was refused: {reason}"), &id);
        }
        reason
    })
}

/// The daemon's settings for a plugin's connection.
pub(crate) fn settings(node: &Node) -> Settings {
    Settings {
        registration_timeout: node.config().registration_timeout,
        request_timeout: node.config().request_timeout,
        runtime_name: node.config().runtime_name.clone(),
        runtime_version: format!("v{}", env!("CARGO_PKG_VERSION")),
        nri_version: NRI_VERSION.to_owned(),
    }
}

/// Synchronizes a registered plugin and adds it to the chain, in the place of an earlier connection
/// with its identity; returns when it is disconnected.
pub(super) async fn admit(
    node: &Rc<Node>,
    mut plugin: Plugin,
    launched: bool,
    registration: &Registration,
) {
    let id = plugin.id();
    plugin.count_calls(node.report.metrics.call_meter());
    let counted_connections = node.report.metrics.plugins();
    let takeover = match Takeover::begin(node, &plugin, launched) {
        Ok(takeover) => takeover,
        Err(why) => {
            node.audit_plugin(AuditAction::Rejected, &id, &why);
            plugin.disconnect(&why);
            return node.registry.note_failed(&id);
        }
    };
    // Snapshot and registration in one step: events from here on reach the plugin.
    let Moment { pods, containers, about, hidden } = {
        let rules = node.registry.rules();
        let is_ending = |subject: &_| node.registry.is_ending(subject);
        events::snapshot_shared(&node.records.read(), &rules, &id, is_ending)
    };
    note_hidden(node, &id, hidden);
    let settings = node.config().plugin(plugin.index(), plugin.name());
    let mistake = node.config().unreliable();
    let chained =
        ChainedPlugin::new(plugin, launched, &settings).with_unknown_rights(mistake.as_deref());
    let connected = node.registry.add(chained, about);
    registration.set(&connected);
    let counts = (counted(pods.len(), "pod"), counted(containers.len(), "container"));
    let snapshot = EncodedSnapshot { pods, containers: encoded(node, containers).await };
    let synchronized = synchronize(node, &connected, takeover.as_ref(), snapshot).await;
    takeover.iter().for_each(|takeover| takeover.count(node));
    if let Err(why) = synchronized {
        report_unsynchronized(node, &connected, &why);
        counted_connections.count_connection(&id, "unsynchronized");
        connected.chained.plugin.disconnect("it could not be synchronized");
        node.registry.remove(&connected, &connected.chained.plugin.closed().await);
        return node.registry.note_failed(&id);
    }
    counted_connections.count_connection(&id, "synchronized");
    info!(plugin = id, "{id} is synchronized with {} and {}", counts.0, counts.1);
    let pid = connected.chained.plugin.pid().unwrap_or_default();
    let known = format!("process {pid}, synchronized with {} and {}", counts.0, counts.1);
    node.audit_plugin(AuditAction::Connected, &id, &known);
    stay(node, &connected).await;
}

/// Notes what rules hide from a plugin that connects, for `explain`. A crash may lose it: the plugin
/// connects again then.
fn note_hidden(node: &Node, plugin: &str, hidden: Vec<(Subject, String)>) {
    for (subject, rule) in hidden {
        let new = HiddenFrom { plugin: plugin.to_owned(), rule };
        let note = |known: &mut Vec<HiddenFrom>| {
            if !known.contains(&new) {
                known.push(new);
            }
        };
        match subject {
            Subject::Pod(id) => {
                node.records.change_pod_in_memory(&id, |pod| note(&mut pod.hidden_from));
            }
            Subject::Container(key) => {
                node.records.change_in_memory(&key, |record| note(&mut record.hidden_from));
            }
        }
    }
}

/// Follows a plugin that takes part until it is disconnected.
pub(super) async fn stay(node: &Rc<Node>, connected: &Rc<ConnectedPlugin>) {
    let (id, counted_connections) = (connected.chained.id(), node.report.metrics.plugins());
    let why = connected.chained.plugin.closed().await;
    node.registry.remove(connected, &why);
    counted_connections.count_connection(&id, "disconnected");
    record_protecting_plugins(node);
    // The process of a launched plugin must not outlive its connection.
    connected.chained.plugin.disconnect("its connection has ended");
    info!(plugin = id, "{id} disconnected: {}", quoted(&why));
    node.audit_plugin(AuditAction::Disconnected, &id, &quoted(&why));
}

/// Encodes the records as they are sent. They are of one moment, so the encoding may take its time:
/// between two parts other tasks get a turn.
async fn encoded(node: &Node, containers: Vec<Rc<Container>>) -> Vec<Encoded> {
    let mut encoded = Vec::with_capacity(containers.len());
    for some in containers.chunks(AT_ONCE) {
        let some = some
            .iter()
            .map(|container| messages::container_encoded(container, node.is_paused(container)));
        encoded.extend(some);
        tokio::task::yield_now().await;
    }
    encoded
}

/// Synchronizes a plugin, sends it the events since, and lets it take part. One that takes an earlier
/// connection's place changes nothing before: that one keeps it, should the newcomer fail.
async fn synchronize(
    node: &Rc<Node>,
    connected: &Rc<ConnectedPlugin>,
    takeover: Option<&Takeover>,
    snapshot: EncodedSnapshot,
) -> Result<(), String> {
    takeover::pass(node, takeover, Point::DaemonTakeover)?;
    let mut response = Some(request_synchronization(connected, snapshot).await?);
    takeover::pass(node, takeover, Point::DaemonTakeoverEvents)?;
    if let Some(response) = response.take_if(|_| takeover.is_none()) {
        updates::synchronized(node, connected, response).await;
    }
    connected.catch_up().await;
    takeover::pass(node, takeover, Point::DaemonTakeoverPlace)?;
    // Nothing else has run since the last queued event.
    let old = takeover::take_place(node, connected, takeover)?;
    remember_who_is_here(node);
    node.registry.returning.note_arrival();
    for old in old {
        tokio::task::spawn_local(takeover::retire(Rc::clone(node), old, Rc::clone(connected)));
    }
    if let Some(response) = response {
        updates::synchronized(node, connected, response).await;
    }
    Ok(())
}

/// Sends the snapshot; the plugin's response.
async fn request_synchronization(
    connected: &ConnectedPlugin,
    snapshot: EncodedSnapshot,
) -> Result<api::SynchronizeResponse, String> {
    match connected.chained.plugin.synchronize_encoded(&snapshot).await {
        Outcome::Answered(response) => Ok(response),
        Outcome::Refused(text) | Outcome::Unimplemented(text) => {
            Err(format!("it refused: {}", quoted(&text)))
        }
        Outcome::TimedOut => Err("it did not answer in time".to_owned()),
        Outcome::Gone(why) => Err(format!("it went away ({})", quoted(&why))),
        Outcome::NotConnected | Outcome::Busy(_) => Err("it went away".to_owned()),
    }
}

/// Reports a plugin that did not come to take part, and who has its place.
fn report_unsynchronized(node: &Node, connected: &ConnectedPlugin, why: &str) {
    let id = connected.chained.id();
    let stays = node.registry.predecessor(connected).map(|old| {
        let name = process_name(old.chained.plugin.pid());
        format!("; {name} keeps its place")
    });
    let stays = stays.unwrap_or_default();
    let reason = format!("could not be synchronized: {why}{stays}");
    node.report.note_failure(&format!("{id} {reason}"), &id);
    node.audit_plugin(AuditAction::Rejected, &id, &reason);
}

/// Records the connected plugins: creates wait for them after a restart (D14).
pub(crate) fn remember_who_is_here(node: &Node) {
    returning::remember(node);
    record_protecting_plugins(node);
}

/// Records the connected plugins that protect containers by their own declaration, for wrappers
/// that find no daemon. A daemon that ends keeps the list: its plugins disconnect because it ends.
pub(crate) fn record_protecting_plugins(node: &Node) {
    if node.process.is_ending.get() {
        return;
    }
    let mut list = String::new();
    for chained in node.registry.synchronized() {
        if chained.plugin.is_validator() {
            list.push_str(&format!("{} validates adjustments\n", chained.id()));
        } else if chained.policy().refuses_by_declaration() {
            list.push_str(&format!("{} declares that its silence refuses\n", chained.id()));
        }
    }
    let path = node.config().protecting_plugins();
    let recorded = files::read_own(&path, limits::OWN_FILE).or_absent().unwrap_or_default();
    if recorded != list.as_bytes() {
        let written = files::replace(&path, list.as_bytes());
        log_failure("recording the plugins that protect containers", written);
    }
}

/// Waits the registration time-out, in which plugins of the last daemon may return, then records
/// the present plugins that protect containers.
pub(crate) async fn record_protecting_plugins_later(node: Rc<Node>) {
    tokio::time::sleep(node.config().registration_timeout).await;
    record_protecting_plugins(&node);
}
