// SPDX-License-Identifier: Apache-2.0
//! Calls one plugin of the chain, counts its failures, and applies its policy to the outcome of
//! each call (NRI FailurePolicy).

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;

use nri_adaptation::{MergeError, NriField, Rights, RuleNote};
use nri_transport::PluginRequest;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tracing::warn;

use crate::clock;
use crate::config::{Config, OnFailure, PluginSettings};
use crate::error::{Error, quoted};
use crate::limits;
use crate::named::named;
use crate::plugin::{Event, Outcome, Plugin, Policy};

use super::strikes::{HANGING_STRIKES, Strikes};

named! {
    /// Why a request failed, as `replay` names it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Cause {
        /// A plugin did not answer in time, or was not called because it was too slow with earlier requests.
        Timeout => "timeout",
        /// A plugin disconnected before it answered the request.
        Gone => "gone",
        /// A plugin or a validator refused, the plugin's settings are invalid, or settings, a rule or a limit do
        /// not permit its reply.
        Refused => "refused",
        /// Two plugins set the same field, or a plugin's reply is not valid for the request.
        Conflict => "conflict",
    }
}

/// The plugin or injection that makes a request fail, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginFailure {
    /// `NN-name`; `inject:NAME` for an injection; in a dry run, the name in an unmet promise; empty if no plugin
    /// is at fault.
    pub plugin: String,
    /// The kind of failure.
    pub cause: Cause,
    /// One line that names the plugin.
    pub text: String,
    /// The field that the plugin may not set, or that another plugin has set.
    pub field: Option<NriField>,
    /// The rule that the plugin's reply violates.
    pub against: Option<Box<RuleNote>>,
}

impl fmt::Display for PluginFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PluginFailure {
    /// Creates a failure without a field or rule.
    pub fn new(plugin: impl Into<String>, cause: Cause, text: impl Into<String>) -> Self {
        Self { plugin: plugin.into(), cause, text: text.into(), field: None, against: None }
    }

    /// Converts the failure to the operator's line, with the plugin, field and rule for the audit log.
    pub(crate) fn into_error(self) -> Error {
        let error = Error::new(quoted(&self.text)).by(self.plugin);
        let error = match self.field {
            Some(field) => error.about(field.name()),
            None => error,
        };
        match self.against {
            Some(note) => error.about(note.field()).against(note.rule),
            None => error,
        }
    }

    /// Creates the failure of a reply that cannot be merged.
    pub fn from_merge_error(plugin: &str, error: &MergeError) -> Self {
        let (cause, field, against) = match error {
            MergeError::NotAllowed { field, .. } => (Cause::Refused, Some(*field), None),
            MergeError::AgainstRule(note) => (Cause::Refused, None, Some(Box::new(note.clone()))),
            MergeError::TooMany { .. } => (Cause::Refused, None, None),
            MergeError::Conflict(conflict) => (Cause::Conflict, Some(conflict.field), None),
            MergeError::UpdateOfSubject { .. }
            | MergeError::EvictionOfSubject { .. }
            | MergeError::EmptyArgs { .. } => (Cause::Conflict, None, None),
        };
        Self { field, against, ..Self::new(plugin, cause, error.to_string()) }
    }
}

/// The result of asking one plugin.
#[derive(Debug)]
pub enum PluginReply<T> {
    /// The plugin answered.
    Answer(T),
    /// The plugin did not reply, as its policy permits, or had disconnected before the request; the
    /// reason, without the plugin's name.
    Skipped(String),
    /// The request fails.
    Refusal(PluginFailure),
}

impl<T> PluginReply<T> {
    /// Converts an answer; a skip or refusal stays as it is.
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> PluginReply<U> {
        match self {
            Self::Answer(answer) => PluginReply::Answer(change(answer)),
            Self::Skipped(why) => PluginReply::Skipped(why),
            Self::Refusal(failure) => PluginReply::Refusal(failure),
        }
    }
}

/// The operator's settings for one plugin. A reload replaces them as a whole.
#[derive(Debug, Clone)]
struct Terms {
    policy: Policy,
    rights: Result<Rc<Rights>, String>,
    /// Why the plugin's rights are unknown; `None` if they are known.
    doubt: Option<String>,
}

impl Terms {
    fn new(plugin: &Plugin, settings: &PluginSettings) -> Self {
        let allow = (!settings.allow.is_empty()).then_some(settings.allow.as_slice());
        let rights = Rights::from_names(allow, &settings.deny);
        Self {
            policy: plugin.policy(settings),
            // An unknown field name in `allow` or `deny` must not permit every field, so requests are refused.
            rights: rights.map(Rc::new).map_err(|error| {
                format!("{error} (names are those of NRI, like Env, Mounts or OciHooks)")
            }),
            doubt: None,
        }
    }
}

/// A plugin's counters, which survive a re-execution of the daemon.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PluginCounts {
    /// Requests that the plugin answered or let time out.
    pub requests: u64,
    /// Requests that the plugin did not answer within its time-out.
    pub timeouts: u64,
    /// Requests that failed: the plugin returned an error, did not answer, disconnected before it
    /// answered, or was not called because it was too slow with earlier requests. May exceed `requests`.
    pub failures: u64,
    /// The last failure, with its Unix time in nanoseconds.
    pub last_failure: Option<(i64, String)>,
    strikes: u32,
    /// Unix time in nanoseconds of the plugin's connection; 0 in data that an earlier version saved.
    #[serde(default)]
    pub connected_at: i64,
}

/// A plugin in the chain.
#[derive(Debug)]
pub struct ChainedPlugin {
    /// The plugin.
    pub plugin: Plugin,
    /// Whether the daemon started the plugin's process.
    pub launched: bool,
    terms: RefCell<Terms>,
    counts: RefCell<PluginCounts>,
    reported_unknown: RefCell<HashSet<String>>,
    strikes: Strikes,
    /// Consecutive execs with a late reply, counted separately because an `exec` waits less than the
    /// plugin's time-out.
    pub(super) late_execs: Strikes,
    /// Wakes the requests that wait for the plugin, once it no longer answers.
    given_up: Notify,
    /// Notifications of the extension that the plugin has not answered yet.
    notices: Cell<usize>,
}

impl ChainedPlugin {
    /// Creates the chain's entry for `plugin`, and applies the operator's settings to the plugin.
    pub fn new(plugin: Plugin, launched: bool, settings: &PluginSettings) -> Self {
        plugin.apply(settings, None);
        Self {
            terms: RefCell::new(Terms::new(&plugin, settings)),
            plugin,
            launched,
            counts: RefCell::new(PluginCounts { connected_at: clock::now(), ..Default::default() }),
            reported_unknown: RefCell::default(),
            strikes: Strikes::default(),
            late_execs: Strikes::default(),
            given_up: Notify::new(),
            notices: Cell::new(0),
        }
    }

    /// Marks the plugin's rights as unknown if the operator's settings contain a mistake: the
    /// plugin may still refuse requests, but its changes are dropped.
    #[must_use]
    pub fn with_unknown_rights(self, mistake: Option<&str>) -> Self {
        let why =
            |mistake| format!("may not change anything, as its permissions are unknown: {mistake}");
        self.terms.borrow_mut().doubt = mistake.map(why);
        self
    }

    /// Applies the operator's settings for this plugin from a reloaded configuration. A request in
    /// flight keeps its former time-out.
    pub fn reconfigure(&self, config: &Config) {
        let settings = config.plugin(self.plugin.index(), self.plugin.name());
        self.plugin.apply(&settings, Some(config.request_timeout));
        self.terms.replace(Terms::new(&self.plugin, &settings));
    }

    /// Accepts every reply of a plugin with known rights; otherwise only a reply that changes nothing.
    ///
    /// # Errors
    /// Fails with the reason why the reply is dropped.
    pub fn accept_reply<T: Default + PartialEq>(&self, answer: T) -> Result<T, String> {
        match self.terms.borrow().doubt.clone() {
            Some(why) if answer != T::default() => {
                warn!(plugin = self.id(), "{} {}", self.id(), quoted(&why));
                Err(why)
            }
            Some(_) | None => Ok(answer),
        }
    }

    /// Returns the plugin's counters.
    pub fn counts(&self) -> PluginCounts {
        PluginCounts { strikes: self.strikes.count(), ..self.counts.borrow().clone() }
    }

    /// Continues with the counters of the previous program.
    pub fn resume_counts(&self, counts: PluginCounts) {
        self.strikes.resume(counts.strikes, self.plugin.frames_received());
        self.counts.replace(counts);
    }

    /// Returns `NN-name`.
    pub fn id(&self) -> &str {
        self.plugin.id()
    }

    /// Whether an operator's `name`, as `NN-name` or without the index, is this plugin's.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.id() == name || self.plugin.name() == name
    }

    /// Logs fields of the plugin's replies that this version does not know, each once per
    /// connection, up to `limits::UNKNOWN_FIELDS`. Returns the fields that it logged.
    pub fn report_unknown(&self, fields: &[String]) -> Vec<String> {
        let mut reported = self.reported_unknown.borrow_mut();
        let mut new = Vec::new();
        for field in fields {
            if reported.len() < limits::UNKNOWN_FIELDS && reported.insert(field.clone()) {
                warn!(plugin = self.id(), "{}", unknown_field_line(self.id(), field));
                new.push(field.clone());
            }
        }
        new
    }

    fn note_failure(&self, what: &str) {
        let mut counts = self.counts.borrow_mut();
        counts.failures += 1;
        counts.last_failure = Some((clock::now(), what.to_owned()));
    }

    /// Returns the policy in force for the plugin.
    pub fn policy(&self) -> Policy {
        self.terms.borrow().policy.clone()
    }

    /// Sends the plugin a notification of the extension, unless too many earlier ones are unanswered.
    pub async fn notify_by_extension<R: PluginRequest>(&self, request: &R) {
        if self.notices.get() >= limits::EXTENSION_NOTICES {
            return self.plugin.record_skip(R::METHOD, "busy");
        }
        self.notices.set(self.notices.get() + 1);
        let call = async { self.plugin.extension_notice(request).await };
        let _logged = self.ask_by_name(R::METHOD, call).await;
        self.notices.set(self.notices.get() - 1);
    }

    /// Whether a request has timed out since the plugin's last answer.
    pub fn has_strikes(&self) -> bool {
        self.strikes.count() > 0
    }

    /// Whether so many requests in a row timed out that the plugin's failure policy may apply without a call.
    pub fn is_unresponsive(&self) -> bool {
        self.strikes.count() >= HANGING_STRIKES
    }

    /// Returns the plugin's rights.
    ///
    /// # Errors
    /// Fails when the operator's settings contain a nonexistent field name.
    pub fn rights(&self) -> Result<Rc<Rights>, PluginFailure> {
        self.terms.borrow().rights.clone().map_err(|why| {
            let text = format!("{}: {why}", self.id());
            PluginFailure::new(self.id(), Cause::Refused, text)
        })
    }

    /// Awaits the plugin's reply to a request, and applies its policy to the outcome.
    pub async fn ask<T>(
        &self,
        event: Event,
        call: impl Future<Output = Outcome<T>>,
    ) -> PluginReply<T> {
        self.ask_by_name(event.name(), call).await
    }

    /// Like [`ask`](Self::ask), for a request that is not an NRI event.
    pub(super) async fn ask_by_name<T>(
        &self,
        name: &'static str,
        call: impl Future<Output = Outcome<T>>,
    ) -> PluginReply<T> {
        let mut outcome = None;
        if !self.is_hanging() {
            // Without `given_up`, a request would wait one time-out for each request queued before it, and a
            // hanging plugin would delay many containers for minutes.
            outcome = tokio::select! {
                biased;
                outcome = call => Some(outcome),
                () = self.given_up.notified() => None,
            };
        }
        match outcome {
            Some(outcome) => self.judge(name, outcome),
            None => {
                let why =
                    format!("stopped responding, so the daemon no longer waits for it at {name}");
                self.note_unanswered(name, Cause::Timeout, why)
            }
        }
    }

    fn is_hanging(&self) -> bool {
        self.strikes.are_hopeless(self.plugin.frames_received())
    }

    fn judge<T>(&self, name: &'static str, outcome: Outcome<T>) -> PluginReply<T> {
        match outcome {
            Outcome::Answered(answer) => {
                self.counts.borrow_mut().requests += 1;
                self.strikes.clear();
                PluginReply::Answer(answer)
            }
            Outcome::Refused(text) | Outcome::Unimplemented(text) => {
                self.counts.borrow_mut().requests += 1;
                self.strikes.clear();
                self.note_failure(&format!("refused {name}: {}", quoted(&text)));
                let text = format!("{} refused: {}", self.id(), quoted(&text));
                PluginReply::Refusal(PluginFailure::new(self.id(), Cause::Refused, text))
            }
            Outcome::TimedOut => {
                self.counts.borrow_mut().requests += 1;
                self.strike(name);
                let why = format!("did not answer {name} in time");
                self.note_unanswered(name, Cause::Timeout, why)
            }
            Outcome::Gone(why) => {
                let why = format!("disconnected during {name} ({})", quoted(&why));
                self.note_unanswered(name, Cause::Gone, why)
            }
            Outcome::NotConnected => {
                self.plugin.record_skip(name, "disconnected");
                PluginReply::Skipped(format!("had disconnected before {name}"))
            }
            Outcome::Busy(why) => self.note_unanswered(name, Cause::Timeout, why),
        }
    }

    fn strike(&self, request: &str) {
        self.counts.borrow_mut().timeouts += 1;
        self.strikes.add(self.plugin.frames_received());
        if self.is_hanging() {
            self.given_up.notify_waiters();
        }
        let most = self.terms.borrow().policy.strikes;
        if most > 0 && self.strikes.count() >= most {
            let id = self.id();
            warn!(plugin = id, "{id} did not answer {request} in time and is disconnected");
            self.plugin.disconnect(&format!("it did not answer {request} in time"));
        }
    }

    /// Handles a missing reply: refuses the request or skips the plugin, by policy.
    pub(super) fn note_unanswered<T>(
        &self,
        name: &'static str,
        cause: Cause,
        why: String,
    ) -> PluginReply<T> {
        let id = self.id();
        self.note_failure(&why);
        if self.terms.borrow().policy.on_failure == OnFailure::Refuse {
            let text = format!("{id} {why}");
            return PluginReply::Refusal(PluginFailure::new(id, cause, text));
        }
        warn!(plugin = id, "{id} {why}; it was skipped");
        self.plugin.record_skip(name, cause.name());
        PluginReply::Skipped(why)
    }
}

/// Logs the unknown fields (pairs of plugin and field) in the replies to one request.
pub(super) fn report_unknown(members: &[Rc<ChainedPlugin>], unknown: &[(String, String)]) {
    for (plugin, field) in unknown {
        if let Some(member) = members.iter().find(|member| member.id() == *plugin) {
            member.report_unknown(std::slice::from_ref(field));
        }
    }
}

/// Returns the line for an operator about a field that this version does not know.
pub(crate) fn unknown_field_line(plugin: &str, field: &str) -> String {
    format!("{plugin} set {field}, which this version does not know; it was not applied")
}
