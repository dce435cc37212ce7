// SPDX-License-Identifier: Apache-2.0
//! Events on pods for what kubelet does not report: evictions by plugins, refused updates and
//! processes, and required plugins that are missing. Names and messages are limited in length; each
//! pod and the node have a budget of Events, and Events beyond it are counted.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::{Failures, NodeApi, needing};
use super::helper::ApiProblem;
use super::log;
use crate::audit::{AuditSubject, LoggedLine};
use crate::clock::now;
use crate::engine::EngineKind;
use crate::error::Error;
use crate::limits;
use crate::messages;
use crate::text::{counted, printable, rfc3339_nanos};

/// Age above which an event is not reported: its pod is gone, or its effect has been noticed.
const OLDEST: Duration = Duration::from_secs(900);
/// Time after which a pod's budget grows by one Event.
const POD_REFILL: Duration = Duration::from_secs(60);
/// Time after which the node's budget grows by one Event.
const NODE_REFILL: Duration = Duration::from_secs(1);
/// Minimum interval between log lines about omitted Events.
const LEFT_OUT_PAUSE: Duration = Duration::from_secs(300);

/// Codes of the messages about a missing required plugin.
const MISSING: [&str; 7] = ["NR020", "NR021", "NR034", "NR035", "NR038", "NR039", "NR451"];

/// The number of Events that may still be sent, and the time of the last refill.
#[derive(Debug)]
struct Budget {
    left: u32,
    refilled: Instant,
}

impl Budget {
    fn full(most: u32) -> Self {
        Self { left: most, refilled: Instant::now() }
    }

    /// Takes one Event from the budget; false if none is left.
    fn take(&mut self, most: u32, refill: Duration) -> bool {
        while self.left < most && self.refilled.elapsed() >= refill {
            self.left += 1;
            self.refilled += refill;
        }
        if self.left == most {
            self.refilled = Instant::now();
        }
        let has_one = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_one
    }
}

/// The Events of the node's pods.
#[derive(Debug, Default)]
pub(super) struct PodEvents {
    /// Events that the API server has not accepted yet.
    queue: VecDeque<Value>,
    node: Option<Budget>,
    /// The budget of each pod, and the number of Events omitted for it.
    pods: HashMap<String, (Budget, u64)>,
    left_out: u64,
    /// When the number of omitted Events was last logged.
    logged: Option<Instant>,
    pub(super) failures: Failures,
}

impl PodEvents {
    /// Whether Events wait for the API server.
    pub(super) fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Queues the Event of a line of the daemon's stream, if the line needs one and the budget
    /// permits it.
    pub(super) fn take(&mut self, line: &LoggedLine, node: &str) {
        if line.action == "lost" {
            self.left_out += line.lost.unwrap_or_default();
            return;
        }
        let oldest = i64::try_from(OLDEST.as_nanos()).map(|age| now() - age).unwrap_or_default();
        let oldest = rfc3339_nanos(oldest).unwrap_or_default();
        let Some(mut event) = event_of(line, node) else { return };
        if line.time < oldest {
            return;
        }
        let pod = line.subject.pod_id.clone();
        if self.pods.len() >= limits::EVENT_PODS && !self.pods.contains_key(&pod) {
            let oldest = self.pods.iter().min_by_key(|(_, (budget, _))| budget.refilled);
            let oldest = oldest.map(|(pod, _)| pod.clone());
            oldest.map(|pod| self.pods.remove(&pod));
        }
        let whole = self.node.get_or_insert_with(|| Budget::full(limits::NODE_EVENTS));
        let (its, left_out) =
            self.pods.entry(pod).or_insert_with(|| (Budget::full(limits::POD_EVENTS), 0));
        if !its.take(limits::POD_EVENTS, POD_REFILL)
            || !whole.take(limits::NODE_EVENTS, NODE_REFILL)
        {
            *left_out += 1;
            self.left_out += 1;
            return;
        }
        if *left_out > 0 {
            let text = event["message"].as_str().unwrap_or_default();
            event["message"] = json!(format!("{text} ({left_out} before it were not reported)"));
            *left_out = 0;
        }
        self.queue.push_back(event);
    }

    /// Sends the queued Events. Refused ones are dropped, and those without a response are sent
    /// again later.
    pub(super) fn send(&mut self, api: &NodeApi) {
        while let Some(event) = self.queue.front().filter(|_| self.failures.may_try()) {
            let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
            let path = format!("/api/v1/namespaces/{namespace}/events");
            let Err(error) = api.send("POST", &path, event) else {
                self.failures.clear();
                self.queue.pop_front();
                continue;
            };
            let line = Error::new(format!("events about pods were not created: {}", error.why));
            let line = needing(line, &error, "create of events");
            match error.problem {
                ApiProblem::Failed => self.failures.add(&line.to_string()),
                // An earlier pod of the DaemonSet or an earlier attempt created the Event, or the Event's
                // namespace is gone or being deleted.
                ApiProblem::Conflict | ApiProblem::NotFound => drop(self.queue.pop_front()),
                ApiProblem::Forbidden if error.why.contains("being terminated") => {
                    drop(self.queue.pop_front());
                }
                ApiProblem::Forbidden | ApiProblem::Invalid => {
                    self.failures.note(&line.to_string());
                    self.queue.pop_front();
                    self.left_out += 1;
                }
            }
        }
        self.log_left_out(false);
    }

    /// Logs the number of omitted Events, if that is due.
    pub(super) fn log_left_out(&mut self, is_end: bool) {
        let is_due = is_end || self.logged.is_none_or(|at| at.elapsed() >= LEFT_OUT_PAUSE);
        if self.left_out == 0 || !is_due {
            return;
        }
        let count = std::mem::take(&mut self.left_out);
        let events = counted(usize::try_from(count).unwrap_or(usize::MAX), "event");
        log(&Error::new(format!("{events} about pods could not be sent")).to_string());
        self.logged = Some(Instant::now());
    }
}

/// Returns the reason and the message of an Event; `None` for a line that needs no Event.
fn reported(line: &LoggedLine) -> Option<(&'static str, String)> {
    let [event, reason, plugin, container] =
        [&line.event, &line.reason, &line.plugin, &line.subject.container]
            .map(|text| printable(text));
    let of = if container.is_empty() { container } else { format!(" of container {container}") };
    match line.action.as_str() {
        "evicted" => {
            let reason = if reason.is_empty() { reason } else { format!(": {reason}") };
            Some(("PluginEvicted", format!("plugin {plugin} began an eviction{of}{reason}")))
        }
        "refused" if messages::code_of(&reason).is_some_and(|code| MISSING.contains(&code)) => {
            Some(("RequiredPluginMissing", format!("{event}{of} was refused: {reason}")))
        }
        "refused" if event == "exec" => {
            Some(("ExecRefused", format!("a process{of} was refused: {reason}")))
        }
        "refused" if event.to_ascii_lowercase().contains("update") => {
            Some(("UpdateRefused", format!("an update{of} was refused: {reason}")))
        }
        _ => None,
    }
}

/// Returns the Event for a line about a Kubernetes pod; `None` if the line needs none or has invalid names. The
/// Event's name depends only on the line, so a line that is read again creates no second Event.
fn event_of(line: &LoggedLine, node: &str) -> Option<Value> {
    let LoggedLine { subject, cursor, time, pod_uid, .. } = line;
    let AuditSubject { engine, namespace, pod, container, .. } = subject;
    let is_name = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        name.bytes().all(|byte| is_plain(byte) || byte == b'-' || byte == b'.')
            && name.bytes().next().is_some_and(is_plain)
            && name.len() <= limits::KUBERNETES_NAME
    };
    let is_kubernetes = EngineKind::named(engine).is_some_and(|its| its.behaviour().is_kubernetes);
    if !is_kubernetes || ![namespace, pod, cursor].into_iter().all(|name| is_name(name)) {
        return None;
    }
    let (reason, message) = reported(line)?;
    let time = format!("{}Z", time.get(..19)?);
    let short = pod.get(..pod.len().min(limits::EVENT_POD_NAME))?.trim_end_matches(['-', '.']);
    let mut involved =
        json!({"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod});
    if !pod_uid.is_empty() {
        involved["uid"] = json!(pod_uid);
    }
    if is_name(container) {
        involved["fieldPath"] = json!(format!("spec.containers{{{container}}}"));
    }
    Some(json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": format!("{short}.{cursor}")},
        "involvedObject": involved,
        "reason": reason,
        "message": limits::cut(&message, limits::EVENT_MESSAGE),
        "type": "Warning",
        "source": {"component": "nri-runc", "host": node},
        "reportingComponent": "nri-runc",
        "reportingInstance": node,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: &str, event: &str, reason: &str, pod: &str) -> LoggedLine {
        let line = json!({"cursor": "18b2-41", "time": rfc3339_nanos(now()).unwrap(), "kind": kind, "namespace": "shop",
            "pod": pod, "pod_id": format!("id-{pod}"), "pod_uid": "u", "container": "app", "container_id": "c1",
            "plugin": "10-a", "reason": reason, "event": event, "rule": "", "field": "", "engine": "containerd-cri",
            "labels": {}});
        serde_json::from_value(line).unwrap()
    }

    #[test]
    fn only_facts_that_kubelet_does_not_report_are_events() {
        let missing = "required plugin \"10-a\" not present";
        for (kind, event, reason, wanted) in [
            ("evicted", "", "too noisy", "PluginEvicted"),
            ("refused", "exec", "the exec rule \"x\" refuses it", "ExecRefused"),
            ("refused", "update", "no", "UpdateRefused"),
            ("refused", "UpdatePodSandbox", "no", "UpdateRefused"),
            ("refused", "create", missing, "RequiredPluginMissing"),
            (
                "refused",
                "create",
                "validation error: required plugins \"a,b\" not present",
                "RequiredPluginMissing",
            ),
            (
                "refused",
                "create",
                "the required plugin a is not connected",
                "RequiredPluginMissing",
            ),
            (
                "refused",
                "create",
                "plugin \"10-a\" set Args of container c1 to an empty command",
                "",
            ),
            ("refused", "eviction", "its eviction failed: no", ""),
            ("exited", "", "", ""),
            ("updated", "", "", ""),
            ("connected", "", "", ""),
        ] {
            let event = event_of(&line(kind, event, reason, "web"), "one").unwrap_or_default();
            assert_eq!(event["reason"].as_str().unwrap_or_default(), wanted, "{kind} {reason}");
        }
    }

    #[test]
    fn an_event_belongs_to_its_pod_and_has_a_stable_name() {
        let event = event_of(&line("evicted", "", "noisy", "web"), "one").unwrap();
        assert_eq!(event["metadata"], json!({"namespace": "shop", "name": "web.18b2-41"}));
        assert_eq!(event["involvedObject"]["uid"], "u");
        assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{app}");
        assert_eq!(event["message"], "plugin 10-a began an eviction of container app: noisy");
        assert_eq!(event["lastTimestamp"].as_str().unwrap().len(), 20);
        let mut long = line("evicted", "", &"x\u{1b}".repeat(5000), &"p".repeat(253));
        long.subject.container.clear();
        let event = event_of(&long, "one").unwrap();
        let name = event["metadata"]["name"].as_str().unwrap();
        assert!(name.len() <= 253 && name.ends_with(".18b2-41"), "{name}");
        let message = event["message"].as_str().unwrap();
        assert!(message.len() < 1024 && !message.contains('\u{1b}'), "{}", message.len());
    }

    #[test]
    fn a_line_with_foreign_or_invalid_members_yields_no_event() {
        type Member = fn(&mut LoggedLine) -> &mut String;
        let set: [(Member, &[&str]); 5] = [
            (|line| &mut line.subject.engine, &["podman", "docker"]),
            (|line| &mut line.subject.namespace, &["", "../x"]),
            (|line| &mut line.subject.pod, &["", "a/b", "-a", "A", &"p".repeat(254)]),
            (|line| &mut line.cursor, &["x?y"]),
            (|line| &mut line.time, &["soon"]),
        ];
        for (member, values) in set {
            for value in values {
                let mut line = line("evicted", "", "", "web");
                assert!(event_of(&line, "one").is_some());
                (*value).clone_into(member(&mut line));
                assert!(event_of(&line, "one").is_none(), "{value}");
            }
        }
    }

    #[test]
    fn event_storms_are_limited_by_pod_and_node_and_counted() {
        let mut events = PodEvents::default();
        for _ in 0..100 {
            events.take(&line("refused", "exec", "no", "noisy"), "one");
        }
        let of_one = events.queue.len();
        assert_eq!(of_one, limits::POD_EVENTS as usize);
        assert_eq!(events.left_out, 100 - of_one as u64);
        for pod in 0..limits::EVENT_PODS + 100 {
            events.take(&line("refused", "exec", "no", &format!("p{pod}")), "one");
        }
        assert!(events.queue.len() < limits::NODE_EVENTS as usize + 60, "{}", events.queue.len());
        assert!(events.pods.len() <= limits::EVENT_PODS);
        let mut old = line("refused", "exec", "no", "other");
        old.time = "2020-01-01T00:00:00.000000000Z".to_owned();
        let before = events.queue.len();
        events.take(&old, "one");
        events.take(&LoggedLine { lost: Some(7), ..line("lost", "", "", "") }, "one");
        events.take(&line("lost", "", "", ""), "one");
        assert_eq!(events.queue.len(), before);
    }

    #[test]
    fn the_next_event_of_a_pod_counts_the_omitted_ones() {
        let mut events = PodEvents::default();
        for _ in 0..limits::POD_EVENTS + 3 {
            events.take(&line("refused", "exec", "no", "web"), "one");
        }
        let (budget, left_out) = events.pods.get_mut("id-web").unwrap();
        assert_eq!(*left_out, 3);
        budget.left = 1;
        events.take(&line("refused", "exec", "no", "web"), "one");
        let message = events.queue.back().unwrap()["message"].as_str().unwrap();
        assert!(message.ends_with("(3 before it were not reported)"), "{message}");
    }
}
