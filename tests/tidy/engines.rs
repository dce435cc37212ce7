// SPDX-License-Identifier: Apache-2.0
//! Only rows decide by engine: `src/engine/behaviour.rs` has one for each engine that calls nri-runc,
//! and `src/admin/install/rows.rs` has one for each engine that `install` configures.

use super::{code_of, sources};

/// The files of `install` that may name an engine: the list of all engines, and their rows.
const ROWS: [&str; 2] = ["src/admin/install/engine.rs", "src/admin/install/rows.rs"];

/// The places where code may decide by a variant of this enum: variants other than for their name, imports of
/// variants, other names of the enum, and implementations, in which variants are written with `Self`.
fn decided_by(engines: &str, text: &str) -> Vec<String> {
    let variant = format!(r"\b{engines}::(?:[A-Z][a-z]\w*\b(?:\.name\(\))?|[{{*])");
    let pattern = format!(r"{variant}|\bimpl [^\n{{]*\b{engines} \{{|\b{engines} as ");
    let pattern = regex::Regex::new(&pattern).unwrap();
    let found = pattern.find_iter(code_of(text)).map(|found| found.as_str().to_owned());
    found.filter(|found| !found.ends_with(".name()")).collect()
}

#[test]
fn only_the_engines_folder_decides_by_engine() {
    let is_asking = |file: &str| !file.starts_with("src/engine/") && !file.ends_with("tests.rs");
    for (file, text) in sources("src").into_iter().filter(|(file, _)| is_asking(file)) {
        assert_eq!(decided_by("EngineKind", &text), [""; 0], "{file}: ask EngineKind::behaviour");
    }
}

#[test]
fn only_the_rows_of_install_decide_by_engine() {
    let files = sources("src/admin");
    let is_row = |file: &str| ROWS.contains(&file);
    assert_eq!(files.iter().filter(|(file, _)| is_row(file)).count(), ROWS.len());
    for (file, text) in files.iter().filter(|(file, _)| !is_row(file)) {
        assert_eq!(decided_by("Engine", text), [""; 0], "{file}: ask Engine::row");
    }
}

#[test]
fn a_decision_by_engine_is_found() {
    let text = "kind == EngineKind::Docker && x(EngineKind::Crio.name())";
    assert_eq!(decided_by("EngineKind", text), ["EngineKind::Docker"]);
    assert_eq!(decided_by("Engine", text), [""; 0]);
    assert_eq!(decided_by("EngineKind", "x\n#[cfg(test)]\nEngineKind::Docker"), [""; 0]);
    let hidden = ["use Engine::{Docker};", "use Engine::*;", "use a::Engine as E;"];
    let hidden = [&hidden[..], &["impl Engine {", "impl X for Engine {", "Engine::Crio => {}"]];
    for text in hidden.concat() {
        assert_eq!(decided_by("Engine", text).len(), 1, "{text}");
    }
    let asks = "Engine::ALL, Engine::named(x), Engine::OF_DISTRIBUTIONS; impl NodeEngine {";
    assert_eq!(decided_by("Engine", asks), [""; 0]);
}
