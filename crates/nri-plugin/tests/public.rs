// SPDX-License-Identifier: Apache-2.0
//! The public items of the crate are those of `public.txt`: a changed line there is a change for
//! authors of plugins. `UPDATE_GOLDEN=1 cargo test -p nri-plugin --test public` rewrites the list;
//! the diff is the review.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "the list is a file of this repository")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns each source file, by its path below `src`.
fn sources() -> Vec<(String, String)> {
    let (src, mut found) = (folder().join("src"), Vec::new());
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&src).unwrap().display().to_string();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Whether a declaration begins here: a public item, or a row of the tables of handlers and
/// setters.
fn begins(line: &str, name: &str) -> bool {
    let word = line.trim_start().split([' ', '(']).next().unwrap_or_default();
    let is_lower = !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let is_handler = name == "handler.rs" && line.starts_with("    ") && !line.starts_with("     ");
    let is_setter = name == "resources.rs" && line.starts_with("    fn ") && !line.contains('$');
    line.trim_start().starts_with("pub ")
        || is_setter
        || (is_handler && is_lower && line.trim_end().ends_with(';') && line.contains("->"))
        || (line.starts_with("impl") && line.contains(" for ") && !line.contains('$'))
        || (name == "handler.rs" && line.trim_start().starts_with("fn ") && !line.contains('$'))
}

/// Whether a declaration ends here: its parentheses are closed, and its body or the next
/// declaration begins.
fn is_whole(declaration: &str) -> bool {
    let count = |sign: char| declaration.matches(sign).count();
    let is_list = declaration.starts_with("pub use");
    count('(') == count(')')
        && (declaration.ends_with([';', '}']) || !is_list && declaration.ends_with(['{', ',']))
}

/// Returns the declarations of one file, each on one line with its type, without bodies.
fn declarations(name: &str, text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let (mut found, mut about, mut lines) = (BTreeSet::new(), String::new(), code.lines());
    while let Some(line) = lines.next() {
        if line.starts_with("impl") || line.starts_with('}') {
            about = line.trim_end_matches(['{', '}', ' ']).to_owned();
        }
        if !begins(line, name) {
            continue;
        }
        let mut declaration = line.trim().to_owned();
        while !is_whole(&declaration) {
            let Some(next) = lines.next() else { break };
            declaration = format!("{declaration} {}", next.trim());
        }
        let declaration = declaration.trim_end_matches(['{', '}', ' ', ',']);
        let about = if declaration == about { "" } else { &about };
        found.insert(format!("{name}: {about} {declaration}").replace("  ", " "));
    }
    found
}

fn public(sources: &[(String, String)]) -> String {
    let all: Vec<_> = sources.iter().flat_map(|(name, text)| declarations(name, text)).collect();
    all.join("\n") + "\n"
}

#[test]
fn the_public_items_match_the_list() {
    let (path, now) = (Path::new(&folder()).join("public.txt"), public(&sources()));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let listed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        now == listed,
        "public.txt is stale: UPDATE_GOLDEN=1 cargo test -p nri-plugin --test public"
    );
}

/// Breaking changes for plugin authors: each changes the list.
#[test]
fn a_breaking_change_of_a_public_item_is_found() {
    let sources = sources();
    let before = public(&sources);
    for (file, old, new) in [
        ("answers.rs", "pub fn env(self, name: &str", "pub fn env(self, name: String"),
        ("handler.rs", "stop_pod_sandbox(request: api::StopPodSandboxRequest) -> ();", ""),
        (
            "resources.rs",
            "fn pids_limit(resources, limit: i64)",
            "fn pids_limit(resources, limit: u64)",
        ),
        ("plugin.rs", "pub async fn ready(&self)", "async fn ready(&self)"),
        ("plugin.rs", "pub fn reconnect(mut self", "pub fn reconnects(mut self"),
        ("lib.rs", "pub use cache::Cache;", ""),
        ("context.rs", "updates: impl Into<UpdatesWithEvictions>,", "updates: Updates,"),
        ("answers.rs", "impl From<Update> for Updates", "impl From<Updates> for Updates"),
    ] {
        let mut broken = sources.clone();
        let (_, text) = broken.iter_mut().find(|(name, _)| name == file).unwrap();
        assert!(text.contains(old), "{file} has no {old}");
        *text = text.replacen(old, new, 1);
        assert!(public(&broken) != before, "{file}: {old}");
    }
}
