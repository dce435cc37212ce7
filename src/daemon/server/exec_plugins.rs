// SPDX-License-Identifier: Apache-2.0
//! Asks plugins that handle an `exec` through nri-runc's extension of NRI (decisions D50, D60): they receive the
//! process as the runtime would read it, and the verdict includes their changes. Without a subscribed plugin nothing is
//! sent.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::argv;
use crate::audit::ExecOutcome;
use crate::chain::{self, ChainedPlugin, ExecChanges, ExecMembers, RuleScope, SMALL};
use crate::clock;
use crate::config::OnFailure;
use crate::daemon::registry::Skips;
use crate::daemon::request::VerbRequest;
use crate::daemon::resources::target::KnownPods;
use crate::daemon::resources::{ruled, updates};
use crate::daemon::shared::{Daemon, events};
use crate::describe::exec_process;
use crate::error::{Error, Result};
use crate::files;
use crate::limits;
use crate::link::{LaterProcess, Proceed};
use crate::plugin::Event;
use crate::plugin::api;
use crate::plugin::api::extension::{
    ExecContainerRequest, ExecProcess, ExecResult, ExtensionEvent, PostExecRequest,
};
use crate::spec::patch::{PatchedSpec, SpecChange, patch_exec};
use crate::state::{Change, ContainerKey, ExecChange};

/// The event name of plugins' changes to a process.
const EXEC: &str = "exec";

/// The plugins' decision about a process.
#[derive(Default)]
pub(super) struct Asked {
    /// The wrapper's instructions.
    pub(super) proceed: Proceed,
    pub(super) changes: Option<(PatchedSpec, ExecChanges)>,
}

/// Asks the plugins that handle execs.
///
/// # Errors
/// Fails when a plugin refuses the process, when a plugin that protects execs is missing or cannot
/// receive the process, or when a change cannot be passed on.
pub(super) async fn ask(
    daemon: &Rc<Daemon>,
    call: &VerbRequest,
    process: &mut LaterProcess,
) -> Result<Asked> {
    let until = Instant::now() + chain::EXEC_WAIT;
    let key = &call.key;
    let subscribers = daemon.registry.extended(ExtensionEvent::EXEC_CONTAINER, key);
    let validators = daemon.registry.extended(ExtensionEvent::VALIDATE_EXEC, key);
    if process.waits && daemon.registry.returning.execs.are_expected() {
        refuse_unprotected(daemon, key, &subscribers, &validators)?;
    }
    // Taken out, because the document has up to 3 MiB and `process` is kept until the exec has ended.
    let shown = process.document.take();
    if !process.waits || subscribers.is_empty() && validators.is_empty() {
        return Ok(Asked::default());
    }
    let rules = daemon.registry.rules();
    let (event, ruled) = {
        let store = daemon.records.read();
        let event = events::of_container(&store, Event::UpdateContainer, key);
        let ruled = store.container(key).map(|record| events::ruled_pod_of(&store, record));
        let (Some(event), Some(ruled)) = (event, ruled) else { return Ok(Asked::default()) };
        (event, ruled)
    };
    let described = describe(daemon, call, shown).await;
    let Some((document, shown)) = described else {
        let protects = daemon.registry.exec_interest().protects;
        let why = "its process could not be sent to the plugins that handle execs";
        return if protects { Err(Error::new(why)) } else { Ok(Asked::default()) };
    };
    let request = ExecContainerRequest {
        pod: Some(event.pod).into(),
        container: event.container.map(Arc::unwrap_or_clone).into(),
        process: Some(shown).into(),
        ..ExecContainerRequest::default()
    };
    let method = ExtensionEvent::EXEC_CONTAINER.method();
    daemon.registry.recorders.record_request(method, &request, Some(&event.origin));
    let pods = KnownPods { daemon, subject: Some(key) };
    let scope = RuleScope { rules: &rules, subject: Some((&key.id, &ruled)), pods: &pods };
    let members = ExecMembers { subscribers: &subscribers, validators: &validators, scope, until };
    let skips = Skips::default();
    let asked = chain::exec(&members, request, &skips).await;
    updates::note_skipped(daemon, key, EXEC, skips.0.take());
    let changes = asked.map_err(chain::PluginFailure::into_error)?;
    ruled::note_hits(daemon, &changes.noted, EXEC, Some(key));
    let patched = patch(document, &changes).await?;
    let proceed = carry(call, &patched, &changes)?;
    Ok(Asked { proceed, changes: Some((patched, changes)) })
}

/// Refuses an `exec` while plugins that protected execs before the daemon's restart may still return, and no connected
/// plugin protects this one. Pods in exempt namespaces are not refused.
fn refuse_unprotected(
    daemon: &Daemon,
    key: &ContainerKey,
    subscribers: &[Rc<ChainedPlugin>],
    validators: &[Rc<ChainedPlugin>],
) -> Result<()> {
    let protects = |member: &Rc<ChainedPlugin>| member.policy().on_failure == OnFailure::Refuse;
    let store = daemon.records.read();
    let pod = store.container(key).and_then(|record| store.pod(&record.pod));
    if !validators.is_empty() || subscribers.iter().any(protects) || pod.is_none_or(|p| p.is_exempt)
    {
        return Ok(());
    }
    if daemon.process.is_ending.get() {
        return Err(Error::new(
            "the daemon is stopping, so the plugins that protect execs cannot be asked",
        ));
    }
    let error =
        Error::new("the plugins that protect execs have not returned since the daemon started");
    Err(error.hint("it is permitted without them after nri.plugin_registration_timeout"))
}

/// Returns the document of the process, and the process as parsed from it; `None` if the process cannot be determined.
async fn describe(
    daemon: &Daemon,
    call: &VerbRequest,
    document: Option<Vec<u8>>,
) -> Option<(Vec<u8>, ExecProcess)> {
    let document = match (document, argv::process_file(&call.command_line)) {
        (Some(document), _) => document,
        (None, Some(_unreadable_or_too_long)) => return None,
        (None, None) => by_flags(daemon, call).await?,
    };
    let read = move || Some((exec_process(&document)?, document));
    let (process, document) = read_aside(read).await?;
    Some((document, process))
}

/// Reads a document on another thread, because it may be long.
async fn read_aside<T: Send + 'static>(
    read: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    tokio::task::spawn_blocking(read).await.ok().flatten()
}

/// Returns the process of an `exec` that has no document: the container's process with the flags applied,
/// as a document.
async fn by_flags(daemon: &Daemon, call: &VerbRequest) -> Option<Vec<u8>> {
    let folder = daemon.container(&call.key)?.folder().to_owned();
    let path = std::path::PathBuf::from(&folder);
    let read = move || Ok(files::read_at(&files::open_dir(&path)?, "config.json")?.bytes);
    let bytes = daemon.off_loop(&folder, read).await.ok()?;
    let (line, argv) = (call.command_line.clone(), call.question().argv.clone());
    read_aside(move || {
        let mut spec: Value = serde_json::from_slice(&bytes).ok()?;
        let process = spec.get_mut("process")?.as_object_mut()?;
        let text = |word: &std::ffi::OsString| word.to_str().map(Value::from);
        let args: Option<Vec<Value>> = argv.get(line.id_index? + 1..)?.iter().map(text).collect();
        // A wrapper that asks only about rules sends no arguments after the ID, so plugins could
        // not receive the process.
        let args = args.filter(|args| !args.is_empty())?;
        process.insert("args".to_owned(), args.into());
        process.insert("terminal".to_owned(), line.tty.into());
        let env: Option<Vec<Value>> = line.env.iter().map(text).collect();
        if let Some(all) = process.entry("env").or_insert(Value::Array(Vec::new())).as_array_mut() {
            all.extend(env?);
        }
        if let Some(cwd) = line.cwd.as_ref().filter(|cwd| !cwd.is_empty()) {
            process.insert("cwd".to_owned(), text(cwd)?);
        }
        if let Some(user) = line.user.as_ref().filter(|user| !user.is_empty()) {
            set_user(process.entry("user").or_insert_with(|| json!({})), user.to_str()?)?;
        }
        serde_json::to_vec(process).ok()
    })
    .await
}

/// Sets `UID[:GID]` as runc does: without a GID the process keeps the group of the container's
/// process, and it always keeps the other groups. `None` if the text is not numeric.
fn set_user(user: &mut Value, text: &str) -> Option<()> {
    let (uid, gid) = text.split_once(':').map_or((text, None), |(uid, gid)| (uid, Some(gid)));
    let members = user.as_object_mut()?;
    members.insert("uid".to_owned(), uid.parse::<u32>().ok()?.into());
    if let Some(gid) = gid {
        members.insert("gid".to_owned(), gid.parse::<u32>().ok()?.into());
    }
    Some(())
}

/// Applies the changes to the document; on this thread if both are short.
async fn patch(document: Vec<u8>, changes: &ExecChanges) -> Result<PatchedSpec> {
    let by = |field: Option<&str>| {
        let by = field.and_then(|field| changes.owners.get(field));
        by.map(|plugin| plugin.trim_start_matches('-').to_owned()).unwrap_or_default()
    };
    let (adjust, cwd) = (changes.adjust.clone(), changes.cwd.clone());
    let is_small = process_size(changes) <= SMALL && document.len() <= limits::LARGE_DOCUMENT;
    let patch = move || patch_exec(&document, &adjust, cwd.as_deref());
    let patched = match is_small {
        true => patch(),
        false => tokio::task::spawn_blocking(patch)
            .await
            .map_err(|_panicked| Error::new("the changes of plugins could not be applied"))?,
    };
    patched.map_err(|error| {
        let (plugin, field) = (by(error.field()), error.field().unwrap_or_default().to_owned());
        Error::from(error).by(plugin).about(field)
    })
}

fn process_size(changes: &ExecChanges) -> u64 {
    protobuf::Message::compute_size(&changes.adjust)
}

/// Returns a verdict with the changes: as a document, or as flags and arguments if the `exec` has no document.
fn carry(call: &VerbRequest, patched: &PatchedSpec, changes: &ExecChanges) -> Result<Proceed> {
    let Some(bytes) = &patched.bytes else { return Ok(Proceed::default()) };
    if argv::process_file(&call.command_line).is_some() {
        return Ok(Proceed { stdin: Some(bytes.clone()), ..Proceed::default() });
    }
    let mut flags = Vec::new();
    for change in &patched.changes {
        let after = change.after.as_ref().and_then(Value::as_str);
        let variable =
            change.nri_field.strip_prefix("Env[").and_then(|name| name.strip_suffix(']'));
        match (change.nri_field.as_str(), variable, after) {
            (_, Some(name), Some(value)) => flags.push(format!("--env={name}={value}")),
            ("Cwd", _, Some(cwd)) => flags.push(format!("--cwd={cwd}")),
            ("Args", ..) => {}
            (field, ..) => {
                let plugin = changes.owners.get(field).cloned().unwrap_or_default();
                let plugin = plugin.trim_start_matches('-').to_owned();
                let why = format!(
                    "{plugin} changes {field}, but exec has no flag for it: use exec with --process"
                );
                return Err(Error::new(why).by(plugin).about(field));
            }
        }
    }
    let args = Some(changes.adjust.args.as_slice()).filter(|args| !args.is_empty());
    let argv = argv::with_later_process(&call.question().argv, &call.command_line, &flags, args);
    Ok(Proceed { argv: Some(argv), ..Proceed::default() })
}

/// Records the plugins' changes to the process for `explain` and the audit log. Called once the verdict is sent,
/// because a wrapper that has disconnected runs the process unchanged.
pub(super) fn note(
    daemon: &Daemon,
    key: &ContainerKey,
    process: &LaterProcess,
    changes: Option<(PatchedSpec, ExecChanges)>,
) {
    let Some((patched, changes)) = changes.filter(|(patched, _)| !patched.changes.is_empty())
    else {
        return;
    };
    let at = clock::now();
    let owner = |field: &str| {
        let plugin = changes.owners.get(field).map(|plugin| plugin.trim_start_matches('-'));
        plugin.unwrap_or_default().to_owned()
    };
    // The audit line of the process has its arguments, as `audit.exec_args` permits.
    let values = |change: &SpecChange| match change.field.starts_with("process.args") {
        true => (Value::Null, "(not shown)".into()),
        false => {
            (change.before.clone().unwrap_or_default(), change.after.clone().unwrap_or_default())
        }
    };
    let audited: Vec<Change> = patched
        .changes
        .iter()
        .map(|change| {
            let (before, after) = values(change);
            let (event, field) = (EXEC.to_owned(), change.field.clone());
            Change { at, event, plugin: owner(&change.nri_field), field, before, after }
        })
        .collect();
    daemon.audit_applied(key, &audited);
    let owners = patched.changes.iter().take(limits::CHANGES);
    let owners = owners.map(|change| (change.nri_field.clone(), owner(&change.nri_field)));
    let program = process.args.iter().flatten().next().cloned().unwrap_or_default();
    let change = ExecChange { at, program, owners: owners.collect() };
    // Not written to disk: an engine may repeat a probe forever.
    daemon.records.change_in_memory(key, |record| {
        limits::keep_latest(&mut record.outcome.exec_changes, change, limits::EXEC_CHANGES);
    });
}

/// Notifies the subscribed plugins of the process's outcome.
pub(super) fn notify(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    process: &LaterProcess,
    result: ExecOutcome,
    exit_code: Option<i32>,
) {
    let subscribers = daemon.registry.extended(ExtensionEvent::POST_EXEC, key);
    if subscribers.is_empty() {
        return;
    }
    let event = events::of_container(&daemon.records.read(), Event::UpdateContainer, key);
    let Some(event) = event else { return };
    let result = match result {
        ExecOutcome::Refused => ExecResult::EXEC_REFUSED,
        ExecOutcome::Started => ExecResult::EXEC_STARTED,
        ExecOutcome::Exited => ExecResult::EXEC_EXITED,
        ExecOutcome::Failed => ExecResult::EXEC_FAILED,
    };
    let exit_code = exit_code.map(|value| api::OptionalInt32 { value, ..Default::default() });
    let request = PostExecRequest {
        pod: Some(event.pod).into(),
        container: event.container.map(Arc::unwrap_or_clone).into(),
        args: process.args.clone().unwrap_or_default(),
        result: result.into(),
        exit_code: exit_code.into(),
        ..PostExecRequest::default()
    };
    let method = ExtensionEvent::POST_EXEC.method();
    daemon.registry.recorders.record_request(method, &request, Some(&event.origin));
    let request = Rc::new(request);
    // Plugins are notified concurrently, so that none waits for another.
    let subscribers = Rc::new(subscribers);
    for index in 0..subscribers.len() {
        let (subscribers, request) = (Rc::clone(&subscribers), Rc::clone(&request));
        tokio::task::spawn_local(async move {
            if let Some(member) = subscribers.get(index) {
                member.notify_by_extension(&*request).await;
            }
        });
    }
}
