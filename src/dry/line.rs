// SPDX-License-Identifier: Apache-2.0
//! Parses the lines of a script. Nothing is executed here.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::chain::Notification;
use crate::config::parse_duration;
use crate::plugin::api::extension::{
    ALL_EXTENSION_EVENTS, ExecContainerRequest, ExtensionEvent, PostExecRequest,
    UpdateResultsRequest,
};
use crate::plugin::{ALL_EVENTS, Event, api};

use crate::plugin::json::{read, read_list};

/// A line, with the id that its answer repeats.
#[derive(Debug)]
pub(super) struct ScriptLine {
    pub(super) id: Option<Value>,
    pub(super) command: Command,
}

/// The command of a line.
#[derive(Debug)]
pub(super) enum Command {
    State {
        snapshot: ScriptState,
        /// Whether the line adds to the earlier state instead of replacing it: a recorded state may
        /// have several lines.
        adds: bool,
        /// The plugins that were synchronized when the recording began; `None` for a line that was
        /// not recorded.
        recorded_with: Option<Vec<String>>,
    },
    Call(Box<ScriptCall>),
    Cancel(Value),
    Wait {
        synchronized: Vec<String>,
        gone: Vec<String>,
        timeout: Duration,
    },
    Disconnect(String),
    /// The outcome of a request in a recording.
    Decided,
    Answer(u64, Result<ScriptAnswer, String>),
}

/// The state with which new plugins are synchronized.
#[derive(Debug, Clone, Default)]
pub(super) struct ScriptState {
    pub(super) pods: Vec<api::PodSandbox>,
    pub(super) containers: Vec<api::Container>,
}

impl ScriptState {
    /// Applies the state of another line.
    pub(super) fn apply(&mut self, next: Self, adds: bool) {
        if !adds {
            *self = Self::default();
        }
        self.pods.extend(next.pods);
        self.containers.extend(next.containers);
    }
}

/// The script's answer to a request of a plugin, or, with `--ask-sync`, to a question for the
/// state.
#[derive(Debug)]
pub(super) enum ScriptAnswer {
    Updates(api::UpdateContainersResponse),
    State(ScriptState),
}

/// A request that the runtime side sends to plugins.
#[derive(Debug)]
pub(super) enum ScriptCall {
    Create(api::CreateContainerRequest),
    Update(api::UpdateContainerRequest),
    Stop(api::StopContainerRequest),
    /// Requests of the extension.
    Exec(ExecContainerRequest),
    PostExec(PostExecRequest),
    UpdateResults(UpdateResultsRequest),
    /// An event whose reply has no content.
    Notification(Box<Notification>),
}

/// A line that cannot be parsed, with its id if that could be read.
#[derive(Debug)]
pub(super) struct Malformed {
    pub(super) id: Option<Value>,
    pub(super) why: String,
}

/// The time-out of a `wait` without `timeout`.
const DEFAULT_WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads one line.
pub(super) fn parse(text: &str) -> Result<ScriptLine, Malformed> {
    let object = match serde_json::from_str(text) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return Err(Malformed { id: None, why: "it is not a JSON object".to_owned() }),
        Err(error) => return Err(Malformed { id: None, why: error.to_string() }),
    };
    let id = object.get("id").cloned();
    match command(&object) {
        Ok(command) => Ok(ScriptLine { id, command }),
        Err(why) => Err(Malformed { id, why }),
    }
}

/// Checks a line of a script.
///
/// # Errors
/// Fails with one line for an operator.
pub fn check(text: &str) -> Result<(), String> {
    parse(text).map(|_| ()).map_err(|malformed| malformed.why)
}

fn command(object: &Map<String, Value>) -> Result<Command, String> {
    const KINDS: [&str; 7] =
        ["answer", "call", "state", "cancel", "wait", "disconnect", "decision"];
    let kind = KINDS.into_iter().find(|kind| object.contains_key(*kind));
    let kind = kind.ok_or_else(|| format!("it must have one of: {}", KINDS.join(", ")))?;
    // Only a recorder adds `at` to its lines; it also adds the plugins to its state, and the pod's
    // origin to its calls.
    let is_recorded = object.contains_key("at");
    let may = |key: &str| match kind {
        "answer" => matches!(key, "reply" | "error" | "state"),
        "call" => key == "request" || is_recorded && matches!(key, "engine" | "proven"),
        "decision" => is_recorded,
        "state" => key == "adds" || key == "plugins" && is_recorded,
        _ => false,
    };
    let odd = object.keys().find(|key| *key != kind && !may(key) && *key != "id" && *key != "at");
    if let Some(odd) = odd {
        return Err(format!("{odd} cannot be used with {kind}"));
    }
    let value = &object[kind];
    match kind {
        "answer" => answer(value, object),
        "call" => call(value, object.get("request").unwrap_or(&Value::Null)),
        "state" => {
            let plugins = names(object.get("plugins"), "plugins")?;
            let recorded_with = is_recorded.then_some(plugins);
            let adds = match object.get("adds") {
                None => false,
                Some(adds) => adds.as_bool().ok_or("adds must be true or false")?,
            };
            Ok(Command::State { snapshot: snapshot(value)?, adds, recorded_with })
        }
        "cancel" => Ok(Command::Cancel(value.clone())),
        "decision" => Ok(Command::Decided),
        "wait" => wait(value),
        _ => Ok(Command::Disconnect(text(value, "disconnect")?)),
    }
}

fn text(value: &Value, what: &str) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{what} must be a string"))
}

fn snapshot(value: &Value) -> Result<ScriptState, String> {
    let object = value.as_object().ok_or("state must be a JSON object")?;
    if let Some(odd) = object.keys().find(|key| !matches!(key.as_str(), "pods" | "containers")) {
        return Err(format!("unknown key in state: {odd}"));
    }
    let pods = read_list(object.get("pods").unwrap_or(&Value::Null))?;
    let containers = read_list(object.get("containers").unwrap_or(&Value::Null))?;
    Ok(ScriptState { pods, containers })
}

fn answer(number: &Value, object: &Map<String, Value>) -> Result<Command, String> {
    let number = number.as_u64().ok_or("answer must be the number of a request")?;
    let given = (object.get("error"), object.get("state"), object.get("reply"));
    let reply = match given {
        (Some(error), None, None) => Err(text(error, "error")?),
        (None, Some(state), None) => Ok(ScriptAnswer::State(snapshot(state)?)),
        (None, None, Some(reply)) => Ok(ScriptAnswer::Updates(read(reply)?)),
        (None, None, None) => Ok(ScriptAnswer::Updates(api::UpdateContainersResponse::default())),
        _ => return Err("an answer must have one of: reply, state, error".to_owned()),
    };
    Ok(Command::Answer(number, reply))
}

fn names(value: Option<&Value>, what: &str) -> Result<Vec<String>, String> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(|name| text(name, what)).collect(),
        Some(_) => Err(format!("{what} must be a list of names")),
    }
}

fn wait(value: &Value) -> Result<Command, String> {
    let object = value.as_object().ok_or("wait must be a JSON object")?;
    let known = |key: &str| matches!(key, "synchronized" | "gone" | "timeout");
    if let Some(odd) = object.keys().find(|key| !known(key)) {
        return Err(format!("unknown key in wait: {odd}"));
    }
    let timeout = match object.get("timeout") {
        None => DEFAULT_WAIT_TIMEOUT,
        Some(value) => parse_duration(&text(value, "timeout")?)
            .ok_or_else(|| format!("timeout: {value} is not a duration"))?,
    };
    let synchronized = names(object.get("synchronized"), "synchronized")?;
    Ok(Command::Wait { synchronized, gone: names(object.get("gone"), "gone")?, timeout })
}

fn call(name: &Value, request: &Value) -> Result<Command, String> {
    let name = text(name, "call")?;
    if let Some(event) = ALL_EXTENSION_EVENTS.into_iter().find(|event| event.method() == name) {
        return extension_call(event, request).map(|call| Command::Call(Box::new(call)));
    }
    let event = ALL_EVENTS.iter().copied().find(|event| event.name() == name);
    let event = event.ok_or_else(|| format!("{name} is not a request"))?;
    let request = match event {
        Event::CreateContainer => ScriptCall::Create(read(request)?),
        Event::UpdateContainer => ScriptCall::Update(read(request)?),
        Event::StopContainer => ScriptCall::Stop(read(request)?),
        Event::ValidateContainerAdjustment => {
            return Err(format!("{name} is part of CreateContainer"));
        }
        Event::UpdatePodSandbox => {
            let api::UpdatePodSandboxRequest {
                pod,
                overhead_linux_resources: overhead,
                linux_resources: resources,
                special_fields: _,
            } = read(request)?;
            let mut told = Notification::new(event, pod.unwrap_or_default(), None);
            told.resources = Some((overhead.into_option(), resources.into_option()));
            ScriptCall::Notification(Box::new(told))
        }
        Event::RunPodSandbox
        | Event::StopPodSandbox
        | Event::RemovePodSandbox
        | Event::PostUpdatePodSandbox => {
            let api::RunPodSandboxRequest { pod, special_fields: _ } = read(request)?;
            let told = Notification::new(event, pod.unwrap_or_default(), None);
            ScriptCall::Notification(Box::new(told))
        }
        Event::PostCreateContainer
        | Event::StartContainer
        | Event::PostStartContainer
        | Event::PostUpdateContainer
        | Event::RemoveContainer => {
            let api::StartContainerRequest { pod, container, special_fields: _ } = read(request)?;
            let container = Some(container.unwrap_or_default().into());
            let told = Notification::new(event, pod.unwrap_or_default(), container);
            ScriptCall::Notification(Box::new(told))
        }
    };
    Ok(Command::Call(Box::new(request)))
}

fn extension_call(event: ExtensionEvent, request: &Value) -> Result<ScriptCall, String> {
    Ok(match event {
        ExtensionEvent::EXEC_CONTAINER => ScriptCall::Exec(read(request)?),
        ExtensionEvent::POST_EXEC => ScriptCall::PostExec(read(request)?),
        ExtensionEvent::UPDATE_RESULTS => ScriptCall::UpdateResults(read(request)?),
        ExtensionEvent::VALIDATE_EXEC | ExtensionEvent::EXTENSION_UNKNOWN => {
            return Err(format!("{} is part of ExecContainer", event.method()));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn command_of(line: &Value) -> Command {
        parse(&line.to_string()).unwrap().command
    }

    #[test]
    fn a_script_may_call_every_event_except_the_validation() {
        for event in ALL_EVENTS {
            let line = json!({"id": 1, "call": event.name(), "request": {"pod": {"id": "p"}}});
            let parsed = parse(&line.to_string());
            assert_eq!(parsed.is_ok(), event != Event::ValidateContainerAdjustment, "{line}");
        }
    }

    #[test]
    fn a_script_may_call_every_extension_request_but_validate_exec() {
        for event in ALL_EXTENSION_EVENTS {
            let line = json!({"id": 1, "call": event.method(), "request": {}}).to_string();
            assert_eq!(parse(&line).is_ok(), event != ExtensionEvent::VALIDATE_EXEC, "{line}");
            let line = json!({"call": event.method(), "request": {"nope": 1}}).to_string();
            assert!(parse(&line).is_err(), "{line}");
        }
    }

    #[test]
    fn only_a_recorded_state_names_its_plugins() {
        let recorded = |line: &Value| {
            let Command::State { recorded_with, .. } = command_of(line) else { panic!("{line}") };
            recorded_with
        };
        let names = Some(vec!["10-a".to_owned()]);
        assert_eq!(recorded(&json!({"at": 1, "plugins": ["10-a"], "state": {}})), names);
        assert_eq!(recorded(&json!({"at": 1, "state": {}})), Some(Vec::new()), "an older one");
        assert_eq!(recorded(&json!({"state": {}})), None);
        for line in [
            json!({"plugins": ["10-a"], "state": {}}),
            json!({"at": 1, "plugins": "10-a", "state": {}}),
            json!({"at": 1, "plugins": [1], "state": {}}),
            json!({"at": 1, "plugins": [], "call": "StopContainer"}),
            json!({"adds": 1, "state": {}}),
            json!({"adds": true, "call": "StopContainer"}),
        ] {
            assert!(parse(&line.to_string()).is_err(), "{line}");
        }
    }

    #[test]
    fn a_wait_has_names_and_a_time() {
        let line = json!({"wait": {"synchronized": ["10-a"], "gone": ["20-b"], "timeout": "20ms"}});
        let Command::Wait { synchronized, gone, timeout } = command_of(&line) else {
            panic!("{line}")
        };
        assert_eq!((synchronized, gone), (vec!["10-a".to_owned()], vec!["20-b".to_owned()]));
        assert_eq!(timeout, Duration::from_millis(20));
    }

    #[test]
    fn a_scripted_answer_is_a_reply_a_state_or_an_error() {
        for (line, wanted) in [
            (json!({"answer": 7, "reply": {"failed": [{"containerId": "c"}]}}), "Updates"),
            (json!({"answer": 7, "state": {"pods": [{"id": "p"}]}}), "State"),
            (json!({"answer": 7, "error": "no"}), "Err"),
        ] {
            let shown = format!("{:?}", command_of(&line));
            assert!(shown.starts_with("Answer(7, ") && shown.contains(wanted), "{shown}");
        }
    }

    #[test]
    fn the_error_of_a_malformed_line_has_its_id() {
        for line in [
            json!({"id": "x", "call": "Nope"}),
            json!({"id": "x"}),
            json!({"id": "x", "call": "StopContainer", "request": {"nope": 1}}),
            json!({"id": "x", "call": "StopContainer", "requests": {}}),
            json!({"id": "x", "state": []}),
            json!({"id": "x", "wait": {"gone": "10-a"}}),
            json!({"id": "x", "wait": {"timeout": "soon"}}),
            json!({"id": "x", "answer": "7"}),
            json!({"id": "x", "disconnect": 5}),
        ] {
            let malformed = parse(&line.to_string()).unwrap_err();
            assert_eq!(malformed.id, Some(json!("x")), "{line}");
            assert!(!malformed.why.contains('\n'));
        }
        for line in ["", "[]", "{", "nonsense", "{\"id\":1"] {
            assert!(parse(line).unwrap_err().id.is_none(), "{line}");
        }
    }
}
