// SPDX-License-Identifier: Apache-2.0
//! One plugin in the chain: its counters, its policy, and what each outcome of a call means
//! under it (decision D14; NRI FailurePolicy).

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;

use crate::adaptation::{MergeError, Rights};
use crate::config::{OnFailure, PluginSettings};
use crate::error::quoted;
use crate::plugin::{Event, Outcome, Plugin, Policy};

/// Time-outs in a row after which a plugin that stays connected is not waited for any more, until
/// something comes from it. NRI: the reference waits its full time-out each time (BUG-48).
const HANGING: u32 = 3;

/// After this long it is tried once more: who lost a request may never say another word unasked.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// Unknown fields of one plugin that are logged, so that numbers made up at random end.
const REPORTED_UNKNOWN: usize = 1000;

/// Why a request failed, as scripts are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A plugin did not answer in time.
    Timeout,
    /// A plugin's connection broke while it was asked.
    Gone,
    /// A plugin or a validator said no.
    Refused,
    /// Two plugins want the same.
    Conflict,
}

impl Cause {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Gone => "gone",
            Self::Refused => "refused",
            Self::Conflict => "conflict",
        }
    }
}

/// A plugin, or its silence, that makes a request fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginFailure {
    /// `NN-name`.
    pub plugin: String,
    /// What kind of failure it is.
    pub cause: Cause,
    /// One line that names the plugin and, where it was silent, the request.
    pub text: String,
}

impl fmt::Display for PluginFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PluginFailure {
    /// An answer that does not go together with the others.
    pub fn from_merge_error(plugin: &str, error: &MergeError) -> Self {
        let cause = match error {
            MergeError::NotAllowed { .. } | MergeError::TooMany { .. } => Cause::Refused,
            MergeError::Conflict(_)
            | MergeError::UpdateOfSubject { .. }
            | MergeError::EvictionOfSubject { .. }
            | MergeError::EmptyArgs { .. } => Cause::Conflict,
        };
        Self { plugin: plugin.to_owned(), cause, text: error.to_string() }
    }
}

/// What one plugin's part in a request came to.
#[derive(Debug)]
pub enum PluginReply<T> {
    /// It answered.
    Answer(T),
    /// It did not, and the request goes on without it; says why, without its name.
    Skipped(String),
    /// The request fails.
    Refusal(PluginFailure),
}

/// A plugin in the chain.
#[derive(Debug)]
pub struct ChainedPlugin {
    /// The plugin.
    pub plugin: Plugin,
    /// Whether we started it.
    pub launched: bool,
    policy: Policy,
    rights: Result<Rights, String>,
    /// Why its rights are not known for now.
    doubt: Option<String>,
    requests: Cell<u64>,
    timeouts: Cell<u64>,
    failures: Cell<u64>,
    /// When (Unix time in nanoseconds) and what.
    last_failure: RefCell<Option<(i64, String)>>,
    reported_unknown: RefCell<HashSet<String>>,
    strikes: Cell<u32>,
    heard_at_strike: Cell<usize>,
    struck_at: Cell<Option<Instant>>,
    /// Those who wait for its turn need not, once it hangs.
    given_up: Notify,
}

impl ChainedPlugin {
    /// Gives `plugin` a place under the operator's settings for it.
    pub fn new(mut plugin: Plugin, launched: bool, settings: &PluginSettings) -> Self {
        plugin.apply(settings);
        let allow = (!settings.allow.is_empty()).then_some(settings.allow.as_slice());
        Self {
            policy: plugin.policy(settings),
            // A field name that does not exist must not let everything pass: it refuses.
            rights: Rights::from_names(allow, &settings.deny).map_err(|error| error.to_string()),
            plugin,
            launched,
            doubt: None,
            requests: Cell::new(0),
            timeouts: Cell::new(0),
            failures: Cell::new(0),
            last_failure: RefCell::default(),
            reported_unknown: RefCell::default(),
            strikes: Cell::new(0),
            heard_at_strike: Cell::new(0),
            struck_at: Cell::new(None),
            given_up: Notify::new(),
        }
    }

    /// The same, while a mistake in the operator's settings leaves open what it may set: it may
    /// refuse, and whatever it wants to change does not count.
    #[must_use]
    pub fn with_unknown_rights(self, mistake: Option<&str>) -> Self {
        let why = |mistake| format!("may change nothing, its rights are not known: {mistake}");
        Self { doubt: mistake.map(why), ..self }
    }

    /// An answer that counts: one that wants nothing, or of a plugin whose rights are known.
    ///
    /// # Errors
    /// Fails with the reason why it does not count.
    pub fn accept_reply<T: Default + PartialEq>(&self, answer: T) -> Result<T, String> {
        match &self.doubt {
            Some(why) if answer != T::default() => {
                warn!("{} {}", self.id(), quoted(why));
                Err(why.clone())
            }
            Some(_) | None => Ok(answer),
        }
    }

    /// `NN-name`.
    pub fn id(&self) -> String {
        self.plugin.id()
    }

    /// Requests that it was sent.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Requests that it did not answer in time.
    pub fn timeouts(&self) -> u64 {
        self.timeouts.get()
    }

    /// Requests that it did not answer, or answered with an error.
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// The last of them: when (Unix time in nanoseconds) and what.
    pub fn last_failure(&self) -> Option<(i64, String)> {
        self.last_failure.borrow().clone()
    }

    /// Logs fields of its replies that this version does not know, each once as long as it is
    /// connected. Returns those that are new.
    pub fn report_unknown(&self, fields: &[String]) -> Vec<String> {
        let mut reported = self.reported_unknown.borrow_mut();
        let mut new = Vec::new();
        for field in fields {
            if reported.len() < REPORTED_UNKNOWN && reported.insert(field.clone()) {
                warn!("{}", unknown_field_line(&self.id(), field));
                new.push(field.clone());
            }
        }
        new
    }

    fn note_failure(&self, what: &str) {
        self.failures.set(self.failures.get() + 1);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        *self.last_failure.borrow_mut() = Some((at, what.to_owned()));
    }

    /// The policy in force for it.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether its last request timed out.
    pub fn has_strikes(&self) -> bool {
        self.strikes.get() > 0
    }

    /// What it may set.
    ///
    /// # Errors
    /// Fails when the operator's settings name a field that does not exist.
    pub fn rights(&self) -> Result<&Rights, PluginFailure> {
        self.rights.as_ref().map_err(|why| PluginFailure {
            plugin: self.id(),
            cause: Cause::Refused,
            text: format!("{}: {why}", self.id()),
        })
    }

    /// Awaits its part in a request, and gives the outcome its meaning.
    pub async fn ask<T>(
        &self,
        event: Event,
        call: impl Future<Output = Outcome<T>>,
    ) -> PluginReply<T> {
        let mut outcome = None;
        if !self.is_hanging() {
            // Who stands in its queue when it is given up would wait its time-out once for each
            // one ahead: many containers at once, and one plugin holds them all for minutes.
            outcome = tokio::select! {
                biased;
                outcome = call => Some(outcome),
                () = self.given_up.notified() => None,
            };
        }
        match outcome {
            Some(outcome) => self.judge(event, outcome),
            None => {
                let why = "has stopped answering and is not waited for";
                self.silence(Cause::Timeout, format!("{why} at {}", event.name()))
            }
        }
    }

    /// Whether it timed out so often in a row that waiting again is in vain; its first word ends
    /// that, or a while.
    fn is_hanging(&self) -> bool {
        let since = self.struck_at.get().map_or(Duration::ZERO, |at| at.elapsed());
        let is_silent = self.plugin.heard() == self.heard_at_strike.get();
        hangs(self.strikes.get(), is_silent, since)
    }

    fn judge<T>(&self, event: Event, outcome: Outcome<T>) -> PluginReply<T> {
        let name = event.name();
        match outcome {
            Outcome::Answered(answer) => {
                self.requests.set(self.requests.get() + 1);
                self.strikes.set(0);
                PluginReply::Answer(answer)
            }
            Outcome::Refused(text) | Outcome::Unimplemented(text) => {
                self.requests.set(self.requests.get() + 1);
                self.strikes.set(0);
                self.note_failure(&format!("refused {name}: {}", quoted(&text)));
                let text = format!("{} refused: {}", self.id(), quoted(&text));
                PluginReply::Refusal(PluginFailure {
                    plugin: self.id(),
                    cause: Cause::Refused,
                    text,
                })
            }
            Outcome::TimedOut => {
                self.requests.set(self.requests.get() + 1);
                self.strike(name);
                self.silence(Cause::Timeout, format!("did not answer {name} in time"))
            }
            Outcome::Gone(why) => {
                let why = format!("went away during {name} ({})", quoted(&why));
                self.silence(Cause::Gone, why)
            }
            Outcome::NotConnected => PluginReply::Skipped(format!("had gone before {name}")),
            Outcome::Busy(why) => self.silence(Cause::Timeout, why),
        }
    }

    fn strike(&self, request: &str) {
        self.timeouts.set(self.timeouts.get() + 1);
        self.strikes.set(self.strikes.get() + 1);
        self.heard_at_strike.set(self.plugin.heard());
        self.struck_at.set(Some(Instant::now()));
        if self.is_hanging() {
            self.given_up.notify_waiters();
        }
        if self.policy.strikes > 0 && self.strikes.get() >= self.policy.strikes {
            warn!("{} did not answer {request} in time and is disconnected", self.id());
            self.plugin.disconnect(&format!("it did not answer {request} in time"));
        }
    }

    /// Silence refuses the request or skips the plugin, by policy.
    fn silence<T>(&self, cause: Cause, why: String) -> PluginReply<T> {
        let id = self.id();
        self.note_failure(&why);
        if self.policy.on_failure == OnFailure::Refuse {
            return PluginReply::Refusal(PluginFailure {
                text: format!("{id} {why}"),
                plugin: id,
                cause,
            });
        }
        warn!("{id} {why}; it was skipped");
        PluginReply::Skipped(why)
    }
}

/// Logs what the replies to one request had that this version does not know: plugin and field.
pub(super) fn report_unknown(members: &[Rc<ChainedPlugin>], unknown: &[(String, String)]) {
    for (plugin, field) in unknown {
        if let Some(member) = members.iter().find(|member| member.id() == *plugin) {
            member.report_unknown(std::slice::from_ref(field));
        }
    }
}

/// The line for an operator about a field that this version does not know.
pub fn unknown_field_line(plugin: &str, field: &str) -> String {
    format!("{plugin} set {field}, which this version does not know; it was not applied")
}

fn hangs(strikes: u32, is_silent: bool, since: Duration) -> bool {
    strikes >= HANGING && is_silent && since < TRY_AGAIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_knows_exactly_the_fields_that_can_be_owned() {
        let names = crate::adaptation::NriField::ALL.map(crate::adaptation::NriField::name);
        assert_eq!(names, crate::config::FIELDS);
    }

    #[test]
    fn three_time_outs_without_a_word_end_the_waiting_for_a_minute() {
        let short = Duration::from_secs(1);
        assert!(hangs(3, true, short) && hangs(9, true, short));
        assert!(!hangs(2, true, short), "two may be bad luck");
        assert!(!hangs(3, false, short), "it has spoken");
        assert!(!hangs(3, true, TRY_AGAIN), "it is tried again");
    }
}
