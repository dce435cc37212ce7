// SPDX-License-Identifier: Apache-2.0
//! `policy test`: shows which rule decides what a plugin may do with a pod, and why; with
//! `--compare` it shows what another configuration would decide differently. It changes nothing.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use super::exit::{DONE, FOUND};
use super::output::{Answer, Format, ReportOutput, print, tell};
use super::show::{or_dash, table};
use super::{ask, compared};
use crate::answers::{
    AdminRequest, ExecRuleRow, Fit, InjectionRow, PluginRights, PolicyAnswer, PolicyPod,
    PromiseFit, RuleTried,
};
use crate::config::{self, Config, Loaded, RuleMode};
use crate::dry::{self, effect_of};
use crate::engine::EngineKind;
use crate::error::{Error, Result};
use crate::named::Named;
use crate::text::printable;

/// `policy`.
#[derive(Debug, Args)]
pub(super) struct Policy {
    #[command(subcommand)]
    verb: PolicyVerb,
}

#[derive(Debug, Subcommand)]
enum PolicyVerb {
    /// Show which rules apply to plugins for a pod.
    #[command(
        override_usage = "nri-runc nri policy test [OPTIONS] <--bundle DIR | --pod POD | -f FILE>\n       \
        nri-runc nri policy test [OPTIONS] <-f FILE | --recording FILE> --compare FILE"
    )]
    Test(PolicyTest),
}

/// `policy test`.
#[derive(Debug, Args)]
#[group(id = "subject", required = true, multiple = false)]
pub(super) struct PolicyTest {
    /// Bundle directory (uses the files' rules; needs no daemon).
    #[arg(long, value_name = "DIR", group = "subject")]
    bundle: Option<PathBuf>,
    /// Container ID (default: bundle directory name).
    #[arg(long, requires = "bundle")]
    id: Option<String>,
    /// Pod: NAMESPACE/NAME, name, ID or ID prefix (rules in force).
    #[arg(long, value_name = "POD", group = "subject")]
    pod: Option<String>,
    /// Recorded requests to compare (from replay --record).
    #[arg(long, value_name = "FILE", group = "subject", requires = "compare")]
    recording: Option<PathBuf>,
    /// Kubernetes manifest with pods or pod templates.
    #[arg(short, long, value_name = "FILE", group = "subject")]
    filename: Option<PathBuf>,
    /// Configuration to compare with; exit code 3 if a decision changes.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["bundle", "pod"])]
    compare: Option<PathBuf>,
    /// Engine of the manifest's pods.
    #[arg(long, value_name = "ENGINE", requires = "filename", default_value = "containerd-cri",
        value_parser = PossibleValuesParser::new(EngineKind::names()), hide_possible_values = true)]
    engine: String,
    /// Also for this plugin, as NN-name or name (repeatable).
    #[arg(long, value_name = "NAME")]
    plugin: Vec<String>,
    #[command(flatten)]
    output: ReportOutput,
}

impl Policy {
    /// Whether the command needs the daemon.
    pub(super) fn needs_daemon(&self) -> bool {
        let PolicyVerb::Test(PolicyTest { pod, .. }) = &self.verb;
        pod.is_some()
    }

    /// Whether a test report was requested with `--bundle` or `--pod`, which have none.
    pub(super) fn wants_no_report(&self) -> bool {
        let PolicyVerb::Test(PolicyTest { bundle, pod, output, .. }) = &self.verb;
        output.output == Some(Format::Junit) && (bundle.is_some() || pod.is_some())
    }

    pub(super) fn output(&self) -> Option<Format> {
        let PolicyVerb::Test(PolicyTest { output, .. }) = &self.verb;
        output.output
    }
}

/// Prints the decisions, or their differences.
///
/// # Errors
/// Fails when the daemon does not answer about `--pod`, or, without it, when a configuration has an error, or
/// the bundle, recording or manifest cannot be read.
pub(super) fn policy(loaded: &Loaded, arguments: &Policy, format: Format) -> Result<u8> {
    let PolicyVerb::Test(wanted) = &arguments.verb;
    let plugin = &wanted.plugin;
    if let Some(pod) = &wanted.pod {
        let request = AdminRequest::Policy { pod: pod.clone(), plugins: plugin.clone() };
        return tell(format, &ask::<PolicyAnswer>(&loaded.config, &request)?);
    }
    let config = sound(loaded)?;
    if let Some(bundle) = &wanted.bundle {
        return tell(format, &dry::policy(config, bundle, wanted.id.as_deref(), plugin)?);
    }
    let other = wanted.compare.as_ref().map(|file| config::load(Some(file)));
    let other = other.as_ref().map(sound).transpose()?;
    let compared = match (&wanted.filename, &wanted.recording, other) {
        (Some(file), _, other) => {
            dry::compare_manifest(file, &wanted.engine, plugin, (config, other))?
        }
        (None, Some(file), Some(other)) => dry::compare_recording(file, (config, other))?,
        (None, _, _) => return Err(Error::new("no recording or manifest to compare was given")),
    };
    if format == Format::Junit {
        print(compared::junit(&compared).as_bytes())?;
    } else {
        tell(format, &compared)?;
    }
    Ok(if compared.changed == 0 { DONE } else { FOUND })
}

/// Returns the configuration; fails if it is unreadable or has an error that makes a reload fail.
fn sound(loaded: &Loaded) -> Result<&Config> {
    let problem = loaded.refusal().map(|problem| problem.text.clone());
    match problem.or_else(|| loaded.unreadable.clone()) {
        Some(text) => Err(Error::new(text).hint("see: nri-runc nri check")),
        None => Ok(&loaded.config),
    }
}

impl Answer for PolicyAnswer {
    fn page(&self, _: Format) -> String {
        let mut page = String::new();
        let mut line = |title: &str, words: &str| {
            let _infallible = writeln!(page, "{:<12}{words}", format!("{title}:"));
        };
        let PolicyPod { namespace, labels, engine, handler, proven, id: _, name } = &self.pod;
        let proven = if *proven { "" } else { ", not proven: a tenant may have written it" };
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| printable(&format!("{key}={value}"))).collect();
        line("pod", &printable(name));
        line("namespace", &format!("{}{proven}", printable(namespace)));
        line("labels", &or_dash(Some(labels.join(" ")).filter(|labels| !labels.is_empty())));
        line("engine", &printable(engine));
        line("handler", &printable(handler));
        line("rules", &self.rules.to_string());
        page.extend(self.exec_rules.iter().map(exec_rule_line));
        page.extend(self.injections.iter().map(injection));
        page.extend(self.promises.iter().map(promise));
        if self.plugins.is_empty() {
            page.push_str("\nno plugin is known: name one with --plugin\n");
            return page;
        }
        let row = |row: &PluginRights| vec![printable(&row.plugin), rule_of(row), effect_of(row)];
        let cells: Vec<_> = self.plugins.iter().map(row).collect();
        let _infallible = writeln!(page, "\n{}", table(&["plugin", "rule", "effect"], &cells));
        for plugin in &self.plugins {
            let plugin_name = printable(&plugin.plugin);
            for RuleTried { rule, matches, why, decides } in &plugin.rules {
                let verdict = match (decides, matches) {
                    (true, Fit::Maybe) => "may decide",
                    (true, Fit::Yes | Fit::No) => "decides",
                    (false, Fit::No) => "does not match",
                    (false, Fit::Yes | Fit::Maybe) => "also matches, but an earlier rule decides",
                };
                let [rule, why] = [rule, why].map(|text| printable(text));
                let _infallible = writeln!(page, "{plugin_name}: rule \"{rule}\" {verdict}: {why}");
            }
        }
        page
    }
}

fn injection(row: &InjectionRow) -> String {
    let verdict = match (&row.hidden_by, row.matches, row.mode) {
        (Some(_), _, _) => "is excluded by a rule",
        (None, Fit::Yes, RuleMode::Audit) => "would hold",
        (None, Fit::Yes, RuleMode::Enforce) => "holds",
        (None, Fit::Maybe, _) => "is not proven to match it",
        (None, Fit::No, _) => "does not match",
    };
    format!("injection \"{}\" {verdict}: {}\n", printable(&row.injection), printable(&row.why))
}

fn promise(row: &PromiseFit) -> String {
    let plugin = printable(&row.plugin);
    let verdict = match (row.matches, row.mode) {
        (Fit::No, _) => "does not match it".to_owned(),
        (Fit::Maybe | Fit::Yes, RuleMode::Enforce) => format!("needs the plugin {plugin}"),
        (Fit::Maybe | Fit::Yes, RuleMode::Audit) => format!("would need the plugin {plugin}"),
    };
    format!("promise \"{}\" {verdict}: {}\n", printable(&row.promise), printable(&row.why))
}

fn exec_rule_line(rule: &ExecRuleRow) -> String {
    let verdict = match (rule.decides, rule.matches) {
        (true, Fit::Maybe) => " (may match this pod)",
        (true, Fit::Yes | Fit::No) => "",
        (false, Fit::No) => " (does not match this pod)",
        (false, Fit::Yes | Fit::Maybe) => " (never tried: an earlier rule decides)",
    };
    format!("{}: {}{verdict}\n", exec_rule(rule), printable(&rule.why))
}

/// Describes the effect of an exec rule, as a clause.
pub(super) fn exec_rule(rule: &ExecRuleRow) -> String {
    let verb = match (rule.allow, rule.mode) {
        (true, _) => "permits",
        (false, RuleMode::Audit) => "would refuse",
        (false, RuleMode::Enforce) => "refuses",
    };
    let terminal = match rule.terminal {
        Some(true) => " with a terminal",
        Some(false) => " without a terminal",
        None => "",
    };
    let list = |entries: &[String], word: &str| match printable(&entries.join(", ")) {
        none if none.is_empty() => none,
        entries => format!(" {word} {entries}"),
    };
    let (name, users) = (printable(&rule.rule), list(&rule.users, "of users"));
    let commands = list(&rule.commands, "that run");
    format!("exec rule \"{name}\" {verb} processes{terminal}{users}{commands}")
}

fn rule_of(row: &PluginRights) -> String {
    let mode = if row.mode == Some(RuleMode::Audit) { " (audit)" } else { "" };
    row.rule.as_ref().map_or_else(|| "none".to_owned(), |rule| printable(rule) + mode)
}
