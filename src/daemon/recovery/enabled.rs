// SPDX-License-Identifier: Apache-2.0
//! Catches up after `nri-runc nri enable`, or a reload that ends `nri.disable`: wrappers wrote no notes meanwhile
//! (decision D7). Deleted containers are removed, started ones are marked running, plugins are notified of both, and
//! new ones are recorded as far as the runtimes' state shows them (`rediscover.rs`).
//!
//! A file in the run directory requests the catching up, so that the request survives if no daemon
//! runs. Dropped notes (`notes.rs`) also cause this file, which then has the reason. No plugin is
//! asked and no container changed.

use std::rc::Rc;

use tracing::{info, warn};

use crate::argv::Verb;
use crate::daemon::lifecycle::{late_start, removal, settle};
use crate::daemon::pods::life;
use crate::daemon::recovery::{bypassed, catch_up, rediscover};
use crate::daemon::runtime::state_dir;
use crate::daemon::shared::lane::Lane;
use crate::daemon::shared::{Daemon, log_failure};
use crate::error::Result;
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::plugin::Event;
use crate::presence::{self, Backoff, IfThere};
use crate::state::{Container, Lifecycle, Skipped};

/// The note in the records of containers that are found, unless the file has another reason.
const WHY: &str = "created while plugins were disabled";
/// The reason that the log names, unless the file has another.
const ENABLED: &str = "plugins are enabled again";

/// While plugins are disabled, writes the file that requests catching up. Else catches up if the file exists, and
/// removes it.
pub(crate) fn catch_up(daemon: &Rc<Daemon>) {
    let (config, file) = (daemon.config(), daemon.config().was_disabled_file());
    if config.is_disabled() {
        return log_failure("noting that plugins are disabled", files::replace(&file, b""));
    }
    if presence::is_absent(&file) {
        return;
    }
    let reason = files::read_own_text(&file, limits::SETTINGS_FILE).or_absent().unwrap_or_default();
    let why = match reason.as_str() {
        "" => WHY.to_owned(),
        reason => Skipped::bypassed(Verb::Create.name(), reason).reason,
    };
    let (daemon, active) = (Rc::clone(daemon), daemon.process.activity.begin());
    tokio::task::spawn_local(async move {
        daemon.registry.wait_for_returning().await;
        let mut is_all = look_at_all(&daemon, &why, true).await;
        // A re-execution does not wait for states that are still unreadable.
        drop(active);
        let mut backoff = Backoff::default();
        while !is_all && !daemon.config().is_disabled() && !daemon.process.is_ending.get() {
            tokio::time::sleep(backoff.next()).await;
            is_all = look_at_all(&daemon, &why, false).await;
        }
        if is_all {
            info!(
                "all containers were checked: {}",
                if reason.is_empty() { ENABLED } else { &reason }
            );
        }
        if is_all && !daemon.config().is_disabled() {
            let _is_done = std::fs::remove_file(file);
        }
    });
}

/// Checks all containers; returns false if another check may find more. `is_first`: warns of failures.
async fn look_at_all(daemon: &Rc<Daemon>, why: &str, is_first: bool) -> bool {
    let mut is_all = true;
    for record in catch_up::in_order(&daemon.records) {
        if let Err(error) = compare(daemon, &record).await {
            is_all = false;
            if is_first {
                warn!("{} cannot be checked now: {error}", record.key.id);
            }
        }
    }
    let (found, are_all) = rediscover::find(daemon, why, is_first).await;
    is_all &= are_all;
    for found in found {
        let key = found.key().clone();
        let lane = daemon.lane(&key);
        let turn = lane.turn.lock().await;
        // No plugin needs to receive a container that has exited.
        if !found.has_exited() && daemon.container(&key).is_none() {
            if found.record(daemon) {
                bypassed::announce_or_repeat(daemon, &key).await;
            } else {
                is_all = false;
            }
        }
        drop(turn);
        daemon.lanes.release(&key, lane);
    }
    is_all
}

/// Corrects a record from the runtime's state, in the container's turn.
async fn compare(daemon: &Rc<Daemon>, record: &Container) -> Result<()> {
    let lane = daemon.lane(&record.key);
    let turn = lane.turn.lock().await;
    let compared = compare_in_turn(daemon, record, &lane).await;
    drop(turn);
    daemon.lanes.release(&record.key, lane);
    compared
}

async fn compare_in_turn(daemon: &Rc<Daemon>, record: &Container, lane: &Lane) -> Result<()> {
    let key = &record.key;
    settle::settle_exited(daemon, key, lane).await;
    let now = daemon.container(key).filter(|now| now.incarnation == record.incarnation);
    // While a verb is pending, its watch handles the outcome.
    if let Some(now) = now.filter(|now| !now.is_deleted && lane.pending.borrow().is_empty()) {
        if is_another(&daemon.host, &now)? {
            removal::remove(daemon, key).await;
        } else {
            let was_ready = life::is_ready(&daemon.records, &now.pod);
            if is_started(&daemon.host, &now)? {
                // Plugins have received only the container's creation.
                daemon.records.change_in_memory(key, |record| record.pending.in_flight = None);
                late_start::notify_plugins(daemon, key).await;
            }
            catch_up::catch_up(daemon, key).await?;
            if presence::is_absent(&state_dir::folder(&daemon.host, key)) {
                removal::handle_delete(daemon, key).await;
            } else if !was_ready && life::is_ready(&daemon.records, &now.pod) {
                announce_pod(daemon, &now.pod).await;
            }
        }
    }
    Ok(())
}

/// Whether a container that is on record as created was started; false for a sandbox, whose start
/// [`catch_up::catch_up`] records with the pod's.
fn is_started(host: &Host, record: &Container) -> Result<bool> {
    let is_created = !record.is_sandbox && record.state == Lifecycle::Created;
    Ok(is_created
        && state_dir::exists(host, &record.key)?
        && !state_dir::waits_for_start(host, &record.key)?)
}

/// Whether the runtime's state belongs to a later container of this ID.
fn is_another(host: &Host, record: &Container) -> Result<bool> {
    let there = state_dir::init(host, &record.key)?.map(|init| init.pid);
    Ok(there.is_some() && record.process.init_pid.is_some() && there != record.process.init_pid)
}

/// Notifies plugins of a pod that was started meanwhile.
async fn announce_pod(daemon: &Rc<Daemon>, pod: &str) {
    if let Some(notification) = daemon.pod_notification(Event::RunPodSandbox, pod) {
        daemon.registry.notify_late(&notification).await;
    }
}
