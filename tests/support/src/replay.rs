// SPDX-License-Identifier: Apache-2.0
//! A `replay` of the built binary with its own socket and configuration, and plugins in this
//! process that act as a case says.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nri_plugin::{Adjustment, Context, Update};
use nri_runc::plugin::{ALL_EVENTS, Event, api};
use protobuf::MessageDyn;
use serde_json::{Value, json};

use crate::acts_at_every_event;
use crate::play::play;

/// Longer than any step takes on a busy machine.
const STEP_WAIT: Duration = crate::PATIENCE;

/// A running `replay`.
pub struct Replay {
    temp: tempfile::TempDir,
    child: Child,
    script: Option<ChildStdin>,
    lines: Receiver<Value>,
    /// Lines that arrived while another one was awaited.
    seen: Vec<Value>,
}

/// A folder with a configuration; `more` belongs to its `[nri]` table and the following ones.
pub fn prepared(more: &str) -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().display();
    std::fs::create_dir(temp.path().join("plugins")).unwrap();
    let text = format!(
        "run_dir = \"{dir}/run\"\n[nri]\nsocket_path = \"{dir}/nri.sock\"\n\
         plugin_path = \"{dir}/plugins\"\nplugin_config_path = \"{dir}\"\n{more}\n"
    );
    nri_runc::testing::files::replace(&temp.path().join("config.toml"), text.as_bytes()).unwrap();
    temp
}

/// The command `nri-runc nri VERB …` with the configuration of `temp`.
pub fn command(temp: &tempfile::TempDir, words: &[&str]) -> Command {
    let mut command = Command::new(crate::program::nri_runc());
    command.args(["nri", "--config"]).arg(temp.path().join("config.toml")).args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

impl Replay {
    /// Starts a `replay` with default settings.
    pub fn start() -> Self {
        Self::with("", &[])
    }

    /// Starts a `replay` with `more` configuration and `flags`.
    pub fn with(more: &str, flags: &[&str]) -> Self {
        Self::on(prepared(more), flags)
    }

    /// Starts a `replay` in a prepared folder.
    pub fn on(temp: tempfile::TempDir, flags: &[&str]) -> Self {
        let words: Vec<&str> = std::iter::once("replay").chain(flags.iter().copied()).collect();
        let mut options = std::fs::OpenOptions::new();
        let printed = options.append(true).create(true).open(temp.path().join("stderr")).unwrap();
        let mut child = command(&temp, &words).stderr(printed).spawn().unwrap();
        let script = child.stdin.take();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(json!({ "no JSON": line }));
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { temp, child, script, lines, seen: Vec::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Writes a line of the script.
    pub fn send(&mut self, line: &Value) {
        self.send_text(&line.to_string());
    }

    /// Writes a line that need not be JSON.
    pub fn send_text(&mut self, line: &str) {
        let script = self.script.as_mut().unwrap();
        writeln!(script, "{line}").unwrap();
        script.flush().unwrap();
    }

    /// The first line, old or new, for which `is_it` returns true; it is not found again.
    pub fn line(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.seen.iter().position(&is_it) {
            return self.seen.remove(at);
        }
        let deadline = Instant::now() + STEP_WAIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            assert!(line.is_ok(), "no {what}; there were {:?}", self.seen);
            match line.unwrap() {
                line if is_it(&line) => return line,
                line => self.seen.push(line),
            }
        }
    }

    /// The answer to the line with this ID.
    pub fn answer(&mut self, id: &Value) -> Value {
        self.line(&format!("answer to {id}"), |line| line.get("id") == Some(id))
    }

    /// An unprompted line about a plugin.
    pub fn event(&mut self, event: &str, plugin: &str) -> Value {
        self.line(&format!("{event} of {plugin}"), |line| {
            line["event"] == event && line["plugin"] == plugin
        })
    }

    /// Sends a line and returns its answer.
    pub fn ask(&mut self, line: &Value) -> Value {
        self.send(line);
        self.answer(&line["id"])
    }

    /// Sends a CreateContainer for a container `c0` and returns its answer.
    pub fn create(&mut self) -> Value {
        self.ask(&create(json!("create")))
    }

    /// Connects a plugin and waits until it is synchronized.
    pub fn plugin(&mut self, id: &str, plugin: ReplayPlugin) -> Arc<ReceivedMethods> {
        let received = plugin.connect(self.path("nri.sock"), id);
        self.event("synchronized", id);
        received
    }

    /// Ends the script; returns every unprompted line, and the exit status.
    pub fn end(mut self) -> (Vec<Value>, ExitStatus) {
        self.script.take();
        let mut rest = std::mem::take(&mut self.seen);
        rest.extend(self.lines.iter());
        (rest, self.child.wait().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A CreateContainer line.
pub fn create(id: Value) -> Value {
    json!({"id": id, "call": "CreateContainer", "request": {
        "pod": {"id": "p0", "name": "pod0"},
        "container": {"id": "c0", "podSandboxId": "p0", "name": "ctr0", "env": ["HOME=/"]}}})
}

/// The events that a plugin received.
#[derive(Default)]
pub struct ReceivedMethods(Mutex<Vec<(String, String)>>);

impl ReceivedMethods {
    /// The methods, in order.
    pub fn methods(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(method, _)| method.clone()).collect()
    }

    /// The last message of a method, as text.
    pub fn last(&self, method: &str) -> String {
        let received = self.0.lock().unwrap();
        received
            .iter()
            .rev()
            .find(|(name, _)| name == method)
            .map(|(_, text)| text.clone())
            .unwrap()
    }

    /// Waits until a method has been called.
    pub fn wait_for(&self, method: &str) {
        let deadline = Instant::now() + STEP_WAIT;
        while !self.methods().iter().any(|received| received == method) {
            assert!(Instant::now() < deadline, "{method} was not heard: {:?}", self.methods());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The action of a plugin at a method.
#[derive(Clone, Default)]
pub enum Action {
    #[default]
    Nothing,
    Adjust(Box<api::ContainerAdjustment>),
    Update(Vec<api::ContainerUpdate>),
    Evict(&'static str, &'static str),
    Refuse(&'static str),
    Hang,
    Leave,
    /// Requests updates from inside its handler, and adjusts by the response.
    Ask(Vec<api::ContainerUpdate>),
}

/// A plugin of a case.
#[derive(Clone, Default)]
pub struct ReplayPlugin {
    does: Vec<(Option<Event>, Action)>,
    events: Option<Vec<Event>>,
    policy: Option<api::FailurePolicy>,
}

impl ReplayPlugin {
    /// A plugin that subscribes to everything and changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the action at an event.
    pub fn at(mut self, event: Event, does: Action) -> Self {
        self.does.push((Some(event), does));
        self
    }

    /// Sets the action at CreateContainer.
    pub fn creating(self, does: Action) -> Self {
        self.at(Event::CreateContainer, does)
    }

    /// Sets the action at Synchronize.
    pub fn synchronizing(mut self, does: Action) -> Self {
        self.does.push((None, does));
        self
    }

    pub fn subscribing(mut self, events: &[Event]) -> Self {
        self.events = Some(events.to_vec());
        self
    }

    pub fn declaring(mut self, policy: api::FailurePolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Connects it, as `NN-name`, in a separate thread that ends with the connection.
    pub fn connect(self, socket: PathBuf, id: &str) -> Arc<ReceivedMethods> {
        let received = Arc::new(ReceivedMethods::default());
        let events = self.events.clone().unwrap_or_else(|| {
            let validating = Event::ValidateContainerAdjustment;
            ALL_EVENTS.iter().copied().filter(|event| *event != validating).collect()
        });
        let acting = Acting { plugin: self, events, received: Arc::clone(&received) };
        play(socket, id, Arc::new(acting));
        received
    }
}

struct Acting {
    plugin: ReplayPlugin,
    events: Vec<Event>,
    received: Arc<ReceivedMethods>,
}

impl Acting {
    fn does(&self, event: Option<Event>) -> Action {
        let found = self.plugin.does.iter().find(|(at, _)| *at == event);
        found.map(|(_, does)| does.clone()).unwrap_or_default()
    }

    async fn act(
        &self,
        context: &Context,
        event: Event,
        _name: &str,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        self.answer(context, Some(event)).await
    }

    /// Returns the plugin's response to an event: the adjustment, updates and evictions.
    async fn answer(
        &self,
        context: &Context,
        event: Option<Event>,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        let mut answer = api::CreateContainerResponse::new();
        match self.does(event) {
            Action::Nothing => {}
            Action::Adjust(adjust) => answer.adjust = Some(*adjust).into(),
            Action::Update(update) => answer.update = update,
            Action::Evict(container_id, reason) => {
                let (container_id, reason) = (container_id.to_owned(), reason.to_owned());
                let eviction =
                    api::ContainerEviction { container_id, reason, ..Default::default() };
                answer.evict = vec![eviction];
            }
            Action::Refuse(why) => return Err(why.into()),
            Action::Hang => std::future::pending::<()>().await,
            Action::Leave => {
                context.runtime().close();
                std::future::pending::<()>().await;
            }
            Action::Ask(update) => {
                let request = api::UpdateContainersRequest { update, ..Default::default() };
                let env = match context.runtime().update_containers(&request).await {
                    Ok(answer) => ("FAILED", &answer.failed.len().to_string()).into(),
                    Err(why) => ("REFUSED", &why.to_string()).into(),
                };
                let adjust = api::ContainerAdjustment { env: vec![env], ..Default::default() };
                answer.adjust = Some(adjust).into();
            }
        }
        Ok(answer)
    }
}

acts_at_every_event! { Acting {
    fn events(&self) -> &[Event] {
        &self.events
    }

    fn failure_policy(&self) -> Option<api::FailurePolicy> {
        self.plugin.policy.clone()
    }

    fn observe(&self, method: &'static str, message: &dyn MessageDyn) {
        self.received.0.lock().unwrap().push((method.to_owned(), message.to_string()));
    }

    async fn synchronize(
        &self,
        context: &Context,
        _: Vec<api::PodSandbox>,
        _: Vec<api::Container>,
    ) -> nri_plugin::Result<Vec<api::ContainerUpdate>> {
        Ok(self.answer(context, None).await?.update)
    }
} }

/// An adjustment that sets one variable.
pub fn setting(name: &str, value: &str) -> Action {
    let answer = api::CreateContainerResponse::from(Adjustment::new().env(name, value));
    Action::Adjust(Box::new(answer.adjust.unwrap_or_default()))
}

/// An update of another container's CPU shares.
pub fn shares(container: &str, shares: u64) -> Vec<api::ContainerUpdate> {
    vec![Update::of(container).cpu_shares(shares).into()]
}
