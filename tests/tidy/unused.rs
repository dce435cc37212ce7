// SPDX-License-Identifier: Apache-2.0
//! The compiler finds an item that its own crate does not use, unless it is public. This finds a public item whose name
//! no other crate, test, bench, example or fuzz target contains. It searches for words, so another item of the same
//! name hides one.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::sources;

/// Public items that no other code names, and their reasons.
const ALLOWED: [(&str, &str); 3] = [
    ("crates/nri-adaptation/src/offers.rs Yielded", "the type of a field of `Merged`"),
    ("crates/nri-adaptation/src/rights.rs UnknownField", "the error of `Rights::from_names`"),
    ("crates/nri-transport/src/handshake.rs NoUpcalls", "a runtime without updates starts from it"),
];

/// The crates whose items others use; those of `nri-plugin` are listed in its `public.txt`.
const CRATES: [&str; 4] =
    ["crates/nri-adaptation/", "crates/nri-api/", "crates/nri-transport/", "crates/oci-document/"];

/// The names of a text's public items.
fn public(text: &str) -> Vec<String> {
    const KINDS: [&str; 7] = ["fn", "struct", "enum", "trait", "type", "const", "static"];
    let code = text.split("\nmod tests {").next().unwrap_or_default();
    let items = code.lines().filter_map(|line| line.trim_start().strip_prefix("pub "));
    let names = items.filter_map(|item| {
        let mut words =
            words(item).skip_while(|word| ["async", "unsafe"].contains(word)).peekable();
        // `const` is a kind, or precedes one.
        let is_item = words.next().is_some_and(|kind| KINDS.contains(&kind));
        words.next_if_eq(&"fn");
        words.next().filter(|_| is_item)
    });
    names.map(str::to_owned).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_between = |byte: &u8| !byte.is_ascii_alphanumeric() && *byte != b'_';
    text.as_bytes().split(is_between).filter_map(|word| std::str::from_utf8(word).ok())
}

/// The names that `src/testing.rs` re-exports.
fn taken_over(text: &str) -> Vec<String> {
    let paths = text.split("pub use crate::").skip(1).filter_map(|rest| rest.split(';').next());
    let names = paths.filter_map(|path| path.rsplit_once("::"));
    let names = names.flat_map(|(_, names)| words(names));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Each unused item, by its file and name.
fn unused(files: &BTreeMap<String, String>) -> BTreeSet<String> {
    let words: BTreeMap<&str, HashSet<&str>> =
        files.iter().map(|(file, text)| (&**file, words(text).collect())).collect();
    let is_named = |name: &str, is_elsewhere: &dyn Fn(&str) -> bool| {
        words.iter().any(|(file, words)| is_elsewhere(file) && words.contains(name))
    };
    let mut found = BTreeSet::new();
    let is_code = |file: &&String| file.starts_with("src/") || file.starts_with("crates/");
    for (file, text) in files.iter().filter(|(file, _)| is_code(file)) {
        let is_unused = |name: &String| {
            if let Some(of) = CRATES.iter().find(|of| file.starts_with(&format!("{of}src/"))) {
                return !is_named(name, &|other| !other.starts_with(of));
            }
            if file == "src/testing.rs" {
                return !is_named(name, &|other| !other.starts_with("src/"));
            }
            // Public because of a public type: the compiler does not check it.
            let here = self::words(text).filter(|word| word == name).count();
            file.starts_with("src/") && here == 1 && !is_named(name, &|other| other != file)
        };
        let names = if file == "src/testing.rs" { taken_over(text) } else { public(text) };
        let names = names.into_iter().filter(|_| !file.contains("/tests"));
        found.extend(names.filter(is_unused).map(|name| format!("{file} {name}")));
    }
    found
}

fn files() -> BTreeMap<String, String> {
    let folders = ["src", "crates", "tests", "benches", "examples", "fuzz", "contrib"];
    folders
        .into_iter()
        .flat_map(sources)
        .filter(|(file, text)| file != "tests/tidy/unused.rs" && !super::is_generated(text))
        .collect()
}

#[test]
fn no_public_item_is_without_a_user() {
    let found = unused(&files());
    let allowed: BTreeSet<String> = ALLOWED.iter().map(|(item, _)| (*item).to_owned()).collect();
    let new: Vec<&String> = found.difference(&allowed).collect();
    assert!(new.is_empty(), "nothing outside of its crate uses this, make it private: {new:#?}");
    let gone: Vec<&String> = allowed.difference(&found).collect();
    assert!(gone.is_empty(), "no longer there, or used: {gone:#?}");
}

#[test]
fn an_unused_item_of_each_kind_is_found() {
    let mut files = BTreeMap::from([
        (
            "crates/oci-document/src/a.rs",
            "pub fn lone() {}\npub const fn other() {}\nmod tests {\npub fn x() {}",
        ),
        ("crates/oci-document/src/b.rs", "lone()"),
        ("crates/nri-api/src/a.rs", "/// other\n    pub struct Alone(u8);"),
        ("src/testing.rs", "pub use crate::a::b::{One, Two};\npub use crate::a::Three;"),
        (
            "src/a.rs",
            "pub(crate) struct T;\nimpl T {\n    pub async fn dead() {}\n    pub fn used() {}\n}\nused()",
        ),
        ("tests/a.rs", "One Three"),
    ]);
    let run = |files: &BTreeMap<&str, &str>| {
        let owned = files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned()));
        unused(&owned.collect()).into_iter().collect::<Vec<_>>()
    };
    let wanted = [
        "crates/nri-api/src/a.rs Alone",
        "crates/oci-document/src/a.rs lone",
        "src/a.rs dead",
        "src/testing.rs Two",
    ];
    assert_eq!(run(&files), wanted);
    files.insert("fuzz/a.rs", "lone Two dead Alone");
    assert!(run(&files).is_empty(), "{:?}", run(&files));
}
