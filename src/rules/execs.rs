// SPDX-License-Identifier: Apache-2.0
//! Applies the operator's exec rules, which decide the processes that `exec` may start (decision D60).
//!
//! The first rule that matches the pod and the process decides; without one, the process is permitted. If
//! it is uncertain whether a rule matches (the pod's identity is unproven, or the process was unreadable),
//! this rule and the later ones, up to a certain match, must all permit the process. Pure: no file, no clock.

use nri_adaptation::keys;

use super::RuledPod;
use super::matching::{self, Fit, Reason};
use crate::answers::ExecRuleRow;
use crate::config::{ExecRuleSection, PodSelectors, RuleMode, excluded};
use crate::error::quoted;
use crate::glob;
use crate::link::LaterProcess;

/// The other name of user 0.
const ROOT: &str = "root";

/// The decision of exec rules about a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ExecVerdict<'r> {
    /// The rule that refuses it.
    pub(crate) refused: Option<&'r ExecRuleSection>,
    /// The rules in audit mode that would refuse it.
    pub(crate) would_refuse: Vec<&'r ExecRuleSection>,
}

/// Decides whether `exec` may start a process in a pod; `pod` is `None` for an unknown container.
pub(crate) fn judge<'r>(
    rules: &'r [ExecRuleSection],
    pod: Option<&RuledPod>,
    process: &LaterProcess,
) -> ExecVerdict<'r> {
    let mut verdict = ExecVerdict::default();
    for rule in rules {
        let fit = fit_pod(&rule.pods, pod).0.min(fit_process(rule, process));
        if fit == Fit::No {
            continue;
        }
        match (rule.allow, rule.mode) {
            (true, _) => {}
            (false, RuleMode::Enforce) => {
                verdict.refused.get_or_insert(rule);
            }
            (false, RuleMode::Audit) => verdict.would_refuse.push(rule),
        }
        if fit == Fit::Yes {
            break;
        }
    }
    verdict
}

fn fit_pod(pods: &PodSelectors, pod: Option<&RuledPod>) -> (Fit, Reason) {
    match pod {
        Some(pod) => matching::fit_pod(pods, pod),
        None if *pods == PodSelectors::default() => (Fit::Yes, Reason::Matches(Vec::new())),
        None => (Fit::Maybe, Reason::Matches(Vec::new())),
    }
}

fn fit_process(rule: &ExecRuleSection, process: &LaterProcess) -> Fit {
    fit_terminal(rule, process).min(fit_user(rule, process)).min(fit_command(rule, process))
}

fn fit_terminal(rule: &ExecRuleSection, process: &LaterProcess) -> Fit {
    match (rule.terminal, process.terminal) {
        (None, _) => Fit::Yes,
        (Some(_), None) => Fit::Maybe,
        (Some(wanted), Some(there)) => yes_if(wanted == there),
    }
}

fn fit_user(rule: &ExecRuleSection, process: &LaterProcess) -> Fit {
    if rule.users.is_empty() {
        return Fit::Yes;
    }
    let Some(uid) = process.uid.as_deref() else { return Fit::Maybe };
    let root = (uid == "0").then_some(ROOT);
    let names = [Some(uid), process.username.as_deref(), root];
    let is_it = |pattern: &str| names.iter().flatten().any(|name| glob::matches(pattern, name));
    yes_if(has(&rule.users, is_it))
}

fn fit_command(rule: &ExecRuleSection, process: &LaterProcess) -> Fit {
    if rule.commands.is_empty() {
        return Fit::Yes;
    }
    let Some(program) = process.args.as_ref().and_then(|args| args.first()) else {
        return Fit::Maybe;
    };
    let clean = keys::path(program);
    let is_it = |pattern: &str| match (pattern.contains('/'), program.contains('/')) {
        (true, true) => glob::matches_path(pattern, &clean),
        (false, false) => glob::matches(pattern, program),
        _ => false,
    };
    // If the path has `..`, the part before it may be a link to another folder, and only the kernel
    // can resolve the path.
    let is_certain = !program.split('/').any(|part| part == "..");
    let names_it = |entry: &String| is_it(excluded(entry).unwrap_or(entry));
    if !is_certain && rule.commands.iter().any(names_it) {
        return Fit::Maybe;
    }
    yes_if(has(&rule.commands, is_it))
}

fn yes_if(is_so: bool) -> Fit {
    if is_so { Fit::Yes } else { Fit::No }
}

/// Whether a list selects a value: no exclusion matches it, and either another entry matches it or
/// there are only exclusions.
pub(super) fn has(list: &[String], is_it: impl Fn(&str) -> bool) -> bool {
    if list.iter().filter_map(|entry| excluded(entry)).any(&is_it) {
        return false;
    }
    let mut chosen = list.iter().filter(|entry| excluded(entry).is_none()).peekable();
    chosen.peek().is_none() || chosen.any(|entry| is_it(entry))
}

/// Returns why a process was refused, as a clause.
pub(crate) fn exec_refusal(rule: &str) -> String {
    format!("the exec rule \"{}\" does not permit this process", quoted(rule))
}

/// Returns every exec rule, and whether it matches a pod, for `explain` and `policy test`. Rules after one
/// that matches every process in the pod are never tried.
pub(crate) fn exec_rows(rules: &[ExecRuleSection], pod: &RuledPod) -> Vec<ExecRuleRow> {
    let mut is_settled = false;
    let rows = rules.iter().map(|rule| {
        let (fit, reason) = fit_pod(&rule.pods, Some(pod));
        let ExecRuleSection { name, terminal, users, commands, allow, .. } = rule;
        let is_tried = fit != Fit::No && !is_settled;
        let is_for_all = terminal.is_none() && users.is_empty() && commands.is_empty();
        is_settled |= fit == Fit::Yes && is_for_all;
        let why = match reason {
            Reason::Matches(by) if by.is_empty() => "it matches every pod".to_owned(),
            reason @ (Reason::Differs(..) | Reason::Lacks(..) | Reason::Matches(_)) => {
                reason.to_string()
            }
        };
        ExecRuleRow {
            rule: name.clone(),
            matches: fit,
            why,
            decides: is_tried,
            allow: *allow,
            mode: rule.mode,
            terminal: *terminal,
            users: users.clone(),
            commands: commands.clone(),
        }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(conditions: &[(&str, &str)]) -> ExecRuleSection {
        let mut rule = ExecRuleSection::default();
        for (key, value) in conditions {
            let list = || value.split(' ').map(str::to_owned).collect();
            match *key {
                "name" => rule.name = (*value).to_owned(),
                "namespaces" => rule.pods.namespaces = list(),
                "users" => rule.users = list(),
                "commands" => rule.commands = list(),
                "terminal" => rule.terminal = Some(*value == "true"),
                "allow" => rule.allow = true,
                "audit" => rule.mode = RuleMode::Audit,
                other => panic!("{other}"),
            }
        }
        rule
    }

    fn process(program: &str) -> LaterProcess {
        LaterProcess {
            args: Some(vec![program.to_owned()]),
            uid: Some("0".to_owned()),
            terminal: Some(false),
            ..LaterProcess::default()
        }
    }

    fn pod(namespace: &str) -> RuledPod {
        RuledPod { namespace: namespace.to_owned(), ..RuledPod::default() }
    }

    fn is_refused(rules: &[ExecRuleSection], process: &LaterProcess) -> bool {
        judge(rules, Some(&pod("a")), process).refused.is_some()
    }

    #[test]
    fn programs_match_by_clean_path_and_stars_match_no_slash() {
        for (patterns, program, matches) in [
            ("/bin/sh", "/bin/sh", true),
            ("/bin/sh", "//bin/./sh", true),
            ("/bin/sh", "sh", false),
            ("sh", "/bin/sh", false),
            ("sh", "./sh", false),
            ("*", "sh", true),
            ("*", "/bin/sh", false),
            ("/*", "/bin/sh", false),
            ("/*/*", "/bin/sh", true),
            ("bin/*", "bin/sh", true),
            ("bin/*", "/bin/sh", false),
            ("!/bin/sh", "/bin/sh", false),
            ("!/bin/sh", "/bin/ls", true),
            ("!sh", "/bin/sh", true),
            ("/bin/* !/bin/sh", "/bin/sh", false),
            ("/bin/* !/bin/sh", "/bin/ls", true),
            ("/bin/sh", "/bin/sh/", true),
            ("/bin/sh", "/bin/sh\n", false),
        ] {
            let rules = [section(&[("commands", patterns)])];
            assert_eq!(is_refused(&rules, &process(program)), matches, "{patterns} {program}");
        }
    }

    #[test]
    fn a_path_with_dot_dot_may_match_a_denial_but_no_permission() {
        let listed = [section(&[("commands", "/bin/health"), ("allow", "")]), section(&[])];
        let inverse = [section(&[("commands", "!/bin/health")])];
        let denied = [section(&[("commands", "/bin/sh")])];
        assert!(!is_refused(&listed, &process("/bin/health")));
        assert!(!is_refused(&inverse, &process("/bin/health")));
        for program in ["/tmp/x/../../bin/health", "/bin/x/../health", "/../bin/health"] {
            assert!(is_refused(&listed, &process(program)), "{program}");
            assert!(is_refused(&inverse, &process(program)), "{program}");
        }
        for program in ["/bin/../bin/sh", "/../bin/sh", "/x/../bin/sh"] {
            assert!(is_refused(&denied, &process(program)), "{program}");
        }
        assert!(!is_refused(&denied, &process("/bin/../bin/ls")));
    }

    #[test]
    fn users_match_by_id_document_name_or_root() {
        for (users, uid, name, matches) in [
            ("0", "0", None, true),
            ("root", "0", None, true),
            ("root", "1000", None, false),
            ("app", "1000", Some("app"), true),
            ("app", "1000", None, false),
            ("!0", "0", None, false),
            ("!root", "0", None, false),
            ("!0", "7", None, true),
            ("1*", "1000", None, true),
        ] {
            let rules = [section(&[("users", users)])];
            let process = LaterProcess {
                uid: Some(uid.to_owned()),
                username: name.map(str::to_owned),
                ..process("sh")
            };
            assert_eq!(is_refused(&rules, &process), matches, "{users} {uid} {name:?}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_pod_and_process_decides() {
        let rules = [
            section(&[("namespaces", "b"), ("name", "other pod")]),
            section(&[("terminal", "true"), ("name", "other process")]),
            section(&[("audit", ""), ("users", "0"), ("name", "noted")]),
            section(&[("name", "all")]),
        ];
        let a = pod("a");
        let verdict = judge(&rules, Some(&a), &process("sh"));
        assert_eq!(verdict.refused, None);
        assert_eq!(verdict.would_refuse.iter().map(|r| &r.name).collect::<Vec<_>>(), ["noted"]);
        let other = LaterProcess { uid: Some("7".to_owned()), ..process("sh") };
        let verdict = judge(&rules, Some(&a), &other);
        assert_eq!(verdict.refused.map(|rule| rule.name.as_str()), Some("all"));
        assert_eq!(judge(&[], None, &LaterProcess::default()), ExecVerdict::default());
    }

    #[test]
    fn an_unknown_value_needs_permission_of_every_possible_rule() {
        let permits =
            |conditions: &[(&str, &str)]| section(&[conditions, &[("allow", "")]].concat());
        let unknown = LaterProcess::default();
        let doubtful = RuledPod { is_doubtful: true, ..pod("a") };
        for (rules, is_refused) in [
            (vec![section(&[("namespaces", "b")])], true),
            (vec![section(&[("terminal", "true")])], true),
            (vec![section(&[("users", "!0")])], true),
            (vec![section(&[("commands", "x")])], true),
            (vec![permits(&[("commands", "x")]), section(&[])], true),
            (vec![permits(&[]), section(&[])], false),
            (vec![permits(&[("namespaces", "a")])], false),
            (vec![permits(&[("namespaces", "a")]), section(&[("namespaces", "b")])], true),
        ] {
            for pod in [Some(&doubtful), None] {
                let refused = judge(&rules, pod, &unknown).refused.is_some();
                assert_eq!(refused, is_refused, "{rules:?}");
            }
        }
        let labelled = ExecRuleSection {
            pods: PodSelectors {
                labels: vec![("a".to_owned(), "b".to_owned())],
                ..PodSelectors::default()
            },
            ..ExecRuleSection::default()
        };
        let rules = [labelled];
        assert!(judge(&rules, None, &process("sh")).refused.is_some(), "labels are not known");
        let unrecorded = RuledPod { lacks_labels: true, ..doubtful.clone() };
        assert!(judge(&rules, Some(&unrecorded), &process("sh")).refused.is_some());
        assert!(judge(&rules, Some(&doubtful), &process("sh")).refused.is_none());
        // A missing label does not permit anything either.
        let without = ExecRuleSection {
            pods: PodSelectors {
                without_labels: vec![("a".to_owned(), "b".to_owned())],
                ..PodSelectors::default()
            },
            allow: true,
            ..ExecRuleSection::default()
        };
        let rules = [without, section(&[])];
        assert!(judge(&rules, Some(&unrecorded), &process("sh")).refused.is_some());
        assert!(judge(&rules, Some(&pod("a")), &process("sh")).refused.is_none());
    }

    #[test]
    fn rules_after_one_for_every_process_of_a_pod_are_not_tried() {
        let rules = [
            section(&[("name", "other pod"), ("namespaces", "b")]),
            section(&[("name", "terminals"), ("terminal", "true"), ("allow", "")]),
            section(&[("name", "users"), ("users", "0 7"), ("audit", "")]),
            section(&[("name", "commands"), ("commands", "sh")]),
            section(&[("name", "this pod"), ("namespaces", "a")]),
            section(&[("name", "later")]),
        ];
        let row = |rule: &str, matches, why: &str, decides| ExecRuleRow {
            rule: rule.to_owned(),
            matches,
            why: why.to_owned(),
            decides,
            ..ExecRuleRow::default()
        };
        let all = "it matches every pod";
        let wanted = [
            row("other pod", Fit::No, "namespaces does not have \"a\"", false),
            ExecRuleRow {
                allow: true,
                terminal: Some(true),
                ..row("terminals", Fit::Yes, all, true)
            },
            ExecRuleRow {
                mode: RuleMode::Audit,
                users: vec!["0".to_owned(), "7".to_owned()],
                ..row("users", Fit::Yes, all, true)
            },
            ExecRuleRow { commands: vec!["sh".to_owned()], ..row("commands", Fit::Yes, all, true) },
            row("this pod", Fit::Yes, "namespaces: \"a\"", true),
            row("later", Fit::Yes, all, false),
        ];
        assert_eq!(exec_rows(&rules, &pod("a")), wanted);
        // A rule that may match decides nothing for certain, so the later ones are tried.
        let doubtful = RuledPod { is_doubtful: true, ..pod("a") };
        let rows = exec_rows(&rules, &doubtful);
        assert!(rows.iter().all(|row| row.decides), "{rows:?}");
        assert_eq!(rows[0].why, "namespaces: \"a (not proven)\"");
        let refusal = "the exec rule \"a b\" does not permit this process";
        assert_eq!(exec_refusal("a\nb"), refusal);
    }
}
