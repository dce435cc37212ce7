// SPDX-License-Identifier: Apache-2.0
//! Sends ValidateContainerAdjustment to all validators concurrently; each must agree.
//!
//! A missing answer fails the create: a validator that was connected when the request began must
//! answer, regardless of its failure policy. NRI: the reference lets such a create pass (BUG-27), and of several
//! refusals it reports only one (BUG-26).

use std::rc::Rc;

use futures_util::future::join_all;
use nri_adaptation::Creation;

use crate::error::quoted;
use crate::plugin::{Event, api};

use super::chained_plugin::{Cause, ChainedPlugin, PluginFailure, PluginReply};
use super::create::Participants;

/// Index and name under which the built-in validator is listed.
const BUILTIN: (&str, &str) = ("00", "default-validator");

pub(super) async fn validate<'a>(
    validators: &[Rc<ChainedPlugin>],
    consulted: impl Iterator<Item = &'a Rc<ChainedPlugin>>,
    participants: &Participants<'_>,
    creation: &Creation,
) -> Result<(), PluginFailure> {
    let builtin = participants.builtin;
    let instance = |index: &str, name: &str| api::PluginInstance {
        name: name.to_owned(),
        index: index.to_owned(),
        ..api::PluginInstance::default()
    };
    let ours = builtin.enable.then(|| instance(BUILTIN.0, BUILTIN.1));
    let theirs = consulted.map(|member| instance(member.plugin.index(), member.plugin.name()));
    let request = creation.validation_request(ours.into_iter().chain(theirs).collect());
    let mut failures = Vec::new();
    if let Err(why) = builtin.validate(&request) {
        failures.push(rejected(&format!("{}-{}", BUILTIN.0, BUILTIN.1), "the adjustment", &why));
    }
    let judged = validators.iter().map(|member| async {
        let request = participants.scope.shown_to(member, &request);
        let event = Event::ValidateContainerAdjustment;
        let reply = member.ask(event, member.plugin.validate(&request)).await;
        rejection(member, "the adjustment", reply.map(|answer| (answer.reject, answer.reason)))
    });
    let verdicts = join_all(judged).await;
    failures.extend(verdicts.into_iter().flatten());
    all_agree(failures)
}

/// Fails if there are rejections, with one line that has all of them.
pub(super) fn all_agree(failures: Vec<PluginFailure>) -> Result<(), PluginFailure> {
    let text = failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    match failures.into_iter().next() {
        None => Ok(()),
        Some(first) => Err(PluginFailure { text, ..first }),
    }
}

/// Returns the failure of a validator that rejects `what`, answers with an error or does not answer.
pub(super) fn rejection(
    member: &ChainedPlugin,
    what: &str,
    reply: PluginReply<(bool, String)>,
) -> Option<PluginFailure> {
    let id = member.id();
    let (cause, text) = match reply {
        PluginReply::Answer((false, _)) => return None,
        PluginReply::Answer((true, reason)) => return Some(rejected(id, what, &reason)),
        PluginReply::Refusal(failure) => (failure.cause, format!("validator {failure}")),
        PluginReply::Skipped(why) => {
            let cause = if member.plugin.is_gone() && !member.has_strikes() {
                Cause::Gone
            } else {
                Cause::Timeout
            };
            (cause, format!("validator {id} {why}"))
        }
    };
    Some(PluginFailure::new(id, cause, text))
}

fn rejected(id: &str, what: &str, reason: &str) -> PluginFailure {
    let reason = if reason.is_empty() { "it gave no reason" } else { reason };
    let text = format!("validator {id} rejected {what}: {}", quoted(reason));
    PluginFailure::new(id, Cause::Refused, text)
}
