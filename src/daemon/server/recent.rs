// SPDX-License-Identifier: Apache-2.0
//! Shows the calls of the flight recorder as JSON, for `sysdump` and `explain`. It decodes the
//! recorded bytes off the event loop, and never shows a plugin's configuration.

use protobuf::Message;
use serde_json::Value;

use crate::answers::{CallTime, Dated, RecentCall};
use crate::daemon::shared::Report;
use crate::daemon::shared::flight_recorder::RecordedCall;
use crate::error::Result;
use crate::plugin::api;
use crate::plugin::json::show;

/// Returns all calls, the oldest first.
pub(super) async fn show_all(calls: Vec<RecordedCall>) -> Result<Vec<RecentCall>> {
    let shown = tokio::task::spawn_blocking(move || calls.iter().map(row).collect()).await;
    Ok(shown.unwrap_or_default())
}

/// Returns the times of the calls about a container, or about a pod if `container` is empty.
pub(super) fn times(report: &Report, pod: &str, container: &str) -> Vec<Dated<CallTime>> {
    let calls = report.flight.calls_about(pod, container, |call| (call.operation, time(call)));
    of_last_creation(calls)
}

/// Drops the calls before the last creation, because an ID may be reused.
fn of_last_creation<T>(mut calls: Vec<(&'static str, T)>) -> Vec<T> {
    let is_creation = |call: &str| matches!(call, "CreateContainer" | "RunPodSandbox");
    let names = calls.iter().map(|(call, _)| *call);
    let starts = names.clone().zip(std::iter::once("").chain(names)).enumerate();
    let begun = starts.filter(|(_, (call, before))| is_creation(call) && !is_creation(before));
    let begun = begun.last().map_or(0, |(at, _)| at);
    calls.drain(begun..).map(|(_, row)| row).collect()
}

/// Returns a call without its messages, for `explain`.
fn time(call: &RecordedCall) -> Dated<CallTime> {
    Dated(CallTime {
        at: call.at,
        plugin: call.plugin.clone(),
        call: call.operation.to_owned(),
        waited_us: micros(call.waited),
        took_us: micros(call.took),
        error: call.error.map(str::to_owned),
    })
}

fn row(call: &RecordedCall) -> RecentCall {
    let request = ttrpc::Request::parse_from_bytes(&call.copies.request).unwrap_or_default();
    let answer = ttrpc::Response::parse_from_bytes(&call.copies.answer).unwrap_or_default();
    let refusal = answer.status.as_ref().map(|status| status.message.clone());
    // A plugin's configuration is private to it.
    let is_shown = request.method != "Configure" && !call.copies.request.is_empty();
    let is_answered = !call.copies.answer.is_empty();
    RecentCall {
        time: time(call),
        refusal: refusal.filter(|text| !text.is_empty()),
        request_bytes: call.copies.request_bytes,
        request: is_shown.then(|| message(&request.method, true, &request.payload)),
        answer_bytes: call.copies.answer_bytes,
        answer: is_answered.then(|| message(&request.method, false, &answer.payload)),
    }
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the message of a method; null if NRI has no message of this name, or it cannot be decoded.
fn message(method: &str, is_request: bool, payload: &[u8]) -> Value {
    let name = match (method, is_request) {
        ("StateChange", true) => "StateChangeEvent".to_owned(),
        (_, true) => format!("{method}Request"),
        (_, false) => format!("{method}Response"),
    };
    let Some(of) = api::file_descriptor().message_by_package_relative_name(&name) else {
        return Value::Null;
    };
    of.parse_from_bytes(payload).map(|message| show(&*message)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::plugin::CallCopies;

    fn call(method: &str, payload: Vec<u8>, answer: &ttrpc::Response) -> RecordedCall {
        let request =
            ttrpc::Request { method: method.to_owned(), payload, ..ttrpc::Request::default() };
        let mut copies = CallCopies::up_to(1000);
        copies.request = request.write_to_bytes().unwrap();
        copies.answer = answer.write_to_bytes().unwrap();
        let (waited, took) = (Duration::ZERO, Duration::from_millis(2));
        let plugin = "10-a".to_owned();
        RecordedCall {
            at: 1,
            plugin,
            operation: "CreateContainer",
            pod: "p1".to_owned(),
            container: "c1".to_owned(),
            waited,
            took,
            error: None,
            copies,
        }
    }

    fn shown(call: &RecordedCall) -> Value {
        json!(row(call))
    }

    #[test]
    fn recorded_requests_answers_and_refusals_are_decoded() {
        let container = api::Container { id: "c1".to_owned(), ..Default::default() };
        let request =
            api::CreateContainerRequest { container: Some(container).into(), ..Default::default() };
        let adjust = api::ContainerAdjustment {
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            ..Default::default()
        };
        let created =
            api::CreateContainerResponse { adjust: Some(adjust).into(), ..Default::default() };
        let payload = created.write_to_bytes().unwrap();
        let answer = ttrpc::Response { payload, ..Default::default() };
        let row = shown(&call("CreateContainer", request.write_to_bytes().unwrap(), &answer));
        assert_eq!(row["request"]["container"]["id"], "c1");
        assert_eq!(row["answer"]["adjust"]["annotations"]["a"], "b");
        assert_eq!((&row["took_us"], &row["refusal"]), (&json!(2000), &Value::Null));
        let status = ttrpc::get_status(ttrpc::Code::UNKNOWN, "not here");
        let answer = ttrpc::Response { status: Some(status).into(), ..Default::default() };
        let refused = shown(&call("StateChange", Vec::new(), &answer));
        assert_eq!(refused["refusal"], "not here");
    }

    #[test]
    fn a_reused_id_lists_only_calls_since_its_last_creation() {
        let calls = |names: &[&'static str]| {
            let calls = names.iter().enumerate().map(|(at, name)| (*name, json!(at)));
            of_last_creation(calls.collect())
        };
        let (create, stop) = ("CreateContainer", "StopContainer");
        assert_eq!(calls(&[create, create, stop]), [0, 1, 2]);
        assert_eq!(calls(&[create, stop, create, create]), [2, 3]);
        assert_eq!(calls(&[stop, stop]), [0, 1], "its creation is no longer kept");
        assert!(calls(&[]).is_empty());
    }

    #[test]
    fn unreadable_requests_and_configurations_are_omitted() {
        let answer = ttrpc::Response::default();
        let request = api::ConfigureRequest { config: "secret".to_owned(), ..Default::default() };
        let row = shown(&call("Configure", request.write_to_bytes().unwrap(), &answer));
        assert!(row["request"].is_null() && !row.to_string().contains("secret"), "{row}");
        let mut broken = call("CreateContainer", vec![0xff; 9], &answer);
        assert!(shown(&broken)["request"].is_null());
        broken.copies.request = vec![0xff; 9];
        assert!(shown(&broken)["request"].is_null());
        assert!(shown(&call("NewerMethod", Vec::new(), &answer))["request"].is_null());
    }
}
