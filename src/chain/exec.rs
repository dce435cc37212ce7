// SPDX-License-Identifier: Apache-2.0
//! Sends the extension's ExecContainer through the chain before a process is started in a container. The responses are
//! merged like those to CreateContainer; then the validators of execs decide about the result (decision D60).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use nri_adaptation::{Creation, NriField, RuleNote, check, unknown_fields};
use tokio::time::Instant;

use crate::config::OnFailure;
use crate::error::quoted;
use crate::plugin::api::extension::{
    ExecAdjustment, ExecContainerRequest, ExecContainerResponse, ExecProcess, ExtensionEvent,
    ValidateExecRequest,
};
use crate::plugin::{Outcome, api};

use super::chained_plugin::{Cause, ChainedPlugin, PluginFailure, PluginReply};
use super::create::{ChainObserver, merge};
use super::ruled::RuleScope;
use super::update::accept;
use super::validate::{all_agree, rejection};

/// The name of the working directory in the owner table: NRI has no field for it, so the right to
/// set Args covers it.
const CWD: &str = "Cwd";

/// Time limit for all plugins together, less than the second that a wrapper waits for the decision.
pub(crate) const EXEC_WAIT: Duration = Duration::from_millis(850);

/// Time in which a plugin is not asked about execs after three late replies in a row: otherwise
/// each probe of the node would lose most of the second that kubelet gives it.
const LATE_FOR: Duration = Duration::from_secs(10);

/// The part of `EXEC_WAIT` that is reserved for validators.
const VALIDATION: Duration = Duration::from_millis(250);

/// The plugins of one exec.
pub(crate) struct ExecMembers<'a> {
    /// The plugins to ask, in order.
    pub(crate) subscribers: &'a [Rc<ChainedPlugin>],
    /// The plugins that validate the result.
    pub(crate) validators: &'a [Rc<ChainedPlugin>],
    pub(crate) scope: RuleScope<'a>,
    /// Time at which the exec continues without the missing replies, or is refused.
    pub(crate) until: Instant,
}

impl ExecMembers<'_> {
    /// Returns the deadline for the subscribers' replies. Validators are asked afterwards: a validator
    /// without time left would reject only because another plugin was slow.
    fn until_answered(&self) -> Instant {
        let later = if self.validators.is_empty() { Duration::ZERO } else { VALIDATION };
        self.until.checked_sub(later).unwrap_or(self.until)
    }
}

/// The plugins' changes to a process.
#[derive(Debug, Default)]
pub(crate) struct ExecChanges {
    /// Arguments, variables and limits.
    pub(crate) adjust: api::ContainerAdjustment,
    pub(crate) cwd: Option<String>,
    /// The plugin that set each field, such as `10-foo` for `Env[PATH]`, or `-10-foo` if it removed the variable.
    pub(crate) owners: BTreeMap<String, String>,
    /// Changes that a rule in audit mode would refuse.
    pub(crate) noted: Vec<RuleNote>,
}

impl ExecChanges {
    /// Returns the changes as a message of the extension.
    pub(crate) fn to_adjustment(&self) -> ExecAdjustment {
        let cwd = self.cwd.clone().map(|value| api::OptionalString { value, ..Default::default() });
        ExecAdjustment {
            args: self.adjust.args.clone(),
            env: self.adjust.env.clone(),
            cwd: cwd.into(),
            rlimits: self.adjust.rlimits.clone(),
            ..ExecAdjustment::default()
        }
    }
}

/// The plugin that set the working directory, and the directory's path; `None` until a plugin sets it.
type Cwd = Option<(String, String)>;

/// Asks the subscribers in turn, merges their replies, and asks the validators.
///
/// # Errors
/// Fails with the first plugin that refuses, has invalid settings, does not reply although its policy requires a reply,
/// or whose changes are invalid, not permitted or in conflict; or with all validators that reject or do not answer.
pub(crate) async fn exec(
    members: &ExecMembers<'_>,
    mut request: ExecContainerRequest,
    observer: &dyn ChainObserver,
) -> Result<ExecChanges, PluginFailure> {
    let engines = request.process.clone();
    let mut creation = creation_of(&request);
    let (mut cwd, mut noted): (Cwd, Vec<RuleNote>) = (None, Vec::new());
    for member in members.subscribers {
        // A nonexistent field name in the operator's settings must not permit every field.
        member.rights()?;
        show(&mut request, &creation, &cwd);
        let call = member.plugin.extension(&request, members.until_answered());
        match member.ask_about_exec(ExtensionEvent::EXEC_CONTAINER, call).await {
            PluginReply::Answer(answer) => match accept(member, members.scope, answer) {
                Ok(answer) => {
                    (creation, cwd) =
                        take_in(members, member, creation, cwd, answer, &mut noted).await?;
                }
                Err(why) => observer.skipped(member.id(), &why),
            },
            // The plugin was connected when the exec began, and disconnected while the request was queued.
            PluginReply::Skipped(why) if member.policy().on_failure == OnFailure::Refuse => {
                let text = format!("{} {why}", member.id());
                return Err(PluginFailure::new(member.id(), Cause::Gone, text));
            }
            PluginReply::Skipped(why) => observer.skipped(member.id(), &why),
            PluginReply::Refusal(failure) => return Err(failure),
        }
    }
    let container = request.container.id.clone();
    let merged = creation.finish();
    let mut owners = merged.owners.to_flat(&container);
    owners.extend(cwd.as_ref().map(|(plugin, _)| (CWD.to_owned(), plugin.clone())));
    let cwd = cwd.map(|(_, path)| path);
    noted.extend(merged.noted);
    let changes = ExecChanges { adjust: merged.adjust, cwd, owners, noted };
    validate(members, &request, engines.unwrap_or_default(), &changes).await?;
    Ok(changes)
}

impl ChainedPlugin {
    /// Awaits the plugin's reply about an `exec`. After too many late replies in a row, its failure
    /// policy applies at once for [`LATE_FOR`].
    async fn ask_about_exec<T>(
        &self,
        event: ExtensionEvent,
        call: impl Future<Output = Outcome<T>>,
    ) -> PluginReply<T> {
        let name = event.method();
        if self.late_execs.are_too_many(LATE_FOR) {
            let why = format!(
                "did not respond to the last execs, so the daemon no longer waits for it at {name}"
            );
            return self.note_unanswered(name, Cause::Timeout, why);
        }
        let noted = async {
            let outcome = call.await;
            if matches!(outcome, Outcome::Busy(_) | Outcome::TimedOut) {
                self.late_execs.add(self.plugin.frames_received());
            } else {
                self.late_execs.clear();
            }
            outcome
        };
        self.ask_by_name(name, noted).await
    }
}

/// Builds a creation whose process is that of the exec, so that changes are merged as for CreateContainer.
fn creation_of(request: &ExecContainerRequest) -> Creation {
    let process = request.process.get_or_default();
    let container = api::Container {
        id: request.container.id.clone(),
        args: process.args.clone(),
        env: process.env.clone(),
        rlimits: process.rlimits.clone(),
        ..api::Container::default()
    };
    Creation::new(api::PodSandbox::default(), container)
}

/// Sets the request's process to the result so far, for the next plugin.
fn show(request: &mut ExecContainerRequest, creation: &Creation, cwd: &Cwd) {
    let process = request.process.mut_or_insert_default();
    let container = creation.container();
    process.args.clone_from(&container.args);
    process.env.clone_from(&container.env);
    process.rlimits.clone_from(&container.rlimits);
    process.cwd =
        cwd.as_ref().map_or_else(|| std::mem::take(&mut process.cwd), |(_, cwd)| cwd.clone());
}

/// Merges one reply. `noted` receives the rules in audit mode that would refuse its working directory.
async fn take_in(
    members: &ExecMembers<'_>,
    member: &ChainedPlugin,
    creation: Creation,
    mut cwd: Cwd,
    answer: ExecContainerResponse,
    noted: &mut Vec<RuleNote>,
) -> Result<(Creation, Cwd), PluginFailure> {
    let id = member.id();
    let refused = |text| PluginFailure::new(id, Cause::Refused, text);
    check(&answer).map_err(|what| refused(format!("{id} answered with {what}")))?;
    member.report_unknown(&unknown_fields(&answer, "ExecContainerResponse"));
    let ExecAdjustment { args, env, cwd: wanted, rlimits, special_fields: _ } =
        answer.adjust.unwrap_or_default();
    let rights = members.scope.rights(member, &[], &[])?;
    if let Some(wanted) = wanted.into_option() {
        let container = creation.container().id.clone();
        let hits = rights.permit_in(id, &container, NriField::Args);
        noted.extend(hits.map_err(|error| PluginFailure::from_merge_error(id, &error))?);
        if let Some((old, _)) = &cwd {
            let text = format!("plugins \"{id}\" and \"{old}\" both tried to set {CWD} of an exec");
            return Err(PluginFailure::new(id, Cause::Conflict, text));
        }
        cwd = Some((id.to_owned(), wanted.value));
    }
    let adjust = api::ContainerAdjustment { args, env, rlimits, ..Default::default() };
    let answer = api::CreateContainerResponse { adjust: Some(adjust).into(), ..Default::default() };
    Ok((merge(creation, member, &rights, answer).await?, cwd))
}

/// Asks all validators concurrently; a missing reply is a rejection.
async fn validate(
    members: &ExecMembers<'_>,
    request: &ExecContainerRequest,
    engines: ExecProcess,
    changes: &ExecChanges,
) -> Result<(), PluginFailure> {
    // A hyphen before the name means that the plugin removed the variable.
    let owner = |(field, plugin): (&String, &String)| {
        (field.clone(), plugin.trim_start_matches('-').to_owned())
    };
    let request = ValidateExecRequest {
        pod: request.pod.clone(),
        container: request.container.clone(),
        process: Some(engines).into(),
        adjust: Some(changes.to_adjustment()).into(),
        owners: changes.owners.iter().map(owner).collect(),
        ..ValidateExecRequest::default()
    };
    let judged = members.validators.iter().map(|member| async {
        let call = member.plugin.extension(&request, members.until);
        let reply = member.ask_about_exec(ExtensionEvent::VALIDATE_EXEC, call).await;
        let reply = reply.map(|answer| (answer.reject, quoted(&answer.reason)));
        rejection(member, "the exec", reply)
    });
    all_agree(join_all(judged).await.into_iter().flatten().collect())
}
