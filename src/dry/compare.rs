// SPDX-License-Identifier: Apache-2.0
//! `policy test` for a recording or a manifest: what the rules, injections and promises of two
//! configurations would have decided about recorded creations, or what those of one or two
//! configurations would decide about the pods of a manifest.
//!
//! Plugins are not asked: a recording has their replies, and a missing reply is never guessed
//! (decision D62). Validators are ignored, as is whether the host can carry out a decision, except
//! that injections' seccomp profiles are read here.

use std::collections::BTreeMap;
use std::path::Path;

use nri_adaptation::{Creation, MergeError, Merged, Rights};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::chain::RuleScope;
use crate::config::{Config, bare_name};
use crate::engine::{Allocations, EngineKind, PodAllocations};
use crate::error::{Context, Error, Result, quoted};
use crate::inject::Injections;
use crate::limits;
use crate::plugin::api;
use crate::plugin::json::{read, show};
use crate::rules::{Fit, PromiseFacts, RuledPod, Rules, fit_promise, report};
use crate::text::rfc3339_nanos;

use super::compared::{ChangedDecision, Compared, ComparedContainer, Decision, JudgedContainer};

/// A creation to decide.
#[derive(Debug, Default)]
pub(super) struct JudgedCreation {
    /// Unix time in nanoseconds; 0 for a manifest.
    pub(super) at: i64,
    pub(super) pod: api::PodSandbox,
    pub(super) container: api::Container,
    /// The pod as rules match it.
    pub(super) ruled: RuledPod,
    pub(super) allocations: Allocations,
    /// The plugins' replies; `None` for a manifest.
    pub(super) recorded: Option<RecordedPlugins>,
}

/// The plugins of a recorded creation.
#[derive(Debug, Default)]
pub(super) struct RecordedPlugins {
    connected: Vec<String>,
    /// The plugins from which a rule hid the pod.
    hidden: Vec<String>,
    /// The replies, in the order in which the plugins were asked.
    answers: Vec<(String, api::CreateContainerResponse)>,
}

/// A line of a recording: a call, or the decision about one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordedLine {
    at: i64,
    call: String,
    /// A number in each line of the daemon; a script may have any other value.
    id: Value,
    engine: Option<String>,
    proven: Option<bool>,
    request: Value,
    /// The `id` of the call that this line decides.
    decision: Option<u64>,
    connected: Vec<String>,
    hidden: Vec<String>,
    answers: Vec<RecordedAnswer>,
    allocations: Option<PodAllocations>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordedAnswer {
    plugin: String,
    reply: Value,
}

/// A configuration's decisions about one creation, as texts, by subject: the container, a field, a
/// plugin, a promise, an injection, or a hash of all values.
type Verdict = BTreeMap<String, String>;

/// The data of a creation, or why it is refused or unreadable.
type Judged<T> = std::result::Result<T, String>;

/// The key of the decision about the container.
const CONTAINER: &str = "container";

/// The decision about a promise that needs allocations that the recording lacks.
const UNDECIDED: &str =
    "cannot be judged: the recording does not have what kubelet allocated to the pod";

/// Applies the rules, injections and promises of one configuration to creations.
pub(super) struct Judge<'c> {
    config: &'c Config,
    rules: Rules,
    injections: Injections,
    /// Plugins whose rights in a manifest's pods are shown even if nothing restricts them.
    plugins: &'c [String],
}

fn facts<'s>(creation: &'s JudgedCreation, allocations: &'s Allocations) -> PromiseFacts<'s> {
    let container = Some(&creation.container);
    PromiseFacts { container, ..PromiseFacts::new(&creation.ruled, &creation.pod, allocations) }
}

/// Sorts the document's members by name, because two merges may order one map differently.
fn sorted(mut document: Value) -> Value {
    document.sort_all_objects();
    document
}

impl<'c> Judge<'c> {
    pub(super) fn new(config: &'c Config, plugins: &'c [String]) -> Self {
        let (rules, injections) = (Rules::of(config), Injections::new(config));
        Self { config, rules, injections, plugins }
    }

    /// Returns the promises whose decision depends on kubelet's allocations, if these are not
    /// recorded.
    fn undecided(&self, creation: &JudgedCreation) -> Vec<&'c str> {
        let is_asked =
            EngineKind::named(&creation.ruled.engine).is_some_and(|its| its.behaviour().has_pods);
        if !is_asked || creation.allocations != Allocations::None {
            return Vec::new();
        }
        let not_recorded = Allocations::Unreadable(String::new());
        let fit = |section, allocations| {
            let (fit, why) = fit_promise(section, &facts(creation, allocations));
            (fit != Fit::No).then(|| why.to_string())
        };
        let wanted = self.config.promises.iter().filter(|section| {
            let none = &creation.allocations;
            !creation.ruled.is_in(&self.config.exempt_namespaces)
                && fit(section, none) != fit(section, &not_recorded)
        });
        wanted.map(|section| section.name.as_str()).collect()
    }

    fn judge(&self, creation: &JudgedCreation) -> Verdict {
        let mut verdict = Verdict::new();
        let outcome = match self.decide(creation, &mut verdict) {
            Ok(merged) => {
                for (field, owner) in merged.owners.to_flat(&creation.container.id) {
                    verdict.insert(field, format!("set by {owner}"));
                }
                for note in &merged.noted {
                    let what = format!("{} of {}", note.field(), note.plugin);
                    verdict.insert(what, format!("would be refused by the rule {}", note.rule));
                }
                // The owner alone does not show whether its value changed.
                let values = sorted(show(&merged.adjust)).to_string();
                let values = crate::fnv::fnv64(values.into_bytes());
                verdict.insert("values".to_owned(), format!("{values:016x}"));
                "created".to_owned()
            }
            Err(why) => format!("refused: {}", quoted(&why)),
        };
        verdict.insert(CONTAINER.to_owned(), outcome);
        verdict
    }

    fn decide(&self, creation: &JudgedCreation, verdict: &mut Verdict) -> Judged<Merged> {
        self.judge_promises(creation, verdict)?;
        match &creation.recorded {
            Some(recorded) => self.note_unasked(recorded, &creation.ruled, verdict),
            None => self.note_rights(&creation.ruled, verdict),
        }
        self.merge(creation, verdict)
    }

    fn judge_promises(&self, creation: &JudgedCreation, verdict: &mut Verdict) -> Judged<()> {
        let ruled = &creation.ruled;
        let facts = facts(creation, &creation.allocations);
        let is_exempt = ruled.is_in(&self.config.exempt_namespaces);
        for section in self.config.promises.iter().filter(|_| !is_exempt) {
            let (fit, why) = fit_promise(section, &facts);
            if fit == Fit::No {
                continue;
            }
            let plugin = &section.plugin;
            let is_it = |id: &String| {
                (id == plugin || bare_name(id) == plugin)
                    && self.rules.hidden_by(id, ruled).is_none()
            };
            let recorded = creation.recorded.as_ref();
            let is_there = recorded
                .map(|recorded| recorded.connected.iter().chain(&recorded.hidden).any(is_it));
            let line = format!("needs the plugin {plugin} ({why})");
            match (is_there, section.refuses()) {
                (Some(false), true) => {
                    return Err(format!("the promise \"{}\" {line}", section.name));
                }
                (Some(false), false) => {
                    verdict.insert(
                        format!("promise {}", section.name),
                        format!("would refuse: {line}"),
                    );
                }
                (Some(true) | None, _) => {
                    verdict.insert(format!("promise {}", section.name), line);
                }
            }
        }
        Ok(())
    }

    /// Adds the plugins from which rules hide the pod, and those that would be asked but whose
    /// replies are unknown, because rules hid the pod from them in the recording.
    fn note_unasked(&self, recorded: &RecordedPlugins, ruled: &RuledPod, verdict: &mut Verdict) {
        for id in &recorded.hidden {
            let line = match self.rules.hidden_by(id, ruled) {
                Some(ruling) => format!("receives nothing about this pod (rule {})", ruling.rule),
                None => "would be asked; its answer is not in the recording".to_owned(),
            };
            verdict.insert(format!("plugin {id}"), line);
        }
        for id in &recorded.connected {
            if let Some(ruling) = self.rules.hidden_by(id, ruled) {
                let line = format!("receives nothing about this pod (rule {})", ruling.rule);
                verdict.insert(format!("plugin {id}"), line);
            }
        }
    }

    /// Adds the rights of plugins, because a manifest has no replies.
    fn note_rights(&self, ruled: &RuledPod, verdict: &mut Verdict) {
        let answer = report(self.config, &self.rules, ruled, self.plugins.iter().cloned());
        for row in &answer.plugins {
            let (plugin, effect) = (&row.plugin, super::policy::effect(row));
            // If only one configuration names the plugin and nothing restricts it, it has the same
            // rights in the other, so it is not listed.
            let is_wanted = self.plugins.iter().any(|wanted| wanted == plugin);
            if is_wanted || effect != super::policy::UNRESTRICTED {
                verdict.insert(format!("plugin {plugin}"), effect);
            }
        }
    }

    fn merge(&self, creation: &JudgedCreation, verdict: &mut Verdict) -> Judged<Merged> {
        let (id, ruled) = (creation.container.id.as_str(), &creation.ruled);
        let scope = RuleScope { rules: &self.rules, subject: Some((id, ruled)), pods: &() };
        let mut injected = self.injected(creation, verdict)?.into_iter().peekable();
        let mut merged = Creation::new(creation.pod.clone(), creation.container.clone());
        let mut owners: Vec<(String, Rights)> = Vec::new();
        let text = |error: MergeError| error.to_string();
        let answers = creation.recorded.iter().flat_map(|recorded| &recorded.answers);
        for (plugin, answer) in answers {
            let index = plugin.split('-').next().unwrap_or_default();
            while let Some(next) = injected.next_if(|next| next.index.as_str() <= index) {
                let rights = scope.rights_of_injection(&next.id);
                merged = next.merge(merged, &rights).map_err(text)?;
                owners.push((next.id, rights));
            }
            if self.rules.hidden_by(plugin, ruled).is_some() {
                continue;
            }
            let rights = self.rights(plugin, id, ruled)?;
            merged = merged.answer(plugin, &rights, answer.clone()).map_err(text)?;
            owners.push((plugin.clone(), rights));
        }
        for next in injected {
            let rights = scope.rights_of_injection(&next.id);
            merged = next.merge(merged, &rights).map_err(text)?;
            owners.push((next.id, rights));
        }
        let merged = merged.settle().map_err(text)?;
        for (owner, rights) in &owners {
            merged.check_owned(owner, rights).map_err(text)?;
        }
        Ok(merged.finish())
    }

    /// Returns the injections that apply to the container. Records those in audit mode, and
    /// those that fail and may be left out.
    fn injected(
        &self,
        creation: &JudgedCreation,
        verdict: &mut Verdict,
    ) -> Judged<Vec<crate::inject::Injected>> {
        let image = creation.container.image.as_ref().map(|image| image.name.as_str());
        let mut chosen = Vec::new();
        for (injection, doubt) in self.injections.for_container(&self.rules, &creation.ruled, image)
        {
            let prepared = match doubt {
                Some(doubt) => Err(doubt),
                None => injection.prepare().map_err(|error| error.why()),
            };
            let id = injection.id.clone();
            match prepared {
                Ok(_) if injection.is_audit() => {
                    verdict.insert(id, "would hold (audit mode)".to_owned());
                }
                Ok(injected) => chosen.push(injected),
                Err(why) if injection.section.refuses() => {
                    return Err(format!("{id} cannot be injected: {why}"));
                }
                Err(why) => {
                    verdict.insert(id, format!("is left out: {why}"));
                }
            }
        }
        Ok(chosen)
    }

    /// Returns the fields that a plugin may set in the container, by its section and by the rules.
    fn rights(&self, plugin: &str, container: &str, ruled: &RuledPod) -> Judged<Rights> {
        let (index, name) = plugin.split_once('-').unwrap_or(("", plugin));
        let settings = self.config.plugin(index, name);
        let allow = (!settings.allow.is_empty()).then_some(settings.allow.as_slice());
        let rights = Rights::from_names(allow, &settings.deny);
        let rights = rights.map_err(|error| format!("{plugin}: {error}"))?;
        Ok(self.rules.rights(&rights, plugin, Some((container, ruled)), std::iter::empty(), &()))
    }
}

/// Counts creations, and lists the decisions about each container. If two configurations are
/// compared, only differing decisions and undecided promises are listed.
#[derive(Debug, Default)]
struct Comparison {
    creations: usize,
    changed: usize,
    /// The rows by container and decisions: an engine's repeated attempts to create a container make
    /// one row.
    rows: BTreeMap<String, ComparedContainer>,
    more: usize,
}

impl Comparison {
    fn add(&mut self, creation: &JudgedCreation, before: &Judge<'_>, after: Option<&Judge<'_>>) {
        self.creations += 1;
        let old = before.judge(creation);
        let (changes, decided) = match after.map(|after| (after, after.judge(creation))) {
            Some((after, new)) => {
                let mut changes = differences(&old, &new);
                // An undecided promise may be decided differently, so it is listed too.
                let mut undecided =
                    [before.undecided(creation), after.undecided(creation)].concat();
                undecided.sort_unstable();
                undecided.dedup();
                changes.extend(undecided.into_iter().map(|promise| ChangedDecision {
                    what: format!("promise {promise}"),
                    before: None,
                    after: Some(UNDECIDED.to_owned()),
                }));
                self.changed += usize::from(!changes.is_empty());
                (changes, new.get(CONTAINER).cloned())
            }
            None => (differences(&old, &Verdict::new()), None),
        };
        if changes.is_empty() {
            return;
        }
        let judged = JudgedContainer {
            namespace: creation.pod.namespace.clone(),
            pod: creation.pod.name.clone(),
            container: creation.container.name.clone(),
            decision: Decision { before: old.get(CONTAINER).cloned(), after: decided },
            changes,
        };
        let key = json!(judged).to_string();
        if let Some(row) = self.rows.get_mut(&key) {
            row.count += 1;
        } else if self.rows.len() >= limits::COMPARED_ROWS {
            self.more += 1;
        } else {
            let (container_id, time) = (creation.container.id.clone(), rfc3339_nanos(creation.at));
            let row = ComparedContainer { judged, container_id, time, count: 1 };
            self.rows.insert(key, row);
        }
    }

    fn finish(self, is_comparison: bool, unfinished: Option<usize>) -> Compared {
        Compared {
            compared: is_comparison,
            containers: self.creations,
            changed: self.changed,
            decisions: self.rows.into_values().collect(),
            not_listed: self.more,
            unfinished,
        }
    }
}

/// Returns the decisions that differ. If only the values of fields differ, returns one difference
/// for all of them.
fn differences(old: &Verdict, new: &Verdict) -> Vec<ChangedDecision> {
    let is_listed = |what: &&String| *what != "values";
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differs = |what: &&String| old.get(*what) != new.get(*what);
    let rows = names.into_iter().filter(is_listed).filter(differs);
    let row = |what: &String| ChangedDecision {
        what: what.clone(),
        before: old.get(what).cloned(),
        after: new.get(what).cloned(),
    };
    let mut rows: Vec<ChangedDecision> = rows.map(row).collect();
    let values = (old.get("values"), new.get("values"));
    if rows.is_empty() && values.0 != values.1 {
        let after = Some("other values of these owners".to_owned());
        rows.push(ChangedDecision { what: "values".to_owned(), before: None, after });
    }
    rows
}

/// Judges the pods of a manifest with one configuration, or compares two.
///
/// # Errors
/// Fails when the file is unreadable, or has no pod.
pub(crate) fn manifest(
    file: &Path,
    engine: &str,
    plugins: &[String],
    (before, after): (&Config, Option<&Config>),
) -> Result<Compared> {
    let (before, after) =
        (Judge::new(before, plugins), after.map(|config| Judge::new(config, plugins)));
    let mut comparison = Comparison::default();
    for creation in super::manifest::creations(file, engine)? {
        comparison.add(&creation, &before, after.as_ref());
    }
    Ok(comparison.finish(after.is_some(), None))
}

/// Compares the decisions of two configurations about the requests of a recording.
///
/// # Errors
/// Fails when the file cannot be read, or lacks facts on which a decision depends.
pub(crate) fn recording(file: &Path, (before, after): (&Config, &Config)) -> Result<Compared> {
    let judges = (Judge::new(before, &[]), Judge::new(after, &[]));
    let mut calls: BTreeMap<u64, RecordedLine> = BTreeMap::new();
    let mut comparison = Comparison::default();
    let mut script = super::script::open(Some(file))?;
    for number in 1.. {
        let place = || format!("{}, line {number}", file.display());
        let Some(line) = super::script::next_line(&mut script).doing(place)? else { break };
        let line: RecordedLine =
            serde_json::from_slice(&line).map_err(|error| Error::json(&error)).doing(place)?;
        if line.call == "CreateContainer" {
            let is_known = line.engine.is_some() && line.proven.is_some();
            let id = line.id.as_u64().filter(|_| is_known);
            calls.insert(
                id.ok_or_else(|| lacks(file, "the engine of pods and answers of plugins"))?,
                line,
            );
        } else if let Some(call) = line.decision.and_then(|id| calls.remove(&id)) {
            let creation = recorded(&call, line).map_err(|why| Error::new(why).doing(place()))?;
            comparison.add(&creation, &judges.0, Some(&judges.1));
        }
    }
    if comparison.creations == 0 {
        return Err(lacks(file, "a creation with the answers of plugins"));
    }
    Ok(comparison.finish(true, Some(calls.len())))
}

fn lacks(file: &Path, what: &str) -> Error {
    Error::new(format!("the recording {} does not have {what}", file.display()))
        .hint("record again with the current configuration and daemon")
}

/// Reads a creation from the lines of its call and of its decision.
fn recorded(call: &RecordedLine, decision: RecordedLine) -> Judged<JudgedCreation> {
    let request: api::CreateContainerRequest = read(&call.request)?;
    let answers = decision.answers.iter().filter(|answer| !answer.reply.is_null());
    let answers = answers.map(|answer| Ok((answer.plugin.clone(), read(&answer.reply)?)));
    let answers = answers.collect::<Judged<_>>()?;
    let pod = request.pod.unwrap_or_default();
    let engine = call.engine.as_deref().unwrap_or_default();
    let ruled = RuledPod::of(&pod, engine, call.proven != Some(true));
    Ok(JudgedCreation {
        at: call.at,
        pod,
        container: request.container.unwrap_or_default(),
        ruled,
        allocations: decision.allocations.map(Allocations::Listed).unwrap_or_default(),
        recorded: Some(RecordedPlugins {
            connected: decision.connected,
            hidden: decision.hidden,
            answers,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PromiseSection;

    /// Renders a recorded creation of this engine's container, and the reply of 10-a.
    fn recorded_line(id: u64, name: &str, engine: &str, allocations: &Value) -> String {
        let pod = api::PodSandbox {
            id: format!("pod-{name}"),
            name: name.to_owned(),
            namespace: "shop".to_owned(),
            ..Default::default()
        };
        let container =
            api::Container { id: name.to_owned(), name: name.to_owned(), ..Default::default() };
        let request = api::CreateContainerRequest {
            pod: Some(pod).into(),
            container: Some(container).into(),
            ..Default::default()
        };
        let annotations = (0..8).map(|number| (format!("key-{number}"), number.to_string()));
        let adjust =
            api::ContainerAdjustment { annotations: annotations.collect(), ..Default::default() };
        let answer =
            api::CreateContainerResponse { adjust: Some(adjust).into(), ..Default::default() };
        let call = json!({"call": "CreateContainer", "id": id, "engine": engine, "proven": true,
            "request": show(&request)});
        let decision = json!({"decision": id, "connected": ["10-a"], "hidden": [], "later": 1,
            "answers": [{"plugin": "10-a", "reply": show(&answer)}], "allocations": allocations});
        let of_script = json!({"id": {"any": "value"}, "wait": {"gone": ["10-a"]}});
        format!("{call}\n{of_script}\n{decision}\n")
    }

    fn compared(lines: &str, before: &Config, after: &Config) -> Value {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("script.jsonl");
        crate::files::replace(&file, lines.as_bytes()).unwrap();
        json!(recording(&file, (before, after)).unwrap())
    }

    #[test]
    fn only_promises_on_unrecorded_allocations_cannot_be_judged() {
        let gpu = PromiseSection {
            name: "gpu".to_owned(),
            plugin: "gpu".to_owned(),
            claims: vec!["gpu.example".to_owned()],
            ..PromiseSection::default()
        };
        let after = Config { promises: vec![gpu], ..Config::default() };
        let listed = serde_json::to_value(PodAllocations::default()).unwrap();
        let lines = recorded_line(1, "web", "docker", &Value::Null)
            + &recorded_line(2, "unknown", "containerd-cri", &Value::Null)
            + &recorded_line(3, "listed", "containerd-cri", &listed);
        let document = compared(&lines, &Config::default(), &after);
        assert_eq!((&document["containers"], &document["changed"]), (&json!(3), &json!(1)));
        let row = &document["decisions"][0];
        assert_eq!(row["container"], "unknown", "{document}");
        assert_eq!(row["changes"][0]["after"], UNDECIDED, "{document}");
        let exempt = vec!["shop".to_owned()];
        let after = Config { exempt_namespaces: exempt, ..after };
        assert_eq!(compared(&lines, &Config::default(), &after)["changed"], 0);
    }

    #[test]
    fn an_equal_configuration_never_differs() {
        let lines = recorded_line(1, "web", "containerd-cri", &Value::Null);
        for _again in 0..20 {
            let document = compared(&lines, &Config::default(), &Config::default());
            assert_eq!((&document["containers"], &document["changed"]), (&json!(1), &json!(0)));
        }
    }
}
