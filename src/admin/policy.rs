// SPDX-License-Identifier: Apache-2.0
//! `policy test`: shows which rule decides what a plugin may do with a pod, and why. It changes
//! nothing.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::output::{Format, PlainOutput};
use super::show::{rows, table, text};
use crate::config::Loaded;
use crate::dry;
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
    #[command(override_usage = "nri-runc nri policy test [OPTIONS] <--bundle DIR | --pod POD>")]
    Test(PolicyTest),
}

/// `policy test`.
#[derive(Debug, Args)]
pub(super) struct PolicyTest {
    /// Bundle directory (rules of the files; needs no daemon).
    #[arg(long, value_name = "DIR", required_unless_present = "pod", conflicts_with = "pod")]
    bundle: Option<PathBuf>,
    /// Container ID (default: bundle directory name).
    #[arg(long, requires = "bundle")]
    id: Option<String>,
    /// Pod: NAMESPACE/NAME, name, ID or ID prefix (rules in force).
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    /// Also for this plugin, as NN-name or name (repeatable).
    #[arg(long, value_name = "NAME")]
    plugin: Vec<String>,
    #[command(flatten)]
    output: PlainOutput,
}

impl Policy {
    /// Whether it needs the daemon.
    pub(super) fn needs_daemon(&self) -> bool {
        let PolicyVerb::Test(PolicyTest { pod, .. }) = &self.verb;
        pod.is_some()
    }

    /// The requested output format.
    pub(super) fn output(&self) -> Option<Format> {
        let PolicyVerb::Test(PolicyTest { output, .. }) = &self.verb;
        output.output
    }
}

/// Returns the document of `policy test`.
pub(super) fn policy(loaded: &Loaded, arguments: &Policy) -> Result<Value> {
    let PolicyVerb::Test(PolicyTest { bundle, id, pod, plugin, output: _ }) = &arguments.verb;
    let Some(bundle) = bundle else {
        let question = json!({"verb": "policy", "pod": pod, "plugins": plugin});
        return super::ask(&loaded.config, &question);
    };
    if let Some(problem) = loaded.refusal() {
        return Err(Error::new(problem.text.clone()).hint("see: nri-runc nri check"));
    }
    dry::policy(&loaded.config, bundle, id.as_deref(), plugin)
}

/// Renders that document as a page.
pub(super) fn page(document: &Value) -> String {
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
    let cells =
        rows(&document["plugins"], |row| vec![text(&row["plugin"]), rule_of(row), effect(row)]);
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

fn effect(row: &Value) -> String {
    if row["hidden"] == true {
        return "hears nothing of this pod".to_owned();
    }
    let mut effects = Vec::new();
    for (key, what) in [
        ("refused", "refused"),
        ("would_refuse", "noted"),
        ("refused_by_section", "refused by its own section"),
    ] {
        match row[key].as_array().map(Vec::as_slice) {
            None | Some([]) => {}
            Some([all]) if all == "*" => effects.push(format!("{what}: everything")),
            Some(fields) => {
                let fields: Vec<String> = fields.iter().map(text).collect();
                effects.push(format!("{what}: {}", fields.join(" ")));
            }
        }
    }
    if effects.is_empty() { "may set everything".to_owned() } else { effects.join("; ") }
}
