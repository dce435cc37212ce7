// SPDX-License-Identifier: Apache-2.0
//! Pictures of the pages: each is shown, has a text alternative, and equals the drawing of
//! `scripts/pictures.py` from its source.

use std::path::Path;
use std::process::Command;

use test_support::{program, skip};

use super::super::root;
use super::pages;

/// A picture's text alternative.
fn words(svg: &str) -> &str {
    let opening = svg.split('>').next().unwrap();
    assert!(opening.contains("role=\"img\""), "{opening}");
    let words = opening.split_once("aria-label=\"").and_then(|(_, rest)| rest.split_once('"'));
    words.unwrap_or_default().0
}

#[test]
fn each_picture_is_shown_with_its_alternative_text() {
    let pages = pages();
    let (mut count, mut drawn) = (0, 0);
    for folder in ["docs", "docs/pictures"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".svg") {
                continue;
            }
            let svg = std::fs::read_to_string(entry.path()).unwrap();
            let words = words(&svg).replace("&#x27;", "'");
            assert!(words.len() > 40, "{name}: {words}");
            let path = if folder == "docs" { name.clone() } else { format!("pictures/{name}") };
            let end = format!("{path})");
            let shown: Vec<_> = pages.iter().filter(|page| page.text.contains(&end)).collect();
            assert!(!shown.is_empty(), "no page shows {name}");
            for page in shown {
                let is_same = page.text.contains(&format!("![{words}]("));
                assert!(folder == "docs" || is_same, "{} has other words for {name}", page.name);
            }
            count += 1;
            drawn += usize::from(folder != "docs");
        }
    }
    assert!(count >= 3 && drawn >= 9, "{count} pictures were found, {drawn} drawn");
}

fn pictures(edit: impl FnOnce(&Path), arguments: &[&str]) -> Option<(bool, String)> {
    drawn_by("scripts/pictures.py", edit, arguments)
}

/// Runs a script that draws pictures in a copy of their folder; returns its output.
fn drawn_by(script: &str, edit: impl FnOnce(&Path), arguments: &[&str]) -> Option<(bool, String)> {
    let copy = tempfile::tempdir().unwrap();
    let at = |path: &str| copy.path().join(path);
    std::fs::create_dir_all(at("docs/pictures")).unwrap();
    std::fs::create_dir(at("scripts")).unwrap();
    program::copy(&root().join(script), &at(script));
    program::copy(&root().join("docs/growth.csv"), &at("docs/growth.csv"));
    for entry in std::fs::read_dir(root().join("docs/pictures")).unwrap().flatten() {
        program::copy(&entry.path(), &at("docs/pictures").join(entry.file_name()));
    }
    edit(&at("docs/pictures"));
    let mut command = Command::new("python3");
    let Ok(output) = command.arg(at(script)).args(arguments).output() else {
        skip::machine_lacks("no python3 to draw the pictures with");
        return None;
    };
    Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn each_picture_matches_its_source() {
    let Some((is_same, printed)) = pictures(|_| (), &["--check"]) else { return };
    assert!(is_same, "{printed}");
}

#[test]
fn each_curve_matches_its_numbers() {
    let script = "scripts/growth.py";
    let Some((is_same, printed)) = drawn_by(script, |_| (), &["--check"]) else { return };
    assert!(is_same, "{printed}");
    let other = |folder: &Path| {
        let numbers = folder.with_file_name("growth.csv");
        let text = std::fs::read_to_string(&numbers).unwrap();
        let text = text.replacen("plugins,32,ours,", "plugins,32,ours,1", 1);
        nri_runc::testing::files::replace(&numbers, text.as_bytes()).unwrap();
    };
    let Some((is_same, printed)) = drawn_by(script, other, &["--check"]) else { return };
    assert!(!is_same && printed.contains("growth-plugins.svg"), "{printed}");
}

#[test]
fn a_picture_that_differs_from_its_source_is_found() {
    let other = |folder: &Path| {
        let source = folder.join("rule.txt");
        let text = std::fs::read_to_string(&source).unwrap();
        let changed = text.replace("permitted", "granted");
        assert_ne!(text, changed);
        program::put(&source, changed);
        std::fs::remove_file(folder.join("node.txt")).unwrap();
    };
    let Some((is_same, printed)) = pictures(other, &["--check"]) else { return };
    assert!(!is_same && printed.contains("rule.svg is not what rule.txt says"), "{printed}");
    assert!(printed.contains("node.svg has no source"), "{printed}");
}

#[test]
fn a_source_that_cannot_be_drawn_is_named_in_one_line() {
    for (text, why) in [
        ("flow\nbox: a\nbox: b", "it has no alt"),
        ("alt: a\npie\nbox: a", "is no kind of picture"),
        ("alt: a\nflow\nbox blue: a", "'blue' is no style"),
        ("alt: a\nflow\nright yes: a", "there is no box before"),
        ("alt: a\nsequence\nlane a\na > b: c", "'b' is no lane"),
        ("alt: a\nsequence\nlane a\noff a", "has no bar to end"),
        ("alt: a\ncolumns\nbox: a", "there is no column before"),
        ("alt: a\nflow\nbox: `a-word-that-is-longer-than-its-box`", "does not fit"),
        ("", "is empty"),
    ] {
        let write = |folder: &Path| program::put(&folder.join("a.txt"), text);
        let Some((is_drawn, printed)) = pictures(write, &[]) else { return };
        assert!(!is_drawn && printed.starts_with("a.txt: "), "{text}: {printed}");
        assert!(printed.contains(why) && printed.lines().count() == 1, "{text}: {printed}");
    }
}

/// The picture at the beginning of the README shows a command of the quick start.
#[test]
fn a_recorded_command_is_one_of_the_quick_start() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let (svg, page) = (read("docs/docker.svg"), read("docs/quickstart/docker.md"));
    let commands = svg.lines().filter(|line| line.contains(r#"class="command""#));
    let commands = commands.filter_map(|line| line.split_once(">$ ")?.1.strip_suffix("</text>"));
    let commands: Vec<&str> = commands.collect();
    assert!(commands.len() >= 4, "{commands:?}");
    for command in commands {
        assert!(page.contains(command), "docs/docker.svg: {command} is not in the quick start");
    }
}
