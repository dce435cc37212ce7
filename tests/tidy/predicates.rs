// SPDX-License-Identifier: Apache-2.0
//! A function whose name is a claim (`is_`, `has_`, …) changes nothing: none takes a mutable reference. What a
//! function changes through a cell stays unseen.

use super::sources;

/// A function that is named like a predicate and takes a mutable reference.
const MUTATES: &str = r"\bfn ((?:is|are|has|have|can|may|was|were|must|takes|needs|knows|owns)_\w+)\s*(?:<[^>]*>)?\([^)]*&(?:'\w+ )?mut\b";

fn mutating(text: &str) -> Vec<String> {
    let pattern = regex::Regex::new(MUTATES).unwrap();
    pattern.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

#[test]
fn no_predicate_mutates() {
    for folder in ["src", "crates", "tests", "benches", "examples", "fuzz", "contrib"] {
        for (file, text) in sources(folder) {
            let found =
                if file.ends_with("tidy/predicates.rs") { Vec::new() } else { mutating(&text) };
            assert!(found.is_empty(), "{file}: name these with a verb: {found:?}");
        }
    }
}

#[test]
fn a_predicate_that_mutates_is_found() {
    let found =
        mutating("fn is_a(&mut self) {}\nfn has_b<T>(\n    x: T,\n    y: &'t mut T) -> bool");
    assert_eq!(found, ["is_a", "has_b"]);
    assert_eq!(mutating("fn is_c(&self) -> bool\nfn add(&mut self)"), [""; 0]);
}
