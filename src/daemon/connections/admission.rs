// SPDX-License-Identifier: Apache-2.0
//! Registers plugins: external ones from the socket, pre-installed ones that `launched_run.rs` starts.
//!
//! Handshakes run concurrently, bounded in number and time; a connection that never registers delays no other. See D11
//! for which plugins may connect, D15 for what they are synchronized with, and D41 for how they replace a connected
//! plugin of the same identity (`takeover.rs`).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::{UnixListener, UnixStream};
use tracing::{debug, info, warn};

use crate::accept;
use crate::chain::ChainedPlugin;
use crate::config::{Config, Displace};
use crate::daemon::connections::slots::{Slots, Taken};
use crate::daemon::connections::takeover::{self, Takeover};
use crate::daemon::connections::upcalls::{Registration, upcalls};
use crate::daemon::connections::{origin, refusals, returning, snapshot};
use crate::daemon::registry::connected::{ConnectedPlugin, Subject};
use crate::daemon::registry::peer::{NotAdmitted, PluginPeer, allow_user};
use crate::daemon::registry::process_name;
use crate::daemon::resources::updates;
use crate::daemon::shared::events::{self, Moment};
use crate::daemon::shared::refused::ConnectionLine;
use crate::daemon::shared::{Daemon, log_failure};
use crate::error::{in_our_words, quoted};
use crate::files;
use crate::host::Point;
use crate::limits;
use crate::plugin::session::SessionError;
use crate::plugin::{self, EncodedSnapshot, Outcome, Plugin, Settings, SyncProgress, api};
use crate::presence::{self, IfThere};
use crate::state::HiddenFrom;
use crate::text::counted;

/// Connections accepted in a row before other tasks get a turn.
const ACCEPTED_AT_ONCE: usize = 256;

/// Interval of log lines about a slow Synchronize.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Accepts all connections to the plugin socket. Never ends.
pub(crate) async fn serve_all(daemon: Rc<Daemon>, listener: UnixListener) {
    let slots = Slots::default();
    loop {
        let failed = |error: &std::io::Error| {
            let line = format!("the plugin socket: {}", in_our_words(error));
            refusals::report(&daemon, ConnectionLine::Unaccepted, "", (&line, &line));
        };
        daemon.registry.roster.until_held(false).await;
        let (first, _) = tokio::select! {
            accepted = accept::next(async || listener.accept().await, failed) => accepted,
            () = daemon.registry.roster.until_held(true) => continue,
        };
        // A full queue in the kernel prevents other plugins from connecting, so the daemon accepts
        // many connections before it handles any.
        let mut cgroups = BTreeMap::new();
        assign_slot(&daemon, &slots, &mut cgroups, first);
        for _at_once in 1..ACCEPTED_AT_ONCE {
            let Some(Ok((stream, _))) = listener.accept().now_or_never() else { break };
            assign_slot(&daemon, &slots, &mut cgroups, stream);
        }
        // A flood of connections must not block other tasks.
        tokio::task::yield_now().await;
    }
}

/// Gives a connection a slot and starts its registration, if its user may connect.
fn assign_slot(
    daemon: &Rc<Daemon>,
    slots: &Slots,
    cgroups: &mut BTreeMap<i32, String>,
    stream: UnixStream,
) {
    let peer = stream.peer_cred();
    // An unknown user may not connect.
    let uid = peer.as_ref().map_or(u32::MAX, tokio::net::unix::UCred::uid);
    if let Err(why) = allow_user(&daemon.config(), uid) {
        return refusals::report(daemon, ConnectionLine::User, "", (&why, &why));
    }
    let pid = peer.ok().and_then(|peer| peer.pid()).unwrap_or_default();
    let cgroup = cgroups.entry(pid).or_insert_with(|| {
        let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0);
        pid.map(|pid| returning::cgroup(&daemon.host, pid)).unwrap_or_default()
    });
    let slot = slots.take(uid, cgroup, pid);
    tokio::task::spawn_local(register(Rc::clone(daemon), stream, slot));
}

/// Performs the handshake with a process that connected, and admits it if it may take part.
async fn register(daemon: Rc<Daemon>, stream: UnixStream, slot: Taken) {
    // Skips a connection that has already lost its slot.
    if slot.is_lost() {
        return report_crowded(&daemon, slot.pid());
    }
    // Read before the plugin's first message: another process may hold the connection afterwards.
    let peer = origin::peer_of(&daemon, &stream);
    origin::look_at_program(&daemon, &peer).await;
    let pid = peer.pid;
    let settings = Settings::of(&daemon.config());
    let unregistered = daemon.registry.roster.enters(None, Some(pid).filter(|pid| *pid > 0));
    let registration = Registration::default();
    let upcalls = upcalls(&daemon, &unregistered, &registration);
    let handshake = tokio::select! {
        handshake = plugin::handshake(stream, None, &settings, upcalls) => Some(handshake),
        () = slot.lost() => None,
        () = daemon.registry.roster.cut() => {
            let why = "the daemon is being re-executed, and it had not registered in time";
            Some(Err(SessionError::Gone(why.to_owned())))
        }
    };
    let registered = unregistered.registered.get().map(ToString::to_string);
    drop((unregistered, slot));
    if !matches!(handshake, Some(Ok(_))) {
        registered.iter().for_each(|id| daemon.registry.note_failed(id));
    }
    match handshake {
        Some(Ok(plugin)) => match may_be(&daemon, &plugin, &peer).await {
            Ok(()) => admit(&daemon, plugin, Some(peer), &registration).await,
            Err(why) => {
                daemon.registry.note_failed(plugin.id());
                plugin.disconnect(&why);
            }
        },
        // `nri-runc nri check` and `install` connect only to identify the listener.
        Some(Err(error)) if registered.is_none() && error.to_string() == nri_transport::CLOSED => {
            debug!("process {pid} connected to the plugin socket and left");
        }
        Some(Err(error)) => {
            let line = format!("a plugin connection of process {pid} ended: {error}");
            refusals::report(&daemon, ConnectionLine::Unfinished, "", (&line, &line));
        }
        None => report_crowded(&daemon, pid),
    }
}

fn report_crowded(daemon: &Rc<Daemon>, pid: i32) {
    let line = format!(
        "{} connections have not registered yet: closed one that process {pid} opened, as its user or container has the most",
        limits::REGISTERING
    );
    refusals::report(daemon, ConnectionLine::Crowded, "", (&line, &line));
}

/// Whether this process may be the plugin that it claims to be. A refusal is reported.
async fn may_be(daemon: &Rc<Daemon>, plugin: &Plugin, peer: &PluginPeer) -> Result<(), String> {
    let files = &daemon.registry.pre_installed;
    let looked = presence::insist_on_loop(|| files.look(&daemon.config())).await;
    let (config, identity) = (daemon.config(), (plugin.index(), plugin.name()));
    let mut checked = peer.check(&config, files, identity);
    if let (Ok(()), Err(error)) = (&checked, looked) {
        let name = plugin.name();
        let (folder, why) = (config.plugin_path.display(), in_our_words(&error));
        if config.plugin(identity.0, name).displace == Displace::Never {
            let why = format!(
                "cannot determine whether it is pre-installed ({folder}: {why}): make this folder readable"
            );
            checked = Err((NotAdmitted::File, why));
        }
    }
    checked.map_err(|refusal| {
        refusals::report_refused(daemon, plugin, &refusal);
        refusal.1
    })
}

/// Disconnects the plugins that a new configuration no longer permits; `before` is the old one. If only a plugin file
/// has since appeared under a plugin's name, the plugin stays until the file's process takes over.
pub(crate) fn disconnect_unfit(daemon: &Rc<Daemon>, before: &Config) {
    for connected in daemon.registry.connected() {
        let Some(peer) = &connected.peer else { continue };
        let plugin = connected.connection();
        let had_others = before.plugin(plugin.index(), plugin.name()).displace == Displace::Any;
        if peer.facts.needs_file(&daemon.config()) {
            let daemon = Rc::clone(daemon);
            tokio::task::spawn_local(async move {
                let Some(peer) = &connected.peer else { return };
                origin::look_at_program(&daemon, peer).await;
                disconnect_if_unfit(&daemon, connected.connection(), peer, had_others);
            });
        } else {
            disconnect_if_unfit(daemon, plugin, peer, had_others);
        }
    }
}

fn disconnect_if_unfit(daemon: &Daemon, plugin: &Plugin, peer: &PluginPeer, had_others: bool) {
    let identity = (plugin.index(), plugin.name());
    let checked = peer.check(&daemon.config(), &daemon.registry.pre_installed, identity);
    let Err((kind, why)) = checked else { return };
    if kind != NotAdmitted::File || had_others {
        let id = plugin.id();
        warn!(plugin = id, "{id} is disconnected by the new configuration: {why}");
        plugin.disconnect(&why);
    }
}

/// Synchronizes a registered plugin and adds it to the chain, replacing an earlier connection of the same identity;
/// returns when the plugin is refused or disconnected.
pub(super) async fn admit(
    daemon: &Rc<Daemon>,
    mut plugin: Plugin,
    peer: Option<PluginPeer>,
    registration: &Registration,
) {
    // Waits at most 2 s for the pod addresses that a starting daemon looks up, so that Synchronize contains
    // most of them.
    drop(daemon.looking_up.lock().await);
    let (id, launched) = (plugin.id().to_owned(), peer.is_none());
    daemon.forget_gone_plugins();
    let counted_connections = daemon.report.metrics.plugins();
    let config = daemon.config();
    if launched || config.names_plugin(&id) {
        // A later plugin under a name of its choice must not displace this plugin's label in the metrics.
        counted_connections.reserve(&id);
    }
    plugin.count_calls(daemon.report.flight.clone());
    let takeover = match begin_takeover(daemon, &plugin, launched) {
        Ok(takeover) => takeover,
        Err((kind, why)) => {
            refusals::report(daemon, kind, &id, (&format!("{id} was refused: {why}"), &why));
            plugin.disconnect(&why);
            return daemon.registry.note_failed(&id);
        }
    };
    // Takes the snapshot and registers the plugin in one step, so that no event falls in between.
    let Moment { pods, containers, about, hidden } = {
        let rules = daemon.registry.rules();
        let ending = daemon.registry.ending();
        events::snapshot_shared(&daemon.records.read(), &rules, &id, &ending)
    };
    note_hidden(daemon, &id, hidden);
    let settings = config.plugin(plugin.index(), plugin.name());
    let mistake = config.unreliable();
    let chained =
        ChainedPlugin::new(plugin, launched, &settings).with_unknown_rights(mistake.as_deref());
    let connected = daemon.registry.add(chained, peer, about);
    registration.set(&connected);
    let counts = (counted(pods.len(), "pod"), counted(containers.len(), "container"));
    let synchronized = tokio::select! {
        snapshot = snapshot::encode(daemon, &pods, &containers) => Ok(snapshot),
        why = connected.closed() => Err(format!("it disconnected ({})", quoted(&why))),
    };
    let synchronized = match synchronized {
        Ok(snapshot) => synchronize(daemon, &connected, takeover.as_ref(), snapshot).await,
        Err(why) => Err(why),
    };
    takeover.iter().for_each(|takeover| takeover.count(&daemon.report));
    if let Err(why) = synchronized {
        report_unsynchronized(daemon, &connected, &why);
        connected.disconnect("it could not be synchronized");
        daemon.registry.remove(&connected, &connected.closed().await);
        return daemon.registry.note_failed(&id);
    }
    counted_connections.count_connection(&id, "synchronized");
    let line = format!("{id} is synchronized with {} and {}", counts.0, counts.1);
    let pid = connected.pid().unwrap_or_default();
    let known = format!("process {pid}, synchronized with {} and {}", counts.0, counts.1);
    let who = (id.as_str(), launched);
    refusals::report_plugin(daemon, ConnectionLine::Connected, who, (&line, &known));
    stay(daemon, &connected).await;
}

/// Begins to replace the connection of the same identity, if there is one; else checks that one more plugin may
/// connect: launched and configured plugins always may.
fn begin_takeover(
    daemon: &Rc<Daemon>,
    plugin: &Plugin,
    launched: bool,
) -> Result<Option<Takeover>, (ConnectionLine, String)> {
    let begun = Takeover::begin(daemon, plugin, launched);
    let takeover = begun.map_err(|why| (ConnectionLine::Contested, why))?;
    let is_expected = launched || daemon.config().names_plugin(plugin.id());
    let most = limits::PLUGINS;
    if takeover.is_none() && !is_expected && daemon.registry.connected().len() >= most {
        let why = format!(
            "{most} plugins are already connected; stop some of them, or give this one a section [plugin.NAME]"
        );
        return Err((ConnectionLine::Full, why));
    }
    Ok(takeover)
}

/// Records for `explain` what rules hide from a connecting plugin. A crash may lose this note, but
/// the plugin then reconnects and the note is made again.
fn note_hidden(daemon: &Daemon, plugin: &str, hidden: Vec<(Subject, String)>) {
    for (subject, rule) in hidden {
        let new = HiddenFrom { plugin: plugin.to_owned(), rule };
        let note = |known: &mut Vec<HiddenFrom>| {
            if !known.contains(&new) {
                known.push(new);
            }
        };
        match subject {
            Subject::Pod(id) => {
                daemon.records.change_pod_in_memory(&id, |pod| note(&mut pod.hidden_from));
            }
            Subject::Container(key) => {
                daemon
                    .records
                    .change_in_memory(&key, |record| note(&mut record.outcome.hidden_from));
            }
        }
    }
}

/// Waits until a plugin is disconnected, then removes it from the registry and reports the disconnection.
pub(super) async fn stay(daemon: &Rc<Daemon>, connected: &Rc<ConnectedPlugin>) {
    let (id, counted_connections) = (connected.id(), daemon.report.metrics.plugins());
    let why = connected.closed().await;
    daemon.registry.remove(connected, &why);
    counted_connections.count_connection(id, "disconnected");
    daemon.keep_execs_file_while_it_runs();
    record_protecting_plugins(daemon);
    // The process of a launched plugin must not outlive its connection.
    connected.disconnect("its connection was closed");
    let (who, why) = ((id, connected.is_launched()), quoted(&why));
    let line = format!("{id} disconnected: {why}");
    refusals::report_plugin(daemon, ConnectionLine::Disconnected, who, (&line, &why));
}

/// Synchronizes a plugin, sends it the events since the snapshot, and adds it to the chain. Until
/// then an earlier connection of the same identity stays in use; if the new plugin fails, the
/// earlier connection stays.
async fn synchronize(
    daemon: &Rc<Daemon>,
    connected: &Rc<ConnectedPlugin>,
    takeover: Option<&Takeover>,
    snapshot: EncodedSnapshot,
) -> Result<(), String> {
    takeover::pass(&daemon.host, takeover, Point::DaemonTakeover)?;
    let mut response = {
        let _room = daemon.snapshots.take(snapshot.longest_request()).await;
        Some(request_synchronization(connected, snapshot).await?)
    };
    takeover::pass(&daemon.host, takeover, Point::DaemonTakeoverEvents)?;
    if let Some(response) = response.take_if(|_| takeover.is_none()) {
        updates::carry_out_at_synchronize(daemon, connected, response).await;
    }
    connected.catch_up().await;
    takeover::pass(&daemon.host, takeover, Point::DaemonTakeoverPlace)?;
    // No other task has run since `catch_up` sent the last queued event.
    let old = takeover::take_place(daemon, connected, takeover)?;
    remember_who_is_here(daemon);
    daemon.registry.returning.note_arrival();
    for old in old {
        tokio::task::spawn_local(takeover::retire(Rc::clone(daemon), old, Rc::clone(connected)));
    }
    if let Some(response) = response {
        updates::carry_out_at_synchronize(daemon, connected, response).await;
    }
    Ok(())
}

/// Logs the progress of a slow Synchronize.
async fn log_progress(connected: &ConnectedPlugin) -> Infallible {
    let plugin = connected.connection();
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        let Some(SyncProgress { begun, limit, answered }) = plugin.sync_progress() else {
            continue;
        };
        let id = plugin.id();
        info!(
            plugin = id,
            "{id} is being synchronized for {} s, limit {limit:?}, {answered} parts answered",
            begun.elapsed().as_secs()
        );
    }
}

/// Sends the snapshot and returns the plugin's response.
async fn request_synchronization(
    connected: &ConnectedPlugin,
    snapshot: EncodedSnapshot,
) -> Result<api::SynchronizeResponse, String> {
    let outcome = tokio::select! {
        biased;
        outcome = connected.connection().synchronize_encoded(&snapshot) => outcome,
        never = log_progress(connected) => match never {},
    };
    match outcome {
        Outcome::Answered(response) => Ok(response),
        Outcome::Refused(text) | Outcome::Unimplemented(text) => {
            Err(format!("it refused: {}", quoted(&text)))
        }
        Outcome::TimedOut => Err("it did not answer in time".to_owned()),
        Outcome::Gone(why) => Err(format!("it disconnected ({})", quoted(&why))),
        Outcome::NotConnected | Outcome::Busy(_) => Err("it disconnected".to_owned()),
    }
}

/// Reports a plugin that failed to synchronize, and the plugin, if any, that stays connected instead.
fn report_unsynchronized(daemon: &Rc<Daemon>, connected: &ConnectedPlugin, why: &str) {
    let id = connected.id();
    let stays = daemon.registry.predecessor(connected).map(|old| {
        let name = process_name(old.pid());
        format!("; {name} keeps its place")
    });
    let stays = stays.unwrap_or_default();
    let reason = format!("could not be synchronized: {why}{stays}");
    let line = format!("{id} {reason}");
    refusals::report(daemon, ConnectionLine::Unsynchronized, id, (&line, &reason));
}

/// Records the connected plugins: creates wait for them after a restart (D14), and wrappers read whether a plugin is
/// to be asked about execs and which plugins protect containers.
pub(crate) fn remember_who_is_here(daemon: &Daemon) {
    returning::remember(daemon);
    daemon.keep_execs_file();
    record_protecting_plugins(daemon);
}

/// Records the connected plugins that protect containers by their own declaration, for wrappers that find no daemon.
/// A stopping daemon leaves the list as it is: its plugins disconnect only because it stops.
pub(crate) fn record_protecting_plugins(daemon: &Daemon) {
    if daemon.process.is_ending.get() {
        return;
    }
    let mut list = String::new();
    for chained in daemon.registry.synchronized() {
        if chained.plugin.is_validator() {
            list.push_str(&format!("{} validates adjustments\n", chained.id()));
        } else if chained.policy().refuses_by_declaration() {
            list.push_str(&format!("{} declares that a time-out refuses\n", chained.id()));
        }
    }
    let path = daemon.config().protecting_plugins();
    let recorded = files::read_own(&path, limits::OWN_FILE).or_absent().unwrap_or_default();
    if recorded != list.as_bytes() {
        let written = files::replace(&path, list.as_bytes());
        log_failure("recording the plugins that protect containers", written);
    }
}

/// Waits for the registration time-out, in which the previous daemon's plugins may return, then records which connected
/// plugins protect containers and whether any handles execs.
pub(crate) async fn record_protecting_plugins_later(daemon: Rc<Daemon>) {
    tokio::time::sleep(daemon.config().registration_timeout).await;
    daemon.keep_execs_file_while_it_runs();
    record_protecting_plugins(&daemon);
}
