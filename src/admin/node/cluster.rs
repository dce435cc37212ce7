// SPDX-License-Identifier: Apache-2.0
//! Reports the state of the node's daemon to the cluster: a condition and a taint for each missing
//! required plugin, and Events on pods about what kubelet does not report. A thread follows the
//! daemon's events with a cursor. Unread events stay in the daemon, which does not wait for this
//! thread. Each request to the API server has a time limit, and failures are retried with growing
//! pauses.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use super::conditions::NodeConditions;
use super::helper::{ApiError, ApiProblem, Helper};
use super::log;
use super::pod_events::PodEvents;
use super::program::node_configuration;
use crate::admin::watch::whole_lines;
use crate::admin::{ask_status, events};
use crate::answers::Status;
use crate::audit::LoggedLine;
use crate::config;
use crate::error::{Error, Result};
use crate::limits;

/// Interval at which the daemon is asked for its required plugins, and of attempts to connect to
/// it.
const POLL: Duration = Duration::from_secs(5);
/// Time limit of one request to the API server.
const REQUEST_WAIT: Duration = Duration::from_secs(10);
/// Time limit for removing conditions and taints when the pod ends: kubelet waits 30 s before it
/// kills the pod.
const END_WAIT: Duration = Duration::from_secs(12);
/// Pause after a first failed request; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after a failed request.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The reports to the cluster that the operator chose.
#[derive(Debug, Args)]
pub(super) struct ReportOptions {
    /// Set a node condition for each required plugin that is missing.
    #[arg(long, requires = "node_name")]
    conditions: bool,
    /// ... and a taint: NoSchedule or PreferNoSchedule.
    #[arg(long, value_name = "EFFECT", requires = "conditions", value_parser = effect)]
    taint: Option<String>,
    /// How long a required plugin may be missing before that.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    missing_after: String,
    /// Create Events on pods for evictions, refusals and missing plugins.
    #[arg(long, requires = "node_name")]
    pod_events: bool,
}

/// Sends this node's reports to the API server.
#[derive(Debug)]
pub(super) struct NodeApi {
    helper: Helper,
    pub(super) node: String,
    has_ended: Arc<AtomicBool>,
    /// Time at which the last request must have ended; set once the pod must end.
    until: Option<Instant>,
}

impl NodeApi {
    /// Sends a request.
    ///
    /// # Errors
    /// Fails like [`Helper::api`]. Once the pod must end, requests are sent only before `until`.
    pub(super) fn send(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> std::result::Result<Value, ApiError> {
        let left = match self.until {
            Some(until) => until.saturating_duration_since(Instant::now()),
            None if self.has_ended.load(Ordering::Acquire) => Duration::ZERO,
            None => REQUEST_WAIT,
        };
        if left.is_zero() {
            return Err(ApiError {
                problem: ApiProblem::Failed,
                why: "there is no time left".to_owned(),
            });
        }
        self.helper.api(method, path, body, left.min(REQUEST_WAIT))
    }
}

/// The pause after failures of one kind of report, and the line logged for them.
#[derive(Debug, Default)]
pub(super) struct Failures {
    pause: Duration,
    until: Option<Instant>,
    line: String,
}

impl Failures {
    /// Whether another attempt may be made.
    pub(super) fn may_try(&self) -> bool {
        self.left().is_zero()
    }

    fn left(&self) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Logs a failure unless the last one was the same, and begins a pause.
    pub(super) fn add(&mut self, line: &str) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.until = Some(Instant::now() + self.pause);
        self.note(line);
    }

    /// Logs a failure unless the last one was the same.
    pub(super) fn note(&mut self, line: &str) {
        if self.line != line {
            log(line);
            line.clone_into(&mut self.line);
        }
    }

    /// Clears the failures after a success.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Adds the permission `rule` to the line about a request that the API server forbade.
pub(super) fn needing(line: Error, error: &ApiError, rule: &str) -> Error {
    if error.problem != ApiProblem::Forbidden {
        return line;
    }
    line.hint(format!("the pod's account needs: {rule}; or a policy refuses the request"))
}

/// Parses the effect of a taint. `NoExecute` is refused: running containers must not be affected.
fn effect(text: &str) -> std::result::Result<String, String> {
    let is_known = ["NoSchedule", "PreferNoSchedule"].contains(&text);
    is_known
        .then(|| text.to_owned())
        .ok_or_else(|| "must be NoSchedule or PreferNoSchedule".to_owned())
}

/// The reporting thread.
#[derive(Debug)]
pub(super) struct ClusterReporter {
    has_ended: Arc<AtomicBool>,
    /// Closing this stream wakes the thread.
    wake: UnixStream,
    thread: JoinHandle<()>,
}

impl ClusterReporter {
    /// Starts to report about the node whose root is mounted at `folder`; `None` if nothing is to
    /// be reported.
    ///
    /// # Errors
    /// Fails when the duration is not valid, or no thread can be started.
    pub(super) fn start(
        options: &ReportOptions,
        node: Option<&str>,
        helper: &Helper,
        folder: &Path,
    ) -> Result<Option<Self>> {
        let after = config::parse_duration(&options.missing_after)
            .ok_or_else(|| Error::new("--missing-after requires a duration, such as 10s or 1m"))?;
        let Some(node) = node.filter(|node| !node.is_empty()) else { return Ok(None) };
        let conditions =
            options.conditions.then(|| NodeConditions::new(options.taint.clone(), after));
        let events = options.pod_events.then(PodEvents::default);
        if conditions.is_none() && events.is_none() {
            return Ok(None);
        }
        let has_ended = Arc::new(AtomicBool::new(false));
        let (wake, woken) = UnixStream::pair()?;
        let api = NodeApi {
            helper: helper.clone(),
            node: node.to_owned(),
            has_ended: Arc::clone(&has_ended),
            until: None,
        };
        let feed = DaemonFeed::new(folder.to_owned());
        let mut report = ClusterReport { api, feed, conditions, events, asked: None };
        let thread = std::thread::Builder::new().name("cluster".to_owned()).spawn(move || {
            while !report.turn(&woken) {}
            report.end();
        })?;
        Ok(Some(Self { has_ended, wake, thread }))
    }

    /// Removes conditions and taints, and ends the thread.
    pub(super) fn end(self) {
        self.has_ended.store(true, Ordering::Release);
        drop(self.wake);
        let _it_panicked = self.thread.join();
    }
}

/// The state of the thread.
struct ClusterReport {
    api: NodeApi,
    feed: DaemonFeed,
    conditions: Option<NodeConditions>,
    events: Option<PodEvents>,
    /// When the daemon was last asked for its status.
    asked: Option<Instant>,
}

impl ClusterReport {
    /// Waits for something to report, and reports it; returns true once the pod must end.
    fn turn(&mut self, wake: &UnixStream) -> bool {
        if self.api.has_ended.load(Ordering::Acquire) {
            return true;
        }
        self.feed.connect();
        let is_full = self.events.as_ref().is_some_and(PodEvents::is_waiting);
        let mut plugins_changed = false;
        for line in self.feed.wait(wake, self.pause(), !is_full) {
            plugins_changed |= ["connected", "disconnected"].contains(&line.action.as_str());
            if let Some(events) = &mut self.events {
                events.take(&line, &self.api.node);
            }
        }
        if let Some(conditions) = &mut self.conditions {
            if plugins_changed || self.asked.is_none_or(|asked| asked.elapsed() >= POLL) {
                conditions.observe(self.feed.status().as_ref());
                self.asked = Some(Instant::now());
            }
            conditions.report(&self.api);
        }
        if let Some(events) = &mut self.events {
            events.send(&self.api);
        }
        false
    }

    /// Returns the time after which a report or a request for the status is due.
    fn pause(&self) -> Duration {
        let conditions = self.conditions.as_ref().and_then(NodeConditions::next_change);
        let events = self.events.as_ref().filter(|events| events.is_waiting());
        let events = events.map(|events| events.failures.left());
        [conditions, events].into_iter().flatten().fold(POLL, Duration::min)
    }

    fn end(&mut self) {
        self.api.until = Some(Instant::now() + END_WAIT);
        if let Some(conditions) = &mut self.conditions {
            conditions.end(&self.api);
        }
        if let Some(events) = &mut self.events {
            events.log_left_out(true);
        }
    }
}

/// The daemon's events and its status.
struct DaemonFeed {
    folder: PathBuf,
    stream: Option<UnixStream>,
    /// The cursor of the last event.
    since: String,
    unfinished: Vec<u8>,
    tried: Option<Instant>,
}

impl DaemonFeed {
    fn new(folder: PathBuf) -> Self {
        // Reads from the first event. A Kubernetes Event is named after the daemon's event, so an
        // Event that an earlier pod of this DaemonSet created is not duplicated.
        Self { folder, stream: None, since: "0".to_owned(), unfinished: Vec::new(), tried: None }
    }

    /// Connects to the daemon's event stream, if a daemon runs; tries at most once per [`POLL`].
    fn connect(&mut self) {
        if self.stream.is_some() || self.tried.is_some_and(|tried| tried.elapsed() < POLL) {
            return;
        }
        self.tried = Some(Instant::now());
        self.unfinished.clear();
        let Ok(loaded) = node_configuration(&self.folder) else { return };
        self.stream = events::open(&loaded.config, &mut self.since).ok();
    }

    /// Waits up to `within` for events, or until `wake` is closed; returns the new events. If `reads` is false,
    /// none is read, and they stay in the daemon.
    fn wait(&mut self, wake: &UnixStream, within: Duration, reads: bool) -> Vec<LoggedLine> {
        let mut fds = vec![PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
        let stream = self.stream.as_ref().filter(|_| reads);
        fds.extend(stream.map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLIN)));
        // Rounded up, because with 0 the loop would spin until the pause ends.
        let within = PollTimeout::try_from(within + Duration::from_millis(1));
        let polled = poll(&mut fds, within.unwrap_or(PollTimeout::ZERO));
        let has_come = fds.get(1).is_some_and(|fd| fd.any() == Some(true));
        if polled.is_err() || !has_come {
            return Vec::new();
        }
        self.read()
    }

    fn read(&mut self) -> Vec<LoggedLine> {
        let mut bytes = vec![0; limits::EVENT_BATCH];
        let read = self.stream.as_mut().map_or(Ok(0), |stream| stream.read(&mut bytes));
        let count = read.unwrap_or(0);
        if count == 0 || self.unfinished.len() > limits::EVENTS_BYTES {
            // The daemon is being replaced, or its line is too long: the next connection continues
            // after the last event.
            self.stream = None;
            return Vec::new();
        }
        let bytes = bytes.get(..count).unwrap_or_default();
        let lines = whole_lines(&mut self.unfinished, bytes);
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let events: Vec<LoggedLine> =
            lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        if let Some(event) = events.last() {
            self.since.clone_from(&event.cursor);
        }
        events
    }

    /// Returns the status of the daemon, if it answers.
    fn status(&self) -> Option<Status> {
        let config = node_configuration(&self.folder).ok()?.config;
        ask_status(&config).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_end_with_a_success() {
        let mut failures = Failures::default();
        assert!(failures.may_try());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            failures.add("no");
            pauses.push(failures.pause.as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(!failures.may_try());
        failures.clear();
        assert!(failures.may_try());
    }

    #[test]
    fn the_feed_reads_whole_lines_and_keeps_its_cursor_at_the_end() {
        let (mut daemon, stream) = UnixStream::pair().unwrap();
        let (_wake, woken) = UnixStream::pair().unwrap();
        let mut feed = DaemonFeed::new(PathBuf::from("/none"));
        feed.stream = Some(stream);
        let mut write =
            |text: &str| std::io::Write::write_all(&mut daemon, text.as_bytes()).unwrap();
        write("{\"cursor\":\"a-1\"}\n{\"cursor\":\"a-2\"}\n{\"curs");
        let within = Duration::from_secs(60);
        assert_eq!(feed.wait(&woken, within, true).len(), 2);
        assert_eq!(feed.since, "a-2");
        assert!(feed.wait(&woken, Duration::ZERO, false).is_empty(), "it is not read");
        write("or\":\"a-3\"}\nno JSON\n");
        assert_eq!(feed.wait(&woken, within, true)[0].cursor, "a-3");
        drop(daemon);
        assert!(feed.wait(&woken, within, true).is_empty());
        assert!(feed.stream.is_none() && feed.since == "a-3");
    }
}
