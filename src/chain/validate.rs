// SPDX-License-Identifier: Apache-2.0
//! ValidateContainerAdjustment: every validator at once, and each must agree.
//!
//! Fail-closed: a validator that was active when the request began and does not answer fails the
//! create, whatever the policies say. NRI: the reference lets such a create pass (BUG-27), and
//! reports whichever of several refusals comes first (BUG-26).

use std::rc::Rc;

use futures_util::future::join_all;

use crate::adaptation::{Creation, DefaultValidator};
use crate::error::quoted;
use crate::plugin::{Event, api};

use super::seat::{Cause, Failure, Said, Seat};

/// How the built-in validator is listed.
const BUILTIN: (&str, &str) = ("00", "default-validator");

pub(super) async fn validate<'a>(
    validators: &[Rc<Seat>],
    consulted: impl Iterator<Item = &'a Rc<Seat>>,
    builtin: &DefaultValidator,
    creation: &Creation,
) -> Result<(), Failure> {
    let instance = |index: &str, name: &str| api::PluginInstance {
        name: name.to_owned(),
        index: index.to_owned(),
        ..api::PluginInstance::default()
    };
    let ours = builtin.enable.then(|| instance(BUILTIN.0, BUILTIN.1));
    let theirs = consulted.map(|seat| instance(seat.plugin.index(), seat.plugin.name()));
    let request = creation.validation_request(ours.into_iter().chain(theirs).collect());
    let mut failures = Vec::new();
    if let Err(why) = builtin.validate(&request) {
        failures.push(rejected(format!("{}-{}", BUILTIN.0, BUILTIN.1), &why));
    }
    let verdicts = join_all(validators.iter().map(|seat| judge(seat, &request))).await;
    failures.extend(verdicts.into_iter().flatten());
    let text = failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    match failures.into_iter().next() {
        None => Ok(()),
        Some(first) => Err(Failure { text, ..first }),
    }
}

async fn judge(seat: &Seat, request: &api::ValidateContainerAdjustmentRequest) -> Option<Failure> {
    let event = Event::ValidateContainerAdjustment;
    let id = seat.id();
    let (cause, text) = match seat.ask(event, seat.plugin.validate(request)).await {
        Said::Answer(answer) if !answer.reject => return None,
        Said::Answer(answer) => return Some(rejected(id, &answer.reason)),
        // A validator that fails to judge has refused in its own words.
        Said::Refusal(failure) => (failure.cause, format!("validator {failure}")),
        Said::Skipped(why) => {
            let cause = if seat.plugin.is_gone() && !seat.has_strikes() {
                Cause::Gone
            } else {
                Cause::Timeout
            };
            (cause, format!("validator {id} {why}"))
        }
    };
    Some(Failure { plugin: id, cause, text })
}

fn rejected(id: String, reason: &str) -> Failure {
    let reason = if reason.is_empty() { "it gave no reason" } else { reason };
    let text = format!("validator {id} rejected the adjustment: {}", quoted(reason));
    Failure { plugin: id, cause: Cause::Refused, text }
}
