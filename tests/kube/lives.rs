// SPDX-License-Identifier: Apache-2.0
//! Containers that end: repeatedly, one after the other, and by a plugin's request.

use std::sync::Arc;

use serde_json::{Value, json};
use test_support::responding_plugin::{RespondingPlugin, Response};

use super::Cluster;
use super::inside::{admin, known_pods, running, wait_until_forgotten};
use super::kubectl::Namespace;
use super::logged_events::{LoggedEvents, whole_lives};
use super::machine::wait_for;
use super::manifests::{SHOWS_CARD, card, container, pod, spec};
use super::plugins::Plugin;

/// Number of turns of the crash loop.
const TURNS: u64 = 3;

fn status(space: &Namespace, pod: &str) -> Value {
    space.pod(pod)["status"]["containerStatuses"][0].clone()
}

pub(super) fn a_crash_loop_is_adjusted_at_each_turn(_: &Cluster) -> String {
    let space = Namespace::new("crashes");
    let crashes = container("app", "echo card=$CARD; exit 3");
    space.apply(pod("crashing", &card(), &spec(&[crashes])));
    wait_for("it has crashed some times", || {
        let now = status(&space, "crashing");
        let is_enough = now["restartCount"].as_u64().is_some_and(|count| count >= TURNS);
        (is_enough && now["state"]["waiting"]["reason"] == "CrashLoopBackOff").then_some(())
    });
    let last = status(&space, "crashing")["lastState"]["terminated"].clone();
    assert_eq!(last["exitCode"], 3, "{last}");
    assert_eq!(space.logs("crashing", "app"), "card=one\n");
    let known = known_pods("crashes");
    let kept = known[0]["containers"].as_array().unwrap().len();
    assert!(kept <= 2, "dead containers pile up: {known:?}");
    space.empties();
    let (pods, containers) = whole_lives("crashes");
    wait_until_forgotten("crashes");
    assert!(pods == 1 && containers > usize::try_from(TURNS).unwrap());
    format!(
        "{containers} containers of one pod, each adjusted and received once, code 3 in the status"
    )
}

pub(super) fn init_and_sidecar_containers_come_in_order(_: &Cluster) -> String {
    let space = Namespace::new("order");
    let mut both = spec(&[container("app", "echo card=$CARD")]);
    let mut sidecar = container("sidecar", SHOWS_CARD);
    sidecar["restartPolicy"] = json!("Always");
    both["initContainers"] = json!([container("init", "echo card=$CARD"), sidecar]);
    both["restartPolicy"] = json!("Never");
    space.apply(pod("job", &card(), &both));
    space.waits("job", "jsonpath={.status.phase}=Succeeded", 60);
    for one in ["init", "sidecar", "app"] {
        assert_eq!(space.logs("job", one), "card=one\n", "{one}");
    }
    space.empties();
    whole_lives("order");
    let order = LoggedEvents::of("order").order();
    let place = |event: &str| order.iter().position(|received| received == event).unwrap();
    for (first, then) in [
        ("StopContainer init", "CreateContainer sidecar"),
        ("PostStartContainer sidecar", "CreateContainer app"),
        ("StopContainer app", "StopContainer sidecar"),
    ] {
        assert!(place(first) < place(then), "{then} before {first}: {order:?}");
    }
    "init ends before the sidecar, the sidecar runs before the app and ends after it; each has the \
     card; the pod has succeeded"
        .to_owned()
}

pub(super) fn a_plugin_evicts_and_kubelet_starts_anew(_: &Cluster) -> String {
    let space = Namespace::new("evictions");
    space.apply(pod("victim", &card(), &spec(&[container("app", SHOWS_CARD)])));
    space.waits("victim", "condition=Ready", 60);
    let first = running("evictions", "victim", "app").id;

    // A plugin without permission changes nothing, and the operator sees the reason.
    let silent = || Arc::new(RespondingPlugin::always(Response::Answer));
    let powerless = Plugin::connect("40-powerless", silent());
    powerless.evict(&first, "I want it").unwrap();
    let skipped = admin(&["explain", &first])["skipped"].to_string();
    assert!(skipped.contains("may not evict"), "{skipped}");
    assert_eq!(status(&space, "victim")["restartCount"], 0);

    let evictor = Plugin::connect("50-evictor", silent());
    evictor.evict(&first, "makes room").unwrap();
    wait_for("kubelet has started another one", || {
        let now = status(&space, "victim");
        (now["restartCount"] == 1 && now["state"]["running"].is_object()).then_some(())
    });
    let code = status(&space, "victim")["lastState"]["terminated"]["exitCode"].clone();
    assert_eq!(code, 137);
    let explained = admin(&["explain", &first])["changes"].to_string();
    assert!(explained.contains("50-evictor") && explained.contains("makes room"), "{explained}");
    let next = running("evictions", "victim", "app").id;
    assert_ne!(first, next);
    assert_eq!(space.logs("victim", "app"), "card=one\n");
    space.empties();
    let (_, containers) = whole_lives("evictions");
    assert_eq!(containers, 2);
    "a plugin that may not is refused; one that may ends it (137), explain has the reason, the next \
     container is adjusted"
        .to_owned()
}
