// SPDX-License-Identifier: Apache-2.0
//! The separate program that speaks D-Bus with systemd and HTTPS with the API server; nri-runc
//! itself, which runs for each container, has neither. Without the program, each request fails with
//! a line that says so.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::NodeLabel;
use crate::error::{Context, Error, Result};

/// The helper's exit code if the API server forbids the request.
const FORBIDDEN: i32 = 3;
/// The helper's exit code if the object does not exist.
const NOT_FOUND: i32 = 4;
/// The helper's exit code if the object changed meanwhile, or exists already.
const CONFLICT: i32 = 5;
/// The helper's exit code if the request is not valid.
const INVALID: i32 = 6;

/// The reason why a request failed, by which the caller decides whether to repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiProblem {
    /// The account lacks a permission, or a policy of the cluster refuses.
    Forbidden,
    /// The object does not exist.
    NotFound,
    /// The object changed meanwhile, or exists already.
    Conflict,
    /// The request is invalid: a repetition fails too.
    Invalid,
    /// The server did not respond, or failed: a later request may succeed.
    Failed,
}

/// A request that the API server did not carry out.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) problem: ApiProblem,
    pub(super) why: String,
}

/// A DaemonSet's state according to the API server.
#[derive(Debug)]
pub(super) enum DaemonSetState {
    /// The DaemonSet exists.
    Present,
    /// The DaemonSet is being deleted, or no longer exists.
    BeingDeleted,
    /// The API server forbids the request.
    Forbidden,
    /// The request failed.
    Unknown(String),
}

/// The helper, and the path of systemd's socket.
#[derive(Debug, Clone)]
pub(super) struct Helper {
    program: PathBuf,
    systemd: PathBuf,
}

impl Helper {
    /// Creates the helper at this path, for the systemd that listens at `systemd`.
    pub(super) fn new(program: PathBuf, systemd: PathBuf) -> Self {
        Self { program, systemd }
    }

    /// Runs a systemd verb (`restart`, `reload`, `daemon-reload`) with the first of these units
    /// that is active, and waits for the job.
    ///
    /// # Errors
    /// Fails when the helper cannot be run, systemd cannot be reached, or the job fails.
    pub(super) fn systemd(&self, verb: &str, units: &[String]) -> Result<()> {
        let socket = self.systemd.to_string_lossy();
        let mut words = vec!["systemd", socket.as_ref(), verb];
        words.extend(units.iter().map(String::as_str));
        self.answer(&words, "").map(|_nothing| ())
    }

    /// Sets a node's label, or removes it.
    ///
    /// # Errors
    /// Fails when the helper cannot be run, or the API server cannot be reached or refuses.
    pub(super) fn label(&self, label: &NodeLabel, is_set: bool) -> Result<()> {
        let value = if is_set { json!(label.value) } else { Value::Null };
        let patch = json!({"metadata": {"labels": {(label.key.as_str()): value}}});
        let path = format!("/api/v1/nodes/{}", label.node);
        let doing = || format!("labelling the node {}", label.node);
        self.answer(&["api", "PATCH", &path], &patch.to_string()).doing(doing).map(|_node| ())
    }

    /// Queries a DaemonSet, `NAMESPACE/NAME`.
    pub(super) fn daemonset(&self, name: &str) -> DaemonSetState {
        let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
        let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
        let output = match self.run(&["api", "GET", &path], "") {
            Ok(output) => output,
            Err(error) => return DaemonSetState::Unknown(error.to_string()),
        };
        match output.status.code() {
            Some(0) => match serde_json::from_slice::<Value>(&output.stdout) {
                Ok(document) if document["metadata"]["deletionTimestamp"].is_string() => {
                    DaemonSetState::BeingDeleted
                }
                Ok(document) if document["metadata"].is_object() => DaemonSetState::Present,
                Ok(_) | Err(_) => {
                    DaemonSetState::Unknown("the answer is not a DaemonSet".to_owned())
                }
            },
            Some(NOT_FOUND) => DaemonSetState::BeingDeleted,
            Some(FORBIDDEN) => DaemonSetState::Forbidden,
            Some(_) | None => DaemonSetState::Unknown(failure(&output).to_string()),
        }
    }

    /// Sends the API server a request with the time limit `within`, in whole seconds and at least one; returns
    /// the response.
    ///
    /// # Errors
    /// Fails when the helper cannot be run, or the API server cannot be reached or refuses.
    pub(super) fn api(
        &self,
        method: &str,
        path: &str,
        body: &Value,
        within: Duration,
    ) -> std::result::Result<Value, ApiError> {
        let failed = |problem, why: Error| ApiError { problem, why: why.to_string() };
        let seconds = within.as_secs().max(1).to_string();
        let output = self.run(&["api", method, path, &seconds], &body.to_string());
        let output = output.map_err(|error| failed(ApiProblem::Failed, error))?;
        let problem = match output.status.code() {
            Some(0) => {
                let answer = serde_json::from_slice(&output.stdout);
                return answer.map_err(|error| failed(ApiProblem::Failed, Error::json(&error)));
            }
            Some(FORBIDDEN) => ApiProblem::Forbidden,
            Some(NOT_FOUND) => ApiProblem::NotFound,
            Some(CONFLICT) => ApiProblem::Conflict,
            Some(INVALID) => ApiProblem::Invalid,
            Some(_) | None => ApiProblem::Failed,
        };
        Err(failed(problem, failure(&output)))
    }

    fn answer(&self, words: &[&str], input: &str) -> Result<Vec<u8>> {
        let output = self.run(words, input)?;
        if output.status.success() { Ok(output.stdout) } else { Err(failure(&output)) }
    }

    /// Runs the helper, which has its own time limits.
    #[expect(clippy::disallowed_methods, reason = "the helper is started here alone")]
    fn run(&self, words: &[&str], input: &str) -> Result<Output> {
        let doing = || format!("starting {}", self.program.display());
        let mut command = std::process::Command::new(&self.program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().doing(doing)?;
        if let Some(mut stdin) = child.stdin.take() {
            let _it_need_not_read = stdin.write_all(input.as_bytes());
        }
        child.wait_with_output().doing(doing)
    }
}

/// Returns an error with the last line that the helper printed, else with its exit status.
fn failure(output: &Output) -> Error {
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    let line = line.map(|line| line.trim().trim_start_matches("nri-runc-node-helper: ").to_owned());
    Error::new(line.unwrap_or_else(|| format!("it ended with {}", output.status)))
}
