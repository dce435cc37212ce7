// SPDX-License-Identifier: Apache-2.0
//! `replay`: reads a script of requests, one line of JSON each, and prints the plugins' replies.
//!
//! A call starts when its line is read, and calls run concurrently. `wait` and `disconnect` delay
//! the lines after them, except for `answer` lines and a `cancel` of a running call. The first call
//! after the state of a recording waits for the recording's plugins. Requests are sent as written:
//! they are not reordered, rolled back or deduplicated.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, Write};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::config::{Config, parse_duration};
use crate::ends::Ends;
use crate::error::{Context, Error, Result};
use crate::plugin::{Settings, api};
use crate::presence::IfThere;

use super::calls;
use super::dry_run::{DryRun, DryRunObserver, Later, now};
use super::line::{self, Command, Malformed, ScriptAnswer, ScriptCall, ScriptLine, ScriptState};
use super::recording::ExpectedPlugins;
use super::script::{self, RawLine};
use crate::plugin::json::{show, show_list};

/// The options of the command line.
#[derive(Debug, Args)]
pub(crate) struct ReplayOptions {
    /// Runtime name to report to plugins.
    #[arg(long, value_name = "NAME")]
    runtime_name: Option<String>,
    /// Runtime version to report to plugins.
    #[arg(long, value_name = "VERSION")]
    runtime_version: Option<String>,
    /// NRI version to report to plugins.
    #[arg(long, value_name = "VERSION")]
    nri_version: Option<String>,
    /// Take Synchronize's state from the script.
    #[arg(long)]
    ask_sync: bool,
    /// Respond to UpdateContainers from the script.
    #[arg(long)]
    ask_updates: bool,
    /// Wait for a recording's plugins.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    wait_timeout: Duration,
}

/// Parses a duration of the command line, written as in the configuration.
fn duration(text: &str) -> std::result::Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "expected a duration, such as 30s or 500ms".to_owned())
}

/// Runs a script until it ends, or a signal arrives.
///
/// # Errors
/// Fails when plugins cannot connect, or the script cannot be read to its end. For a malformed
/// line, an error answer is printed.
pub(crate) fn run(config: Config, options: &ReplayOptions, file: Option<&Path>) -> Result<()> {
    let script = script::open(file)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "starting the event loop")?;
    let local = tokio::task::LocalSet::new();
    let ended = local.block_on(&runtime, play(config, options, file, script));
    // The thread that reads the script may wait for input forever; it must not delay the end.
    runtime.shutdown_background();
    ended
}

async fn play(
    config: Config,
    options: &ReplayOptions,
    file: Option<&Path>,
    script: Box<dyn BufRead + Send>,
) -> Result<()> {
    let mut settings = Settings::of(&config);
    for (setting, given) in [
        (&mut settings.runtime_name, &options.runtime_name),
        (&mut settings.runtime_version, &options.runtime_version),
        (&mut settings.nri_version, &options.nri_version),
    ] {
        given.iter().for_each(|given| setting.clone_from(given));
    }
    let observer = Rc::new(ScriptObserver {
        ask_sync: options.ask_sync,
        ask_updates: options.ask_updates,
        asked: Cell::new(0),
        waiting: RefCell::default(),
        state: RefCell::default(),
    });
    let unknown_engine = (String::new(), false);
    let observing = Rc::clone(&observer) as Rc<dyn DryRunObserver>;
    let dry_run = DryRun::new(config, settings, unknown_engine, observing);
    let mut lines = script::read(script)?;
    // A recorded script begins with the state with which the first plugin is synchronized. The
    // start does not wait for standard input, because a person may be typing the script.
    let meta = file.and_then(|path| std::fs::metadata(path).or_absent());
    let is_at_hand = meta.is_some_and(|meta| meta.is_file());
    let (mut first, mut states) = (VecDeque::new(), 0);
    while is_at_hand && states == first.len() {
        let Some(next) = lines.recv().await else { break };
        if observer.begins_with(&next, states > 0) {
            states += 1;
        }
        first.push_back(next);
    }
    let replay = Rc::new(ReplaySession {
        dry_run: Rc::clone(&dry_run),
        observer,
        expected: ExpectedPlugins::new(options.wait_timeout),
        unread: RefCell::default(),
        calls: RefCell::default(),
    });
    let (held_back, commands) = mpsc::unbounded_channel();
    // `answer` lines are read while pre-installed plugins are still starting.
    let sorting = tokio::task::spawn_local(Rc::clone(&replay).sort(first, lines, held_back));
    let mut ends = Ends::new()?;
    let played = async {
        dry_run.open().await?;
        Rc::clone(&replay).follow(commands, states).await;
        Ok(())
    };
    let played: Result<()> = tokio::select! {
        played = played => played,
        () = ends.wait() => Ok(()),
    };
    sorting.abort();
    dry_run.close().await;
    played?;
    replay.unread.take().map_or(Ok(()), Err)
}

/// Prints one line and flushes it. A closed pipe is ignored, because the plugins must still be shut
/// down.
fn print_line(line: &Value) {
    let mut out = std::io::stdout().lock();
    let _nobody_reads = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn answer(id: Option<&Value>, members: Value) {
    let mut line = serde_json::Map::new();
    if let Some(id) = id {
        line.insert("id".to_owned(), id.clone());
    }
    if let Value::Object(members) = members {
        line.extend(members);
    }
    print_line(&Value::Object(line));
}

fn answer_result(id: Option<&Value>, result: std::result::Result<(), String>) {
    answer(
        id,
        match result {
            Ok(()) => json!({"ok": true}),
            Err(why) => json!({"error": why}),
        },
    );
}

/// A line, or why it is malformed. Both are queued and answered in order, once the pre-installed
/// plugins have started.
type Read = std::result::Result<ScriptLine, Malformed>;

struct ReplaySession {
    dry_run: Rc<DryRun>,
    observer: Rc<ScriptObserver>,
    expected: ExpectedPlugins,
    /// The error that ended the reading before the end of the script.
    unread: RefCell<Option<Error>>,
    /// Running calls that a line may cancel.
    calls: RefCell<Vec<(Option<Value>, oneshot::Sender<()>)>>,
}

impl ReplaySession {
    /// Handles the lines that must not wait, and passes the rest on in order.
    async fn sort(
        self: Rc<Self>,
        mut first: VecDeque<RawLine>,
        mut lines: mpsc::Receiver<RawLine>,
        held_back: mpsc::UnboundedSender<Read>,
    ) {
        let mut number = 0_u64;
        loop {
            let next = match first.pop_front() {
                Some(first) => first,
                None => match lines.recv().await {
                    Some(next) => next,
                    None => break,
                },
            };
            number += 1;
            let read = match next {
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&bytes);
                    if text.trim().is_empty() {
                        continue;
                    }
                    line::parse(text.trim())
                }
                Err(error) => {
                    let why = error.to_string();
                    self.unread.replace(Some(error));
                    Err(Malformed { id: None, why })
                }
            };
            let numbered =
                |Malformed { id, why }| Malformed { id, why: format!("line {number}: {why}") };
            match read.map_err(numbered) {
                Ok(ScriptLine { id: _, command: Command::Answer(asked, reply) }) => {
                    if let Err(why) = self.observer.answered(asked, reply) {
                        answer(None, json!({"error": format!("line {number}: {why}")}));
                    }
                }
                Ok(ScriptLine { id: _, command: Command::Cancel(call) }) if self.cancel(&call) => {}
                read => {
                    let _ended = held_back.send(read);
                }
            }
        }
        self.observer.end_answers();
    }

    /// Executes the script, then waits for pending calls. The state of the first `states` lines is
    /// already applied.
    async fn follow(
        self: Rc<Self>,
        mut commands: mpsc::UnboundedReceiver<Read>,
        mut states: usize,
    ) {
        let mut pending = Vec::new();
        while let Some(read) = commands.recv().await {
            let ScriptLine { id, command } = match read {
                Ok(line) => line,
                Err(Malformed { id, why }) => {
                    answer(id.as_ref(), json!({"error": why}));
                    continue;
                }
            };
            match command {
                Command::State { snapshot, adds, recorded_with } => {
                    if states > 0 {
                        states -= 1;
                    } else {
                        self.observer.state.borrow_mut().apply(snapshot, adds);
                    }
                    if !adds {
                        self.expected.expect(recorded_with);
                    }
                    answer_result(id.as_ref(), Ok(()));
                }
                Command::Call(request) => {
                    self.expected.wait(&self.dry_run).await;
                    pending.push(self.start(id, *request));
                }
                Command::Cancel(call) => {
                    self.cancel(&call);
                }
                Command::Wait { synchronized, gone, timeout } => {
                    self.expected.leave_to_the_script();
                    let waited = self.dry_run.wait(&synchronized, &gone, timeout).await;
                    answer_result(id.as_ref(), waited);
                }
                Command::Disconnect(name) => {
                    answer_result(id.as_ref(), self.dry_run.disconnect(&name).await);
                }
                Command::Answer(..) | Command::Decided => {}
            }
            pending.retain(|call: &tokio::task::JoinHandle<()>| !call.is_finished());
        }
        futures_util::future::join_all(pending).await;
    }

    fn start(
        self: &Rc<Self>,
        id: Option<Value>,
        request: ScriptCall,
    ) -> tokio::task::JoinHandle<()> {
        let (cancel, cancelled) = oneshot::channel();
        self.calls.borrow_mut().retain(|(_, cancel)| !cancel.is_closed());
        self.calls.borrow_mut().push((id.clone(), cancel));
        let replay = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let members = tokio::select! {
                biased;
                members = calls::call(&replay.dry_run, request) => members,
                Ok(()) = cancelled => {
                    json!({"error": "the caller gave up waiting", "cause": "cancelled"})
                }
            };
            answer(id.as_ref(), members);
        })
    }

    /// Ends a running call; returns false if no call has this id.
    fn cancel(&self, call: &Value) -> bool {
        let mut calls = self.calls.borrow_mut();
        let at =
            calls.iter().position(|(id, cancel)| id.as_ref() == Some(call) && !cancel.is_closed());
        at.map(|at| calls.swap_remove(at)).is_some_and(|(_, cancel)| cancel.send(()).is_ok())
    }
}

type Update = oneshot::Sender<std::result::Result<api::UpdateContainersResponse, String>>;
type Sync = oneshot::Sender<std::result::Result<ScriptState, String>>;

/// A request that the script must answer.
enum PluginQuestion {
    Update(Update),
    Sync(Sync),
}

/// Prints events, and waits for the answers of the script.
struct ScriptObserver {
    ask_sync: bool,
    ask_updates: bool,
    asked: Cell<u64>,
    waiting: RefCell<HashMap<u64, PluginQuestion>>,
    state: RefCell<ScriptState>,
}

impl ScriptObserver {
    fn number(&self) -> u64 {
        self.asked.set(self.asked.get() + 1);
        self.asked.get()
    }

    fn answered(
        &self,
        number: u64,
        reply: std::result::Result<ScriptAnswer, String>,
    ) -> std::result::Result<(), String> {
        // Sending the answer fails if the plugin has disconnected; that is no error.
        let question = self.waiting.borrow_mut().remove(&number);
        match (question, reply) {
            (Some(PluginQuestion::Update(sender)), Ok(ScriptAnswer::Updates(reply))) => {
                drop(sender.send(Ok(reply)));
            }
            (Some(PluginQuestion::Sync(sender)), Ok(ScriptAnswer::State(state))) => {
                drop(sender.send(Ok(state)));
            }
            (Some(PluginQuestion::Update(sender)), Err(why)) => drop(sender.send(Err(why))),
            (Some(PluginQuestion::Sync(sender)), Err(why)) => drop(sender.send(Err(why))),
            (Some(question), Ok(_)) => {
                self.waiting.borrow_mut().insert(number, question);
                return Err(format!("answer {number} is of another kind than asked for"));
            }
            // Without --ask-updates, the request's number is printed too, and an answer has no
            // effect; nor has a second answer.
            (None, _) if (1..=self.asked.get()).contains(&number) => {}
            (None, _) => return Err(format!("answer {number} was not asked for")),
        }
        Ok(())
    }

    /// Applies the state of one of the first lines: the very first must replace the state, the next
    /// ones must add to it (`may_add`). Returns false for any other line.
    fn begins_with(&self, line: &RawLine, may_add: bool) -> bool {
        let Ok(bytes) = line else { return false };
        match line::parse(String::from_utf8_lossy(bytes).trim()) {
            Ok(ScriptLine { command: Command::State { snapshot, adds, .. }, .. })
                if adds == may_add =>
            {
                self.state.borrow_mut().apply(snapshot, adds);
                true
            }
            _ => false,
        }
    }

    fn end_answers(&self) {
        self.waiting.borrow_mut().clear();
        self.asked.set(u64::MAX / 2);
    }
}

impl DryRunObserver for ScriptObserver {
    fn registered(&self, plugin: &str) {
        print_line(&json!({"event": "registered", "plugin": plugin}));
    }

    fn snapshot(&self, plugin: &str) -> Later<ScriptState> {
        if !self.ask_sync {
            return now(self.state.borrow().clone());
        }
        let (sender, receiver) = oneshot::channel();
        let ask = self.number();
        self.waiting.borrow_mut().insert(ask, PluginQuestion::Sync(sender));
        print_line(&json!({"event": "synchronize", "plugin": plugin, "ask": ask}));
        receiver
    }

    fn synchronized(&self, plugin: &str, updates: &[api::ContainerUpdate]) {
        let updates = show_list(updates);
        print_line(&json!({"event": "synchronized", "plugin": plugin, "updates": updates}));
    }

    fn gone(&self, plugin: &str, reason: &str) {
        print_line(&json!({"event": "gone", "plugin": plugin, "reason": reason}));
    }

    fn update(
        &self,
        plugin: &str,
        request: api::UpdateContainersRequest,
    ) -> Later<api::UpdateContainersResponse> {
        let ask = self.number();
        let answer = if self.ask_updates {
            let (sender, receiver) = oneshot::channel();
            self.waiting.borrow_mut().insert(ask, PluginQuestion::Update(sender));
            receiver
        } else {
            now(api::UpdateContainersResponse::default())
        };
        let request = show(&request);
        print_line(&json!({
            "event": "UpdateContainers", "plugin": plugin, "ask": ask, "request": request,
        }));
        answer
    }
}
