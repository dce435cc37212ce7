// SPDX-License-Identifier: Apache-2.0
//! Names of the program in the prose of every page: metrics, configuration keys, options. A page that names one
//! which does not exist fails here, wherever the sentence is.

use std::collections::BTreeSet;
use std::path::Path;

use clap::Command;
use nri_runc::testing::admin;
use regex::Regex;

use super::super::root;
use super::{Page, pages};

/// The first column of the tables of a page, one name for each code span.
pub(super) fn column(page: &str) -> BTreeSet<String> {
    let page = Page::read(page);
    let prose = page.prose();
    let cells = prose.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(ToOwned::to_owned)).collect()
}

fn code_spans(page: &Page) -> Vec<String> {
    page.prose().split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

/// Whether `name` is a metric: one of `known`, or a series of a histogram among them.
fn is_metric(name: &str, known: &BTreeSet<String>) -> bool {
    let series = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
    known.contains(name) || series.is_some_and(|name| known.contains(name))
}

fn metrics_in(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_ours =
        |word: &&str| word.starts_with("nri_runc_") || word.starts_with("containerd_nri_");
    words.filter(is_ours).filter(|word| !word.ends_with('_')).collect()
}

/// Whether the span has the form of a configuration key: `section.key`, with a known section.
fn is_key_like(span: &str, known: &BTreeSet<String>) -> bool {
    let is_name = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || matches!(c, '_' | '*'))
    };
    let mut sections = known.iter().filter_map(|key| Some(key.split_once('.')?.0));
    let mut parts = span.split('.');
    let is_section = parts.next().is_some_and(|section| sections.any(|known| known == section));
    let rest: Vec<&str> = parts.collect();
    is_section && !rest.is_empty() && rest.iter().all(|part| is_name(part) || *part == "NAME")
}

/// Whether it is a key, or the beginning of one (a section).
fn is_key(span: &str, known: &BTreeSet<String>) -> bool {
    let span = span.replace(".NAME", ".*");
    known.iter().any(|key| *key == span || key.starts_with(&format!("{span}.")))
}

fn options(command: &Command, found: &mut BTreeSet<String>) {
    found.extend(command.get_arguments().filter_map(|own| Some(format!("--{}", own.get_long()?))));
    command.get_subcommands().for_each(|own| options(own, found));
}

#[test]
fn each_metric_that_a_page_names_exists() {
    let known = column("docs/metrics.md");
    let mut count = 0;
    for page in pages() {
        for name in metrics_in(&page.text) {
            assert!(is_metric(name, &known), "{}: no metric is called {name}", page.name);
            count += 1;
        }
    }
    assert!(count > 30, "{count} metrics were found");
    assert!(!is_metric("nri_runc_reloads", &known), "a name without its end is none");
}

/// Spans of this form that are no keys of a shipped program: files, and keys of its builds for tests.
const ELSEWHERE: &[&str] = &["audit.rs", "debug.fault", "nri.plugin"];

#[test]
fn each_key_that_a_page_names_exists() {
    let known = column("docs/config.md");
    let mut count = 0;
    let mut unknown = Vec::new();
    for page in pages() {
        for span in code_spans(&page).into_iter().filter(|span| is_key_like(span, &known)) {
            count += 1;
            if !is_key(&span, &known) && !ELSEWHERE.contains(&span.as_str()) {
                unknown.push(format!("{}: no key is called {span}", page.name));
            }
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
    assert!(count > 60, "{count} keys were found");
    assert!(is_key_like("nri.sockt_path", &known) && !is_key("nri.sockt_path", &known));
}

/// Words of the code, and sentences that readers did not understand: no page for users may have them.
const PRIVATE: &[&str] = &[
    "doors",
    "rooms",
    "hand-made",
    "verdict",
    "mended",
    "hears",
    "is told",
    "are told",
    "was told",
    "told apart",
    "Whoever",
    "stands before the rule",
    "whatever its place",
];

/// Pages for developers of the program.
const FOR_DEVELOPERS: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/decisions"];

#[test]
fn no_page_for_users_has_private_words() {
    for page in pages() {
        if FOR_DEVELOPERS.iter().any(|name| page.name.starts_with(name)) {
            continue;
        }
        // Names of tests are in code spans.
        let prose: String = page.prose().split('`').step_by(2).collect();
        for word in PRIVATE {
            assert!(!prose.contains(word), "{} has the word: {word}", page.name);
        }
    }
}

/// Options of engines, runtimes and build tools that pages name without their program.
const FOREIGN: &[&str] = &[
    "--add-runtime",
    "--annotation",
    "--config-file",
    "--cwd",
    "--default-runtime",
    "--device",
    "--env",
    "--exit-command",
    "--exit-dir",
    "--features",
    "--label-file",
    "--log",
    "--network",
    "--path",
    "--process",
    "--resources",
    "--runc-binary",
    "--runtime",
    "--set",
    "--symbol-ordering-file",
    "--systemd-cgroup",
    "--user",
];

#[test]
fn each_option_that_a_page_names_exists() {
    let mut known: BTreeSet<String> = FOREIGN.iter().map(|name| (*name).to_owned()).collect();
    let mut nri = admin::command();
    nri.build();
    options(&nri, &mut known);
    let script = Page::read("install.sh").text;
    let mut count = 0;
    let mut unknown = Vec::new();
    for page in pages() {
        for span in code_spans(&page).iter().filter(|span| span.starts_with("--")) {
            let name = span.split([' ', '\n', '=', '[', ',']).next().unwrap_or_default();
            let exists = known.contains(name) || script.contains(&format!("{name})"));
            count += 1;
            if !exists {
                unknown.push(format!("{}: no command has the option {name}", page.name));
            }
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
    assert!(count > 40, "{count} options were found");
}

/// The text of every file in this folder, and below.
pub(super) fn texts_below(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let texts = entries.map(|path| match path.is_dir() {
        true => texts_below(&path),
        false => std::fs::read_to_string(path).unwrap(),
    });
    texts.collect()
}

/// The states in the schemas of outputs.
pub(super) fn states() -> BTreeSet<String> {
    let files = std::fs::read_dir(root().join("docs/schema")).unwrap().flatten();
    let schemas = files.map(|file| serde_json::from_slice(&std::fs::read(file.path()).unwrap()));
    let mut states = BTreeSet::new();
    for schema in schemas.map(|schema: serde_json::Result<serde_json::Value>| schema.unwrap()) {
        let types = schema["$defs"].as_object().into_iter().flatten();
        for (_, of_state) in types.filter(|(name, _)| name.ends_with("State")) {
            let words = of_state["enum"].as_array().into_iter().flatten();
            let forms = of_state["oneOf"].as_array().into_iter().flatten();
            let forms = forms.flat_map(|form| {
                let several = form["enum"].as_array().into_iter().flatten();
                several.chain(std::iter::once(&form["const"]))
            });
            let words = words.chain(forms).filter_map(serde_json::Value::as_str);
            states.extend(words.map(str::to_owned));
        }
    }
    states
}

/// The cells of a line, each with the column where it begins. Two blanks separate cells.
fn cells(line: &str) -> Vec<(usize, &str)> {
    let cell = Regex::new(r"\S+(?: \S+)*").unwrap();
    cell.find_iter(line).map(|found| (found.start(), found.as_str())).collect()
}

/// The faults of the tables in a page: headings that the program does not print, and unknown states.
fn wrong_in_tables(text: &str, headings: &str, states: &BTreeSet<String>) -> Vec<String> {
    let is_heading =
        |word: &str| word.len() > 1 && !word.contains(|c: char| c.is_ascii_lowercase());
    let (mut wrong, mut state_at) = (Vec::new(), None);
    for line in text.lines() {
        let cells = cells(line);
        if cells.len() > 2 && cells.iter().all(|(_, cell)| is_heading(cell)) {
            let known = |word: &str| headings.contains(&format!("\"{}\"", word.to_lowercase()));
            wrong.extend(
                cells.iter().filter(|(_, word)| !known(word)).map(|cell| cell.1.to_owned()),
            );
            state_at = cells.iter().find(|(_, word)| *word == "STATE").map(|(at, _)| *at);
        } else if cells.is_empty() || line.starts_with("```") {
            state_at = None;
        } else if let Some((_, state)) = cells.iter().find(|(at, _)| Some(*at) == state_at) {
            let state = state.trim_end_matches('…');
            wrong.extend((!states.contains(state)).then(|| state.to_owned()));
        }
    }
    wrong
}

#[test]
fn headings_and_states_of_tables_are_those_of_the_program() {
    let (headings, states) = (texts_below(&root().join("src/admin")), states());
    assert!(states.len() > 10, "{states:?}");
    for page in pages() {
        let wrong = wrong_in_tables(&page.text, &headings, &states);
        assert_eq!(wrong, [""; 0], "{}", page.name);
    }
    let table = "PLUGIN  STATE   PID\n10-a    exited  7\n20-b    gone    8\n\nNAME  HEALTH  AGE\n";
    assert_eq!(wrong_in_tables(table, &headings, &states), ["exited", "HEALTH"]);
}

/// Pages name these exit codes in prose, each as the code of a named process.
#[test]
fn each_exit_code_of_a_command_is_in_its_table() {
    let table = std::fs::read_to_string(root().join("docs/exit-codes.md")).unwrap();
    let is_known = |verb: &str, code: &str| {
        let of_all = format!("| {code} | ");
        table.contains(&format!("| `{verb}` | {code} |")) || table.contains(&of_all)
    };
    let printed = Regex::new(r"`(?:nri-runc nri )?([a-z]+)[^`]*` exits with (\d+)").unwrap();
    let mut count = 0;
    for page in pages() {
        for found in printed.captures_iter(&page.text) {
            assert!(is_known(&found[1], &found[2]), "{}: {}", page.name, &found[0]);
            count += 1;
        }
    }
    assert!(count > 0 && !is_known("drift", "9"), "{count} sentences");
}
