// SPDX-License-Identifier: Apache-2.0
//! Files of one folder that import each other in a cycle are read and changed together, so a cycle is small. It follows
//! imports by `super::` and leaves out `mod.rs`, because it has the names of its folder.

use std::collections::{BTreeMap, BTreeSet};

use super::{code, code_of};

/// Maximum number of files in a cycle.
const MOST: usize = 4;

/// A folder with a larger cycle: the settings have the sections as members, and each section's file
/// reads its section into the settings.
const LARGER: (&str, usize) = ("src/config", 6);

/// The imports of a folder: each file with the files from which it takes names.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The first name of each path below `super::`; a list in braces has several paths.
fn taken(text: &str) -> BTreeSet<String> {
    let path = regex::Regex::new(r"\bsuper::(?:(\w+)|\{([^;]*)\};)").unwrap();
    let inner = regex::Regex::new(r"\{[^{}]*\}").unwrap();
    let mut found = BTreeSet::new();
    for path in path.captures_iter(code_of(text)) {
        let mut list = path.get(1).or(path.get(2)).unwrap().as_str().to_owned();
        while inner.is_match(&list) {
            list = inner.replace_all(&list, "").into_owned();
        }
        let names = list.split(',').map(|path| path.trim().split("::").next().unwrap().to_owned());
        found.extend(names);
    }
    found
}

/// Files that a file reaches over one or several imports.
fn reached(imports: &Imports, from: &str) -> BTreeSet<String> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(file) = next.pop() {
        let new = imports[&file].iter().filter(|file| !seen.contains(*file));
        let new: Vec<String> = new.cloned().collect();
        seen.extend(new.iter().cloned());
        next.extend(new);
    }
    seen
}

/// The files of the largest cycle.
fn cycle(imports: &Imports) -> BTreeSet<String> {
    let all: BTreeMap<_, _> = imports.keys().map(|file| (file, reached(imports, file))).collect();
    let cycles = all.iter().map(|(file, reached)| {
        reached.iter().filter(|other| all[other].contains(*file)).cloned().collect()
    });
    cycles.max_by_key(BTreeSet::len).unwrap_or_default()
}

#[test]
fn import_cycles_have_at_most_four_files() {
    let mut folders: BTreeMap<String, Imports> = BTreeMap::new();
    for (path, text) in code() {
        let (folder, file) = path.rsplit_once('/').unwrap();
        let file = file.trim_end_matches(".rs").to_owned();
        folders.entry(folder.to_owned()).or_default().insert(file, taken(&text));
    }
    for (folder, mut imports) in folders {
        let files: BTreeSet<String> =
            imports.keys().filter(|file| *file != "mod").cloned().collect();
        imports.retain(|file, _| files.contains(file));
        imports.values_mut().for_each(|taken| taken.retain(|file| files.contains(file)));
        let cycle = cycle(&imports);
        let most = if folder == LARGER.0 { LARGER.1 } else { MOST };
        assert!(cycle.len() <= most, "{folder}: {cycle:?} import each other");
    }
}

#[test]
fn an_import_cycle_is_found() {
    let text = "use super::{\n    a,\n    b::{C, d::{E}},\n};\nuse super::f::G;\nsuper::h::i()";
    assert_eq!(Vec::from_iter(taken(text)), ["", "a", "b", "f", "h"]);
    assert!(taken("use crate::a;\n#[cfg(test)]\nuse super::b;").is_empty());
    let of = |takes: &[&str]| takes.iter().map(|file| (*file).to_owned()).collect();
    let imports = [("a", of(&["b"])), ("b", of(&["c"])), ("c", of(&["a", "d"])), ("d", of(&[]))];
    let imports = imports.map(|(file, takes)| (file.to_owned(), takes));
    assert_eq!(cycle(&imports.into()), ["a", "b", "c"].map(str::to_owned).into());
}
