// SPDX-License-Identifier: Apache-2.0
//! `[[exec_rule]]`: which processes `exec` may start in which pods (decisions D51, D60). The table
//! has each key with its default, meaning and parser; `docs/config.md` is generated from it.
//!
//! Rules protect, so unless an earlier configuration stays in force, a rule with a mistake refuses
//! every process that earlier rules did not match. Nothing here reads a file, and no rule is applied
//! here.

use toml_edit::Value;

use super::rules::{RuleMode, read_mode};
use super::selectors::{Mistake, PodSelectors, check_patterns, excluded, read_name, read_patterns};
use super::settings::Config;
use super::spelling::distance_to_key;
use super::tables::{ListKey, ListedSection, list_keys};

/// Maximum edit distance at which a word is taken for a misspelling of `exec_rule`.
const MISSPELLED_LETTERS: usize = 3;

/// One `[[exec_rule]]` as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecRuleSection {
    /// The rule's name, else `FILE:LINE` of its header.
    pub name: String,
    /// The pods that the rule selects.
    pub pods: PodSelectors,
    /// Only processes with a terminal (`true`), or only those without one (`false`).
    pub terminal: Option<bool>,
    /// Only processes of these users; empty = any.
    pub users: Vec<String>,
    /// Only these programs; empty = any.
    pub commands: Vec<String>,
    /// Whether the process is permitted; else it is refused.
    pub allow: bool,
    /// Whether the rule is enforced.
    pub mode: RuleMode,
}

impl ListedSection for ExecRuleSection {
    const LIST: &'static str = "exec_rule";
    const KEYS: &'static [ListKey<Self>] = EXEC_RULE_KEYS;

    fn list(config: &mut Config) -> &mut Vec<Self> {
        &mut config.exec_rules
    }

    fn head(&mut self) -> (&mut String, &mut PodSelectors) {
        (&mut self.name, &mut self.pods)
    }
}

/// Adds a rule that refuses every process that no earlier rule matched, if the unknown section or
/// key at `place` may be a misspelled exec rule: the mistake alone refuses only creates, not
/// `exec`.
pub(super) fn close_if_meant(config: &mut Config, word: &str, place: &str) {
    let lower = word.to_lowercase().replace('-', "_");
    let is_meant = lower.starts_with("exec")
        || distance_to_key(&lower, ExecRuleSection::LIST) <= MISSPELLED_LETTERS;
    if is_meant && config.section_names.add(ExecRuleSection::LIST, place) {
        config.exec_rules.push(ExecRuleSection::closed(place));
    }
}

list_keys! {
    EXEC_RULE_KEYS: ExecRuleSection;
    "name" = "", "Name of the rule in messages, `explain`, the audit log and metrics. It must be unique. Without it: `FILE:LINE`.", |r, v| r.name = read_name(v)?;
    "namespaces" = "[]", "Pods in one of these namespaces. `\"!NAME\"` excludes. Empty = any.", |r, v| r.pods.set("namespaces", v)?;
    "labels" = "[]", "Pods that have all of these labels, as in `[[rule]]`.", |r, v| r.pods.set("labels", v)?;
    "engines" = "[]", "Pods of one of these engines, as in `[[rule]]`. Empty = any.", |r, v| r.pods.set("engines", v)?;
    "handlers" = "[]", "Pods with one of these runtime handlers; the default handler is `\"\"`. Empty = any.", |r, v| r.pods.set("handlers", v)?;
    "terminal" = "", "`true`: only processes to which the engine gives a terminal; `false`: only those without one.", |r, v| r.terminal = Some(v.as_bool().ok_or("expected true or false")?);
    "users" = "[]", "Only processes of these users of the container: IDs, `root` for 0, or names if the engine writes names. `\"!0\"` excludes. Empty = any.", |r, v| r.users = read_users(v)?;
    "commands" = "[]", "Only these programs: patterns of the first argument. `*` matches no `/`; a pattern without a `/` matches only an argument without one. `\"!PATTERN\"` excludes. Empty = any.", |r, v| r.commands = read_commands(v)?;
    "allow" = "false", "`true`: permit these processes without trying later rules. `false`: refuse them.", |r, v| r.allow = v.as_bool().ok_or("expected true or false")?;
    "mode" = "\"enforce\"", "`enforce`: refuse what the rule does not permit. `audit`: permit it and log it.", |r, v| r.mode = read_mode(v)?;
}

/// Parses users: IDs as integers, or IDs and names as strings; `!` before one excludes it.
fn read_users(value: &Value) -> Result<Vec<String>, Mistake> {
    let list = value.as_array().ok_or("expected a list of users, such as [0, \"!1000\"]")?;
    let users = list.iter().map(|user| {
        let number = user.as_integer().filter(|number| u32::try_from(*number).is_ok());
        let text = user.as_str().map(str::to_owned);
        text.or(number.map(|number| number.to_string()))
            .ok_or_else(|| Mistake::from("expected an ID or a name"))
    });
    let users: Vec<String> = users.collect::<Result<_, Mistake>>()?;
    check_patterns(users.iter().map(String::as_str))?;
    match users.iter().find(|user| user.contains([':', '/']) || user.trim() != **user) {
        Some(user) => Err(format!("{user:?} is neither an ID nor a name of a user").into()),
        None => Ok(users),
    }
}

/// Parses patterns of programs, and refuses one that can match no program's path.
fn read_commands(value: &Value) -> Result<Vec<String>, Mistake> {
    let patterns = read_patterns(value)?;
    for entry in &patterns {
        let pattern = excluded(entry).unwrap_or(entry);
        let mut parts = pattern.strip_prefix('/').unwrap_or(pattern).split('/');
        if parts.any(|part| matches!(part, "" | "." | "..")) {
            let what =
                format!("{pattern:?} can match nothing: write the path without //, . and ..");
            return Err(what.into());
        }
    }
    Ok(patterns)
}

/// Returns the table as `docs/config.md` shows it.
pub(super) fn markdown() -> String {
    ExecRuleSection::markdown(
        "## Keys of an exec rule\n\nExec rules are written as `[[exec_rule]]`, any number of them; \
         [Processes that `exec` starts](exec.md) explains them. A name in a list may have `*`, `?` and `[a-z]`.",
    )
}

#[cfg(test)]
mod tests {
    use super::super::settings::{Consequence, Problem};
    use super::*;

    fn read(text: &str) -> (Vec<ExecRuleSection>, Vec<String>) {
        let (config, problems) = Config::read(text);
        let is_refused = |problem: &Problem| problem.consequence == Consequence::RefusesCreates;
        assert!(problems.iter().all(is_refused), "{problems:?}");
        (config.exec_rules, problems.into_iter().map(|problem| problem.text).collect())
    }

    #[test]
    fn every_key_of_an_exec_rule_is_read_and_rules_keep_their_order() {
        let (rules, problems) = read(
            "[[exec_rule]]\nname = \"probes\"\nnamespaces = [\"prod-*\"]\nlabels = { app = \"a\" }\n\
             engines = [\"docker\"]\nhandlers = [\"\"]\nterminal = false\n\
             users = [0, \"root\", \"!1000\"]\ncommands = [\"/bin/*\", \"!sh\"]\nallow = true\n\
             mode = \"audit\"\n[log]\nlevel = \"info\"\n[[exec_rule]]\n",
        );
        assert_eq!(problems, [""; 0]);
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let first = ExecRuleSection {
            name: "probes".to_owned(),
            pods: PodSelectors {
                namespaces: texts(&["prod-*"]),
                labels: vec![("app".to_owned(), "a".to_owned())],
                engines: texts(&["docker"]),
                handlers: texts(&[""]),
                ..PodSelectors::default()
            },
            terminal: Some(false),
            users: texts(&["0", "root", "!1000"]),
            commands: texts(&["/bin/*", "!sh"]),
            allow: true,
            mode: RuleMode::Audit,
        };
        assert_eq!(rules, [first, ExecRuleSection::closed("f:14")]);
    }

    #[test]
    fn an_exec_rule_with_a_mistake_refuses_all_and_names_the_place() {
        for (lines, wanted) in [
            ("command = [\"sh\"]", "f:2:1: unknown key exec_rule.command (did you mean commands?)"),
            ("plugins = [\"a\"]", "f:2:1: unknown key exec_rule.plugins"),
            ("allow = \"true\"", "f:2:9: exec_rule.allow: expected true or false"),
            ("terminal = 1", "f:2:12: exec_rule.terminal: expected true or false"),
            ("mode = \"warn\"", "f:2:8: exec_rule.mode: must be one of: enforce, audit"),
            ("users = 0", "f:2:9: exec_rule.users: expected a list of users"),
            ("users = [-1]", "f:2:9: exec_rule.users: expected an ID or a name"),
            ("users = [\"0:0\"]", "f:2:9: exec_rule.users: \"0:0\" is neither an ID nor a name"),
            ("users = [\"!*\"]", "f:2:9: exec_rule.users: \"!*\" excludes everything"),
            ("commands = [\"/bin//sh\"]", "f:2:12: exec_rule.commands: \"/bin//sh\" can match"),
            ("commands = [\"./sh\"]", "f:2:12: exec_rule.commands: \"./sh\" can match nothing"),
            ("commands = [\"!/a/../sh\"]", "f:2:12: exec_rule.commands: \"/a/../sh\" can match"),
            ("commands = [\"\"]", "f:2:12: exec_rule.commands: \"\" can match nothing"),
            ("commands = \"sh\"", "f:2:12: exec_rule.commands: expected a list of strings"),
            ("engines = [\"crio\"]", "f:2:11: exec_rule.engines: \"crio\" is not the name of"),
            ("[exec_rule.allow]\nx = 1", "f:2:1: exec_rule.allow: expected a value, not a table"),
        ] {
            let (rules, problems) = read(&format!("[[exec_rule]]\n{lines}\n"));
            let [problem] = &problems[..] else { panic!("{lines}: {problems:?}") };
            assert!(problem.starts_with(wanted), "{problem}");
            assert_eq!(rules, [ExecRuleSection::closed("f:1")], "{lines}");
        }
        let (rules, problems) = read("[[exec_rule]]\nname = \"a\"\n[[exec_rule]]\nname = \"a\"\n");
        assert_eq!((rules.len(), problems.len()), (2, 1));
    }
}
