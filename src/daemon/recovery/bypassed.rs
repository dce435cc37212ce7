// SPDX-License-Identifier: Apache-2.0
//! Handles calls that wrappers ran without a daemon (decision D9). Each wrapper left a note with its request, unless
//! notes exceeded a limit (`notes.rs`). The daemon records the containers of such calls that still exist, so that
//! plugins receive them by Synchronize, or by event if they are connected, and then their later events.
//!
//! No plugin can adjust such a container, because the runtime has already run. After an update, the
//! daemon only restores the values that plugins own.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Map;
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use crate::argv::Verb;
use crate::config::Config;
use crate::daemon::bundle;
use crate::daemon::lifecycle::{late_start, removal, state};
use crate::daemon::pods::{life, resized};
use crate::daemon::recovery::{catch_up, enabled, notes, refusals};
use crate::daemon::request::describe::describe;
use crate::daemon::request::record::new_record;
use crate::daemon::request::resources::requested;
use crate::daemon::request::{ReceivedQuestion, VerbRequest};
use crate::daemon::resources::in_force::in_force;
use crate::daemon::resources::{apply, updates};
use crate::daemon::runtime::state_dir;
use crate::daemon::shared::Daemon;
use crate::daemon::shared::messages::{self, Classes};
use crate::daemon::shared::queues::Watches;
use crate::daemon::watch::folders::WatchedFolder;
use crate::daemon::watch::pidfd;
use crate::error::Result;
use crate::host::Host;
use crate::limits;
use crate::link::{BYPASSED_DIR, Bypassed, REFUSED_DIR, WrapperNote};
use crate::plugin::Event;
use crate::presence::{Backoff, IfThere};
use crate::spec::overlay;
use crate::state::{CompactObject, Container, ContainerKey, Lifecycle, Skipped};

/// Time limit for a runtime's `start` or `delete` to exit; its outcome is then read even if it still runs.
const RUNTIME_WAIT: Duration = Duration::from_secs(60);

/// Attempts to notify plugins of a container whose state is unknown; together they take about a minute.
const ANNOUNCEMENTS: usize = 20;

type BypassNote = WrapperNote<Bypassed>;

/// Returns the call of a note; `None` if it has no request that can be decoded.
fn call_of(note: &BypassNote) -> Option<VerbRequest> {
    VerbRequest::new(ReceivedQuestion::alone(note.request().ok()?))
}

/// Handles the notes of all calls that bypassed the daemon or that wrappers refused, oldest first, before
/// any plugin registers. [`follow`] reads unreadable notes again, and new ones.
pub(crate) async fn adopt(daemon: &Rc<Daemon>) {
    if let Err(error) = adopt_all(daemon).await {
        warn!("a call that bypassed the daemon is not taken over yet: {error}");
    }
}

async fn adopt_all(daemon: &Rc<Daemon>) -> Result<()> {
    // The search for containers without a note begins later, once plugins can connect.
    notes::report_dropped(daemon);
    let mut taken = refusals::take_up(daemon);
    for path in notes(&daemon.config())? {
        taken = taken.and(take_up(daemon, &path, None).await);
    }
    taken
}

/// Handles calls that bypass the daemon, or that wrappers refuse, from now on: these wrappers received no
/// response from this daemon or its predecessor.
pub(crate) fn follow(daemon: &Rc<Daemon>) -> JoinHandle<()> {
    // The folders are created now, because the run directory must contain them.
    let mut watched = watch_both(daemon);
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        let (mut backoff, mut is_logged) = (Backoff::default(), false);
        loop {
            if watched.is_none() {
                watched = watch_both(&daemon);
            }
            if let Err(error) = take_up_all(&daemon).await {
                if !std::mem::replace(&mut is_logged, true) {
                    warn!("a call that bypassed the daemon is not taken over yet: {error}");
                }
                tokio::time::sleep(backoff.next()).await;
                continue;
            }
            is_logged = false;
            let Some([bypassed, refused]) = &mut watched else {
                // The kernel has no watch left, or the folders cannot be created.
                tokio::time::sleep(backoff.next()).await;
                continue;
            };
            backoff = Backoff::default();
            let is_watched = tokio::select! {
                is_watched = bypassed.next_arrival() => is_watched,
                is_watched = refused.next_arrival() => is_watched,
            };
            if !is_watched {
                watched = None; // Another folder may have the path by now.
            }
        }
    })
}

/// Watches both folders of notes; `None` if one cannot be created or was removed at once, or the kernel has no watch
/// left.
fn watch_both(daemon: &Daemon) -> Option<[WatchedFolder; 2]> {
    let (config, watches) = (daemon.config(), &daemon.watches);
    let refused = config.run_dir.join(REFUSED_DIR);
    Some([watch_notes(watches, &folder(&config))?, watch_notes(watches, &refused)?])
}

async fn take_up_all(daemon: &Rc<Daemon>) -> Result<()> {
    if notes::report_dropped(daemon) {
        enabled::catch_up(daemon);
    }
    let mut taken = refusals::take_up(daemon);
    for path in notes(&daemon.config())? {
        let note = match notes::read::<BypassNote>(&path) {
            Ok(note) => note,
            Err(error) => {
                taken = taken.and(Err(error));
                continue;
            }
        };
        let Some(call) = note.as_ref().and_then(call_of) else {
            taken = taken.and(take_up(daemon, &path, None).await);
            continue;
        };
        let lane = daemon.lane(&call.key);
        let _turn = lane.turn.lock().await;
        // A note that cannot be handled now does not delay the others.
        taken = taken.and(take_up(daemon, &path, Some(&call.key)).await);
    }
    taken
}

/// Handles calls about this container that bypassed the daemon; the caller holds the container's
/// lane. Returns whether there was such a call.
///
/// # Errors
/// Fails when the notes cannot be listed, one about this container cannot be handled now, or, if none was read, one
/// that may be about it cannot be read.
pub(crate) async fn take_up_of(daemon: &Rc<Daemon>, key: &ContainerKey) -> Result<bool> {
    let (mut has_any, mut read) = (false, Ok(()));
    for path in notes(&daemon.config())? {
        let call = match notes::read::<BypassNote>(&path) {
            Ok(note) => note.as_ref().and_then(call_of),
            Err(error) => {
                read = read.and(Err(error));
                continue;
            }
        };
        if call.is_some_and(|call| call.key == *key) {
            take_up(daemon, &path, Some(key)).await?;
            has_any = true;
        }
    }
    // An unreadable note may be about this container.
    if has_any { Ok(true) } else { read.map(|()| false) }
}

fn folder(config: &Config) -> PathBuf {
    config.run_dir.join(BYPASSED_DIR)
}

/// Watches a folder of notes, which is created if it does not exist.
fn watch_notes(watches: &Watches, folder: &Path) -> Option<WatchedFolder> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).or_absent()?;
    watches.folders.watch(folder)
}

fn notes(config: &Config) -> Result<Vec<PathBuf>> {
    notes::notes_in(&folder(config))
}

/// Handles one note, unless another task has done so. With a `key`, plugins may already be
/// registered, and are notified.
async fn take_up(daemon: &Rc<Daemon>, path: &Path, key: Option<&ContainerKey>) -> Result<()> {
    let Some(note) = notes::read(path)? else { return Ok(()) };
    take_over(daemon, &note).await?;
    // The note is removed only now, when the records have its content: if the daemon dies earlier,
    // the next daemon must find it again.
    let _taken = std::fs::remove_file(path);
    // After a start, `follow_start` notifies plugins once the runtime has exited.
    if let Some(key) = key.filter(|_| note.verb != Verb::Start.name()) {
        announce_or_repeat(daemon, key).await;
    }
    Ok(())
}

async fn take_over(daemon: &Rc<Daemon>, note: &BypassNote) -> Result<()> {
    let (verb, id) = (&note.verb, note.id.as_deref().unwrap_or_default());
    match adopt_call(daemon, note).await {
        Err(error) if error.may_pass() => return Err(error),
        Err(error) => warn!("{id} cannot be taken over: {error}"),
        Ok(()) => {}
    }
    warn!("{verb} {id} ran without plugins: {}", note.why);
    daemon.report.count("bypassed");
    daemon.report.metrics.count_request(verb, "bypassed");
    Ok(())
}

/// Notifies plugins like [`announce`], and retries in a task while the container's state is unknown, up to
/// [`ANNOUNCEMENTS`] times; the caller holds the container's lane.
pub(super) async fn announce_or_repeat(daemon: &Rc<Daemon>, key: &ContainerKey) {
    let Err(error) = announce(daemon, key).await else { return };
    let Some(record) = daemon.container(key) else { return };
    debug!("plugins are not notified of {} yet: {error}", key.id);
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        let (key, mut backoff) = (&record.key, Backoff::default());
        for _attempt in 0..ANNOUNCEMENTS {
            tokio::time::sleep(backoff.next()).await;
            let lane = daemon.lane(key);
            let turn = lane.turn.lock().await;
            let now = daemon.container(key);
            let is_same = now.is_some_and(|now| now.incarnation == record.incarnation);
            let announced = if is_same { announce(&daemon, key).await } else { Ok(()) };
            drop(turn);
            daemon.lanes.release(key, lane);
            if announced.is_ok() {
                return;
            }
        }
        warn!("plugins were not notified of {}: {error}", key.id);
    });
}

/// Announces the container to the registered plugins, like any new container; it is too late to
/// apply their replies. Then watches the container. If the container is gone, removes it instead.
async fn announce(daemon: &Rc<Daemon>, key: &ContainerKey) -> Result<()> {
    let Some(record) = daemon.container(key) else { return Ok(()) };
    catch_up::catch_up(daemon, key).await?;
    catch_up::learn_process(daemon, key).await;
    if !state_dir::exists(&daemon.host, key)?
        && catch_up::under_way(daemon, &record).await?.is_empty()
    {
        removal::handle_delete(daemon, key).await;
        return Ok(());
    }
    let Some(record) = daemon.container(key) else { return Ok(()) };
    if life::is_ready(&daemon.records, &record.pod)
        && let Some(notification) = daemon.pod_notification(Event::RunPodSandbox, &record.pod)
    {
        daemon.registry.notify_late(&notification).await;
        resized::follow(daemon, &record.pod);
    }
    if !record.is_sandbox
        && let Some(notification) = daemon.notification(Event::CreateContainer, key)
    {
        daemon.registry.notify_late(&notification).await;
    }
    if record.process.init_pid.is_some() {
        updates::carry_out_deferred(daemon, key).await;
        daemon.watch_init(&record);
    }
    Ok(())
}

async fn adopt_call(daemon: &Rc<Daemon>, note: &BypassNote) -> Result<()> {
    let Some(call) = VerbRequest::new(ReceivedQuestion::alone(note.request()?)) else {
        return Ok(());
    };
    if call.command_line.verb.creates() {
        handle_create(daemon, &call).await?;
    } else if call.command_line.verb == Verb::Start {
        handle_start(daemon, &call)?;
    } else if call.command_line.verb == Verb::Update {
        let resources = note.of_kind.resources.as_ref().map(|resources| resources.0.clone());
        handle_update(daemon, &call, resources);
    } else if call.command_line.verb == Verb::Delete {
        follow_deletion(daemon, &call);
    }
    daemon.change(&call.key, |record| {
        limits::keep_ends(&mut record.outcome.skipped, Skipped::bypassed(&note.verb, &note.why));
    });
    Ok(())
}

/// Handles an update that bypassed the daemon: records the engine's values, and restores the values that plugins own.
fn handle_update(daemon: &Rc<Daemon>, call: &VerbRequest, bytes: Option<Vec<u8>>) {
    let (key, pid) = (call.key.clone(), call.question().pid);
    let runtime = call.question().runtime.to_string_lossy().into_owned();
    let request = requested(call, bytes, &runtime).unwrap_or_default();
    // A note omits the values if they would make it too long.
    let reason = "values that the engine set by an update without the daemon are not known";
    let unknown = Skipped { plugin: String::new(), reason: reason.to_owned() };
    let unknown = request.is_none().then_some(unknown);
    let request = request.unwrap_or_default();
    daemon.change(&key, |record| {
        if let Some(unknown) = unknown {
            limits::keep_ends(&mut record.outcome.skipped, unknown);
        }
        record.pending.updating =
            record.pending.updating.take().filter(|updating| updating.pid != pid);
        let (engine, none) = (record.resources.of_engine.map(), Map::new());
        // Members that the request leaves unset keep the engine's earlier values.
        let merged = overlay::merge_update(&engine, &none, &request, false);
        record.resources.of_engine = CompactObject::from(&merged.engine);
        let in_force = in_force(record);
        let (message, overlay) = (&record.message, &record.resources.overlay);
        record.message = messages::with_resources(message, overlay, &in_force, &Classes::default());
    });
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        wait_until_exited(&daemon.host, &key, pid).await;
        hold_again(&daemon, &key).await;
    });
}

/// Follows the runtime of a `delete` that bypassed the daemon and may still run; once it has exited, removes
/// the container from the records if it is gone.
fn follow_deletion(daemon: &Rc<Daemon>, call: &VerbRequest) {
    let pid = call.question().pid;
    if matches!(pidfd::open(pid), Ok(None)) {
        return;
    }
    let Some(record) = daemon.container(&call.key) else { return };
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        let exit = wait_until_exited(&daemon.host, &record.key, pid);
        let _or_never = tokio::time::timeout(RUNTIME_WAIT, exit).await;
        daemon.registry.wait_for_returning().await;
        let mut backoff = Backoff::default();
        loop {
            let lane = daemon.lane(&record.key);
            let turn = lane.turn.lock().await;
            let now = daemon.container(&record.key);
            let is_same = now.is_some_and(|now| now.incarnation == record.incarnation);
            let is_there =
                if is_same { state_dir::exists(&daemon.host, &record.key) } else { Ok(true) };
            if matches!(is_there, Ok(false)) {
                removal::handle_delete(&daemon, &record.key).await;
            }
            drop(turn);
            daemon.lanes.release(&record.key, lane);
            if is_there.is_ok() {
                return;
            }
            tokio::time::sleep(backoff.next()).await;
        }
    });
}

/// Waits until the process with this PID has exited; returns at once if its command line does not name the container.
async fn wait_until_exited(host: &Host, key: &ContainerKey, pid: u32) {
    let mut backoff = Backoff::default();
    loop {
        match catch_up::process_of(host, key, pid) {
            Ok(Some(process)) => return pidfd::wait_until_exited(&process).await,
            Ok(None) => return,
            Err(_unknown) => tokio::time::sleep(backoff.next()).await,
        }
    }
}

/// Restores the plugins' values: an update that bypassed the daemon may have overwritten them.
async fn hold_again(daemon: &Rc<Daemon>, key: &ContainerKey) {
    let is_owned = |record: &Container| !record.resources.overlay.is_empty();
    if !daemon.container(key).as_deref().is_some_and(is_owned) {
        return;
    }
    let reason = match apply::reapply(daemon, key).await {
        Ok(()) => "plugin-owned values were written again after that update".to_owned(),
        Err(update_error) => {
            let why = format!("plugin-owned values could not be restored: {update_error}");
            daemon.report.note_failure(&format!("update {}: {why}", key.id), "");
            why
        }
    };
    let skipped = Skipped { plugin: String::new(), reason };
    daemon.change(key, |record| limits::keep_ends(&mut record.outcome.skipped, skipped));
}

/// Records the container if the runtime made it and it still exists, or if the runtime is still creating it.
async fn handle_create(daemon: &Rc<Daemon>, call: &VerbRequest) -> Result<()> {
    let init = state_dir::init(&daemon.host, &call.key)?;
    let old = daemon.container(&call.key);
    let is_taken = |old: &Container| {
        // The previous daemon may have recorded this call before it died.
        let pid = init.map(|init| init.pid);
        pid.is_some() && old.process.init_pid == pid && old.call.made_by != call.question().pid
    };
    if old.as_deref().is_some_and(is_taken) {
        return Ok(()); // Another container has the ID, so the runtime refused the call.
    }
    let document = daemon.read_document(&document_dir(call), &call.question().document).await;
    if init.is_none() && pidfd::open(call.question().pid)?.is_none() {
        return Ok(()); // The creation failed, or the container was removed since.
    }
    let description = describe(daemon, call, &document?.bytes).await?;
    let mut record = new_record(&daemon.records, call, &description);
    if let Some(flight) = &mut record.pending.in_flight {
        flight.executed = true;
    }
    let is_under_way = !catch_up::under_way(daemon, &record).await?.is_empty();
    if init.is_none() && !is_under_way {
        return Ok(());
    }
    if let Some(init) = init.filter(|_| !is_under_way || call.command_line.verb != Verb::Create) {
        state::set_found(&daemon.host, &mut record, init)?;
    }
    if !is_under_way {
        record.pending.in_flight = None;
    }
    if let Some(old) = old {
        bundle::restore(daemon, &old).await;
        state::forget(daemon, &call.key);
    }
    life::adopt(daemon, &description, &record)?;
    info!("{} was taken over: {}", call.key.id, record.state.name());
    daemon.records.put(record)
}

/// Returns the directory from which the runtime read the document.
fn document_dir(call: &VerbRequest) -> PathBuf {
    match &call.command_line.config {
        Some(file) => {
            let file = Path::new(&call.question().cwd).join(file);
            file.parent().map(Path::to_owned).unwrap_or_default()
        }
        None => call.bundle.clone(),
    }
}

/// Handles a start that bypassed the daemon, finished or in progress, of a container on record.
fn handle_start(daemon: &Rc<Daemon>, call: &VerbRequest) -> Result<()> {
    let key = &call.key;
    let Some(record) = daemon.container(key) else { return Ok(()) };
    if record.state != Lifecycle::Created || !state_dir::exists(&daemon.host, key)? {
        return Ok(());
    }
    // While plugins are registered, the start is recorded in the container's turn, with their notification.
    let is_live = !daemon.registry.connected().is_empty();
    if is_live || catch_up::process_of(&daemon.host, key, call.question().pid)?.is_some() {
        follow_start(daemon, call, record.incarnation);
        return Ok(());
    }
    if state_dir::waits_for_start(&daemon.host, key)? {
        return Ok(()); // The runtime failed.
    }
    daemon.change(key, |record| record.pending.in_flight = None);
    state::mark_running(daemon, key, None)?;
    if record.is_sandbox { life::started_without_daemon(daemon, &record.pod) } else { Ok(()) }
}

/// Follows the runtime of a `start` that bypassed the daemon; once it has exited, notifies plugins if
/// the container was started.
fn follow_start(daemon: &Rc<Daemon>, call: &VerbRequest, incarnation: u64) {
    let (daemon, key, pid) = (Rc::clone(daemon), call.key.clone(), call.question().pid);
    tokio::task::spawn_local(async move {
        let exit = wait_until_exited(&daemon.host, &key, pid);
        let _or_never = tokio::time::timeout(RUNTIME_WAIT, exit).await;
        daemon.registry.wait_for_returning().await;
        let mut backoff = Backoff::default();
        loop {
            let lane = daemon.lane(&key);
            let turn = lane.turn.lock().await;
            let record = daemon.container(&key).filter(|record| record.incarnation == incarnation);
            let is_waiting = match &record {
                Some(_) => state_dir::waits_for_start(&daemon.host, &key),
                None => Ok(true),
            };
            if matches!(is_waiting, Ok(false)) {
                late_start::notify_plugins(&daemon, &key).await;
            }
            drop(turn);
            daemon.lanes.release(&key, lane);
            if is_waiting.is_ok() {
                return;
            }
            tokio::time::sleep(backoff.next()).await;
        }
    });
}
