// SPDX-License-Identifier: Apache-2.0
//! What depends on the engine is a row of `src/engine/behaviour.rs`: no other folder decides by an engine's name.

use super::{code_of, sources};

/// The variants of `EngineKind` that code compares with or matches on; their names may be written.
fn decided_by(text: &str) -> Vec<String> {
    let pattern = regex::Regex::new(r"EngineKind::([A-Z]\w+)\b(\.name\(\))?").unwrap();
    let found = pattern.captures_iter(code_of(text)).filter(|found| found.get(2).is_none());
    found.map(|found| found[1].to_owned()).collect()
}

#[test]
fn only_the_engines_folder_decides_by_engine() {
    let is_asking = |file: &str| !file.starts_with("src/engine/") && !file.ends_with("tests.rs");
    for (file, text) in sources("src").into_iter().filter(|(file, _)| is_asking(file)) {
        assert_eq!(decided_by(&text), [""; 0], "{file}: ask EngineKind::behaviour");
    }
}

#[test]
fn a_decision_by_engine_is_found() {
    assert_eq!(decided_by("kind == EngineKind::Docker && x(EngineKind::Crio.name())"), ["Docker"]);
    assert_eq!(decided_by("x\n#[cfg(test)]\nEngineKind::Docker"), [""; 0]);
}
