// SPDX-License-Identifier: Apache-2.0
//! After `nri-runc nri enable`, or a reload that ends `nri.disable`: finds out what wrappers, which wrote
//! nothing meanwhile (decision D7), have done to containers. Containers that were deleted are removed,
//! those that were started are running, and those that were created are recorded as far as the
//! runtimes' state shows them (`rediscover.rs`).
//!
//! A file in the run directory says that this is due, so that it is not forgotten when no daemon runs
//! at that moment. The same is due where wrappers left more notes than are kept (`bypassed.rs`): the
//! file has the reason then. No plugin is asked and no container changed.

use std::rc::Rc;

use tracing::{info, warn};

use crate::argv::Verb;
use crate::daemon::lifecycle::{late_start, removal, settle};
use crate::daemon::node::lane::Lane;
use crate::daemon::node::{Node, log_failure};
use crate::daemon::recovery::{bypassed, catch_up, rediscover};
use crate::daemon::runtime::state_dir;
use crate::error::Result;
use crate::files;
use crate::limits;
use crate::plugin::Event;
use crate::presence::{self, Backoff, IfThere};
use crate::state::{Container, Lifecycle, PodState, Skipped};

const WHY: &str = "created while plugins were disabled";
const ENABLED: &str = "plugins are enabled again";

/// Notes that plugins are disabled, or catches up if they are no longer.
pub(crate) fn catch_up(node: &Rc<Node>) {
    let (config, file) = (node.config(), node.config().was_disabled_file());
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
    let (node, active) = (Rc::clone(node), node.process.activity.begin());
    tokio::task::spawn_local(async move {
        node.registry.wait_for_returning().await;
        let mut is_all = look_at_all(&node, &why, true).await;
        // The daemon's end does not wait for what cannot be known.
        drop(active);
        let mut backoff = Backoff::default();
        while !is_all && !node.config().is_disabled() && !node.process.is_ending.get() {
            tokio::time::sleep(backoff.next()).await;
            is_all = look_at_all(&node, &why, false).await;
        }
        if is_all {
            info!(
                "all containers were looked at: {}",
                if reason.is_empty() { ENABLED } else { &reason }
            );
        }
        if is_all && !node.config().is_disabled() {
            let _is_done = std::fs::remove_file(file);
        }
    });
}

/// Looks at all containers; returns whether all of them could be known. Only the first time it logs
/// which could not.
async fn look_at_all(node: &Rc<Node>, why: &str, is_first: bool) -> bool {
    let mut is_all = true;
    for record in catch_up::in_order(node) {
        if let Err(error) = compare(node, &record).await {
            is_all = false;
            if is_first {
                warn!("{} cannot be looked at now: {error}", record.key.id);
            }
        }
    }
    let (found, are_all) = rediscover::find(node, why, is_first).await;
    is_all &= are_all;
    for found in found {
        let key = found.key().clone();
        let lane = node.lane(&key);
        let turn = lane.turn.lock().await;
        // One that has exited needs no plugin any more.
        if !found.has_exited() && node.container(&key).is_none() {
            if found.record(node) {
                bypassed::announce_or_repeat(node, &key).await;
            } else {
                is_all = false;
            }
        }
        drop(turn);
        node.lanes.release(&key, lane);
    }
    is_all
}

/// Compares a record with the runtime's state.
async fn compare(node: &Rc<Node>, record: &Container) -> Result<()> {
    let lane = node.lane(&record.key);
    let turn = lane.turn.lock().await;
    let compared = compare_in_turn(node, record, &lane).await;
    drop(turn);
    node.lanes.release(&record.key, lane);
    compared
}

async fn compare_in_turn(node: &Rc<Node>, record: &Container, lane: &Lane) -> Result<()> {
    let key = &record.key;
    settle::settle_exited(node, key, lane).await;
    let now = node.container(key).filter(|now| now.incarnation == record.incarnation);
    // A runtime that still works is watched, and what comes of it is known then.
    if let Some(now) = now.filter(|now| !now.is_deleted && lane.pending.borrow().is_empty()) {
        if is_another(node, &now)? {
            removal::removed(node, key).await;
        } else {
            let was_ready = is_ready(node, &now.pod);
            if is_started(node, &now)? {
                // Plugins know it as created.
                node.records.change_in_memory(key, |record| record.in_flight = None);
                late_start::started(node, key).await;
            }
            catch_up::catch_up(node, key).await?;
            if presence::is_absent(&state_dir::folder(&node.host, key)) {
                removal::deleted(node, key).await;
            } else if !was_ready && is_ready(node, &now.pod) {
                announce_pod(node, &now.pod).await;
            }
        }
    }
    Ok(())
}

/// Whether a container that is on record as created was started. A sandbox starts its pod.
fn is_started(node: &Node, record: &Container) -> Result<bool> {
    let is_created = !record.is_sandbox && record.state == Lifecycle::Created;
    Ok(is_created
        && state_dir::exists(&node.host, &record.key)?
        && !state_dir::waits_for_start(&node.host, &record.key)?)
}

/// Whether the runtime's state is of a later container of this ID.
fn is_another(node: &Node, record: &Container) -> Result<bool> {
    let there = state_dir::init_pid(&node.host, &record.key, None, None)?;
    Ok(there.is_some() && record.init_pid.is_some() && there != record.init_pid)
}

fn is_ready(node: &Node, pod: &str) -> bool {
    node.records.read().pod(pod).is_some_and(|pod| pod.state == PodState::Ready)
}

/// Notifies plugins of a pod that was started meanwhile.
async fn announce_pod(node: &Rc<Node>, pod: &str) {
    if let Some(notification) = node.pod_notification(Event::RunPodSandbox, pod) {
        node.registry.notify_late(&notification).await;
    }
}
