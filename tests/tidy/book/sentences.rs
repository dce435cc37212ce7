// SPDX-License-Identifier: Apache-2.0
//! Claims in the prose of pages beside names: values of keys, labels of metrics, events, states, actions, columns,
//! exit codes and codes of messages. Each is compared with the program's own table, in whatever sentence it occurs.

use std::collections::BTreeSet;

use nri_runc::plugin::ALL_EVENTS;
use nri_runc::plugin::api::extension::ALL_EXTENSION_EVENTS;
use nri_runc::testing::{admin, config, messages};
use regex::Regex;

use super::super::root;
use super::vocabulary::{column, states, texts_below};
use super::{Page, pages};

/// Whether the program has a word.
type IsKnown<'a> = &'a dyn Fn(&str) -> bool;

/// The tables of the program.
struct Tables {
    keys: BTreeSet<String>,
    metrics: Vec<String>,
    states: BTreeSet<String>,
    words: BTreeSet<String>,
    headings: String,
    exit_codes: String,
    codes: BTreeSet<&'static str>,
}

impl Tables {
    fn new() -> Self {
        let mut nri = admin::command();
        nri.build();
        let verbs = nri.get_subcommands();
        let arguments = verbs.filter(|verb| ["audit", "events"].contains(&verb.get_name()));
        let words = arguments.flat_map(clap::Command::get_arguments).flat_map(|argument| {
            let values = argument.get_possible_values();
            values.iter().map(|value| value.get_name().to_owned()).collect::<Vec<_>>()
        });
        let rows = Page::read("docs/metrics.md").text;
        Self {
            keys: column("docs/config.md"),
            metrics: rows
                .lines()
                .filter(|line| line.starts_with("| `"))
                .map(str::to_owned)
                .collect(),
            states: states(),
            words: words.collect(),
            headings: texts_below(&root().join("src/admin")),
            exit_codes: Page::read("docs/exit-codes.md").text,
            codes: messages::table().map(|row| row.code).collect(),
        }
    }

    /// All wrong claims of a page.
    fn wrong_in(&self, page: &Page) -> Vec<String> {
        let prose = page.prose();
        let mut wrong = self.wrong_settings(&prose);
        wrong.extend(prose.lines().flat_map(|line| self.wrong_labels(line)));
        wrong.extend(self.wrong_words(&prose));
        wrong.extend(self.wrong_exit_codes(&prose));
        wrong
    }

    /// Keys with a section or a value, as in `[plugin.NAME] wait = "30s"` and `strikes = 0`.
    fn wrong_settings(&self, prose: &str) -> Vec<String> {
        let setting = Regex::new(r#"^(?:\[([a-zA-Z_.*"-]+)\] )?([a-z_]+)(?: = (.+))?$"#).unwrap();
        let spans = prose.split('`').skip(1).step_by(2);
        let settings = spans.filter_map(|span| Some((span, setting.captures(span)?)));
        let is_wrong = |(span, found): &(&str, regex::Captures<'_>)| {
            let (section, key, value) = (found.get(1), &found[2], found.get(3));
            (section.is_some() || value.is_some())
                && !ELSEWHERE.contains(span)
                && !self.is_setting(section.map(|it| it.as_str()), key, value.map(|it| it.as_str()))
        };
        settings.filter(is_wrong).map(|(span, _)| format!("no setting is {span}")).collect()
    }

    fn is_setting(&self, section: Option<&str>, key: &str, value: Option<&str>) -> bool {
        // A name follows the section's first word.
        let section = section.map(|section| match section.split_once('.') {
            Some((table, _)) if ["plugin", "instance"].contains(&table) => format!("{table}.*"),
            _ => section.to_owned(),
        });
        let of_section = |known: &&String| match (known.rsplit_once('.'), &section) {
            (Some((above, last)), Some(section)) => above == section && last == key,
            (Some((_, last)), None) => last == key,
            (None, _) => section.is_none() && *known == key,
        };
        let known: Vec<&String> = self.keys.iter().filter(of_section).collect();
        let placeholder = |value: &str| value.contains('…') || value == "N";
        let Some(value) = value.filter(|value| !placeholder(value)) else {
            return !known.is_empty();
        };
        known.iter().any(|known| {
            let is_list = LISTS.iter().any(|list| known.starts_with(list));
            let text = match known.rsplit_once('.') {
                Some((above, last)) => format!("[{}]\n{last} = {value}", above.replace('*', "x")),
                None => format!("{known} = {value}"),
            };
            is_list || config::problems(&text).is_empty()
        })
    }

    /// Labels of metrics, each with its value, beside a metric that has them.
    fn wrong_labels(&self, line: &str) -> Vec<String> {
        let label = Regex::new(r#"\b([a-z]+)="([a-z_]+)""#).unwrap();
        let named = |row: &&String| row.split('`').nth(1).is_some_and(|name| line.contains(name));
        let rows: Vec<&String> = self.metrics.iter().filter(named).collect();
        let is_known = |found: &regex::Captures<'_>| {
            let has = |row: &str, word: &str| row.contains(&format!("`{word}`"));
            let is_value = |row: &str| OF_OPERATORS.contains(&&found[1]) || has(row, &found[2]);
            rows.iter().any(|row| has(row, &found[1]) && is_value(row))
        };
        let labels = label.captures_iter(line).filter(|found| !rows.is_empty() && !is_known(found));
        labels.map(|found| format!("no metric of this line has {}", &found[0])).collect()
    }

    /// Finds wrong events, states, actions, kinds, columns and codes.
    fn wrong_words(&self, prose: &str) -> Vec<String> {
        let extension = ALL_EXTENSION_EVENTS.iter().map(|event| event.method());
        let events: BTreeSet<&str> =
            ALL_EVENTS.iter().map(|event| event.name()).chain(extension).collect();
        let is_event = |word: &str| events.contains(word) || word == "EvictContainer";
        let is_heading =
            |word: &str| self.headings.contains(&format!("\"{}\"", word.to_lowercase()));
        let kinds: [(&str, IsKnown<'_>); 5] = [
            (r"\b([A-Z][A-Za-z]*[a-z](?:Container|PodSandbox))\b", &is_event),
            (r"\bstates? `([a-z]+)`", &|word| self.states.contains(word)),
            (r"\b(?:action|kind)s? `([a-z_]+)`", &|word| self.words.contains(word)),
            (r"\bcolumns? `?([A-Z]{2,})", &is_heading),
            (r"\b(NR\d{3})\b", &|word| self.codes.contains(word)),
        ];
        let mut wrong = Vec::new();
        for (pattern, is_known) in kinds {
            let found = Regex::new(pattern).unwrap();
            let words = found.captures_iter(prose).filter(|found| !is_known(&found[1]));
            wrong.extend(words.map(|found| format!("the program has no {}", &found[0])));
        }
        wrong
    }

    /// Finds wrong exit codes of commands, in the forms in which sentences name them.
    fn wrong_exit_codes(&self, prose: &str) -> Vec<String> {
        let forms = [
            r"`(?:nri-runc nri )?([a-z]+)[^`]*` (?:exits with|returns|ends with)(?: the)?(?: code)? (\d+)",
            r"`(?:nri-runc nri )?([a-z]+)[^`]*` has(?: the)? exit code (\d+)",
            r"exit code of `(?:nri-runc nri )?([a-z]+)[^`]*` is (\d+)",
        ];
        let is_known = |found: &regex::Captures<'_>| {
            let own = format!("| `{}` | {} |", &found[1], &found[2]);
            self.exit_codes.contains(&own)
                || self.exit_codes.contains(&format!("| {} | ", &found[2]))
        };
        let mut wrong = Vec::new();
        for form in forms {
            let form = Regex::new(form).unwrap();
            let found = form.captures_iter(prose).filter(|found| !is_known(found));
            wrong.extend(found.map(|found| found[0].to_owned()));
        }
        wrong
    }
}

/// Settings of other programs, of earlier versions, and of none.
const ELSEWHERE: &[&str] =
    &["[runtime.NAME] path", "[defaults] namespace", "enable_nri = false", "key = value"];

/// Lists of tables, whose keys are only valid together: a single one cannot be checked.
const LISTS: &[&str] = &["rule.", "exec_rule.", "inject.", "require."];

/// Labels whose values operators and plugins choose.
const OF_OPERATORS: &[&str] = &["rule", "injection", "promise", "plugin", "name"];

/// Whether a block of a page is a paragraph, and not a heading, a table, a list, a picture or code.
fn is_paragraph(block: &str) -> bool {
    let begins = ["#", "|", "* ", "- ", "<", ">", "![", "```", "~~~", "    "];
    let is_numbered = block.starts_with(|c: char| c.is_ascii_digit());
    !block.trim().is_empty() && !is_numbered && !begins.iter().any(|begin| block.starts_with(begin))
}

/// The ends of paragraphs that break off: neither with a mark nor before a list, a table or code.
fn cut_off(text: &str) -> Vec<String> {
    let blocks: Vec<&str> =
        text.split("\n\n").map(|block| block.trim_start_matches('\n')).collect();
    let mut is_code = false;
    let mut found = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        let was_code = is_code;
        is_code ^= block.matches("```").count() % 2 == 1;
        if was_code || is_code || !is_paragraph(block) {
            continue;
        }
        let end = block.trim_end().trim_end_matches(['*', '_']);
        let is_whole = end.ends_with(['.', ':', ';', '!', '?', ')', ']', '`', '|', '"', '>']);
        let goes_on =
            blocks.get(at + 1).is_some_and(|next| !is_paragraph(next) && !next.starts_with('#'));
        if !is_whole && !goes_on {
            found.extend(end.lines().last().map(str::to_owned));
        }
    }
    found
}

#[test]
fn no_paragraph_is_unfinished() {
    let broken: Vec<String> = pages()
        .iter()
        .flat_map(|page| cut_off(&page.text).into_iter().map(|end| format!("{}: {end}", page.name)))
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn an_unfinished_paragraph_is_found() {
    let page =
        "# A\n\nWhole.\n\nThey\n\n* do\n\nSet\n\n```\na\n\nb\n```\n\nAn image that\n\nNext.\n";
    assert_eq!(cut_off(page), ["An image that"]);
}

#[test]
fn each_claim_of_a_sentence_matches_the_program() {
    let tables = Tables::new();
    for page in pages() {
        assert_eq!(tables.wrong_in(&page), [""; 0], "{}", page.name);
    }
}

#[test]
fn a_wrong_sentence_of_each_kind_is_found() {
    let tables = Tables::new();
    let wrong = |text: &str| tables.wrong_in(&Page { name: String::new(), text: text.to_owned() });
    for sentence in [
        "Set `[plugin.NAME] requred` for it.",
        "Set `[plugin.NAME] on_failure = \"ignore\"`.",
        "With `on_daemon_failure = \"pass\"` containers run.",
        "`strickes = 0` keeps it connected.",
        "`[nri] disable = \"yes\"` switches it off.",
        "`nri_runc_requests_total` with `outcome=\"denied\"` grows.",
        "`nri_runc_requests_total{plugin=\"a\"}` counts them.",
        "It comes before PreCreateContainer.",
        "The plugin is in the state `exited`.",
        "A line of action `denied` names it.",
        "An event of kind `died` follows.",
        "The column HEALTH shows it.",
        "The line ends with [NR999].",
        "`drift` has exit code 9.",
        "The exit code of `check` is 7.",
        "`nri-runc nri audit --json` returns 5.",
    ] {
        assert_eq!(wrong(sentence).len(), 1, "{sentence}: {:?}", wrong(sentence));
    }
    for sentence in [
        "Set `[plugin.NAME] required = true` and `[plugin.policy] wait = \"30s\"`.",
        "`strikes = 0`, `hide = true` and `strikes = N` are settings.",
        "`nri_runc_requests_total` with `outcome=\"bypassed\"` does not grow.",
        "After CreateContainer the state `running`, the action `exec`, the kind `exited` and [NR001].",
        "`drift` exits with 3, and the exit code of `check` is 1.",
        "Another program writes `colour=\"red\"`.",
    ] {
        assert_eq!(wrong(sentence), [""; 0], "{sentence}");
    }
}
