// SPDX-License-Identifier: Apache-2.0
//! Disruptions of nodes: the daemon is killed or restarted in the middle of a rollout; the node is
//! drained.

use std::collections::BTreeSet;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::Cluster;
use super::inside::{admin, daemon, wait_until_forgotten};
use super::kubectl::{Namespace, does};
use super::logged_events::{lives_in_order, whole_lives};
use super::machine::wait_for;
use super::manifests::{SHOWS_CARD, card, container, deployment, spec};
use super::node::NAME;

/// A Deployment of three that is about to be replaced, pod by pod.
fn rolled_out(name: &'static str) -> Namespace {
    let space = Namespace::new(name);
    space.apply(deployment("web", 3, &card(), &spec(&[container("app", SHOWS_CARD)])));
    finishes(&space);
    space
}

#[track_caller]
fn finishes(space: &Namespace) {
    if let Err(error) = space.run(&["rollout", "status", "deployment/web", "--timeout=90s"]) {
        panic!("{error}: {}", space.warnings());
    }
}

fn names(pods: &[Value]) -> BTreeSet<String> {
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Begins another rollout; returns when the first new pod exists, and old ones still do.
fn half_replaced(space: &Namespace) {
    let before = names(&space.pods());
    space.does(&["rollout", "restart", "deployment/web"]);
    wait_for("a new pod is there", || {
        names(&space.pods()).difference(&before).next().is_some().then_some(())
    });
}

/// Checks that every pod of the rollout has the required plugin's values; then they are deleted,
/// and no record stays.
#[track_caller]
fn every_pod_was_adjusted(space: &Namespace) {
    let replicas = space.pods();
    assert_eq!(replicas.len(), 3);
    for name in names(&replicas) {
        assert_eq!(space.logs(&name, "app"), "card=one\n", "{name} was created without the plugin");
    }
    space.empties();
    wait_until_forgotten(space.name());
}

pub(super) fn a_daemon_that_is_killed_is_replaced_by_the_next_container(_: &Cluster) -> String {
    let space = rolled_out("killed");
    let first = daemon().unwrap();
    half_replaced(&space);
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    finishes(&space);
    let next = daemon().expect("no container has started another daemon");
    assert_ne!(first, next);
    every_pod_was_adjusted(&space);
    let (pods, _) = lives_in_order(space.name());
    format!(
        "daemon {first} was killed in a rollout, {next} took over; {pods} pods, all adjusted, no event twice"
    )
}

pub(super) fn a_daemon_is_restarted_in_the_middle_of_a_rollout(cluster: &Cluster) -> String {
    let space = rolled_out("restarted");
    let first = daemon().unwrap();
    half_replaced(&space);
    let printed = cluster.machine.run("nri-runc", &["nri", "restart"]);
    finishes(&space);
    let next = daemon().expect("no daemon is there");
    assert_ne!(first, next, "{printed}");
    every_pod_was_adjusted(&space);
    let (pods, _) = lives_in_order(space.name());
    format!(
        "`nri-runc nri restart` in a rollout: {first}, then {next}; {pods} pods, all adjusted, no event twice"
    )
}

pub(super) fn a_node_is_drained_and_used_again(_: &Cluster) -> String {
    let space = rolled_out("drained");
    does(&[
        "drain",
        NAME,
        "--force",
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=60s",
    ]);
    wait_for("no pod is on record", || {
        admin(&["pods"]).as_array().is_some_and(Vec::is_empty).then_some(())
    });
    let (pods, _) = whole_lives("drained");
    assert_eq!(pods, 3);
    let waiting = space.pods();
    let phases: BTreeSet<_> =
        waiting.iter().filter_map(|pod| pod["status"]["phase"].as_str()).collect();
    assert_eq!((waiting.len(), phases), (3, BTreeSet::from(["Pending"])));
    does(&["uncordon", NAME]);
    finishes(&space);
    every_pod_was_adjusted(&space);
    let (pods, _) = whole_lives("drained");
    assert_eq!(pods, 6);
    "all pods gone, no record left, three wait; after uncordon they run, adjusted".to_owned()
}
