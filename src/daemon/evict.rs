// SPDX-License-Identifier: Apache-2.0
//! Evictions: a plugin wants a container gone, and the operator lets it.
//!
//! The real runtime kills it, gently first; the engine sees a container that ended and does what
//! it always does then. Each container is evicted once, not more of them in a minute than the
//! operator allows, and never a pod's infrastructure unless that is allowed too. Nothing is
//! deleted here, and no event fails because of it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracing::{info, warn};

use crate::config::Evict;
use crate::error::quoted;
use crate::host::Point;
use crate::plugin::api;
use crate::state::{Change, Container, Key, Lifecycle, Skipped};

use super::node::{Node, now};
use super::{exit, spawn, updates};

/// In `explain`, event and field of an eviction.
pub(super) const EVICTION: &str = "eviction";

/// Over how long evictions are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// Carries out what may be; the rest is logged, and `explain` tells it.
pub(super) async fn carry_out(
    node: &Rc<Node>,
    evictions: Vec<api::ContainerEviction>,
    by: &BTreeMap<String, Vec<String>>,
) {
    for api::ContainerEviction { container_id, reason, special_fields: _ } in evictions {
        let askers = by.get(&container_id).map(Vec::as_slice).unwrap_or_default();
        let Some(key) = updates::find(node, &container_id) else {
            warn!("{}: eviction: no such container is known", quoted(&container_id));
            continue;
        };
        if let Err(why) = one(node, &key, askers, &quoted(&reason)).await {
            let (plugin, reason) = (askers.join(","), format!("its eviction failed: {why}"));
            warn!("{}: {plugin}: {reason}", key.id);
            let skipped = Skipped { plugin, reason };
            node.change(&key, |record| {
                if !record.skipped.contains(&skipped) {
                    record.skipped.push(skipped);
                }
            });
        }
    }
}

async fn one(node: &Rc<Node>, key: &Key, askers: &[String], reason: &str) -> Result<(), String> {
    let Some(record) = node.container(key) else { return Ok(()) };
    let plugin = allowed(node, &record, askers)?;
    if record.is_sandbox && !node.config.eviction_sandboxes {
        return Err("it is the infrastructure of its pod (eviction.sandboxes)".to_owned());
    }
    match record.state {
        Lifecycle::Creating => return Err("it is still being created".to_owned()),
        Lifecycle::Stopped | Lifecycle::Removed => return Err("it has ended".to_owned()),
        Lifecycle::Created | Lifecycle::Running => {}
    }
    if record.changes.iter().any(|change| change.event == EVICTION) {
        return Ok(()); // Once: it has its signal, and its grace.
    }
    within_limits(node)?;
    info!("{} is evicted by {plugin}: {reason}", key.id);
    let change = Change {
        at: now(),
        event: EVICTION.to_owned(),
        plugin,
        field: EVICTION.to_owned(),
        before: Value::Null,
        after: Value::from(reason),
    };
    node.change(key, |record| record.changes.push(change));
    if let Err(error) = node.host.point(Point::DaemonEvict) {
        // It is as if nobody had asked: who asks again is heard.
        node.change(key, |record| record.changes.retain(|change| change.event != EVICTION));
        return Err(error.to_string());
    }
    end(node, record).await
}

/// The first signal, and the last.
async fn end(node: &Rc<Node>, record: Rc<Container>) -> Result<(), String> {
    let signal = node.config.eviction_signal.clone();
    let sent = spawn::run(&record, &["kill", &record.key.id, &signal], b"").await;
    insist(node, record);
    sent.map_err(|error| format!("the runtime could not send {signal}: {error}"))
}

/// After a restart: an eviction that an earlier daemon had begun goes on.
pub(super) fn resume(node: &Rc<Node>, record: &Container) {
    if record.changes.iter().any(|change| change.event == EVICTION) {
        let (node, record) = (Rc::clone(node), record.clone());
        tokio::task::spawn_local(async move {
            let id = record.key.id.clone();
            let ended = end(&node, Rc::new(record)).await.map_err(crate::error::Error::new);
            super::node::log_failure(&format!("evicting {id}"), ended);
        });
    }
}

/// Ends what does not end by itself.
fn insist(node: &Rc<Node>, record: Rc<Container>) {
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        tokio::time::sleep(node.config.eviction_grace).await;
        let now = node.container(&record.key);
        let is_same = now.is_some_and(|now| now.incarnation == record.incarnation);
        if !is_same || exit::has_ended(&node, &record) {
            return;
        }
        let killed = spawn::run(&record, &["kill", &record.key.id, "KILL"], b"").await;
        super::node::log_failure(&format!("evicting {}", record.key.id), killed);
    });
}

/// The first of the plugins that may have this container evicted.
fn allowed(node: &Node, record: &Container, askers: &[String]) -> Result<String, String> {
    let mut why = "no plugin asked for it".to_owned();
    for asker in askers {
        let (index, name) = asker.split_once('-').unwrap_or(("", asker));
        match node.config.plugin(index, name).evict {
            Evict::Allow => return Ok(asker.clone()),
            Evict::Deny => why = format!("{asker} may evict nobody (plugin.{name}.evict)"),
            Evict::OwnNamespace => {
                let own = own_namespace(node, asker);
                if own.is_some() && own == namespace(node, record) {
                    return Ok(asker.clone());
                }
                why = format!(
                    "{asker} may evict only in its own namespace, {} (plugin.{name}.evict)",
                    own.as_deref().unwrap_or("and it runs in no pod")
                );
            }
        }
    }
    Err(why)
}

/// The namespace of the pod in which the plugin's process runs.
fn own_namespace(node: &Node, plugin: &str) -> Option<String> {
    let pid = node.relay.find(plugin)?.seat.plugin.pid()?;
    let text = std::fs::read_to_string(node.host.path(format!("/proc/{pid}/cgroup"))).ok()?;
    let store = node.store.borrow();
    // Ids stand in the path as a part, or within one: `cri-containerd-ID.scope`.
    let has = |known: &&Container| {
        let parts = text.split(['/', '\n', ':']);
        let mut words = parts.flat_map(|part| part.trim_end_matches(".scope").rsplit('-').take(1));
        words.any(|word| word == known.key.id)
    };
    let record = store.containers().find(has).cloned();
    drop(store);
    namespace(node, &record?)
}

fn namespace(node: &Node, record: &Container) -> Option<String> {
    let store = node.store.borrow();
    let namespace = store.pod(&record.pod)?.namespace.clone();
    (!namespace.is_empty()).then_some(namespace)
}

fn within_limits(node: &Node) -> Result<(), String> {
    let limit = node.config.eviction_per_minute;
    let mut evicted = node.evicted.borrow_mut();
    evicted.retain(|at| at.elapsed() < WINDOW);
    if evicted.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
        return Err(format!("{limit} evictions in a minute are the most (eviction.per_minute)"));
    }
    evicted.push_back(Instant::now());
    Ok(())
}
