// SPDX-License-Identifier: Apache-2.0
//! `policy test`: shows which rule decides what a plugin may do with a pod, and why; with `--compare`,
//! what another configuration would decide otherwise. It changes nothing.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::exit::{DONE, FOUND};
use super::output::{Format, ReportOutput, print, tell_page};
use super::show::{rows, table, text};
use super::{compared, paint};
use crate::config::{self, Config, Loaded};
use crate::dry;
use crate::engine::EngineKind;
use crate::error::{Error, Result};

/// `policy`.
#[derive(Debug, Args)]
pub(super) struct Policy {
    #[command(subcommand)]
    verb: PolicyVerb,
}

#[derive(Debug, Subcommand)]
enum PolicyVerb {
    /// Show which rules decide what plugins may do with a pod.
    #[command(
        override_usage = "nri-runc nri policy test [OPTIONS] <--bundle DIR | --pod POD>\n       \
        nri-runc nri policy test [OPTIONS] <-f FILE | --recording FILE> --compare FILE"
    )]
    Test(PolicyTest),
}

/// `policy test`.
#[derive(Debug, Args)]
#[group(id = "subject", required = true, multiple = false)]
pub(super) struct PolicyTest {
    /// Bundle directory (rules of the files; needs no daemon).
    #[arg(long, value_name = "DIR", group = "subject")]
    bundle: Option<PathBuf>,
    /// Container ID (default: bundle directory name).
    #[arg(long, requires = "bundle")]
    id: Option<String>,
    /// Pod: NAMESPACE/NAME, name, ID or ID prefix (rules in force).
    #[arg(long, value_name = "POD", group = "subject")]
    pod: Option<String>,
    /// Recorded requests (replay --record), to be compared.
    #[arg(long, value_name = "FILE", group = "subject", requires = "compare")]
    recording: Option<PathBuf>,
    /// Kubernetes manifest with pods, or templates of pods.
    #[arg(short, long, value_name = "FILE", group = "subject")]
    filename: Option<PathBuf>,
    /// Configuration to compare with; exit code 3 if a decision changes.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["bundle", "pod"])]
    compare: Option<PathBuf>,
    /// Engine of the manifest's pods.
    #[arg(long, value_name = "ENGINE", requires = "filename", default_value = "containerd-cri",
        value_parser = PossibleValuesParser::new(EngineKind::ALL.map(EngineKind::name)), hide_possible_values = true)]
    engine: String,
    /// Also for this plugin, as NN-name or name (repeatable).
    #[arg(long, value_name = "NAME")]
    plugin: Vec<String>,
    #[command(flatten)]
    output: ReportOutput,
}

impl Policy {
    /// Whether it needs the daemon.
    pub(super) fn needs_daemon(&self) -> bool {
        let PolicyVerb::Test(PolicyTest { pod, .. }) = &self.verb;
        pod.is_some()
    }

    /// Whether a test report was requested of what has none: the decisions about one pod.
    pub(super) fn wants_no_report(&self) -> bool {
        let PolicyVerb::Test(PolicyTest { bundle, pod, output, .. }) = &self.verb;
        output.output == Some(Format::Junit) && (bundle.is_some() || pod.is_some())
    }

    /// The requested output format.
    pub(super) fn output(&self) -> Option<Format> {
        let PolicyVerb::Test(PolicyTest { output, .. }) = &self.verb;
        output.output
    }
}

/// Prints what `policy test` finds.
///
/// # Errors
/// Fails when a configuration has an error, or what is to be judged cannot be read.
pub(super) fn policy(loaded: &Loaded, arguments: &Policy, format: Format) -> Result<u8> {
    let PolicyVerb::Test(wanted) = &arguments.verb;
    let plugin = &wanted.plugin;
    if let Some(pod) = &wanted.pod {
        let question = json!({"verb": "policy", "pod": pod, "plugins": plugin});
        return tell_page(format, &super::ask(&loaded.config, &question)?, page, paint::plain);
    }
    let config = sound(loaded)?;
    if let Some(bundle) = &wanted.bundle {
        let document = dry::policy(config, bundle, wanted.id.as_deref(), plugin)?;
        return tell_page(format, &document, page, paint::plain);
    }
    let other = wanted.compare.as_ref().map(|file| config::load(Some(file)));
    let other = other.as_ref().map(sound).transpose()?;
    let document = match (&wanted.filename, &wanted.recording, other) {
        (Some(file), _, other) => {
            dry::compare_manifest(file, &wanted.engine, plugin, (config, other))?
        }
        (None, Some(file), Some(other)) => dry::compare_recording(file, (config, other))?,
        (None, _, _) => return Err(Error::new("nothing to compare was named")),
    };
    if format == Format::Junit {
        print(compared::junit(&document).as_bytes())?;
    } else {
        tell_page(format, &document, compared::page, paint::plain)?;
    }
    Ok(if document["changed"] == 0 { DONE } else { FOUND })
}

/// A configuration without an error.
fn sound(loaded: &Loaded) -> Result<&Config> {
    let problem = loaded.refusal().map(|problem| problem.text.clone());
    match problem.or_else(|| loaded.unreadable.clone()) {
        Some(text) => Err(Error::new(text).hint("see: nri-runc nri check")),
        None => Ok(&loaded.config),
    }
}

/// Renders the rules' decisions about a pod as a page.
fn page(document: &Value) -> String {
    let mut page = String::new();
    let pod = &document["pod"];
    let mut line = |title: &str, words: &str| {
        let _infallible = writeln!(page, "{:<12}{words}", format!("{title}:"));
    };
    let proven =
        if pod["proven"] == false { ", not proven: a tenant may have written it" } else { "" };
    line("pod", &text(&pod["name"]));
    line("namespace", &format!("{}{proven}", text(&pod["namespace"])));
    line("labels", &labels(&pod["labels"]));
    line("engine", &text(&pod["engine"]));
    line("handler", &text(&pod["handler"]));
    line("rules", &text(&document["rules"]));
    exec_rules(document, &mut page);
    for injection in document["injections"].as_array().into_iter().flatten() {
        let [name, why] = ["injection", "why"].map(|key| text(&injection[key]));
        let verdict = match (injection["hidden_by"].as_str(), injection["matches"].as_str()) {
            (Some(_), _) => "is kept out by a rule",
            (None, Some("yes")) if injection["mode"] == "audit" => "would hold",
            (None, Some("yes")) => "holds",
            (None, Some("maybe")) => "is not proven to be about it",
            (None, _) => "does not match",
        };
        let _infallible = writeln!(page, "injection \"{name}\" {verdict}: {why}");
    }
    for promise in document["promises"].as_array().into_iter().flatten() {
        let [name, plugin, why] = ["promise", "plugin", "why"].map(|key| text(&promise[key]));
        let verdict = match (promise["matches"].as_str(), promise["mode"] == "audit") {
            (Some("no"), _) => "is not about it".to_owned(),
            (_, false) => format!("needs the plugin {plugin}"),
            (_, true) => format!("would need the plugin {plugin}"),
        };
        let _infallible = writeln!(page, "promise \"{name}\" {verdict}: {why}");
    }
    let plugins = document["plugins"].as_array().map(Vec::as_slice).unwrap_or_default();
    if plugins.is_empty() {
        page.push_str("\nno plugin is known: name one with --plugin\n");
        return page;
    }
    let cells = rows(&document["plugins"], |row| {
        vec![text(&row["plugin"]), rule_of(row), dry::effect_of(row)]
    });
    let _infallible = writeln!(page, "\n{}", table(&["plugin", "rule", "effect"], &cells));
    for plugin in plugins {
        for tried in plugin["rules"].as_array().into_iter().flatten() {
            let [rule, why] = ["rule", "why"].map(|key| text(&tried[key]));
            let verdict = match (tried["decides"] == true, tried["matches"].as_str()) {
                (true, Some("maybe")) => "may decide",
                (true, _) => "decides",
                (false, Some("no")) => "does not match",
                (false, _) => "matches too, but an earlier rule decides",
            };
            let _infallible =
                writeln!(page, "{}: rule \"{rule}\" {verdict}: {why}", text(&plugin["plugin"]));
        }
    }
    page
}

/// Adds the effect of each exec rule on the pod, one a line.
fn exec_rules(document: &Value, page: &mut String) {
    for rule in document["exec_rules"].as_array().into_iter().flatten() {
        let verdict = match (rule["decides"] == true, rule["matches"].as_str()) {
            (true, Some("maybe")) => " (may be about this pod)",
            (true, _) => "",
            (false, Some("no")) => " (not about this pod)",
            (false, _) => " (never tried: an earlier rule decides)",
        };
        let _infallible = writeln!(page, "{}: {}{verdict}", exec_rule(rule), text(&rule["why"]));
    }
}

/// Describes the effect of an exec rule, as a clause.
pub(super) fn exec_rule(rule: &Value) -> String {
    let verb = match (rule["allow"] == true, rule["mode"] == "audit") {
        (true, _) => "permits",
        (false, true) => "would refuse",
        (false, false) => "refuses",
    };
    let terminal = match rule["terminal"].as_bool() {
        Some(true) => " with a terminal",
        Some(false) => " without a terminal",
        None => "",
    };
    let list = |key: &str, word: &str| {
        let entries = rule[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let entries: Vec<String> = entries.iter().map(text).collect();
        if entries.is_empty() { String::new() } else { format!(" {word} {}", entries.join(", ")) }
    };
    let name = text(&rule["rule"]);
    let (users, commands) = (list("users", "of users"), list("commands", "that run"));
    format!("exec rule \"{name}\" {verb} processes{terminal}{users}{commands}")
}

fn labels(labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    let pairs: Vec<String> = pairs
        .map(|(key, value)| format!("{}={}", text(&Value::from(key.as_str())), text(value)))
        .collect();
    if pairs.is_empty() { "-".to_owned() } else { pairs.join(" ") }
}

fn rule_of(row: &Value) -> String {
    match row["rule"].as_str() {
        None => "none".to_owned(),
        Some(_) if row["mode"] == "audit" => format!("{} (audit)", text(&row["rule"])),
        Some(_) => text(&row["rule"]),
    }
}
