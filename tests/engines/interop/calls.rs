// SPDX-License-Identifier: Apache-2.0
//! One connection without a daemon: requests that the lifecycle of one small container does not
//! cause, and snapshots too large for one message.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nri_plugin::Resources;
use nri_runc::plugin::{ALL_EVENTS, Event, api};
use nri_runc::testing::plugin::{Outcome, Plugin, Settings, handshake};
use protobuf::MessageDyn;
use protobuf::reflect::{ReflectFieldRef, ReflectValueRef};
use serde_json::{Value, json};
use test_support::adjustments::message;
use test_support::{NoUpdates, golang};
use tokio::net::UnixListener;

use super::{Started, by_hand, lines, of_each_version, wait_for};

/// The plugin of a version, connected to this process.
async fn connected(program: &Path, dir: &Path) -> (Plugin, Started, PathBuf) {
    let (socket, received) = (dir.join("nri.sock"), dir.join("told"));
    let listener = UnixListener::bind(&socket).unwrap();
    let process = by_hand(program, &socket, &received, "all");
    let (stream, _) = listener.accept().await.unwrap();
    let settings = Settings {
        registration_timeout: Duration::from_secs(20),
        request_timeout: Duration::from_secs(20),
        runtime_name: "a runtime".to_owned(),
        runtime_version: "v1".to_owned(),
        nri_version: "v0.12.5".to_owned(),
    };
    let plugin = handshake(stream, None, &settings, Arc::new(NoUpdates)).await.unwrap();
    (plugin, process, received)
}

fn block_on(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future);
}

#[track_caller]
fn answered<T: std::fmt::Debug>(outcome: Outcome<T>) -> T {
    let printed = format!("{outcome:?}");
    let Outcome::Answered(answer) = outcome else {
        assert_eq!(printed, "an answer");
        unreachable!()
    };
    answer
}

fn pod() -> api::PodSandbox {
    api::PodSandbox { id: "p".to_owned(), name: "p".to_owned(), ..Default::default() }
}

fn container(id: &str) -> api::Container {
    let state = api::ContainerState::CONTAINER_RUNNING.into();
    api::Container { id: id.to_owned(), name: id.to_owned(), state, ..Default::default() }
}

fn shares(value: u64) -> api::LinuxResources {
    Resources::new().cpu_shares(value).into()
}

fn validation() -> api::ValidateContainerAdjustmentRequest {
    let env = (api::Field::Env as i32).to_string();
    let owners = json!({"compound": {env: {"owners": {"NEW": "77-other"}}}});
    api::ValidateContainerAdjustmentRequest {
        pod: Some(pod()).into(),
        container: Some(container("c")).into(),
        plugins: vec![api::PluginInstance::default(); 3],
        ..message(&json!({"owners": {"owners": {"c": owners}}}))
    }
}

async fn ask_everything(plugin: &Plugin, minor: u32) {
    answered(plugin.synchronize(&[pod()], &[container("c")]).await);
    let request = api::UpdateContainerRequest {
        pod: Some(pod()).into(),
        container: Some(container("c")).into(),
        linux_resources: Some(shares(900)).into(),
        ..Default::default()
    };
    let update = answered(plugin.update_container(&request).await).update;
    assert_eq!((update.len(), update[0].container_id.as_str()), (1, "c"));
    assert_eq!(*update[0].linux.resources, shares(512));
    answered(plugin.notify(Event::PostUpdateContainer, &pod(), Some(&container("c"))).await);
    if minor >= 10 {
        let request = api::UpdatePodSandboxRequest {
            pod: Some(pod()).into(),
            overhead_linux_resources: Some(shares(11)).into(),
            linux_resources: Some(shares(22)).into(),
            ..Default::default()
        };
        answered(plugin.update_pod_sandbox(&request).await);
        answered(plugin.notify(Event::PostUpdatePodSandbox, &pod(), None).await);
        assert!(!answered(plugin.validate(&validation()).await).reject);
    }
    plugin.shutdown("it was shut down").await;
}

/// The stub of v0.2.0 does not pass on the engine's values of an update.
fn everything(minor: u32) -> Vec<Value> {
    let asked = if minor >= 4 { 900 } else { 0 };
    let running = "CONTAINER_RUNNING";
    let mut received = vec![
        json!({"event": "Synchronize", "pods": ["p"], "containers": ["c"]}),
        json!({"event": "UpdateContainer", "pod": "p", "container": "c", "state": running, "shares": asked}),
        json!({"event": "PostUpdateContainer", "pod": "p", "container": "c", "state": running}),
    ];
    if minor >= 10 {
        received.extend([
            json!({"event": "UpdatePodSandbox", "pod": "p", "overhead": 11, "resources": 22}),
            json!({"event": "PostUpdatePodSandbox", "pod": "p"}),
            json!({
                "event": "ValidateContainerAdjustment", "pod": "p", "container": "c",
                "owner": "77-other", "plugins": 3,
            }),
        ]);
    }
    received.extend([json!({"event": "Shutdown"}), json!({"event": "Closed"})]);
    received
}

fn takes_every_request_that_its_version_has(version: &str, minor: u32) {
    let Some(program) = golang::program(&format!("stub-{version}")) else { return };
    block_on(async {
        let temp = tempfile::tempdir().unwrap();
        let (plugin, _process, received) = connected(&program, temp.path()).await;
        let says_version = if minor >= 12 { version } else { "" };
        assert_eq!((plugin.id(), plugin.nri_version()), ("10-stub", says_version));
        let subscribed = ALL_EVENTS.into_iter().filter(|event| plugin.is_subscribed(*event));
        assert_eq!(subscribed.count(), if minor >= 10 { 14 } else { 11 });
        ask_everything(&plugin, minor).await;
        // In a separate thread, because this one must disconnect meanwhile.
        let at = received.clone();
        tokio::task::spawn_blocking(move || wait_for(&at, &["Closed"])).await.unwrap();
        assert_eq!(lines(&received)[1..], everything(minor));
    });
}
of_each_version!(takes_every_request_that_its_version_has);

/// Returns enough containers to fill four messages of Synchronize.
fn many() -> Vec<api::Container> {
    let large = |number: u32| {
        let args = vec!["x".repeat(1_500_000)];
        api::Container { args, ..container(&format!("c{number}")) }
    };
    (0..7).map(large).collect()
}

fn takes_a_large_snapshot_whole_or_is_refused(version: &str, minor: u32) {
    let Some(program) = golang::program(&format!("stub-{version}")) else { return };
    block_on(async {
        let temp = tempfile::tempdir().unwrap();
        let (plugin, _process, received) = connected(&program, temp.path()).await;
        let outcome = plugin.synchronize(&[pod()], &many()).await;
        if minor < 7 {
            let printed = "Refused(\"it does not take a snapshot in parts\")";
            assert_eq!(format!("{outcome:?}"), printed);
            return;
        }
        answered(outcome);
        let all = ["c0", "c1", "c2", "c3", "c4", "c5", "c6"];
        let whole = json!({"event": "Synchronize", "pods": ["p"], "containers": all});
        assert_eq!(lines(&received)[1..], [whole]);
    });
}
of_each_version!(takes_a_large_snapshot_whole_or_is_refused);

/// The fields that are not set in `message` and below it, as far as there is one of each.
fn unset(place: &str, message: &dyn MessageDyn) -> Vec<String> {
    let mut found = Vec::new();
    for field in message.descriptor_dyn().fields() {
        let place = format!("{place}.{}", field.name());
        if !field.has_field(message) {
            found.push(place);
        } else if let ReflectFieldRef::Optional(value) = field.get_reflect(message)
            && let Some(ReflectValueRef::Message(inner)) = value.value()
            && !inner.descriptor_dyn().name().starts_with("Optional")
        {
            found.extend(unset(&place, &*inner));
        }
    }
    found
}

/// Ensures that `life` and `document` cover everything: a field of a newer protocol is listed here.
#[test]
fn the_newest_stub_sets_every_field_of_an_adjustment() {
    let Some(program) = golang::program("stub-v0.12.5") else { return };
    block_on(async {
        let temp = tempfile::tempdir().unwrap();
        let (plugin, _process, _) = connected(&program, temp.path()).await;
        let request = api::CreateContainerRequest {
            pod: Some(pod()).into(),
            container: Some(container("c")).into(),
            ..Default::default()
        };
        let adjust = answered(plugin.create_container(&request).await).adjust;
        // The scheduler's fields belong to other policies than the one that is set; a listener
        // needs a listening process; and removing RDT settings is the opposite of setting them.
        let left_out = [
            ".linux.seccomp_policy.listener_path",
            ".linux.seccomp_policy.listener_metadata",
            ".linux.scheduler.priority",
            ".linux.scheduler.runtime",
            ".linux.scheduler.deadline",
            ".linux.scheduler.period",
            ".linux.rdt.remove",
        ];
        assert_eq!(unset("", &*adjust), left_out);
    });
}
