// SPDX-License-Identifier: Apache-2.0
//! Serves the connection of a wrapper that runs `exec`: an exec rule or a plugin may refuse the
//! process, and the audit log gets a line if it includes execs (decision D60).

use std::rc::Rc;
use std::time::Duration;

use tokio::net::UnixStream;
use tracing::warn;

use crate::audit::{AuditAction, AuditEntry, ExecOutcome, ExecutedProcess};
use crate::config::ExecArgs;
use crate::daemon::request::VerbRequest;
use crate::daemon::server::exec_plugins::{self, Asked};
use crate::daemon::server::{frames, verb};
use crate::daemon::shared::{Daemon, events};
use crate::daemon::watch::pidfd::{self, ProcessExit};
use crate::error::{Error, Result, quoted};
use crate::link::{DaemonResponse, LaterProcess};
use crate::presence;
use crate::rules;
use crate::state::{ContainerKey, RuleHit};
use crate::stream::{EventKind, NodeEvent};

/// The event's name in the audit log and in rule hits.
const EXEC: &str = "exec";

/// Time after which the audit line is written even if the runtime has not exited, with the result "started".
/// If the daemon waited longer, the line could be lost with the daemon.
const LINE_WAIT: Duration = Duration::from_secs(10);

/// Time limit for the kernel to report how the runtime exited, and the interval of checks.
const EXIT_CODE_WAIT: Duration = Duration::from_millis(50);
const EXIT_CODE_CHECK: Duration = Duration::from_millis(5);

/// Serves a wrapper that is about to start a process in a container.
pub(super) async fn serve(
    daemon: &Rc<Daemon>,
    stream: &mut UnixStream,
    mut call: VerbRequest,
) -> Result<()> {
    let Some(mut process) = call.take_later() else { return Ok(()) };
    daemon.report.count(call.verb());
    let judged = match judge(daemon, &call.key, &process) {
        Ok(()) => exec_plugins::ask(daemon, &call, &mut process).await,
        Err(error) => Err(error),
    };
    let Asked { proceed, changes } = match judged {
        Ok(asked) => asked,
        Err(error) => return refuse(daemon, stream, &call, &process, &error).await,
    };
    daemon.report.metrics.count_request(call.verb(), "proceeded");
    daemon.emit(&call.key, NodeEvent::new(EventKind::Exec));
    if process.waits {
        frames::send(stream, &DaemonResponse::Proceed(proceed)).await?;
    }
    exec_plugins::note(daemon, &call.key, &process, changes);
    if daemon.config().audits_execs() || daemon.registry.exec_interest().notes {
        tokio::task::spawn_local(follow(Rc::clone(daemon), call, process));
    }
    Ok(())
}

/// Refuses a process that a rule or a plugin does not permit.
async fn refuse(
    daemon: &Rc<Daemon>,
    stream: &mut UnixStream,
    call: &VerbRequest,
    process: &LaterProcess,
    error: &Error,
) -> Result<()> {
    // Not written to disk, because an engine may repeat a probe forever.
    daemon.records.change_in_memory(&call.key, |record| {
        record.refuse(format!("exec: {}", error.why()), crate::clock::now());
    });
    exec_plugins::notify(daemon, &call.key, process, ExecOutcome::Refused, None);
    write_line(
        daemon,
        &call.key,
        crate::clock::now(),
        process,
        (ExecOutcome::Refused, None),
        error,
    );
    verb::refuse(daemon, stream, call.verb(), &call.key, error).await
}

/// Applies the exec rules: fails if a rule refuses the process, and records the rules in audit mode that would refuse
/// it.
fn judge(daemon: &Daemon, key: &ContainerKey, process: &LaterProcess) -> Result<()> {
    let config = daemon.config();
    let pod = {
        let store = daemon.records.read();
        store.container(key).map(|record| events::ruled_pod_of(&store, record))
    };
    let verdict = rules::judge(&config.exec_rules, pod.as_ref(), process);
    for rule in verdict.would_refuse {
        note_hit(daemon, key, &rule.name);
    }
    let Some(rule) = verdict.refused else { return Ok(()) };
    let error = Error::new(rules::exec_refusal(&rule.name)).against(&rule.name);
    daemon.report.metrics.plugins().count_rule(&rule.name, "refused");
    Err(error)
}

/// Counts that a rule in audit mode would refuse a process, and records it once for a container.
fn note_hit(daemon: &Daemon, key: &ContainerKey, rule: &str) {
    daemon.report.metrics.plugins().count_rule(rule, "would_refuse");
    let hit = RuleHit {
        at: crate::clock::now(),
        event: EXEC.to_owned(),
        plugin: String::new(),
        field: String::new(),
        rule: rule.to_owned(),
    };
    let is_it = |known: &RuleHit| known.event == EXEC && known.rule == rule;
    let record = daemon.container(key);
    if record.is_some_and(|record| record.outcome.would_refuse.iter().any(is_it)) {
        return;
    }
    warn!("{}: the exec rule \"{}\" would refuse the process", quoted(&key.id), quoted(rule));
    daemon.audit(key, || {
        let entry = AuditEntry::new(AuditAction::WouldRefuse).at_event(EXEC);
        AuditEntry { rule: rule.to_owned(), ..entry }
    });
    daemon.change(key, |record| record.outcome.would_refuse.push(hit));
}

/// Waits for the outcome of a process, then notifies plugins and writes its audit line.
async fn follow(daemon: Rc<Daemon>, mut call: VerbRequest, process: LaterProcess) {
    let at = crate::clock::now();
    let (result, exit_code) = match call.process() {
        Some(runtime) => outcome(&daemon, &call, &runtime).await,
        None => (ExecOutcome::Started, None),
    };
    exec_plugins::notify(&daemon, &call.key, &process, result, exit_code);
    write_line(&daemon, &call.key, at, &process, (result, exit_code), &Error::new(""));
}

/// Returns the outcome of an `exec`, from the process that became the runtime, and the exit code if known.
async fn outcome(
    daemon: &Daemon,
    call: &VerbRequest,
    runtime: &std::os::fd::OwnedFd,
) -> (ExecOutcome, Option<i32>) {
    if tokio::time::timeout(LINE_WAIT, pidfd::wait_until_exited(runtime)).await.is_err() {
        return (ExecOutcome::Started, None);
    }
    let deadline = tokio::time::Instant::now() + EXIT_CODE_WAIT;
    let code = loop {
        match pidfd::ending(runtime) {
            ProcessExit::Code(code) => break Some(code),
            ProcessExit::NotReaped if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(EXIT_CODE_CHECK).await;
            }
            ProcessExit::NotReaped | ProcessExit::Unsaid => break None,
        }
    };
    if !call.command_line.detach {
        return (ExecOutcome::Exited, code);
    }
    let is_started = match (code, call.pid_file.clone()) {
        (Some(code), _) => code == 0,
        (None, Some(file)) => {
            let folder = file.parent().unwrap_or(&file).to_string_lossy().into_owned();
            let look = move || Ok(presence::exists(&file)?);
            daemon.off_loop(&folder, look).await.unwrap_or(false)
        }
        (None, None) => true,
    };
    (if is_started { ExecOutcome::Started } else { ExecOutcome::Failed }, None)
}

/// Writes the audit line of a process, if the log includes execs; `refusal` names the rule or plugin.
fn write_line(
    daemon: &Daemon,
    key: &ContainerKey,
    at: i64,
    process: &LaterProcess,
    (result, exit_code): (ExecOutcome, Option<i32>),
    refusal: &Error,
) {
    let config = daemon.config();
    if !config.audits_execs() {
        return;
    }
    let args = process.args.clone().unwrap_or_default();
    let args = match config.audit_exec_args {
        ExecArgs::First => args.into_iter().take(1).collect(),
        ExecArgs::All => args,
        ExecArgs::Nothing => Vec::new(),
    };
    let has_login = daemon.container(key).is_some_and(|record| record.engine.behaviour().has_login);
    let user = process.uid.as_ref().map(|uid| match &process.gid {
        Some(gid) => format!("{uid}:{gid}"),
        None => uid.clone(),
    });
    let executed = ExecutedProcess {
        user,
        // A Docker or Kubernetes client is not an ancestor of the process, so the login user would
        // be another's.
        login_uid: process.login_uid.filter(|_| has_login),
        caller: process.caller.clone(),
        args,
        terminal: process.terminal,
        result,
        exit_code,
    };
    daemon.audit(key, || AuditEntry {
        at,
        rule: refusal.rule().to_owned(),
        executed: Some(executed),
        ..AuditEntry::new(AuditAction::Exec).at_event(EXEC).by(refusal.plugin())
    });
}
