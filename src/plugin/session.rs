// SPDX-License-Identifier: Apache-2.0
//! Serves the runtime's side of one plugin connection: register, configure, synchronize, then
//! calls, each with a deadline and a typed outcome (ttRPC's errors are text).
//!
//! The plugin gets one request at a time, or as many as `concurrency` permits, in the order of `turns.rs`.
//! It may call the daemon at any time, even from inside a handler, because that needs no turn.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use nri_transport::{Connection, NotRegistered, PluginCaller, RuntimeServer, Trunk, Upcalls};
use tokio::net::UnixStream;

use crate::config::{Config, PluginSettings};

use super::child::PluginProcess;
use super::handover::SavedProcess;
use super::latency::{AnswerTimes, Quantiles};
use super::turns::Turns;
use super::{CallMeter, Event, Outcome, PluginIdentity, Policy, api};
use nri_api::event::ALL_BITS;

/// Time limit for a plugin to answer Shutdown.
const SHUTDOWN_WAIT: Duration = Duration::from_millis(500);

/// Runtime name, versions and time-outs for a plugin's connection.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Time limit for the connection to register.
    pub registration_timeout: Duration,
    /// Time limit of each request.
    pub request_timeout: Duration,
    /// Runtime name.
    pub runtime_name: String,
    /// Runtime version.
    pub runtime_version: String,
    /// NRI version of the runtime.
    pub nri_version: String,
}

/// The NRI version that this program speaks.
pub(crate) const NRI_VERSION: &str = "v0.12.5";

impl Settings {
    /// Returns the values that plugins receive in Configure.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            registration_timeout: config.registration_timeout,
            request_timeout: config.request_timeout,
            runtime_name: config.runtime_name.clone(),
            runtime_version: format!("v{}", env!("CARGO_PKG_VERSION")),
            nri_version: NRI_VERSION.to_owned(),
        }
    }
}

/// Why a connection did not become a plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The process did not register in time.
    #[error("it did not register in time")]
    NotRegistered,
    /// The connection ended, or the process violated the protocol.
    #[error("{0}")]
    Gone(String),
    /// The plugin's Configure failed.
    #[error("{0} could not be configured: {1}")]
    Configure(String, String),
    /// The plugin subscribed to events that do not exist.
    #[error("{0} subscribed to unknown events 0x{1:x}")]
    Events(String, i32),
}

impl From<NotRegistered> for SessionError {
    fn from(error: NotRegistered) -> Self {
        match error {
            NotRegistered::TimedOut => Self::NotRegistered,
            NotRegistered::Gone(why) => Self::Gone(why),
        }
    }
}

/// Progress of a Synchronize.
#[derive(Debug, Clone, Copy)]
pub struct SyncProgress {
    /// When the Synchronize began.
    pub begun: Instant,
    /// The time-out: of the whole Synchronize, or of each request.
    pub limit: Duration,
    /// Requests that the plugin has answered; a long snapshot has several.
    pub answered: usize,
}

/// The parts of a configured plugin.
pub(super) struct PluginParts {
    pub(super) identity: PluginIdentity,
    pub(super) events: i32,
    pub(super) takes_all: bool,
    pub(super) declared: Option<api::FailurePolicy>,
    pub(super) pid: Option<i32>,
    pub(super) timeout: Duration,
    pub(super) speaks_state_change: bool,
}

/// A registered and configured plugin.
pub struct Plugin {
    pub(super) identity: PluginIdentity,
    /// Its index and name as one text, which each request needs several times.
    id: String,
    events: AtomicI32,
    /// Whether the plugin subscribed to no event by name, and so receives all, even those that it
    /// does not know.
    takes_all: bool,
    declared: Option<api::FailurePolicy>,
    pid: Option<i32>,
    /// Time-out of a request, in nanoseconds.
    timeout: AtomicU64,
    /// Time-out of the whole Synchronize, in nanoseconds; 0 if only its requests have a time-out.
    sync_timeout: AtomicU64,
    sync_progress: std::sync::Mutex<Option<SyncProgress>>,
    answers: std::sync::Mutex<AnswerTimes>,
    pub(super) trunk: Trunk,
    pub(super) caller: PluginCaller,
    pub(super) turns: Turns,
    pub(super) meter: Option<Arc<dyn CallMeter>>,
    pub(super) speaks_state_change: AtomicBool,
    /// Events that the plugin received as StateChange.
    pub(super) deprecated: std::sync::Mutex<BTreeSet<&'static str>>,
    /// Serves the plugin's calls as long as this value exists.
    pub(super) server: RuntimeServer,
    /// The process of a launched plugin.
    process: std::sync::Mutex<Option<PluginProcess>>,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Registers and configures the connected plugin. `launched`: index, name and configuration text of
/// a plugin that the daemon started.
///
/// # Errors
/// Fails when the plugin does not register in time, disconnects, does not answer Configure in time or refuses it, or
/// subscribes to unknown events; the connection is then closed.
pub async fn handshake(
    stream: UnixStream,
    launched: Option<(String, String, String)>,
    settings: &Settings,
    upcalls: Arc<dyn Upcalls>,
) -> Result<Plugin, SessionError> {
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
    let split = nri_transport::split_to_call(stream);
    let split = split.map_err(|error| SessionError::Gone(crate::error::in_our_words(&error)));
    let (trunk, caller, runtime) = split?;
    let mut given_up = GivenUp(Some(trunk.clone()));
    let handshaken =
        register_and_configure(&trunk, caller, runtime, launched, settings, upcalls, pid).await;
    if let Err(error) = &handshaken {
        trunk.close(&error.to_string());
    }
    given_up.0 = None;
    handshaken
}

/// Closes the connection when its handshake is abandoned.
struct GivenUp(Option<Trunk>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        if let Some(trunk) = &self.0 {
            trunk.close("its handshake was abandoned");
        }
    }
}

async fn register_and_configure(
    trunk: &Trunk,
    caller: PluginCaller,
    runtime: Connection,
    launched: Option<(String, String, String)>,
    settings: &Settings,
    upcalls: Arc<dyn Upcalls>,
    pid: Option<i32>,
) -> Result<Plugin, SessionError> {
    let (launched_as, config) = match launched {
        Some((index, name, config)) => (Some((index, name)), config),
        None => (None, String::new()),
    };
    let server = nri_transport::serve_runtime(trunk, runtime, launched_as, upcalls).await;
    let mut server = server.map_err(|error| SessionError::Gone(error.to_string()))?;
    let identity = server.registered(trunk, settings.registration_timeout).await?;
    let parts = PluginParts {
        speaks_state_change: identity.nri_version.is_empty(),
        identity,
        events: 0,
        takes_all: false,
        declared: None,
        pid,
        timeout: settings.request_timeout,
    };
    let mut plugin = Plugin::from_parts(parts, trunk.clone(), caller, server);
    plugin.configure(config, settings).await?;
    Ok(plugin)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).max(1)
}

impl Plugin {
    /// Creates a plugin from its parts; its subscriptions may follow.
    pub(super) fn from_parts(
        parts: PluginParts,
        trunk: Trunk,
        caller: PluginCaller,
        server: RuntimeServer,
    ) -> Self {
        let plugin = Self {
            id: parts.identity.to_string(),
            identity: parts.identity,
            events: AtomicI32::new(parts.events),
            takes_all: parts.takes_all,
            declared: parts.declared,
            pid: parts.pid,
            timeout: AtomicU64::new(nanos(parts.timeout)),
            sync_timeout: AtomicU64::new(0),
            sync_progress: std::sync::Mutex::default(),
            answers: std::sync::Mutex::default(),
            trunk,
            caller,
            turns: Turns::new(1),
            meter: None,
            speaks_state_change: AtomicBool::new(parts.speaks_state_change),
            deprecated: std::sync::Mutex::default(),
            server,
            process: std::sync::Mutex::new(None),
        };
        plugin.weigh();
        plugin
    }

    /// Returns the failure policy that the plugin declared.
    pub(super) fn declared(&self) -> Option<&api::FailurePolicy> {
        self.declared.as_ref()
    }

    /// Returns the events to which the plugin is subscribed, as bits.
    pub(super) fn event_bits(&self) -> i32 {
        self.events.load(Ordering::Relaxed)
    }

    /// Whether the plugin subscribed to no event by name.
    pub(super) fn takes_all(&self) -> bool {
        self.takes_all
    }

    /// Saves the process of a launched plugin for the next program.
    pub(super) fn save_process(&self) -> Option<SavedProcess> {
        self.process.lock().ok()?.as_ref()?.save()
    }

    async fn configure(&mut self, config: String, settings: &Settings) -> Result<(), SessionError> {
        let request = api::ConfigureRequest {
            config,
            runtime_name: settings.runtime_name.clone(),
            runtime_version: settings.runtime_version.clone(),
            registration_timeout: millis(settings.registration_timeout),
            request_timeout: millis(settings.request_timeout),
            NRI_version: settings.nri_version.clone(),
            ..api::ConfigureRequest::default()
        };
        let id = self.id.clone();
        let answer = match self.call_within(self.timeout(), &request).await {
            Outcome::Answered(answer) => answer,
            Outcome::Refused(why) | Outcome::Unimplemented(why) | Outcome::Gone(why) => {
                return Err(SessionError::Configure(id, why));
            }
            Outcome::TimedOut => {
                return Err(SessionError::Configure(id, "it did not answer in time".to_owned()));
            }
            Outcome::NotConnected | Outcome::Busy(_) => {
                return Err(SessionError::Configure(id, "it closed the connection".to_owned()));
            }
        };
        if answer.events & !ALL_BITS != 0 {
            return Err(SessionError::Events(id, answer.events & !ALL_BITS));
        }
        self.takes_all = answer.events == 0;
        let events = if self.takes_all { ALL_BITS } else { answer.events };
        self.events.store(events, Ordering::Relaxed);
        self.weigh();
        // Drops unknown fields of the policy, which is kept as long as the plugin is connected.
        let known =
            |declared| api::FailurePolicy { special_fields: Default::default(), ..declared };
        self.declared = answer.failure_policy.into_option().map(known);
        Ok(())
    }

    /// Returns `NN-name`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the index, two digits.
    pub fn index(&self) -> &str {
        &self.identity.index
    }

    /// Returns the bare name.
    pub fn name(&self) -> &str {
        &self.identity.name
    }

    /// Returns the version of the plugin's NRI library; empty before v0.12.
    pub fn nri_version(&self) -> &str {
        &self.identity.nri_version
    }

    /// Returns the plugin's PID, if the kernel shows it.
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Sets the process of a launched plugin, which is ended with the connection. Its PID replaces
    /// the PID of the socket's peer, because the peer of a socketpair is this process.
    pub(super) fn set_process(&mut self, process: PluginProcess) {
        self.pid = process.pid();
        self.process = std::sync::Mutex::new(Some(process));
    }

    /// Whether the plugin is subscribed to `event`.
    pub fn is_subscribed(&self, event: Event) -> bool {
        self.events.load(Ordering::Relaxed) & event.bit() != 0
    }

    /// Whether the plugin subscribed by name to the validation of adjustments.
    pub fn is_validator(&self) -> bool {
        !self.takes_all && self.is_subscribed(Event::ValidateContainerAdjustment)
    }

    /// Unsubscribes the plugin from an `event` that it does not implement. Returns false if the
    /// plugin subscribed to it by name; it then stays subscribed.
    pub(super) fn drop_unasked_event(&self, event: Event) -> bool {
        if self.takes_all {
            self.events.fetch_and(!event.bit(), Ordering::Relaxed);
        }
        self.takes_all
    }

    /// Returns the number of reply frames received, including late replies.
    pub fn frames_received(&self) -> usize {
        self.trunk.frames_received()
    }

    /// Returns the policy in force with these settings of the operator.
    pub fn policy(&self, settings: &PluginSettings) -> Policy {
        Policy::new(settings, self.declared.as_ref())
    }

    /// Applies the operator's settings for this plugin: its time-outs and the number of its concurrent requests (D29).
    /// Without a setting, the time-out of a request becomes `default`, or stays as it is.
    pub fn apply(&self, settings: &PluginSettings, default: Option<Duration>) {
        if let Some(timeout) = settings.request_timeout.or(default) {
            self.timeout.store(nanos(timeout), Ordering::Relaxed);
        }
        let sync_timeout = settings.sync_timeout.map_or(0, nanos);
        self.sync_timeout.store(sync_timeout, Ordering::Relaxed);
        self.turns.set_concurrency(settings.concurrency.clamp(1, 1000));
    }

    /// Returns the time-out of a whole Synchronize, if the operator sets one.
    pub fn sync_timeout(&self) -> Option<Duration> {
        let nanos = self.sync_timeout.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Returns the progress of the plugin's Synchronize, while one is in progress.
    pub fn sync_progress(&self) -> Option<SyncProgress> {
        *self.sync_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_sync_progress(&self, progress: Option<SyncProgress>) {
        *self.sync_progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Returns the plugin's response times within about the last hour; `None` without a response.
    pub fn answer_times(&self) -> Option<Quantiles> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.quantiles(Instant::now())
    }

    pub(super) fn record_answer(&self, took: Duration) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.record(took, self.timeout(), Instant::now());
    }

    /// Returns the time-out of one request.
    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout.load(Ordering::Relaxed))
    }

    /// Counts the plugin's requests with this meter from now on.
    pub fn count_calls(&mut self, meter: Arc<dyn CallMeter>) {
        self.meter = Some(meter);
    }

    fn weigh(&self) {
        let hears = |event| self.is_subscribed(event);
        self.turns.weigh(hears(Event::CreateContainer), hears(Event::PostCreateContainer));
    }

    /// Whether the plugin's connection is gone.
    pub fn is_gone(&self) -> bool {
        self.trunk.closed_because().is_some()
    }

    /// Waits until the plugin's connection is gone; returns the reason.
    pub async fn closed(&self) -> String {
        self.trunk.closed().await
    }

    /// Closes the plugin's connection, and ends the process of a launched one; `why` is logged.
    pub fn disconnect(&self, why: &str) {
        let has_left = self.is_gone();
        self.trunk.close(why);
        let process = self.process.lock().ok().and_then(|mut process| process.take());
        if let Some(process) = process {
            process.stop(has_left);
        }
    }

    /// Waits for pending requests, up to the time-out of one, sends Shutdown, then disconnects; `why` is logged as the
    /// reason. A plugin that does not implement Shutdown may refuse it.
    pub async fn shutdown(&self, why: &str) {
        let _turns = tokio::time::timeout(self.timeout(), self.turns.all()).await;
        let wait = SHUTDOWN_WAIT.min(self.timeout());
        let request = api::Empty::new();
        let answer = self.caller.call(&request, wait, &[]);
        let _answered_or_not = tokio::time::timeout(wait, answer).await;
        self.disconnect(why);
    }
}
