// SPDX-License-Identifier: Apache-2.0
//! Reports the rules that decide about a pod, with reasons, as the document of `nri-runc nri policy
//! test`. Nothing is changed, and no plugin is asked.

use std::collections::BTreeSet;

use nri_adaptation::{FieldSet, NriField, RuleDecision};

use super::{Fit, RuledPod, Rules, exec_rows};
use crate::answers::{PluginRights, PolicyAnswer, PolicyPod, RuleTried};
use crate::config::{Config, EVERY_FIELD, EVICTION, RuleMode};

/// Returns the rules' decisions about this pod, for these plugins (`NN-name`, or a name) and for those
/// that a rule or a section names.
pub(crate) fn report(
    config: &Config,
    rules: &Rules,
    pod: &RuledPod,
    plugins: impl IntoIterator<Item = String>,
) -> PolicyAnswer {
    let mut ids: BTreeSet<String> = plugins.into_iter().collect();
    let known: BTreeSet<String> = ids.iter().flat_map(|id| [id.clone(), bare(id)]).collect();
    let sections = config.plugins.keys().map(String::as_str).filter(|name| *name != EVERY_FIELD);
    let named = rules.named_plugins().chain(sections).filter(|name| !known.contains(*name));
    ids.extend(named.map(ToOwned::to_owned).collect::<Vec<_>>());
    PolicyAnswer {
        pod: PolicyPod {
            namespace: pod.namespace.clone(),
            labels: pod.labels.clone(),
            engine: pod.engine.clone(),
            handler: pod.handler.clone(),
            proven: !pod.is_doubtful,
            ..PolicyPod::default()
        },
        rules: rules.rules.len(),
        plugins: ids.iter().map(|id| row(config, rules, pod, id)).collect(),
        exec_rules: exec_rows(&config.exec_rules, pod),
        ..PolicyAnswer::default()
    }
}

fn bare(id: &str) -> String {
    crate::config::bare_name(id).to_owned()
}

fn row(config: &Config, rules: &Rules, pod: &RuledPod, id: &str) -> PluginRights {
    let decision = rules.decide(id, pod);
    let explained = rules.explain(id, pod);
    let settled = explained.iter().position(|(_, fit, _)| *fit == Fit::Yes);
    let tried = settled.map_or(explained.len(), |at| at + 1);
    let why = explained.iter().enumerate().map(|(at, (ruling, fit, reason))| RuleTried {
        rule: ruling.rule.clone(),
        matches: *fit,
        why: reason.to_string(),
        // A rule after the one that decides is never tried.
        decides: at < tried && *fit != Fit::No,
    });
    let first = decision.rulings.first();
    PluginRights {
        plugin: id.to_owned(),
        rule: first.map(|ruling| ruling.rule.clone()),
        mode: first.map(|ruling| RuleMode::of(!ruling.is_audit)),
        hidden: decision.is_hidden,
        refused: names(refused(&decision, false)),
        would_refuse: names(refused(&decision, true)),
        refused_by_section: by_section(config, id),
        rules: why.collect(),
    }
}

fn refused(decision: &RuleDecision, is_audit: bool) -> FieldSet {
    let mut refused = FieldSet::NONE;
    for ruling in decision.rulings.iter().filter(|ruling| ruling.is_audit == is_audit) {
        let mut against = FieldSet::ALL;
        against.remove(ruling.permits);
        refused = refused.or(against);
    }
    refused
}

fn names(set: FieldSet) -> Vec<String> {
    if set == FieldSet::ALL {
        return vec![EVERY_FIELD.to_owned()];
    }
    let fields = NriField::ALL.into_iter().filter(|field| set.has(FieldSet::of(*field)));
    let eviction = set.has(FieldSet::EVICTION).then_some(EVICTION);
    fields.map(NriField::name).chain(eviction).map(str::to_owned).collect()
}

/// Returns the fields that the plugin's own section refuses, in any container.
fn by_section(config: &Config, id: &str) -> Vec<String> {
    let name = bare(id);
    let index = id.strip_suffix(&name).unwrap_or_default().trim_end_matches('-');
    let settings = config.plugin(index, &name);
    let has = |list: &[String], field: NriField| list.iter().any(|name| name == field.name());
    let is_refused = |field: &NriField| {
        has(&settings.deny, *field) || !settings.allow.is_empty() && !has(&settings.allow, *field)
    };
    let fields = NriField::ALL.into_iter().filter(is_refused);
    fields.map(|field| field.name().to_owned()).collect()
}
