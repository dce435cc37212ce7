// SPDX-License-Identifier: Apache-2.0
//! The operator's settings: each key of the configuration, from the generated page, in many sections, in
//! one long list, and with a mistake in each section.

use std::path::PathBuf;

use nri_runc::testing::config::{load, markdown};

use super::{Findings, Sample};

/// Sections at the usual length: a section costs little, one with a mistake more.
const SECTIONS: usize = 60;
const MISTAKES: usize = 6;

/// Each key accepts one of these values; `#` is replaced by a number.
const VALUES: [&str; 16] = [
    "\"/o#\"",
    "[\"/o#\"]",
    "[\"k#=v\"]",
    "[\"Env\"]",
    "true",
    "7",
    "[7]",
    "\"7s\"",
    "\"07\"",
    "\"skip\"",
    "\"any\"",
    "\"deny\"",
    "\"audit\"",
    "\"always\"",
    "[\"exe:/o#\"]",
    "{ k# = \"v\" }",
];

/// The keys of the page: the header above each, with `#` for a number, and its name.
fn keys() -> Vec<(String, String)> {
    let page = markdown();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let mut keys: Vec<(String, String)> = Vec::new();
    let mut add = |header: &str, key: &str| keys.push((header.to_owned(), key.to_owned()));
    for (path, _) in rows {
        if let Some((section, key)) = path.split_once(".*.") {
            add(&format!("[{section}.k#]"), key);
        } else if let Some((list @ ("rule" | "exec_rule" | "inject" | "require"), key)) =
            path.split_once('.')
        {
            add(&format!("[[{list}]]"), key);
        }
    }
    keys
}

/// `sections` sections with this line each, in a separate file.
fn file(name: &str, header: &str, line: &str, sections: usize) -> (tempfile::TempDir, PathBuf) {
    let one = |n: usize| format!("{header}\n{line}\n").replace('#', &n.to_string());
    // The other keys that an injection or a promise needs.
    let more = match header {
        "[[inject]]" if !line.contains("env") => "env = { A = \"b\" }\n",
        "[[require]]" if line.starts_with("plugin") => "cdi = [\"*\"]\n",
        "[[require]]" if line.starts_with("cdi") => "plugin = \"p\"\n",
        "[[require]]" => "plugin = \"p\"\ncdi = [\"*\"]\n",
        _ => "",
    };
    let text: String = (0..sections).map(|n| one(n) + more).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    nri_runc::testing::files::replace(&path, text.as_bytes()).unwrap();
    (folder, path)
}

fn is_valid(header: &str, line: &str) -> bool {
    let (_folder, path) = file("valid.toml", header, line, 1);
    load(Some(&path)).problems.is_empty()
}

#[test]
fn each_key_of_the_configuration_costs_linear_time() {
    let (mut findings, sample) = (Findings::default(), Sample::of_today());
    let keys = keys();
    assert!(keys.len() > 30, "{keys:?}");
    for (header, key) in keys {
        let mut lines = VALUES.iter().map(|value| format!("{key} = {value}"));
        let line = lines.find(|line| is_valid(&header, line));
        let wrong = ["{key} = 1979-05-27", "{key}_#_# = 7"].map(|line| line.replace("{key}", &key));
        let wrong = wrong.into_iter().map(|line| (line, MISTAKES));
        for (line, count) in line.map(|line| (line, SECTIONS)).into_iter().chain(wrong) {
            let name = format!("{header} {line}");
            if sample.has(&name, 30) {
                let made = |times| file("many.toml", &header, &line, count * times);
                let work = |(_, path): &(_, PathBuf)| {
                    let loaded = load(Some(path));
                    assert_eq!(loaded.files.len(), 1);
                    std::hint::black_box(loaded.warnings());
                };
                findings.measure(&name, made, work);
            }
        }
    }
    findings.are_none(1);
}

#[test]
fn each_list_of_the_configuration_costs_linear_time() {
    let (mut findings, sample) = (Findings::default(), Sample::of_today());
    for (header, key) in keys() {
        let entries = |entry: &str, count: usize| {
            let all = (0..count).map(|n| entry.replace('#', &n.to_string()));
            format!("{key} = [{}]", all.collect::<Vec<_>>().join(", "))
        };
        for entry in ["\"/o#\"", "\"k#=v\"", "\"Env\"", "#", "\"exe:/o#\"", "\"!o#\""] {
            let name = format!("{header} {key} of {entry}");
            if is_valid(&header, &entries(entry, 1)) && sample.has(&name, 10) {
                let made = |times| {
                    // Two sections, because sections are compared with each other.
                    file("long.toml", &header, &entries(entry, SECTIONS * times), 2)
                };
                findings.measure(&name, made, |(_, path): &(_, PathBuf)| {
                    std::hint::black_box(load(Some(path)).warnings());
                });
            }
        }
    }
    findings.are_none(1);
}
