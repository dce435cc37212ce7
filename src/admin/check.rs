// SPDX-License-Identifier: Apache-2.0
//! `check`: verifies configuration, runtime, plugins and engines; each failed check names its fix.
//! It only reads.

use std::path::Path;

use serde_json::{Value, json};

use super::{install, progress};
use crate::config::{Config, Consequence, DaemonPolicy, Loaded, Problem};
use crate::daemon::other;
use crate::plugin::socket::{listener_at, name_for_install};
use crate::plugin::{PluginFile, discover};
use crate::{runtime, wrapper};

fn finding(check: &str, ok: bool, detail: impl Into<String>, hint: &str) -> Value {
    let hint = if ok { "" } else { hint };
    json!({"check": check, "ok": ok, "detail": detail.into(), "hint": hint})
}

/// Something that keeps no container from running, and that an operator should know.
fn warning(check: &str, detail: String, hint: &str) -> Value {
    json!({"check": check, "ok": true, "warning": true, "detail": detail, "hint": hint})
}

/// The daemon as it responded once: one that hangs is waited for once, not by each check.
struct Daemon {
    is_listening: bool,
    /// Empty without a response.
    status: Value,
    /// Rows of `plugins`; empty without a response.
    plugins: Value,
    /// Why it did not respond although it listens.
    problem: Option<String>,
}

impl Daemon {
    fn ask(config: &Config) -> Self {
        let is_listening = wrapper::is_listening(config);
        let mut daemon =
            Self { is_listening, status: Value::Null, plugins: Value::Null, problem: None };
        let ask = |verb: &str| super::ask(config, &json!({"verb": verb}));
        if is_listening {
            match ask("status").and_then(|status| Ok((status, ask("plugins")?))) {
                Ok((status, plugins)) => (daemon.status, daemon.plugins) = (status, plugins),
                Err(error) => daemon.problem = Some(error.why()),
            }
        }
        daemon
    }

    /// What it says of itself, if it responds.
    fn status(&self) -> Option<&Value> {
        Some(&self.status).filter(|status| status.is_object())
    }
}

/// Looks at everything.
pub(super) fn all(loaded: &Loaded) -> Vec<Value> {
    let config = &loaded.config;
    progress::step("checking the daemon");
    let running = Daemon::ask(config);
    progress::step("checking the configuration");
    let mut findings = configuration(loaded, &running);
    progress::step("checking the engines");
    let engines = install::check_engines(config, running.status["pid"].as_i64());
    findings.extend(runtime_found(config, &engines.findings));
    findings.push(daemon(loaded, &running));
    findings.push(without_daemon(config));
    let outdated = running.status().map(super::resident::outdated).unwrap_or_default();
    findings.extend(outdated.iter().map(|(what, hint)| finding("daemon", false, what, hint)));
    findings.push(plugin_socket(config, &running));
    progress::step("checking the plugins");
    findings.extend(plugins(config, &running));
    findings.extend(required(config, &running));
    findings.push(switched_on(config));
    findings.push(cgroups(config));
    progress::step("checking the records");
    findings.extend(unread(&running.status));
    findings.extend(records(config, &running.status));
    findings.extend(engines.findings);
    findings.push(next_step(&findings, engines.next_step));
    findings
}

/// The one thing to do now.
fn next_step(findings: &[Value], otherwise: String) -> Value {
    let wrong = findings.iter().find(|finding| finding["ok"] != true);
    let wrong = wrong.or_else(|| findings.iter().find(|finding| finding["warning"] == true));
    let step = match wrong {
        Some(wrong) => {
            let text = |key: &str| wrong[key].as_str().unwrap_or_default();
            format!("{}: {}", text("check"), text("hint"))
        }
        None => otherwise,
    };
    finding("next step", true, step, "")
}

fn configuration(loaded: &Loaded, running: &Daemon) -> Vec<Value> {
    let config = &loaded.config;
    let mut advice = loaded.advice();
    if running.status().is_some() {
        let (installed, _) = discover(&config.plugin_path, &config.plugin_config_path);
        let id =
            |row: &Value| Some(format!("{}-{}", row["index"].as_str()?, row["name"].as_str()?));
        let rows = running.plugins.as_array().into_iter().flatten();
        let known: Vec<String> =
            rows.filter_map(id).chain(installed.iter().map(PluginFile::id)).collect();
        advice.extend(config.unseen_plugins(&known));
    }
    let advice = advice.into_iter().map(|line| {
        warning("configuration", line, "correct it, or leave it out if it is meant for later")
    });
    let mut findings = errors(loaded, running);
    findings.extend(advice);
    findings
}

/// The errors in the files, or which files there are.
fn errors(loaded: &Loaded, running: &Daemon) -> Vec<Value> {
    if loaded.problems.is_empty() {
        let files = loaded.files.iter().map(|(path, _)| path.display().to_string());
        let files: Vec<String> = files.collect();
        let detail = if files.is_empty() { "defaults".to_owned() } else { files.join(", ") };
        return vec![finding("configuration", true, detail, "")];
    }
    // A daemon keeps the last configuration without a mistake.
    let is_older = running.status().is_some_and(|status| {
        status["configuration"].is_object() && status["configuration"]["protection_error"].is_null()
    });
    let told = loaded.problems.iter();
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
        let detail = format!("{}{effect}", problem.text);
        finding("configuration", false, detail, "correct the error in this file")
    };
    told.map(shown).collect()
}

/// The runtime that this process finds, unless a row of an engine shows its own.
fn runtime_found(config: &Config, of_engines: &[Value]) -> Option<Value> {
    if of_engines.iter().any(|finding| finding["check"] == "real runtime") {
        return None;
    }
    Some(match runtime::resolve(config, None) {
        Ok(path) => finding("real runtime", true, path.display().to_string(), ""),
        Err(error) => {
            finding("real runtime", false, error.to_string(), "install runc, or set `runtime`")
        }
    })
}

fn daemon(loaded: &Loaded, running: &Daemon) -> Value {
    let config = &loaded.config;
    let socket = config.daemon_socket();
    if let Some(problem) = &running.problem {
        let detail = format!("listening at {}, but {problem}", socket.display());
        return finding("daemon", false, detail, "replace it: nri-runc nri restart");
    }
    let is_there = running.is_listening;
    let elsewhere = || other::find(config, loaded.only.as_deref());
    if let Some(other) = (!is_there).then(elsewhere).flatten() {
        let detail = format!("{}; containers do not reach it", other.error(config).why());
        return finding("daemon", false, detail, other.next_step());
    }
    let detail = if is_there {
        format!("listening at {}", socket.display())
    } else {
        format!(
            "not running; {}",
            if config.autostart { "the first container starts it" } else { "autostart is off" }
        )
    };
    finding("daemon", is_there || config.autostart, detail, "start the service")
}

/// What becomes of containers while the daemon is away.
fn without_daemon(config: &Config) -> Value {
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

/// What a running daemon could not read of the engines that called.
fn unread(status: &Value) -> Vec<Value> {
    let missing = status["missing"].as_array().cloned().unwrap_or_default();
    let lines = missing.iter().map(|line| {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let mut detail = text("what");
        if !text("id").is_empty() {
            let count = &line["count"];
            detail.push_str(&format!(
                " ({count} times since the daemon started, last {})",
                text("id")
            ));
        }
        warning(
            &format!("engine {}", text("engine")),
            detail,
            "docs/engines.md lists what nri-runc reads for each engine",
        )
    });
    lines.chain(forged(status)).collect()
}

/// Identity claims by tenants that nri-runc ignored.
fn forged(status: &Value) -> Option<Value> {
    let all = status["contradictions"].as_array()?;
    let last = all.last()?;
    let text = |key: &str| last[key].as_str().unwrap_or_default();
    let (id, what) = (crate::text::short_id(text("id")), crate::error::quoted(text("what")));
    let detail =
        format!("ignored identity claims: {}; the most recent, of {id}: {what}", all.len());
    Some(finding("identity", true, detail, ""))
}

/// Records that could not be read, or written; containers whose records were lost.
fn records(config: &Config, status: &Value) -> Vec<Value> {
    let folder = config.run_dir.join("state/aside");
    let aside = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let aside: Vec<String> =
        aside.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let unwritten = status["unwritten"].as_array().map_or(0, Vec::len);
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
    if let Some(found) = status["found"].as_u64().filter(|found| *found > 0) {
        let detail = format!(
            "{found} containers were recovered after their records were lost; plugin changes unknown"
        );
        findings.push(finding("records", true, detail, ""));
    }
    findings
}

fn plugin_socket(config: &Config, running: &Daemon) -> Value {
    if config.disable_connections {
        return finding("plugin socket", true, "disabled", "");
    }
    let path = config.socket_path.display();
    if running.problem.is_some() {
        // The listener may be this very daemon.
        let detail = format!("{path}: unknown: the daemon gave no status");
        return warning("plugin socket", detail, "nri-runc nri restart replaces the daemon");
    }
    let Some(status) = running.status() else {
        // Without a daemon, only connecting to the socket shows whether a process listens.
        return match listener_at(&config.socket_path, &config.host()) {
            None => finding("plugin socket", true, path.to_string(), ""),
            Some(listener) => {
                let detail = format!("{listener} listens on {path}");
                finding("plugin socket", false, detail, &listener.remedy())
            }
        };
    };
    let said = status["plugin_socket"].as_str().unwrap_or_default();
    let mut detail = format!("{path}: {said}");
    if status["pass_through"] == true {
        detail.push_str("; until then containers are created unchanged");
    }
    if status["pass_through"] == true && config.requires_plugins() {
        detail.push_str(", and required plugins are not enforced");
    }
    let listener = &status["plugin_socket_state"]["listener"];
    let hint = match listener["engine"].as_str().map(name_for_install) {
        Some(engine) => format!(
            "nri-runc nri install {engine} --take-over-nri, or with --beside; then restart the engine"
        ),
        None => "free the socket: the daemon retries every few seconds".to_owned(),
    };
    finding("plugin socket", said == "open", detail, &hint)
}

fn plugins(config: &Config, running: &Daemon) -> Vec<Value> {
    let (found, problems) = discover(&config.plugin_path, &config.plugin_config_path);
    let names: Vec<String> = found.iter().map(PluginFile::id).collect();
    let detail = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let mut findings = vec![finding("pre-installed plugins", true, detail, "")];
    findings.extend(problems.iter().map(|problem| {
        let hint = if problem.is_plugin {
            "make its configuration file readable UTF-8 text"
        } else {
            "make it executable (chmod +x), and name it NN-name"
        };
        finding("pre-installed plugins", false, problem.to_string(), hint)
    }));
    findings.extend(exited(&running.plugins, &names));
    findings
}

/// Launched plugins that are not running: a required one has a row of its own beside this.
fn exited(rows: &Value, names: &[String]) -> Vec<Value> {
    let rows = rows.as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let exited = rows.filter_map(|row| {
        let id = format!("{}-{}", text(&row["index"]), text(&row["name"]));
        let is_exited = row["state"] == "gone" && !row["exit_status"].is_null();
        if !is_exited || !names.contains(&id) {
            return None;
        }
        let hint =
            format!("the daemon's log says why it exited; also check the configuration of {id}");
        let mut detail = format!("{id} is not running: {}", text(&row["exit_status"]));
        if let Some(line) = row["last_words"].as_array().and_then(|lines| lines.last()) {
            detail.push_str(&format!("; its last line: {}", text(line)));
        }
        Some(warning("pre-installed plugins", detail, &hint))
    });
    exited.collect()
}

/// Whether the plugins that every container needs take part: without one, creates are refused.
fn required(config: &Config, running: &Daemon) -> Option<Value> {
    if !config.requires_plugins() {
        return None;
    }
    let Some(status) = running.status() else {
        let detail = "unknown until the daemon runs";
        return Some(finding("required plugins", true, detail, ""));
    };
    let rows = status["required"].as_array().cloned().unwrap_or_default();
    let named = |wanted: bool| {
        let rows = rows.iter().filter(|row| (row["connected"] == true) == wanted);
        let names = rows.filter_map(|row| row["plugin"].as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let away = named(false);
    if rows.is_empty() {
        let detail = "the running daemon requires none: it is older than the configuration";
        return Some(finding("required plugins", true, detail, ""));
    }
    if away.is_empty() || status["pass_through"] == true {
        return Some(finding("required plugins", true, named(true), ""));
    }
    let detail = format!("{away} not connected: creates are refused, except in exempt namespaces");
    let hint = "start it; to see why it is not connected: nri-runc nri plugins";
    Some(finding("required plugins", false, detail, hint))
}

fn switched_on(config: &Config) -> Value {
    if config.disable {
        return finding(
            "switched on",
            false,
            "nri.disable is set",
            "remove it from the configuration",
        );
    }
    let is_off = config.disabled_file().exists();
    let detail = if is_off { "every command goes straight to the runtime" } else { "yes" };
    finding("switched on", !is_off, detail, "nri-runc nri enable")
}

fn cgroups(config: &Config) -> Value {
    let root = config.host().path("/sys/fs/cgroup");
    let unified = root.join("cgroup.controllers").exists();
    let hybrid = root.join("unified").exists();
    let detail = match (unified, hybrid) {
        (true, _) => "version 2",
        (false, true) => "version 1, hybrid",
        (false, false) if Path::new(&root).exists() => "version 1",
        (false, false) => "not mounted",
    };
    finding("cgroups", detail != "not mounted", detail, "mount /sys/fs/cgroup")
}
