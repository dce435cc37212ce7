// SPDX-License-Identifier: Apache-2.0
//! One call of a script: sends the request through the chain, and converts the outcome to an
//! answer.

use std::rc::Rc;

use futures_util::future::join_all;
use nri_adaptation::{Creation, Updated};
use nri_transport::PluginRequest;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::chain::{self, ChainError, ExecMembers, Notification, Participants, PluginFailure};
use crate::plugin::api::extension::{ExecContainerRequest, ExecContainerResponse, ExtensionEvent};
use crate::plugin::{Event, api};
use crate::rules::RuledPod;

use super::dry_run::DryRun;
use super::line::ScriptCall;
use crate::plugin::json::show;

/// Executes a call; returns the members of its answer except for the id.
pub(super) async fn call(dry_run: &Rc<DryRun>, request: ScriptCall) -> Value {
    let answered = match request {
        ScriptCall::Create(request) => create(dry_run, request).await,
        ScriptCall::Update(request) => update(dry_run, request).await,
        ScriptCall::Stop(request) => stop(dry_run, request).await,
        ScriptCall::Exec(request) => exec(dry_run, request).await,
        ScriptCall::PostExec(request) => {
            let pod = dry_run.ruled_pod(request.pod.as_ref());
            extension_notice(dry_run, &request, ExtensionEvent::POST_EXEC, &pod).await
        }
        ScriptCall::UpdateResults(request) => {
            let pod = RuledPod::default();
            extension_notice(dry_run, &request, ExtensionEvent::UPDATE_RESULTS, &pod).await
        }
        ScriptCall::Notification(told) => notify(dry_run, &told).await,
    };
    answered.unwrap_or_else(|failure| json!({"error": failure.text, "cause": failure.cause.name()}))
}

async fn create(
    dry_run: &DryRun,
    request: api::CreateContainerRequest,
) -> Result<Value, PluginFailure> {
    let api::CreateContainerRequest { pod, container, special_fields: _ } = request;
    let container = container.unwrap_or_default();
    let id = container.id.clone();
    let creation = Creation::new(pod.unwrap_or_default(), container);
    let pod = dry_run.ruled_pod(creation.request().pod.as_ref());
    let subscribers = dry_run.subscribers(Event::CreateContainer, &pod);
    let registered = dry_run.registered_for(&pod);
    let (builtin, scope) = (dry_run.builtin(), dry_run.scope(&id, &pod));
    let sandbox = creation.request().pod.clone().unwrap_or_default();
    dry_run.require_promised(&pod, &sandbox, creation.container())?;
    let injections = &dry_run.injections(&pod, creation.container())?;
    let (subscribers, registered) = (&subscribers, &registered);
    let table = Participants { subscribers, registered, builtin, scope, injections };
    let merged = chain::create(&table, creation, &()).await.map_err(only_failure)?;
    let owners = merged.owners.to_flat(&id);
    let reply = api::CreateContainerResponse {
        adjust: Some(merged.adjust).into(),
        update: merged.updates,
        evict: merged.evictions,
        ..api::CreateContainerResponse::default()
    };
    Ok(json!({"reply": show(&reply), "owners": owners}))
}

async fn update(
    dry_run: &DryRun,
    request: api::UpdateContainerRequest,
) -> Result<Value, PluginFailure> {
    let id = request.container.id.clone();
    let pod = dry_run.ruled_pod(request.pod.as_ref());
    let subscribers = dry_run.subscribers(Event::UpdateContainer, &pod);
    let scope = dry_run.scope(&id, &pod);
    let updated = chain::update(&subscribers, request, scope, &()).await.map_err(only_failure)?;
    let Updated { updates, evictions, owners, .. } = updated;
    let reply = api::UpdateContainerResponse {
        update: updates,
        evict: evictions,
        ..api::UpdateContainerResponse::default()
    };
    Ok(json!({"reply": show(&reply), "owners": owners.to_flat(&id)}))
}

async fn stop(
    dry_run: &DryRun,
    request: api::StopContainerRequest,
) -> Result<Value, PluginFailure> {
    let pod = dry_run.ruled_pod(request.pod.as_ref());
    let subscribers = dry_run.subscribers(Event::StopContainer, &pod);
    let scope = dry_run.scope(&request.container.id, &pod);
    let (updated, failures) = chain::stop(&subscribers, &request, scope).await;
    all_failures(failures)?;
    let reply = api::StopContainerResponse {
        update: updated.updates,
        ..api::StopContainerResponse::default()
    };
    Ok(json!({"reply": show(&reply)}))
}

/// Asks the plugins about an `exec`. Exec rules do not apply: they restrict only calls of engines.
async fn exec(dry_run: &DryRun, request: ExecContainerRequest) -> Result<Value, PluginFailure> {
    let id = request.container.id.clone();
    let pod = dry_run.ruled_pod(request.pod.as_ref());
    let subscribers = &dry_run.extended(ExtensionEvent::EXEC_CONTAINER, &pod);
    let validators = &dry_run.extended(ExtensionEvent::VALIDATE_EXEC, &pod);
    let (scope, until) = (dry_run.scope(&id, &pod), Instant::now() + chain::EXEC_WAIT);
    let members = ExecMembers { subscribers, validators, scope, until };
    let changes = chain::exec(&members, request, &()).await?;
    let reply = ExecContainerResponse {
        adjust: Some(changes.to_adjustment()).into(),
        ..ExecContainerResponse::default()
    };
    Ok(json!({"reply": show(&reply), "owners": changes.owners}))
}

async fn extension_notice<R: PluginRequest>(
    dry_run: &DryRun,
    request: &R,
    event: ExtensionEvent,
    pod: &RuledPod,
) -> Result<Value, PluginFailure> {
    let members = dry_run.extended(event, pod);
    join_all(members.iter().map(|member| member.notify_by_extension(request))).await;
    Ok(json!({"reply": {}}))
}

/// Notifies the subscribers. If plugins may refuse the event, the first refusal ends the
/// notification; every subscriber receives any other event.
async fn notify(dry_run: &DryRun, told: &Notification) -> Result<Value, PluginFailure> {
    let pod = dry_run.ruled_pod(Some(&told.pod));
    let subscribers = dry_run.subscribers(told.event, &pod);
    match told.event {
        Event::RunPodSandbox | Event::UpdatePodSandbox | Event::StartContainer => {
            chain::notify_until_refused(&subscribers, told, &()).await.map_err(only_failure)?;
        }
        Event::StopPodSandbox
        | Event::RemovePodSandbox
        | Event::PostUpdatePodSandbox
        | Event::CreateContainer
        | Event::PostCreateContainer
        | Event::PostStartContainer
        | Event::UpdateContainer
        | Event::PostUpdateContainer
        | Event::StopContainer
        | Event::RemoveContainer
        | Event::ValidateContainerAdjustment => {
            all_failures(chain::notify_all(&subscribers, told).await)?;
        }
    }
    Ok(json!({"reply": {}}))
}

fn only_failure(stopped: ChainError) -> PluginFailure {
    let ChainError { failure, asked: _ } = stopped;
    failure
}

/// Joins several failures in one line, with the cause of the first.
fn all_failures(failures: Vec<PluginFailure>) -> Result<(), PluginFailure> {
    let text = failures.iter().map(|failure| failure.text.as_str()).collect::<Vec<_>>().join("; ");
    match failures.into_iter().next() {
        None => Ok(()),
        Some(first) => Err(PluginFailure { text, ..first }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Cause;

    fn failure(plugin: &str, cause: Cause) -> PluginFailure {
        let (plugin, text) = (plugin.to_owned(), format!("{plugin} said no"));
        PluginFailure::new(plugin, cause, text)
    }

    #[test]
    fn several_failures_are_one_line_that_names_each() {
        let two = vec![failure("10-a", Cause::Timeout), failure("20-b", Cause::Refused)];
        let error = all_failures(two).unwrap_err();
        assert_eq!((error.cause, error.plugin.as_str()), (Cause::Timeout, "10-a"));
        assert_eq!(error.text, "10-a said no; 20-b said no");
    }

    #[test]
    fn without_failures_there_is_no_error() {
        assert_eq!(all_failures(Vec::new()), Ok(()));
    }
}
