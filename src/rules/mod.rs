// SPDX-License-Identifier: Apache-2.0
//! Applies the operator's rules on plugins, pods and containers (decision D44).
//!
//! The first rule that matches pod and plugin decides; without one, the rules permit everything,
//! and the plugin's own section may still restrict it. A pod whose identity a tenant may have
//! written could be in any namespace: then every rule that may match applies, up to the first certain
//! match, and only what all of them permit is permitted. Everything here is pure: no file, no clock, no
//! plugin is asked.

mod execs;
mod matching;
mod promises;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;

use nri_adaptation::{FieldSet, NriField, Rights, RuleDecision, Ruling};

use crate::config::{Config, EVERY_FIELD, EVICTION, INJECTIONS, RuleMode, RuleSection};
use crate::glob;
use crate::plugin::api;

pub(crate) use execs::{exec_refusal, exec_rows, judge};
pub(crate) use matching::{Entry, Fit, Reason, entry, fit_pod};
pub(crate) use promises::{PromiseFacts, device_numbers, fit_promise, promise_rows};
pub(crate) use report::report;

/// The facts of a pod that rules match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuledPod {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
    /// Whether the labels may be incomplete, because the pod has no record.
    pub lacks_labels: bool,
    /// The engine's name.
    pub engine: String,
    /// The runtime handler, empty for the default.
    pub handler: String,
    /// Whether a tenant may have written the namespace, or disguised the engine.
    pub is_doubtful: bool,
}

impl RuledPod {
    /// Whether the pod is in one of these namespaces, some of which may be patterns; a pod whose
    /// identity is unproven is in none.
    pub(crate) fn is_in(&self, namespaces: &[String]) -> bool {
        let is_this = |name: &String| glob::matches(name, &self.namespace);
        !self.is_doubtful && namespaces.iter().any(is_this)
    }

    /// Takes the facts from a pod as plugins see it.
    pub fn of(pod: &api::PodSandbox, engine: &str, is_doubtful: bool) -> Self {
        let labels = pod.labels.iter().map(|(key, value)| (key.clone(), value.clone()));
        Self {
            namespace: pod.namespace.clone(),
            labels: labels.collect(),
            lacks_labels: false,
            engine: engine.to_owned(),
            handler: pod.runtime_handler.clone(),
            is_doubtful,
        }
    }
}

/// The pods of containers that a plugin's reply names.
pub trait PodsOfContainers {
    /// Returns the pod of the container that a plugin means by this ID, if there is one.
    fn pod_of(&self, container: &str) -> Option<RuledPod>;
}

/// For callers that know no container but the request's own.
impl PodsOfContainers for () {
    fn pod_of(&self, _container: &str) -> Option<RuledPod> {
        None
    }
}

/// One rule, ready to be tried.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    section: RuleSection,
    ruling: Arc<Ruling>,
}

/// All rules, in the order in which they are tried.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    /// Whether any of the rules hides pods.
    has_hiding: bool,
    /// A rule before all others, in the daemon of an unprivileged user.
    without_root: Option<Arc<Ruling>>,
}

/// The fields that only root can put into effect. Without root, runtimes ignore some of these
/// fields silently, and change the host for others.
const NEEDS_ROOT: [NriField; 9] = [
    NriField::BlockioClass,
    NriField::CPURealtimePeriod,
    NriField::CPURealtimeRuntime,
    NriField::HugepageLimits,
    NriField::LinuxNetDevices,
    NriField::RdtClass,
    NriField::RdtClosID,
    NriField::RdtEnableMonitoring,
    NriField::RdtSchemata,
];

impl Rules {
    /// Creates an empty set of rules.
    pub const fn none() -> Self {
        Self { rules: Vec::new(), has_hiding: false, without_root: None }
    }

    /// Returns the rules of a configuration.
    pub fn new(sections: &[RuleSection]) -> Self {
        let rules: Vec<Rule> = sections.iter().map(Rule::new).collect();
        let has_hiding = sections.iter().any(|section| section.hide);
        Self { rules, has_hiding, without_root: None }
    }

    /// Returns the rules of a daemon; if it is an unprivileged user's, they permit no field that needs root.
    pub(crate) fn of(config: &Config) -> Self {
        let mut permits = FieldSet::ALL;
        permits.remove(NEEDS_ROOT.into_iter().map(FieldSet::of).fold(FieldSet::NONE, FieldSet::or));
        let rule = "needs root, and the daemon is a user's".to_owned();
        let ruling = Ruling { rule, permits, hides: false, is_audit: false };
        let without_root = config.is_of_user().then(|| Arc::new(ruling));
        Self { without_root, ..Self::new(&config.rules) }
    }

    /// Whether there are no rules.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.without_root.is_none()
    }

    /// Whether some rule hides pods from plugins.
    pub(crate) fn hides_anything(&self) -> bool {
        self.has_hiding
    }

    /// Returns the decision about this plugin (`NN-name`) and this pod.
    pub fn decide(&self, plugin: &str, pod: &RuledPod) -> RuleDecision {
        let mut rulings: Vec<Arc<Ruling>> = Vec::new();
        let mut is_settled = false;
        for rule in &self.rules {
            match matching::fit(&rule.section, plugin, pod).0 {
                Fit::No => continue,
                Fit::Maybe => rulings.push(Arc::clone(&rule.ruling)),
                Fit::Yes => {
                    rulings.push(Arc::clone(&rule.ruling));
                    is_settled = true;
                    break;
                }
            }
        }
        // Hidden only if a rule certainly matches, and that rule and all earlier ones that may match
        // hide the pod: a false claim must not hide it.
        let hides = |ruling: &Arc<Ruling>| ruling.hides && !ruling.is_audit;
        let is_hidden = is_settled && rulings.iter().all(hides);
        rulings.splice(0..0, self.without_root.clone());
        RuleDecision { rulings, is_hidden }
    }

    /// Returns the rule that hides this pod from this plugin.
    pub(crate) fn hidden_by(&self, plugin: &str, pod: &RuledPod) -> Option<Arc<Ruling>> {
        if !self.has_hiding {
            return None;
        }
        let RuleDecision { rulings, is_hidden } = self.decide(plugin, pod);
        rulings.into_iter().find(|ruling| ruling.hides).filter(|_| is_hidden)
    }

    /// Returns what a plugin may do in each container (set fields, evict): in the request's container, whose pod is
    /// `subject`, and in the containers that its reply names.
    pub fn rights<'i>(
        &self,
        rights: &Rights,
        plugin: &str,
        subject: Option<(&str, &RuledPod)>,
        named: impl Iterator<Item = &'i str>,
        pods: &dyn PodsOfContainers,
    ) -> Rights {
        let mut rights = rights.clone();
        if self.is_empty() {
            return rights;
        }
        if let Some((id, pod)) = subject {
            rights.ruled.insert(id.to_owned(), self.decide(plugin, pod));
        }
        for id in named {
            if rights.ruled.contains_key(id) {
                continue;
            }
            if let Some(pod) = pods.pod_of(id) {
                rights.ruled.insert(id.to_owned(), self.decide(plugin, &pod));
            }
        }
        rights
    }

    /// Returns every rule, and whether it matches, for `policy test`.
    fn explain(&self, plugin: &str, pod: &RuledPod) -> Vec<(Arc<Ruling>, Fit, Reason)> {
        let all = self.rules.iter().map(|rule| {
            let (fit, reason) = matching::fit(&rule.section, plugin, pod);
            (Arc::clone(&rule.ruling), fit, reason)
        });
        all.collect()
    }

    /// Returns the plugins that rules name without a wildcard.
    fn named_plugins(&self) -> Vec<&str> {
        let names = self.rules.iter().flat_map(|rule| &rule.section.plugins);
        let is_name = |name: &&str| {
            !name.contains(['*', '?', '[', '\\', '!']) && !name.starts_with(INJECTIONS)
        };
        names.map(String::as_str).filter(is_name).collect()
    }
}

impl Rule {
    fn new(section: &RuleSection) -> Self {
        let RuleSection { name, allow, deny, mode, hide, .. } = section;
        let mut permits = allow.as_deref().map_or(FieldSet::ALL, set);
        permits.remove(deny.iter().map(String::as_str).map(one).fold(FieldSet::NONE, FieldSet::or));
        let ruling = Ruling {
            rule: name.clone(),
            permits: if *hide { FieldSet::NONE } else { permits },
            hides: *hide,
            is_audit: *mode == RuleMode::Audit,
        };
        Self { section: section.clone(), ruling: Arc::new(ruling) }
    }
}

fn set(names: &[String]) -> FieldSet {
    names.iter().map(|name| one(name)).fold(FieldSet::NONE, FieldSet::or)
}

/// Returns the fields, or the right to evict, that a name in a rule means; the configuration has refused unknown names.
fn one(name: &str) -> FieldSet {
    match name {
        EVERY_FIELD => FieldSet::ALL,
        EVICTION => FieldSet::EVICTION,
        name => NriField::from_name(name).map_or(FieldSet::NONE, FieldSet::of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PodSelectors;

    fn pod(namespace: &str) -> RuledPod {
        RuledPod { namespace: namespace.to_owned(), ..RuledPod::default() }
    }

    fn doubtful(namespace: &str) -> RuledPod {
        RuledPod { is_doubtful: true, ..pod(namespace) }
    }

    #[test]
    fn a_pod_is_in_listed_namespaces_only_if_its_own_is_proven() {
        let list = ["kube-*".to_owned(), "b".to_owned()];
        for (pod, is_in) in [
            (pod("kube-system"), true),
            (pod("b"), true),
            (pod("c"), false),
            (doubtful("b"), false),
            (doubtful("c"), false),
        ] {
            assert_eq!(pod.is_in(&list), is_in, "{pod:?}");
        }
        assert!(!pod("b").is_in(&[]));
    }

    #[test]
    fn rules_see_the_namespace_labels_and_handler_of_a_pod() {
        let seen = api::PodSandbox {
            namespace: "a".to_owned(),
            labels: [("k".to_owned(), "v".to_owned())].into(),
            runtime_handler: "kata".to_owned(),
            ..Default::default()
        };
        let wanted = RuledPod {
            labels: [("k".to_owned(), "v".to_owned())].into(),
            engine: "docker".to_owned(),
            handler: "kata".to_owned(),
            ..doubtful("a")
        };
        assert_eq!(RuledPod::of(&seen, "docker", true), wanted);
    }

    #[test]
    fn a_container_without_a_known_pod_is_not_ruled() {
        let rules = Rules::of(&Config::of_text("[[rule]]\ndeny = [\"Env\"]\n"));
        let subject = pod("a");
        let named = ["c1", "c2"].into_iter();
        let rights = rules.rights(&Rights::default(), "10-a", Some(("c1", &subject)), named, &());
        assert_eq!(rights.ruled.keys().collect::<Vec<_>>(), ["c1"]);
    }

    #[test]
    fn a_users_daemon_permits_no_field_that_needs_root() {
        let node = Config::default();
        assert!(Rules::of(&node).is_empty());
        assert_eq!(Rules::of(&node).decide("10-a", &pod("a")), RuleDecision::default());
        let user = Config { node_run_dir: Some("/run/nri-runc".into()), ..Config::default() };
        let rules = Rules::of(&user);
        assert!(!rules.is_empty());
        let decision = rules.decide("10-a", &pod("a"));
        let [ruling] = &decision.rulings[..] else { panic!("{decision:?}") };
        assert!(!ruling.permits.has(FieldSet::of(NriField::RdtClass)));
        assert!(ruling.permits.has(FieldSet::of(NriField::Env)));
        assert!(!ruling.is_audit && !ruling.hides);
    }

    #[test]
    fn a_pod_is_hidden_by_an_enforced_rule_that_certainly_matches() {
        let hides = |text: &str, pod: &RuledPod| {
            let rules = Rules::of(&Config::of_text(text));
            assert_eq!(rules.hides_anything(), text.contains("hide"), "{text}");
            rules.hidden_by("10-a", pod).map(|ruling| ruling.rule.clone())
        };
        let hide = "[[rule]]\nname = \"b\"\nnamespaces = [\"b\"]\nhide = true\n";
        assert_eq!(hides(hide, &pod("b")), Some("b".to_owned()));
        assert_eq!(hides(hide, &pod("a")), None);
        assert_eq!(hides(hide, &doubtful("b")), None);
        assert_eq!(hides(&format!("{hide}mode = \"audit\"\n"), &pod("b")), None);
        assert_eq!(hides("[[rule]]\ndeny = [\"*\"]\n", &pod("b")), None);
    }

    #[test]
    fn a_star_beside_an_exclusion_needs_a_proven_namespace() {
        let pods = |namespaces: &[&str]| PodSelectors {
            namespaces: namespaces.iter().copied().map(str::to_owned).collect(),
            ..PodSelectors::default()
        };
        for (list, fit) in
            [(&["*"][..], Fit::Yes), (&["*", "!b"], Fit::Maybe), (&["a"], Fit::Maybe)]
        {
            assert_eq!(fit_pod(&pods(list), &doubtful("a")).0, fit, "{list:?}");
            assert_eq!(fit_pod(&pods(list), &pod("a")).0, Fit::Yes, "{list:?}");
        }
    }
}
