// SPDX-License-Identifier: Apache-2.0
//! Carries out evictions: ends a container at a plugin's request, if the operator permits that.
//!
//! The real runtime sends the configured signal, later SIGKILL; the engine reacts as to any exited
//! container. Each container is evicted once, within the operator's limit per minute. A pod's
//! infrastructure container is evicted only if the operator permits that too. Nothing is deleted
//! here, and no event fails because of an eviction.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;
use tracing::{info, warn};

use crate::audit::{AuditAction, AuditEntry};
use crate::config::Evict;
use crate::error::in_our_words;
use crate::error::quoted;
use crate::host::Point;
use crate::limits;
use crate::plugin::api;
use crate::state::{Change, Container, ContainerKey, EVICTION, Lifecycle, Pod, Skipped};

use crate::clock::now;
use crate::daemon::resources::{own_pod, target};
use crate::daemon::runtime::{command, exit_status};
use crate::daemon::shared::few_lines::FewOf;
use crate::daemon::shared::{Daemon, log_failure};

/// Carries out the permitted evictions; the others are logged and shown by `explain`.
pub(crate) async fn carry_out(
    daemon: &Rc<Daemon>,
    evictions: Vec<api::ContainerEviction>,
    by: &BTreeMap<String, Vec<String>>,
    subject: Option<&ContainerKey>,
) {
    for api::ContainerEviction { container_id, reason, special_fields: _ } in evictions {
        tokio::task::yield_now().await;
        let askers = by.get(&container_id).map(Vec::as_slice).unwrap_or_default();
        let key = match target::find(&daemon.records, &container_id, subject) {
            Ok(key) => key,
            Err(update_error) => {
                let plugin = askers.join(",");
                if daemon.report.few_lines.admit(FewOf::Eviction, &plugin) {
                    warn!("{}: {plugin}: eviction: {update_error}", quoted(&container_id));
                }
                continue;
            }
        };
        let evicted = evict_one(daemon, &key, askers, &quoted(&reason)).await;
        let outcome = if evicted.is_ok() { "begun" } else { "failed" };
        for asker in askers {
            daemon.report.metrics.plugins().count_eviction(asker, outcome);
        }
        if let Err(why) = evicted {
            let (plugin, reason) = (askers.join(","), format!("its eviction failed: {why}"));
            if daemon.report.few_lines.admit(FewOf::Eviction, &plugin) {
                warn!(plugin, container_id = key.id, "{}: {plugin}: {reason}", key.id);
            }
            let refused = || AuditEntry::new(AuditAction::Refused).at_event(EVICTION);
            daemon.audit(&key, || refused().by(&plugin).because(&reason));
            let skipped = Skipped { plugin, reason };
            daemon.change(&key, |record| {
                if !record.outcome.skipped.contains(&skipped) {
                    limits::keep_ends(&mut record.outcome.skipped, skipped);
                }
            });
        }
    }
}

async fn evict_one(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    askers: &[String],
    reason: &str,
) -> Result<(), String> {
    let Some(record) = daemon.container(key) else { return Ok(()) };
    let plugin = allowed(daemon, &record, askers)?;
    if record.is_sandbox && !daemon.config().eviction_sandboxes {
        return Err("it is its pod's infrastructure container (eviction.sandboxes)".to_owned());
    }
    match record.state {
        Lifecycle::Creating => return Err("it is still being created".to_owned()),
        Lifecycle::Stopped | Lifecycle::Removed => return Err("it has ended".to_owned()),
        Lifecycle::Created | Lifecycle::Running => {}
    }
    if record.outcome.changes.iter().any(|change| change.event == EVICTION) {
        return Ok(()); // It was signalled before, and has its grace period.
    }
    within_limits(daemon)?;
    info!(plugin, container_id = key.id, "{} is evicted by {plugin}: {reason}", key.id);
    let change = Change {
        at: now(),
        event: EVICTION.to_owned(),
        plugin,
        field: EVICTION.to_owned(),
        before: Value::Null,
        after: Value::from(reason),
    };
    let by = change.plugin.clone();
    daemon.change(key, |record| record.outcome.changes.push(change));
    if let Err(error) = daemon.host.point(Point::DaemonEvict) {
        // No signal was sent, so a later request must not be ignored as a repetition.
        daemon
            .change(key, |record| record.outcome.changes.retain(|change| change.event != EVICTION));
        return Err(error.to_string());
    }
    daemon.audit(key, || AuditEntry::new(AuditAction::Evicted).by(&by).because(reason));
    end(daemon, record).await
}

/// Sends the configured signal, and SIGKILL after the grace period.
async fn end(daemon: &Rc<Daemon>, record: Rc<Container>) -> Result<(), String> {
    let signal = daemon.config().eviction_signal.clone();
    let sent = command::run(&record, &["kill", &record.key.id, &signal], b"").await;
    insist(daemon, record);
    sent.map_err(|error| format!("the runtime could not send {signal}: {error}"))
}

/// Resumes, after a restart, an eviction that an earlier daemon had begun.
pub(crate) fn resume(daemon: &Rc<Daemon>, record: &Container) {
    if record.outcome.changes.iter().any(|change| change.event == EVICTION) {
        let (daemon, record) = (Rc::clone(daemon), record.clone());
        tokio::task::spawn_local(async move {
            let id = record.key.id.clone();
            let ended = end(&daemon, Rc::new(record)).await.map_err(crate::error::Error::new);
            log_failure(&format!("evicting {id}"), ended);
        });
    }
}

/// Kills the container if it has not exited after the grace period.
fn insist(daemon: &Rc<Daemon>, record: Rc<Container>) {
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        tokio::time::sleep(daemon.config().eviction_grace).await;
        let now = daemon.container(&record.key);
        let is_same = now.is_some_and(|now| now.incarnation == record.incarnation);
        if !is_same || exit_status::has_exited(&daemon.host, &record) {
            return;
        }
        let killed = command::run(&record, &["kill", &record.key.id, "KILL"], b"").await;
        log_failure(&format!("evicting {}", record.key.id), killed);
    });
}

/// Returns the first of these plugins that may evict the container; fails with the reason if none may.
fn allowed(daemon: &Daemon, record: &Container, askers: &[String]) -> Result<String, String> {
    let mut why = "no plugin asked for it".to_owned();
    let config = daemon.config();
    for asker in askers {
        let (index, name) = asker.split_once('-').unwrap_or(("", asker));
        let section = config.section_of(asker, |section| section.evict.as_ref());
        match config.plugin(index, name).evict {
            Evict::Allow => return Ok(asker.clone()),
            Evict::Deny => {
                why = format!("{asker} may not evict containers (plugin.{section}.evict)");
            }
            Evict::OwnNamespace => {
                let own = match own_pod::of_plugin(daemon, asker) {
                    Ok(own) => own,
                    Err(unknown) => {
                        let unknown = in_our_words(&unknown);
                        why = format!("the pod of {asker} is not known: {unknown}");
                        continue;
                    }
                };
                let pod = daemon.records.read().pod(&record.pod).cloned();
                if let (Some(own), Some(pod)) = (&own, &pod)
                    && share_namespace(own, pod)
                {
                    return Ok(asker.clone());
                }
                let own = own.map(|pod| format!("{} of {}", pod.namespace, pod.engine));
                why = format!(
                    "{asker} may evict only in its own namespace, {} (plugin.{section}.evict)",
                    own.as_deref().unwrap_or("and it runs in no pod")
                );
            }
        }
    }
    Err(why)
}

/// Whether two pods share a namespace according to trusted sources, on one engine: namespaces of
/// different engines are unrelated.
fn share_namespace(one: &Pod, other: &Pod) -> bool {
    let is_known = |pod: &Pod| !pod.namespace.is_empty() && !pod.has_unproven_namespace;
    one.engine == other.engine
        && one.namespace == other.namespace
        && is_known(one)
        && is_known(other)
}

fn within_limits(daemon: &Daemon) -> Result<(), String> {
    let limit = daemon.config().eviction_per_minute;
    if daemon.evictions.admit(limit) {
        return Ok(());
    }
    Err(format!("the limit of {limit} evictions per minute is reached (eviction.per_minute)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::shared::messages;
    use crate::engine::EngineName;

    fn pod(engine: &str, namespace: &str, has_unproven_namespace: bool) -> Pod {
        Pod {
            id: "p".to_owned(),
            namespace: namespace.to_owned(),
            engine: EngineName::from(std::borrow::Cow::from(engine)),
            has_unproven_namespace,
            is_doubtful: has_unproven_namespace,
            state: crate::state::PodState::Ready,
            message: messages::pod_to_wire(&api::PodSandbox::new()),
            ..Pod::default()
        }
    }

    #[test]
    fn a_shared_namespace_needs_one_engine_and_proven_names() {
        let own = pod("cri-o", "shop", false);
        assert!(share_namespace(&own, &pod("cri-o", "shop", false)));
        assert!(!share_namespace(&own, &pod("cri-o", "shop", true)));
        assert!(!share_namespace(&pod("docker", "shop", false), &own));
        assert!(!share_namespace(&own, &pod("cri-o", "kube-system", false)));
        assert!(!share_namespace(&pod("docker", "", false), &pod("docker", "", false)));
    }
}
