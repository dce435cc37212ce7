// SPDX-License-Identifier: Apache-2.0
//! Replays a recording of a node as a test case: sends the plugins the requests that `nri-runc nri
//! replay --record` recorded.

use std::path::Path;

use nri_api as api;
use nri_api::event::{ALL_EVENTS, Event};
use protobuf::MessageFull;
use serde_json::Value;

use super::Runtime;
use crate::Result;

/// A request of a recording, and the merged answers of the plugins.
#[derive(Debug, Clone)]
pub struct Answered {
    /// The line of the recording, from 1.
    pub line: usize,
    /// The event.
    pub event: Event,
    /// The adjustment of CreateContainer.
    pub adjust: Option<api::ContainerAdjustment>,
    /// Updates of containers.
    pub updates: Vec<api::ContainerUpdate>,
    /// The refusal, conflict or time-out that ended the request, if any.
    pub error: Option<String>,
}

/// The merged answers to one request: the adjustment and the updates.
#[derive(Default)]
struct Answer(Option<api::ContainerAdjustment>, Vec<api::ContainerUpdate>);

pub(super) async fn replay(runtime: &mut Runtime, path: &Path) -> Result<Vec<Answered>> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
    let mut answers = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line_number = number + 1;
        let invalid = |why: String| format!("{}:{line_number}: {why}", path.display());
        let line: Value = serde_json::from_str(line).map_err(|error| invalid(error.to_string()))?;
        if let Some(state) = line.get("state") {
            set_state(runtime, state).map_err(|error| invalid(error.to_string()))?;
        }
        // Lines about the node's plugins, and the last line, are only for the command `replay`.
        let Some(name) = line.get("call").and_then(Value::as_str) else { continue };
        let event = ALL_EVENTS.into_iter().find(|event| event.name() == name);
        let event = event.ok_or_else(|| invalid(format!("there is no request {name:?}")))?;
        let sent = send(runtime, event, &line["request"]).await;
        let sent = sent.map_err(|error| invalid(error.to_string()))?;
        let (Answer(adjust, updates), error) = match sent {
            Ok(answer) => (answer, None),
            Err(error) => (Answer::default(), Some(error.to_string())),
        };
        answers.push(Answered { line: line_number, event, adjust, updates, error });
    }
    Ok(answers)
}

fn set_state(runtime: &mut Runtime, state: &Value) -> Result<()> {
    let list = |name: &str| state[name].as_array().cloned().unwrap_or_default();
    for pod in list("pods") {
        let pod: api::PodSandbox = message(&pod)?;
        runtime.pods.insert(pod.id.clone(), pod);
    }
    for container in list("containers") {
        let container: api::Container = message(&container)?;
        runtime.shared().containers.insert(container.id.clone(), container);
    }
    Ok(())
}

fn message<M: MessageFull>(value: &Value) -> Result<M> {
    Ok(api::json::read(value)?)
}

/// Sends a recorded request. Fails if it cannot be parsed; the inner result is the plugins' answer or
/// refusal.
async fn send(runtime: &mut Runtime, event: Event, request: &Value) -> Result<Result<Answer>> {
    macro_rules! notified {
        ($request:ident) => {{
            let request: api::$request = message(request)?;
            runtime.notify(event, &request).await.map(|()| Answer::default())
        }};
    }
    Ok(match event {
        Event::CreateContainer => {
            let request: api::CreateContainerRequest = message(request)?;
            let (pod, container) =
                (request.pod.unwrap_or_default(), request.container.unwrap_or_default());
            let merged = runtime.ask_to_create(pod, container).await;
            merged.map(|merged| Answer(Some(merged.adjust), merged.updates))
        }
        Event::UpdateContainer => {
            let request: api::UpdateContainerRequest = message(request)?;
            let updated = runtime.ask_to_update(request).await;
            updated.map(|updated| Answer(None, updated.updates))
        }
        Event::StopContainer => {
            let request: api::StopContainerRequest = message(request)?;
            runtime.ask_at_stop(request).await.map(|updates| Answer(None, updates))
        }
        Event::RunPodSandbox => notified!(RunPodSandboxRequest),
        Event::UpdatePodSandbox => notified!(UpdatePodSandboxRequest),
        Event::PostUpdatePodSandbox => notified!(PostUpdatePodSandboxRequest),
        Event::StopPodSandbox => notified!(StopPodSandboxRequest),
        Event::RemovePodSandbox => notified!(RemovePodSandboxRequest),
        Event::PostCreateContainer => notified!(PostCreateContainerRequest),
        Event::StartContainer => notified!(StartContainerRequest),
        Event::PostStartContainer => notified!(PostStartContainerRequest),
        Event::PostUpdateContainer => notified!(PostUpdateContainerRequest),
        Event::RemoveContainer => notified!(RemoveContainerRequest),
        // The preceding CreateContainer has already sent this event.
        Event::ValidateContainerAdjustment => Ok(Answer::default()),
    })
}
