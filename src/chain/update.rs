// SPDX-License-Identifier: Apache-2.0
//! Sends UpdateContainer and StopContainer through the chain, requests whose replies may update other containers.

use std::rc::Rc;

use nri_adaptation::{Updated, Updates};

use crate::plugin::{Event, api};

use super::chained_plugin::{ChainedPlugin, PluginFailure, PluginReply, report_unknown};
use super::create::{ChainError, ChainObserver};
use super::ruled::RuleScope;

/// Asks the subscribers in turn about an engine's update; each receives the changes of the earlier
/// ones. Calls `observer` for skipped plugins.
///
/// # Errors
/// Fails with the first plugin that refuses, has invalid settings, does not reply although its policy
/// requires a reply, or whose changes are invalid, not permitted or in conflict.
pub async fn update(
    subscribers: &[Rc<ChainedPlugin>],
    request: api::UpdateContainerRequest,
    scope: RuleScope<'_>,
    observer: &dyn ChainObserver,
) -> Result<Updated, ChainError> {
    let mut updates = Updates::for_update(request);
    for (index, member) in subscribers.iter().enumerate() {
        let asked = index + 1;
        member.rights().map_err(|failure| ChainError { failure, asked })?;
        let Some(request) = updates.request() else { break };
        let call = member.plugin.update_container(request);
        match member.ask(Event::UpdateContainer, call).await {
            PluginReply::Answer(answer) => match accept(member, scope, answer) {
                Ok(answer) => {
                    let rights = scope.rights(member, &answer.update, &answer.evict);
                    let rights = rights.map_err(|failure| ChainError { failure, asked })?;
                    let answered = updates.answer_update(member.id(), &rights, answer);
                    let failure = answered
                        .map_err(|error| PluginFailure::from_merge_error(member.id(), &error));
                    failure.map_err(|failure| ChainError { failure, asked })?;
                }
                Err(why) => observer.skipped(member.id(), &why),
            },
            PluginReply::Skipped(why) => observer.skipped(member.id(), &why),
            PluginReply::Refusal(failure) => return Err(ChainError { failure, asked }),
        }
    }
    let updated = updates.finish();
    report_unknown(subscribers, &updated.unknown);
    Ok(updated)
}

/// Notifies every subscriber in turn that a container has stopped, regardless of replies, and
/// collects the updates of other containers that they request. Returns the failures as well.
pub async fn stop(
    subscribers: &[Rc<ChainedPlugin>],
    request: &api::StopContainerRequest,
    scope: RuleScope<'_>,
) -> (Updated, Vec<PluginFailure>) {
    let mut updates = Updates::for_stop();
    let mut failures = Vec::new();
    for member in subscribers {
        let call = member.plugin.stop_container(request);
        let answer = match member.ask(Event::StopContainer, call).await {
            PluginReply::Answer(answer) => match accept(member, scope, answer) {
                Ok(answer) => answer,
                Err(_it_was_logged) => continue,
            },
            PluginReply::Skipped(_) => continue,
            PluginReply::Refusal(failure) => {
                failures.push(failure);
                continue;
            }
        };
        let merged = scope.rights(member, &answer.update, &[]).and_then(|rights| {
            let answered = updates.answer_stop(member.id(), &rights, answer);
            answered.map_err(|error| PluginFailure::from_merge_error(member.id(), &error))
        });
        failures.extend(merged.err());
    }
    let updated = updates.finish();
    report_unknown(subscribers, &updated.unknown);
    (updated, failures)
}

/// Accepts a reply. If the plugin's rights are unknown or a rule hides the container from the plugin, a reply
/// with changes is dropped, and the reason is returned.
pub(super) fn accept<T: Default + PartialEq>(
    member: &ChainedPlugin,
    scope: RuleScope<'_>,
    answer: T,
) -> Result<T, String> {
    let answer = member.accept_reply(answer)?;
    match scope.hidden_since(member).filter(|_| answer != T::default()) {
        Some(why) => Err(why),
        None => Ok(answer),
    }
}
