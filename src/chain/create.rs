// SPDX-License-Identifier: Apache-2.0
//! Sends CreateContainer through the chain: every plugin receives the changes of earlier plugins
//! and injections, then the validators receive the result. For a validator that requires a plugin, a skipped plugin was
//! not asked.

use std::collections::HashSet;
use std::rc::Rc;

use nri_adaptation::{Creation, DefaultValidator, MergeError, Merged, Rights};
use protobuf::Message;

use crate::inject::Injected;
use crate::plugin::{EncodedCreation, Event, api};

use super::chained_plugin::{Cause, ChainedPlugin, PluginFailure, PluginReply, report_unknown};
use super::ruled::RuleScope;
use super::validate;

/// The plugins, rules and injections that take part in one creation.
pub struct Participants<'a> {
    /// The plugins to ask, in order.
    pub subscribers: &'a [Rc<ChainedPlugin>],
    /// All plugins that were registered when the request began, in order, validators included.
    pub registered: &'a [Rc<ChainedPlugin>],
    /// The built-in validator, which decides only if it is enabled.
    pub builtin: &'a DefaultValidator,
    /// The operator's rules.
    pub scope: RuleScope<'a>,
    /// The injections for this container, sorted by index.
    pub injections: &'a [Injected],
}

impl std::fmt::Debug for Participants<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Participants")
            .field("subscribers", &self.subscribers)
            .finish_non_exhaustive()
    }
}

/// Observes a request on its way through the chain.
pub trait ChainObserver {
    /// Called when a plugin or an injection may have changed the container (decision D15).
    fn container_changed(&self, _so_far: &mut Creation) {}
    /// Called before a plugin's accepted response is merged.
    fn answered(&self, _plugin: &str, _answer: &api::CreateContainerResponse) {}
    /// Called with the reason when a plugin was skipped, or its reply was dropped.
    fn skipped(&self, _plugin: &str, _why: &str) {}
}

/// Observes nothing.
impl ChainObserver for () {}

/// A request that failed in the chain.
#[derive(Debug)]
pub struct ChainError {
    /// The reason.
    pub failure: PluginFailure,
    /// The number of subscribers asked before the failure, including a subscriber that failed.
    pub asked: usize,
}

/// Length of a plugin's response, or of all plugins' changes, in bytes, above which another thread merges or applies
/// them: the daemon handles all requests on one thread.
pub(crate) const SMALL: u64 = 64 << 10;

/// Merges one plugin's response; on this thread if the response is short.
pub(super) async fn merge(
    creation: Creation,
    member: &ChainedPlugin,
    rights: &Rights,
    answer: api::CreateContainerResponse,
) -> Result<Creation, PluginFailure> {
    let id = member.id();
    let merged = if answer.compute_size() <= SMALL {
        creation.answer(id, rights, answer)
    } else {
        let (name, rights) = (id.to_owned(), rights.clone());
        let merge = tokio::task::spawn_blocking(move || creation.answer(&name, &rights, answer));
        merge.await.map_err(|_panicked| {
            let text = format!("the response of {id} could not be merged");
            PluginFailure::new(id, Cause::Refused, text)
        })?
    };
    merged.map_err(|error| PluginFailure::from_merge_error(id, &error))
}

async fn ask(
    member: &ChainedPlugin,
    creation: &mut Creation,
) -> PluginReply<api::CreateContainerResponse> {
    match creation.encode_request() {
        Ok(bytes) => {
            let request = EncodedCreation(bytes, creation.request());
            member.ask(Event::CreateContainer, member.plugin.create_container(&request)).await
        }
        Err(error) => {
            let failure = PluginFailure::new(member.id(), Cause::Refused, error.to_string());
            PluginReply::Refusal(failure)
        }
    }
}

/// The injections of one request, while it passes through the chain.
struct Injecting<'a> {
    scope: &'a RuleScope<'a>,
    /// The injections that are not yet merged, in order.
    left: &'a [Injected],
    /// The merged injections, with their rights.
    done: Vec<(String, Rights)>,
}

impl Injecting<'_> {
    /// Merges the injections up to this index; without an index, all remaining ones.
    fn up_to(
        &mut self,
        index: Option<&str>,
        mut creation: Creation,
    ) -> Result<Creation, PluginFailure> {
        while let Some((next, left)) = self.left.split_first()
            && index.is_none_or(|index| next.index.as_str() <= index)
        {
            let rights = self.scope.rights_of_injection(&next.id);
            let merged = next.merge(creation, &rights);
            creation = merged.map_err(|error| PluginFailure::from_merge_error(&next.id, &error))?;
            self.done.push((next.id.clone(), rights));
            self.left = left;
        }
        Ok(creation)
    }

    /// Sets the injections' default values where the container has no value, and no plugin set or removed one.
    fn settle(&self, creation: Creation) -> Result<Creation, PluginFailure> {
        let settled = creation.settle();
        settled.map_err(|error| {
            let note = if let MergeError::AgainstRule(note) = &error { Some(note) } else { None };
            let owner = note.map(|note| note.plugin.clone()).unwrap_or_default();
            PluginFailure::from_merge_error(&owner, &error)
        })
    }
}

/// Checks again, for all changes together, that each owner may set its fields.
fn check_owned<'o>(
    creation: &Creation,
    owners: impl Iterator<Item = (&'o str, &'o Rights)>,
) -> Result<(), PluginFailure> {
    for (id, rights) in owners {
        let checked = creation.check_owned(id, rights);
        checked.map_err(|error| PluginFailure::from_merge_error(id, &error))?;
    }
    Ok(())
}

/// Asks the subscribers, merges their replies, and asks the validators about the result.
///
/// # Errors
/// Fails with the first plugin that refuses, has invalid settings, or does not reply although its policy requires
/// a reply; with the first plugin or injection whose changes are invalid, not permitted or in conflict; or with all
/// validators that reject or do not answer.
pub async fn create(
    participants: &Participants<'_>,
    mut creation: Creation,
    observer: &dyn ChainObserver,
) -> Result<Merged, ChainError> {
    let event = Event::ValidateContainerAdjustment;
    let active = participants.registered.iter().filter(|member| member.plugin.is_subscribed(event));
    let validators: Vec<Rc<ChainedPlugin>> = active.cloned().collect();
    let mut unanswered = HashSet::new();
    let scope = &participants.scope;
    let mut applied = Vec::new();
    let mut injections = Injecting { scope, left: participants.injections, done: Vec::new() };
    for (index, member) in participants.subscribers.iter().enumerate() {
        let before = injections.up_to(Some(member.plugin.index()), creation);
        creation = before.map_err(|failure| ChainError { failure, asked: index })?;
        let asked = index + 1;
        member.rights().map_err(|failure| ChainError { failure, asked })?;
        let mut is_changed = !participants.injections.is_empty();
        match ask(member, &mut creation).await {
            PluginReply::Answer(answer) => match member.accept_reply(answer) {
                Ok(answer) => {
                    observer.answered(member.id(), &answer);
                    is_changed |= answer.adjust.is_some();
                    let rights = scope.rights(member, &answer.update, &answer.evict);
                    let rights = rights.map_err(|failure| ChainError { failure, asked })?;
                    let merged = merge(creation, member, &rights, answer).await;
                    creation = merged.map_err(|failure| ChainError { failure, asked })?;
                    applied.push((member, rights));
                }
                Err(why) => observer.skipped(member.id(), &why),
            },
            PluginReply::Skipped(why) => {
                observer.skipped(member.id(), &why);
                unanswered.insert(Rc::as_ptr(member));
            }
            PluginReply::Refusal(failure) => return Err(ChainError { failure, asked }),
        }
        if is_changed {
            observer.container_changed(&mut creation);
        }
    }
    let asked = participants.subscribers.len();
    creation = injections
        .up_to(None, creation)
        .and_then(|creation| injections.settle(creation))
        .map_err(|failure| ChainError { failure, asked })?;
    if !participants.injections.is_empty() {
        observer.container_changed(&mut creation);
    }
    let plugins = applied.iter().map(|(member, rights)| (member.id(), rights.as_ref()));
    let injected = injections.done.iter().map(|(id, rights)| (id.as_str(), rights));
    let owners = plugins.chain(injected).filter(|_| !scope.rules.is_empty());
    check_owned(&creation, owners).map_err(|failure| ChainError { failure, asked })?;
    if !validators.is_empty() || participants.builtin.enable {
        // NRI: the reference also lists plugins that did not reply, so a required plugin passes as
        // present although it was not consulted (BUG-24).
        let consulted = participants.registered.iter().filter(|member| !member.plugin.is_gone());
        let consulted = consulted.filter(|member| !unanswered.contains(&Rc::as_ptr(member)));
        validate::validate(&validators, consulted, participants, &creation)
            .await
            .map_err(|failure| ChainError { failure, asked })?;
    }
    let merged = creation.finish();
    report_unknown(participants.subscribers, &merged.unknown);
    Ok(merged)
}
