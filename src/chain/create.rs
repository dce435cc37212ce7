// SPDX-License-Identifier: Apache-2.0
//! CreateContainer through the chain: every plugin sees what those before it did, then the
//! validators see it all.

use std::collections::HashSet;
use std::rc::Rc;

use protobuf::Message;

use crate::adaptation::{Creation, DefaultValidator, Merged, Rights};
use crate::plugin::{Event, api};

use super::chained_plugin::{Cause, ChainedPlugin, PluginFailure, PluginReply, report_unknown};
use super::validate;

/// Who takes part.
pub struct Participants<'a> {
    /// Who is asked, in order.
    pub audience: &'a [Rc<ChainedPlugin>],
    /// Everybody at the participants when the request began, in order: among them are the validators.
    pub everybody: &'a [Rc<ChainedPlugin>],
    /// The built-in validator, which judges only where it is switched on.
    pub builtin: &'a DefaultValidator,
}

impl std::fmt::Debug for Participants<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Participants").field("audience", &self.audience).finish_non_exhaustive()
    }
}

/// Looks on while plugins are asked.
pub trait ChainObserver {
    /// The container as the plugins so far have left it (decision D15).
    fn so_far(&self, _container: &api::Container) {}
    /// A plugin was left out; why.
    fn skipped(&self, _plugin: &str, _why: &str) {}
}

/// Nobody looks on.
impl ChainObserver for () {}

/// A request that failed on its way.
#[derive(Debug)]
pub struct ChainError {
    /// Why.
    pub failure: PluginFailure,
    /// How many of the audience had been asked by then.
    pub asked: usize,
}

/// A response above so many bytes is merged on another thread: the daemon has one for everybody.
pub const SMALL: u64 = 64 << 10;

/// Merges one plugin's response, on this thread if that takes no time.
async fn merge(
    creation: Creation,
    member: &ChainedPlugin,
    rights: &Rights,
    answer: api::CreateContainerResponse,
) -> Result<Creation, PluginFailure> {
    let id = member.id();
    let merged = if answer.compute_size() <= SMALL {
        creation.answer(&id, rights, answer)
    } else {
        let (name, rights) = (id.clone(), rights.clone());
        let merge = tokio::task::spawn_blocking(move || creation.answer(&name, &rights, answer));
        merge.await.map_err(|_panicked| PluginFailure {
            text: format!("the response of {id} could not be merged"),
            cause: Cause::Refused,
            plugin: id.clone(),
        })?
    };
    merged.map_err(|error| PluginFailure::from_merge_error(&id, &error))
}

/// Asks the audience, merges, and lets the validators judge.
///
/// # Errors
/// Fails with the first plugin that refuses, conflicts, or is silent and whose policy refuses
/// then; and with all validators that reject or do not answer.
pub async fn create(
    participants: &Participants<'_>,
    mut creation: Creation,
    witness: &dyn ChainObserver,
) -> Result<Merged, ChainError> {
    let event = Event::ValidateContainerAdjustment;
    let active = participants.everybody.iter().filter(|member| member.plugin.is_subscribed(event));
    let validators: Vec<Rc<ChainedPlugin>> = active.cloned().collect();
    let mut silent = HashSet::new();
    for (index, member) in participants.audience.iter().enumerate() {
        let asked = index + 1;
        let rights = member.rights().map_err(|failure| ChainError { failure, asked })?;
        let call = member.plugin.create_container(creation.request());
        match member.ask(Event::CreateContainer, call).await {
            PluginReply::Answer(answer) => match member.accept_reply(answer) {
                Ok(answer) => {
                    let merged = merge(creation, member, rights, answer).await;
                    creation = merged.map_err(|failure| ChainError { failure, asked })?;
                }
                Err(why) => witness.skipped(&member.id(), &why),
            },
            PluginReply::Skipped(why) => {
                witness.skipped(&member.id(), &why);
                silent.insert(Rc::as_ptr(member));
            }
            PluginReply::Refusal(failure) => return Err(ChainError { failure, asked }),
        }
        witness.so_far(creation.container());
    }
    if !validators.is_empty() || participants.builtin.enable {
        // NRI: the reference also lists those that were silent, so that a required plugin counts
        // as present although nobody heard its word (BUG-24).
        let consulted = participants
            .everybody
            .iter()
            .filter(|member| !silent.contains(&Rc::as_ptr(member)) && !member.plugin.is_gone());
        let asked = participants.audience.len();
        validate::validate(&validators, consulted, participants.builtin, &creation)
            .await
            .map_err(|failure| ChainError { failure, asked })?;
    }
    let merged = creation.finish();
    report_unknown(participants.audience, &merged.unknown);
    Ok(merged)
}
