// SPDX-License-Identifier: Apache-2.0
//! The effect of a plugin's failure on a container, on the engine's call and on the plugin, with
//! the built binary. `tests/pure/failures.rs` has the complete table of failures and policies.

use std::sync::Arc;
use std::time::Duration;

use nri_plugin::{Context, Handler, async_trait};
use nri_runc::plugin::{Event, api};
use serde_json::Value;
use test_support::play::play;
use test_support::responding_plugin::{RespondingPlugin, Response, SharedPlugin};
use test_support::{BUNDLE, SILENT, TestHost, wait_until};

use crate::{refused, started, succeeds};

/// Connects a handler as `id`, in a separate thread.
pub(crate) fn connect(host: &TestHost, id: &str, handler: Arc<dyn Handler>) {
    play(host.path("nri.sock"), id, handler);
}

pub(crate) fn row(host: &TestHost, id: &str) -> Option<Value> {
    let plugins = host.admin(&["plugins"]);
    let mut rows = plugins.as_array().into_iter().flatten();
    let is_it = |row: &&Value| {
        let word = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        format!("{}-{}", word("index"), word("name")) == id && word("state") == "synchronized"
    };
    rows.find(is_it).cloned()
}

/// Connects a plugin and waits until it is synchronized.
pub(crate) fn connected(host: &TestHost, id: &str, responder: RespondingPlugin) -> SharedPlugin {
    let responder = Arc::new(responder);
    connect(host, id, Arc::<RespondingPlugin>::clone(&responder));
    wait_until("the plugin is synchronized", || row(host, id).is_some());
    responder
}

fn wait_for_event(responder: &SharedPlugin, line: &str) {
    wait_until("it is reported", || responder.received().iter().any(|received| received == line));
}

#[test]
fn a_time_out_refuses_if_the_plugin_declared_fail_request() {
    let host = started(SILENT);
    let odd = connected(
        &host,
        "10-slow",
        RespondingPlugin::at(Event::CreateContainer, Response::Hang).declares(true, true),
    );
    refused(&host, &host.create("c1"), &["10-slow", "did not answer CreateContainer in time"]);
    let row = row(&host, "10-slow").unwrap();
    let policy = &row["failure_policy"];
    assert_eq!((&policy["on_failure"], &policy["strikes"]), (&"refuse".into(), &0.into()), "{row}");
    assert_eq!(policy["on_failure_from"], "plugin", "{row}");
    assert_eq!(policy["strikes_from"], "plugin", "{row}");
    assert_eq!(row["timeouts"], 1, "{row}");
    wait_for_event(&odd, "RemovePodSandbox c1");
}

#[test]
fn the_operator_overrides_the_plugins_declaration() {
    let host = started(&format!("{SILENT}[plugin.slow]\non_failure = \"skip\"\nstrikes = 1\n"));
    let hangs = RespondingPlugin::at(Event::CreateContainer, Response::Hang).declares(true, true);
    let _odd = connected(&host, "10-slow", hangs);
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
    assert_eq!(host.admin(&["status"])["plugins"], 0, "its one strike disconnected it");
}

#[test]
fn a_plugin_that_must_respond_and_dies_refuses_only_that_create() {
    let host = started("");
    let leaves =
        RespondingPlugin::at(Event::CreateContainer, Response::Leave).declares(true, false);
    let _odd = connected(&host, "10-odd", leaves);
    refused(&host, &host.create("c1"), &["10-odd disconnected during CreateContainer"]);
    succeeds(&host.create("c2"));
}

#[test]
fn a_required_plugin_without_a_response_refuses_despite_policy() {
    let settings = "on_failure = \"skip\"\nstrikes = 0\nrequired = true\n";
    for (act, why) in [
        (Response::Hang, "the required plugin 10-odd did not answer CreateContainer in time"),
        (Response::Leave, "the required plugin 10-odd disconnected during CreateContainer"),
    ] {
        for name in ["odd", "10-odd"] {
            let host = started(&format!("{SILENT}[plugin.{name}]\n{settings}"));
            let next = connected(&host, "20-next", RespondingPlugin::always(Response::Answer));
            let _odd =
                connected(&host, "10-odd", RespondingPlugin::at(Event::CreateContainer, act));
            refused(&host, &host.create("c1"), &["cannot create c1", why]);
            // The other plugins had been asked, so they receive the end of the container.
            for event in ["StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"]
            {
                wait_for_event(&next, &format!("{event} c1"));
            }
        }
    }
}

#[test]
fn a_pod_that_tolerates_a_missing_plugin_tolerates_time_outs() {
    let host = started(&format!(
        "{SILENT}[nri.default_validator]\n\
         tolerate_missing_plugins_annotation = \"tolerate.example\"\n\
         [plugin.odd]\nrequired = true\nstrikes = 0\n"
    ));
    let _odd =
        connected(&host, "10-odd", RespondingPlugin::at(Event::CreateContainer, Response::Hang));
    let bundle = BUNDLE.replacen('{', "{\"annotations\": {\"tolerate.example\": \"true\"}, ", 1);
    host.write("bundle/config.json", &bundle);
    succeeds(&host.create("c1"));
    host.write("bundle/config.json", BUNDLE);
    assert!(!host.create("c2").status.success());
}

#[test]
fn a_refused_start_starts_nothing_and_allows_the_delete() {
    let host = started("");
    let _odd = connected(
        &host,
        "10-odd",
        RespondingPlugin::at(Event::StartContainer, Response::Refuse("not now")),
    );
    succeeds(&host.create("c1"));
    let output = host.verb(&["start", "c1"]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
    assert!(line.contains("10-odd refused: not now"), "{line}");
    assert!(!host.read("fake/argv").contains("\nstart\n"), "the runtime was called");
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until("the pod is gone", || host.admin(&["pods"]) == Value::Array(vec![]));
}

#[test]
fn a_start_without_a_response_is_skipped_or_refused_by_policy() {
    for (settings, is_refused) in [("", false), ("[plugin.odd]\non_failure = \"refuse\"\n", true)] {
        let host = started(&format!("{SILENT}{settings}"));
        let _odd =
            connected(&host, "10-odd", RespondingPlugin::at(Event::StartContainer, Response::Hang));
        succeeds(&host.create("c1"));
        let output = host.verb(&["start", "c1"]);
        assert_eq!(output.status.success(), !is_refused, "{settings}");
        assert_eq!(host.read("fake/argv").contains("\nstart\n"), !is_refused, "{settings}");
    }
}

#[test]
fn no_plugin_prevents_the_forced_delete_of_a_container() {
    for act in [Response::Refuse("no"), Response::Hang, Response::Leave] {
        let host = started(SILENT);
        let ends = move |event: Event, _: &str| match event.name() {
            "StopContainer" | "RemoveContainer" | "StopPodSandbox" | "RemovePodSandbox" => act,
            _ => Response::Answer,
        };
        let _odd = connected(&host, "10-odd", RespondingPlugin::new(ends).declares(true, true));
        let next = connected(&host, "20-next", RespondingPlugin::always(Response::Answer));
        succeeds(&host.create("c1"));
        succeeds(&host.verb(&["start", "c1"]));
        succeeds(&host.verb(&["delete", "--force", "c1"]));
        wait_for_event(&next, "RemovePodSandbox c1");
        let ends: Vec<String> = next.received().into_iter().skip(5).collect();
        let wanted = ["StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"];
        assert_eq!(ends, wanted.map(|event| format!("{event} c1")));
    }
}

#[test]
fn a_delete_does_not_wait_for_a_plugin_that_is_slow_to_stop() {
    let host = started("[plugin.slow]\nrequest_timeout = \"60s\"\n");
    let slow = connected(
        &host,
        "10-slow",
        RespondingPlugin::at(Event::StopContainer, Response::Sleep(12_000)),
    );
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.verb(&["kill", "c1", "9"]));
    wait_for_event(&slow, "StopContainer c1");
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    assert!(!slow.received().contains(&"RemoveContainer c1".to_owned()), "it was waited for");
    wait_for_event(&slow, "RemovePodSandbox c1");
    assert_eq!(
        slow.received().iter().filter(|received| *received == "RemoveContainer c1").count(),
        1
    );
}

#[test]
fn a_denied_field_refuses_the_container_by_name() {
    let host = started("[plugin.env]\ndeny = [\"Env\"]\n");
    let _odd = connected(&host, "10-env", RespondingPlugin::always(Response::Set("KEY")));
    refused(&host, &host.create("c1"), &["10-env", "Env"]);
    let host = started("[plugin.env]\nallow = [\"Env\"]\n");
    let _odd = connected(&host, "10-env", RespondingPlugin::always(Response::Set("KEY")));
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("KEY=1"));
}

/// A plugin that never completes Synchronize.
struct Late(Response);

#[async_trait]
impl Handler for Late {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    fn failure_policy(&self) -> Option<api::FailurePolicy> {
        let fail_request = true;
        Some(api::FailurePolicy { fail_request, keep_connected: true, ..Default::default() })
    }

    async fn synchronize(
        &self,
        context: &Context,
        _: Vec<api::PodSandbox>,
        _: Vec<api::Container>,
    ) -> nri_plugin::Result<Vec<api::ContainerUpdate>> {
        if self.0 == Response::Leave {
            context.runtime().close();
        }
        if self.0 != Response::Answer {
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
        Err("no room".into())
    }
}

#[test]
fn a_plugin_that_fails_to_synchronize_is_disconnected() {
    for (act, why) in [
        (Response::Answer, "it refused: no room"),
        (Response::Hang, "it did not answer in time"),
        (Response::Leave, "it disconnected"),
    ] {
        let host = started(SILENT);
        connect(&host, "10-late", Arc::new(Late(act)));
        succeeds(&host.create("c1"));
        wait_until("it is said", || host.logged(&["10-late could not be synchronized", why]) == 1);
        wait_until("it is let go", || host.admin(&["status"])["plugins"] == 0);
        assert_eq!(host.read("fake/seen.json"), BUNDLE);
    }
}
