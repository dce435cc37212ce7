// SPDX-License-Identifier: Apache-2.0
//! The handler of `install` becomes one of the node, and a Deployment uses it.

use super::Cluster;
use super::inside::{daemon, known_pods, wait_until_forgotten};
use super::kubectl::Namespace;
use super::logged_events::{LoggedEvents, lives_in_order};
use super::manifests::{SHOWS_CARD, card, container, deployment, pod, spec};
use super::node::Node;

pub(super) fn the_node_has_our_handler(cluster: &Cluster) -> String {
    let installed = cluster.node.registered(&cluster.machine);
    let names = Node::handlers();
    assert!(names.iter().any(|name| name == "nri-runc"), "the node's handlers are {names:?}");
    let node = Node::state();
    let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default();
    let first = installed.lines().next().unwrap_or_default();
    format!("kubelet {version} is ready, its handlers are {}; install: {first}", names.join(", "))
}

pub(super) fn three_replicas_have_what_plugins_give(_: &Cluster) -> String {
    let space = Namespace::new("deployment");
    let wants = spec(&[container("app", SHOWS_CARD)]);
    space.apply(deployment("web", 3, &card(), &wants));
    // The same pod through containerd's own handler does not use nri-runc.
    let mut plain = wants;
    plain.as_object_mut().unwrap().remove("runtimeClassName");
    space.apply(pod("plain", &card(), &plain));
    space.waits("plain", "condition=Ready", 60);
    if let Err(error) = space.run(&["rollout", "status", "deployment/web", "--timeout=60s"]) {
        panic!("{error}: {}", space.warnings());
    }
    let mut shown = 0;
    for one in space.pods() {
        let name = one["metadata"]["name"].as_str().unwrap();
        let wanted = if name == "plain" { "card=\n" } else { "card=one\n" };
        assert_eq!(space.logs(name, "app"), wanted, "{name}");
        shown += usize::from(name != "plain");
    }
    // `--take-over-nri` makes plugins see the whole node.
    assert_eq!((shown, known_pods("deployment").len()), (3, 4));
    assert!(daemon().is_some(), "the first container started no daemon");
    space.empties();
    wait_until_forgotten("deployment");
    assert_eq!(lives_in_order("deployment"), (4, 4));
    let containers = LoggedEvents::of("deployment").containers();
    let is_created = |events: &&Vec<String>| events.contains(&"CreateContainer".to_owned());
    assert_eq!(containers.values().filter(is_created).count(), 3, "{containers:?}");
    format!(
        "{shown} of 3 print what a CDI device gave, a pod on plain runc does not: plugins only see it"
    )
}
