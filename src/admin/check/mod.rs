// SPDX-License-Identifier: Apache-2.0
//! `check`: verifies configuration, runtime, plugins and engines; each failed check names its fix.
//!
//! It tries the steps of a create instead of looking for known faults: it opens the run directory
//! as a wrapper does, starts a daemon on trial if none runs, and executes the runtime. It removes at
//! once any file that it creates for that; otherwise it only reads. A check that could not be made
//! says `unknown`.

mod access;
mod daemon;
mod node;
mod plugins;
mod promises;
mod run_dir;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::output::{Answer, Format};
use super::show::table;
use super::{ask, ask_status, install, paint, progress};
use crate::answers::{
    AdminRequest, MissingData, PluginRow, RefusedRecords, SocketMounts, Status, Unseen,
};
use crate::clock;
use crate::config::{
    self, Config, Consequence, DaemonPolicy, Loaded, Problem, RootlessPolicy, rootless,
};
use crate::inject;
use crate::limits;
use crate::plugin::{PluginFile, discover};
use crate::presence;
use crate::text::printable;
use crate::wrapper;

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Finding {
    pub(super) check: String,
    pub(super) ok: bool,
    /// Whether this is only a warning: it affects no container, but the operator should know it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) warning: bool,
    pub(super) detail: String,
    /// The fix.
    pub(super) hint: String,
    /// The engines that find this runtime.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) engines: Vec<&'static str>,
}

/// Returns the result of a check; `hint`, the fix, is left out if the check is `ok`.
pub(super) fn finding(check: &str, ok: bool, detail: impl Into<String>, hint: &str) -> Finding {
    let hint = if ok { "" } else { hint };
    Finding { ok, ..finding_of(check, detail.into(), hint) }
}

pub(super) fn warning(check: &str, detail: String, hint: &str) -> Finding {
    Finding { ok: true, warning: true, ..finding_of(check, detail, hint) }
}

fn finding_of(check: &str, detail: String, hint: &str) -> Finding {
    Finding { check: check.to_owned(), detail, hint: hint.to_owned(), ..Finding::default() }
}

impl Answer for Vec<Finding> {
    const PAINTER: fn(&str) -> String = paint::check;

    fn page(&self, _: Format) -> String {
        let mut lines = Vec::new();
        for finding in self {
            let mark = match (finding.ok, finding.warning) {
                (false, _) => "NO",
                (true, true) => "!!",
                (true, false) => "ok",
            };
            let row = [mark.to_owned(), printable(&finding.check), printable(&finding.detail)];
            lines.push(row.to_vec());
            // The hint is on a separate line, because as a column it would make every line longer
            // than a terminal.
            if !finding.hint.is_empty() {
                let fix = format!("fix: {}", printable(&finding.hint));
                lines.push(vec![String::new(), String::new(), fix]);
            }
        }
        table(&["", "check", "detail"], &lines)
    }
}

/// The daemon's responses, requested once, so that the checks wait for a hanging daemon only once.
#[derive(Default)]
struct Daemon {
    is_listening: bool,
    status: Option<Status>,
    plugins: Vec<PluginRow>,
    /// Containers that reach the plugin socket.
    socket_mounts: SocketMounts,
    /// The containers of the plain runtime that plugins do not see.
    unseen: Unseen,
    /// Why the daemon did not respond although a process listens.
    problem: Option<String>,
    /// A warning for each failed request for `socket_mounts` or `unseen`.
    unknown: Vec<Finding>,
}

impl Daemon {
    fn ask(config: &Config) -> Self {
        let is_listening = wrapper::is_listening(config);
        let mut daemon = Self { is_listening, ..Self::default() };
        if is_listening {
            let plugins = || ask(config, &AdminRequest::Plugins);
            match ask_status(config).and_then(|status| Ok((status, plugins()?))) {
                Ok((status, plugins)) => {
                    (daemon.status, daemon.plugins) = (Some(status), plugins);
                }
                Err(error) => daemon.problem = Some(error.why()),
            }
        }
        if daemon.status.is_some() {
            daemon.socket_mounts =
                daemon.ask_for(config, &AdminRequest::SocketMounts, access::SOCKET);
            daemon.unseen = daemon.ask_for(config, &AdminRequest::Unseen, node::WHOLE_NODE);
        }
        daemon
    }

    /// Sends a request to a running daemon. If it fails, adds a warning with the name `row`: a daemon of an
    /// earlier version does not know the request.
    fn ask_for<T: DeserializeOwned + Default>(
        &mut self,
        config: &Config,
        request: &AdminRequest,
        row: &str,
    ) -> T {
        ask(config, request).unwrap_or_else(|error| {
            let detail = format!("unknown: {}", error.why());
            self.unknown.push(warning(
                row,
                detail,
                "nri-runc nri reexec, if the daemon is of an earlier version",
            ));
            T::default()
        })
    }

    /// Returns the daemon's PID, if it responds.
    fn pid(&self) -> Option<i64> {
        self.status.as_ref().map(|status| i64::from(status.pid))
    }

    /// Whether the engine itself serves plugins, and nri-runc only executes the runtime.
    fn passes_through(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.pass_through)
    }
}

/// Runs all checks.
pub(super) fn all(loaded: &Loaded) -> Vec<Finding> {
    let config = &loaded.config;
    progress::step("checking the daemon");
    let running = Daemon::ask(config);
    progress::step("checking the configuration");
    let mut findings = configuration(loaded, &running);
    let can_serve = super::resident::can_serve_in(&config.run_dir);
    findings.extend(run_dir::rows(config, &running, &can_serve));
    progress::step("checking the engines");
    let engines = install::check_engines(config, running.pid());
    findings.extend(node::runtimes(config, &engines.findings));
    findings.push(daemon::row(loaded, &running, can_serve));
    findings.extend(daemon::programs(&engines.programs));
    findings.push(without_daemon(config));
    findings.push(rootless_containers(config, &running));
    let outdated = running.status.as_ref().map(super::resident::outdated).unwrap_or_default();
    findings.extend(outdated.iter().map(|(what, hint)| finding("daemon", false, what, hint)));
    findings.extend(daemon::protocol(config, &running));
    let socket = plugins::socket(config, &running, engines.takes_over.as_deref());
    findings.extend(promises::rows(config, &running, &socket));
    findings.push(socket);
    progress::step("checking the plugins");
    findings.extend(access::rows(config, &running));
    findings.extend(plugins::rows(config, &running));
    findings.extend(required(config, &running));
    findings.push(switched_on(config));
    findings.push(node::cgroups(config));
    findings.extend(node::clock(clock::now()));
    progress::step("checking the records");
    findings.extend(node::audit(config, &running));
    findings.extend(node::log(&running));
    let status = running.status.as_ref();
    findings.extend(status.map(unread).unwrap_or_default());
    findings.extend(records(config, &status.cloned().unwrap_or_default()));
    findings.extend(node::unseen(config, &running));
    findings.extend(daemon::failures(&running, clock::now()));
    findings.extend(running.unknown);
    findings.extend(engines.findings);
    findings.push(next_step(&findings, engines.next_step));
    findings
}

/// Returns a row with the fix of the first failed check, else of the first warning, else `otherwise`.
fn next_step(findings: &[Finding], otherwise: String) -> Finding {
    let wrong = findings.iter().find(|finding| !finding.ok);
    let wrong = wrong.or_else(|| findings.iter().find(|finding| finding.warning));
    let step = wrong.map_or(otherwise, |wrong| format!("{}: {}", wrong.check, wrong.hint));
    finding("next step", true, step, "")
}

fn configuration(loaded: &Loaded, running: &Daemon) -> Vec<Finding> {
    let config = &loaded.config;
    let mut advice = loaded.advice();
    if running.status.is_some() {
        let (installed, _) = discover(&config.plugin_path, &config.plugin_config_path);
        let connected = running.plugins.iter().map(PluginRow::id);
        let known: Vec<String> = connected.chain(installed.iter().map(PluginFile::id)).collect();
        advice.extend(config.unseen_plugins(&known));
    }
    advice.extend(inject::unfit(config));
    let advice = advice
        .into_iter()
        .map(|line| warning("configuration", line, "correct it, or remove it until it is needed"));
    let mut findings = errors(loaded, running);
    findings.extend(advice);
    findings
}

/// Reports the errors in the configuration files, or lists the files.
fn errors(loaded: &Loaded, running: &Daemon) -> Vec<Finding> {
    if loaded.problems.is_empty() {
        let files = loaded.files.iter().map(|(path, _)| path.display().to_string());
        let files: Vec<String> = files.collect();
        let detail = if files.is_empty() { "defaults".to_owned() } else { files.join(", ") };
        return vec![finding("configuration", true, detail, "")];
    }
    // A daemon keeps its last valid configuration in force.
    let in_force = running.status.as_ref().and_then(|status| status.configuration.as_ref());
    let is_older = in_force.is_some_and(|in_force| in_force.protection_error.is_none());
    let problems = loaded.problems.iter();
    let shown = |problem: &Problem| {
        use Consequence::{Ignored, KeepsLast, RefusesCreates, UsesNoFile};
        let effect = match problem.consequence {
            Ignored => "",
            KeepsLast if loaded.is_last_good() => "; the last valid configuration stays in force",
            KeepsLast => "; a reload changes nothing until it is fixed",
            RefusesCreates | UsesNoFile if is_older => {
                "; the running daemon keeps the last valid configuration, the next daemon refuses \
                 creates until this is fixed"
            }
            RefusesCreates | UsesNoFile => "; creates are refused until it is fixed",
        };
        format!("{}{effect}", problem.text)
    };
    let lines = limits::listed(problems.map(shown), "error", "in the configuration");
    let row = |line| finding("configuration", false, line, "correct the error in this file");
    lines.into_iter().map(row).collect()
}

/// Reports whether commands succeed or fail while no daemon responds.
fn without_daemon(config: &Config) -> Finding {
    let protections = config.protections_without_daemon();
    let detail = if config.on_daemon_failure == DaemonPolicy::Fail {
        "create, start and update fail, because on_daemon_failure is \"fail\"".to_owned()
    } else if let Some(first) = protections.first() {
        let exempt = config.exempt_namespaces.join(", ");
        let except =
            if exempt.is_empty() { exempt } else { format!(", except in namespace {exempt}") };
        format!("creates are refused{except}, because {}", first.what)
    } else {
        "containers are created without plugins".to_owned()
    };
    finding("daemon away", true, detail, "")
}

/// Reports whether wrappers of unprivileged users refuse containers, and for root's daemon, whether the policy
/// file that those wrappers read is up to date.
fn rootless_containers(config: &Config, running: &Daemon) -> Finding {
    if config.is_of_user() {
        let marker = config.rootless_marker();
        let (refused, fix) = match rootless::read(&marker) {
            Ok(RootlessPolicy::Pass) => {
                let detail = match presence::is_absent(&marker) {
                    true => "no daemon of root has set a policy for containers of this user",
                    false => "on_rootless of root's daemon permits containers of this user",
                };
                return finding("rootless", true, detail.to_owned(), "");
            }
            Ok(RootlessPolicy::Refuse) => {
                ("on_rootless refuses containers of this user".to_owned(), "ask the administrator")
            }
            Err(error) => (error.to_string(), "ask the administrator to start the daemon of root"),
        };
        return finding("rootless", false, format!("{refused} ({})", marker.display()), fix);
    }
    let policy = config.rootless_policy();
    let detail = match (policy, config.on_rootless) {
        (RootlessPolicy::Pass, _) => "containers are created without plugins of root".to_owned(),
        (RootlessPolicy::Refuse, Some(_)) => "refused by on_rootless".to_owned(),
        (RootlessPolicy::Refuse, None) => {
            let protections = config.protections().into_iter();
            format!(
                "refused, because {}",
                protections.map(|one| one.what).next().unwrap_or_default()
            )
        }
    };
    let marker = config.rootless_marker();
    let known = match rootless::read(&marker) {
        Ok(known) if known == policy => return finding("rootless", true, detail, ""),
        Ok(known) => format!("wrappers without privileges apply {}", known.name()),
        Err(error) => error.to_string(),
    };
    let detail = format!("{detail}; but {known} ({})", marker.display());
    match &running.status {
        // The daemon writes the file again within seconds, unless its settings differ or the write
        // fails.
        Some(_) => finding(
            "rootless",
            false,
            detail,
            "nri-runc nri reload; if that does not help, see the log",
        ),
        None => warning("rootless", detail, "start the daemon, which writes the file"),
    }
}

/// Reports data of engines that a running daemon could not read, and identity claims that it ignored.
fn unread(status: &Status) -> Vec<Finding> {
    let lines = status.missing.iter().map(|MissingData { engine, what, count, id, .. }| {
        let mut detail = what.clone();
        if !id.is_empty() {
            detail.push_str(&format!(" ({count} times since the daemon started, last {id})"));
        }
        warning(
            &format!("engine {engine}"),
            detail,
            "docs/engines.md lists what nri-runc reads for each engine",
        )
    });
    lines.chain(forged(status)).collect()
}

fn forged(status: &Status) -> Option<Finding> {
    let (all, last) = (status.contradictions.len(), status.contradictions.last()?);
    let (id, what) = (crate::text::short_id(&last.id), crate::error::quoted(&last.what));
    let detail = format!("ignored identity claims: {all}; the most recent, of {id}: {what}");
    Some(finding("identity", true, detail, ""))
}

/// Reports records that could not be read or written, and containers whose records were lost.
fn records(config: &Config, status: &Status) -> Vec<Finding> {
    let folder = config.run_dir.join("state/aside");
    let aside = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let aside: Vec<String> =
        aside.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let unwritten = status.unwritten.len();
    let mut findings = Vec::new();
    if !aside.is_empty() {
        let detail = format!("{} unusable: {}", aside.len(), aside.join(", "));
        let hint = format!("the log says why; then remove them from {}", folder.display());
        findings.push(finding("records", false, detail, &hint));
    }
    if unwritten > 0 {
        let detail = format!("{unwritten} could not be written");
        let hint = format!("free space in {}", config.run_dir.display());
        findings.push(finding("records", false, detail, &hint));
    }
    if let Some(RefusedRecords { count, why }) = &status.records_refused {
        let detail = format!("{count} requests failed, as their records were not written: {why}");
        let hint = format!("free space in {}", config.run_dir.display());
        findings.push(finding("records", false, detail, &hint));
    }
    let found = status.found;
    if found > 0 {
        let detail = format!(
            "{found} containers were recovered after their records were lost; plugin changes unknown"
        );
        findings.push(warning("records", detail, "recreate them if plugins have to adjust them"));
    }
    findings
}

/// Checks whether required plugins are connected: while one is not, creates are refused.
fn required(config: &Config, running: &Daemon) -> Option<Finding> {
    if !config.requires_plugins() {
        return None;
    }
    let Some(status) = &running.status else {
        let detail = "unknown until the daemon runs";
        return Some(finding("required plugins", true, detail, ""));
    };
    let named = |wanted: bool| {
        let rows = status.required.iter().filter(|row| row.connected == wanted);
        rows.map(|row| row.plugin.as_str()).collect::<Vec<_>>().join(", ")
    };
    let away = named(false);
    if status.required.is_empty() {
        let detail = "the running daemon requires none: it is older than the configuration";
        return Some(finding("required plugins", true, detail, ""));
    }
    if away.is_empty() || status.pass_through {
        return Some(finding("required plugins", true, named(true), ""));
    }
    let detail = format!("{away} not connected: creates are refused, except in exempt namespaces");
    let hint = "start it; to see why it is not connected: nri-runc nri plugins";
    Some(finding("required plugins", false, detail, hint))
}

fn switched_on(config: &Config) -> Finding {
    if config.disable {
        return finding(
            "switched on",
            false,
            "nri.disable is set",
            "remove it from the configuration",
        );
    }
    if !config.is_of_user() && config::is_in_user_namespace() {
        let detail = "this is a user namespace: every command goes straight to the runtime";
        return finding("switched on", false, detail, "run engine and nri-runc on the host");
    }
    let is_off = config.disabled_file().exists();
    let detail = if is_off { "every command goes straight to the runtime" } else { "yes" };
    finding("switched on", !is_off, detail, "nri-runc nri enable")
}
