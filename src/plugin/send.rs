// SPDX-License-Identifier: Apache-2.0
//! Sends one request to a plugin in its turn, with a time-out that begins then, and returns the result. A request whose
//! turn would come too late for its caller is not sent (`turns.rs`).

use std::time::Duration;

use nri_transport::{CallCopies, PLUGIN_SERVICE, PluginRequest, Unanswered};
use tokio::time::Instant;
use ttrpc::Code;

use super::meter::{self, CallSample};
use super::outcome::from_status;
use super::turns::{self, Rank};
use super::{Outcome, Plugin};
use crate::trace::{self, TraceContext};

/// The minimum time-out of a request: plugins treat 0 as no time-out.
const SHORTEST: Duration = Duration::from_millis(1);

/// The label for a failed call without a status.
const NO_STATUS: &str = "other";

impl Plugin {
    /// Sends a request once it is its turn, with the plugin's time-out.
    pub(super) async fn call<R: PluginRequest>(&self, request: &R) -> Outcome<R::Answer> {
        self.call_at(Rank::of(R::METHOD), R::METHOD, request).await
    }

    /// Sends a request with this time-out; its duration is not among [`Plugin::answer_times`].
    pub(super) async fn call_within<R: PluginRequest>(
        &self,
        timeout: Duration,
        request: &R,
    ) -> Outcome<R::Answer> {
        let timeout = timeout.max(SHORTEST);
        self.send_in_turn(Rank::of(R::METHOD), R::METHOD, request, timeout).await.0
    }

    /// Sends a request whose rank depends on more than its type.
    pub(super) async fn call_at<R: PluginRequest>(
        &self,
        rank: Rank,
        operation: &'static str,
        request: &R,
    ) -> Outcome<R::Answer> {
        let (outcome, took) = self.send_in_turn(rank, operation, request, self.timeout()).await;
        took.into_iter().for_each(|took| self.record_answer(took));
        outcome
    }

    /// Sends the request once it is its turn. The second value is the time that the plugin took, if
    /// it was called and has the method.
    async fn send_in_turn<R: PluginRequest>(
        &self,
        rank: Rank,
        operation: &'static str,
        request: &R,
        timeout: Duration,
    ) -> (Outcome<R::Answer>, Option<Duration>) {
        let queued = Instant::now();
        let _turn = match self.turn(rank, request).await {
            Ok(turn) => turn,
            Err(busy) => return (Outcome::Busy(busy.to_string()), None),
        };
        if self.is_gone() {
            return (Outcome::NotConnected, None);
        }
        let begun = Instant::now();
        // The flight recorder copies only NRI's own messages, not those of the extension.
        let meter = self.meter.as_ref().filter(|_| R::SERVICE == PLUGIN_SERVICE);
        let limit = meter.map_or(0, |meter| meter.copies_up_to());
        let mut copies = CallCopies::up_to(limit);
        let (outcome, error) = self.send(request, begun, timeout, &mut copies).await;
        // A call of a method that the plugin lacks is not recorded.
        if matches!(outcome, Outcome::Unimplemented(_)) {
            return (outcome, None);
        }
        let (waited, took) = (begun.duration_since(queued), begun.elapsed());
        if let Some(meter) = &self.meter {
            let subject = request.subject().unwrap_or_default();
            let sample = CallSample { plugin: self.id(), operation, subject, waited, took, error };
            meter.record_call(&sample);
            meter.keep_copies(&sample, copies);
        }
        (outcome, Some(took))
    }

    /// Sends a request whose turn has come. The second value is the name of its status, for the meter.
    async fn send<R: PluginRequest>(
        &self,
        request: &R,
        begun: Instant,
        timeout: Duration,
        copies: &mut CallCopies,
    ) -> (Outcome<R::Answer>, Option<&'static str>) {
        let trace = trace::current().map_or_else(Vec::new, TraceContext::into_metadata);
        let answer = self.caller.call_with_copies(request, timeout, &trace, copies);
        // The call ends with the connection, but a reply that has arrived is read first: a refusal
        // is effective even if the plugin exits right after it.
        let answered = tokio::time::timeout(timeout, answer).await;
        let error = match &answered {
            Ok(Ok(_)) => None,
            Ok(Err(Unanswered::Status(status))) => Some(meter::status_name(status.code())),
            Ok(Err(Unanswered::TooLarge(_))) => Some("resource_exhausted"),
            Ok(Err(Unanswered::Unreadable(_) | Unanswered::Closed)) => Some(NO_STATUS),
            Err(_) => Some("deadline_exceeded"),
        };
        let outcome = match answered {
            Err(_) => Outcome::TimedOut,
            Ok(Ok(answer)) => Outcome::Answered(answer),
            Ok(Err(Unanswered::TooLarge(size))) => {
                Outcome::Refused(format!("the request has {size} bytes, too many for the protocol"))
            }
            Ok(Err(Unanswered::Closed)) => {
                Outcome::Gone(self.trunk.closed_because().unwrap_or_default())
            }
            // An unreadable reply fails the request, and the plugin stays connected.
            Ok(Err(Unanswered::Unreadable(why))) => {
                Outcome::Refused(format!("its answer cannot be read: {why}"))
            }
            // The plugin knows the deadline too, and may report first that it has passed.
            Ok(Err(Unanswered::Status(status)))
                if status.code() == Code::DEADLINE_EXCEEDED && begun.elapsed() >= timeout =>
            {
                Outcome::TimedOut
            }
            Ok(Err(Unanswered::Status(status))) => from_status(&status),
        };
        (outcome, error)
    }

    /// Counts a request that skipped this plugin.
    pub fn record_skip(&self, operation: &'static str, reason: &'static str) {
        if let Some(meter) = &self.meter {
            meter.record_skip(self.id(), operation, reason);
        }
    }

    /// Waits for a turn. A request of [`Rank::UnderWay`] is sent however late; any other fails as soon as its turn
    /// is expected to come after its caller stops waiting, or at once if an earlier one of this caller failed so.
    async fn turn<R: PluginRequest>(
        &self,
        rank: Rank,
        request: &R,
    ) -> Result<turns::Turn, turns::Busy> {
        let subject = request.subject();
        if rank == Rank::UnderWay {
            return self.turns.acquire(rank, subject, None).await;
        }
        if let Some(busy) = turns::was_too_busy(self.id()) {
            return Err(busy);
        }
        let turn = self.turns.acquire(rank, subject, turns::caller_deadline()).await;
        turn.inspect_err(|busy| turns::note_too_busy(self.id().to_owned(), *busy))
    }
}
