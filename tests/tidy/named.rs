// SPDX-License-Identifier: Apache-2.0
//! Files of this repository that comments, settings and pages name: each exists, so a file that moves takes its name
//! along.

use std::collections::BTreeSet;
use std::path::Path;

use super::{root, sources};

/// A source file, with as much of its path as the text gives.
const SOURCE: &str = r"[\w./-]*\w\.rs\b";

/// A path from the root of the repository.
const FROM_ROOT: &str = r"(?:^|[^\w./-])((?:src|crates|tests|scripts|contrib|fixtures|examples|benches|docs|proto|hooks|fuzz)/[\w./-]*\w)";

/// All files, by their path from the root, and their folders.
fn files() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // What is built, and what git keeps.
            if matches!(name.as_str(), "target" | ".git") {
                continue;
            }
            found.insert(path.strip_prefix(root()).unwrap().display().to_string());
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

/// The names in `text` of files that do not exist.
fn missing(files: &BTreeSet<String>, patterns: &[&str], text: &str) -> Vec<String> {
    let is_there = |name: &str| {
        let name = name.trim_start_matches("../").trim_start_matches("./");
        let ends = format!("/{}", name.trim_start_matches('/'));
        // A page may name the beginning that the names of several files have in common.
        let begins = format!("{name}-");
        let is_it = |file: &String| file.ends_with(&ends) || file.starts_with(&begins);
        let is_pattern = name.contains("NAME.") || name.contains("CURVE.");
        is_pattern || files.contains(name) || files.iter().any(is_it)
    };
    let named = patterns.iter().flat_map(|pattern| {
        let pattern = regex::Regex::new(pattern).unwrap();
        let found = pattern.captures_iter(text);
        let names =
            found.map(|found| found.get(1).or(found.get(0)).map_or("", |name| name.as_str()));
        names.map(str::to_owned).collect::<Vec<_>>()
    });
    named.filter(|name| !is_there(name)).collect()
}

fn is_page_or_setting(file: &str) -> bool {
    let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
    let is_text = [".md", ".toml", ".sh", ".py"].iter().any(|end| name.ends_with(end));
    // A changelog names files as they were.
    (is_text || name == "Makefile") && name != "CHANGELOG.md" && !file.starts_with("fixtures/")
}

#[test]
fn every_file_that_a_text_names_exists() {
    let files = files();
    let (mut seen, mut wrong) = (0, Vec::new());
    for file in files.iter().filter(|file| is_page_or_setting(file)) {
        let Ok(text) = std::fs::read_to_string(root().join(file)) else { continue };
        let missing = missing(&files, &[SOURCE, FROM_ROOT], &text);
        wrong.extend(missing.into_iter().map(|name| format!("{file} names {name}")));
        seen += 1;
    }
    assert!(seen > 100, "{seen} pages and settings were read");
    for folder in ["src", "crates", "tests", "benches", "examples", "fuzz", "contrib"] {
        for (file, text) in sources(folder) {
            let comments = text.lines().filter_map(|line| Some(line.split_once("//")?.1));
            let missing = missing(&files, &[SOURCE], &comments.collect::<Vec<_>>().join("\n"));
            wrong.extend(missing.into_iter().map(|name| format!("{file} names {name}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_file_that_has_moved_is_found_by_its_path() {
    let files = ["src/wrapper", "src/wrapper/launch.rs", "benches/report.rs", "docs/rules.md"];
    let files = files.map(str::to_owned).into();
    let of = |text: &str| missing(&files, &[SOURCE, FROM_ROOT], text);
    assert_eq!(of("wrapper/launch.rs, `report.rs`, docs/rules.md, /usr/src/x"), [""; 0]);
    assert_eq!(of("wrapper/report.rs; see docs/rule.md"), ["wrapper/report.rs", "docs/rule.md"]);
}

/// Pages are followed by their sections, named by the first words of their headings.
#[test]
fn every_section_that_a_test_follows_exists() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let (script, kube) = (read("scripts/docs-test.sh"), read("tests/kube/book.rs"));
    let mut followed: Vec<(String, String)> = Vec::new();
    let line = regex::Regex::new(r"follow (docs/[\w./-]+\.md)((?: '[^']+')+)").unwrap();
    for found in line.captures_iter(&script) {
        let sections = found[2].split('\'').filter(|word| !word.trim().is_empty());
        followed.extend(sections.map(|section| (found[1].to_owned(), section.to_owned())));
    }
    let call = regex::Regex::new(r"follow\((\w+), &\[([^\]]+)\]\)").unwrap();
    for found in call.captures_iter(&kube) {
        let page = kube.split_once(&format!("const {}: &str = \"", &found[1])).unwrap().1;
        let page = page.split_once('"').unwrap().0;
        let sections = found[2].split('"').filter(|word| !word.trim_matches([' ', ',']).is_empty());
        followed.extend(sections.map(|section| (page.to_owned(), section.to_owned())));
    }
    let exists = |(page, section): &(String, String)| {
        let mut headings = read(page).lines().map(str::to_owned).collect::<Vec<_>>().into_iter();
        headings.any(|line| line.trim_start_matches('#').trim_start().starts_with(section.as_str()))
    };
    assert!(followed.len() > 10, "{followed:?}");
    let missing: Vec<_> = followed.iter().filter(|one| !exists(one)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
