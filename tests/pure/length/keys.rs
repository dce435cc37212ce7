// SPDX-License-Identifier: Apache-2.0
//! The annotations and labels that the engines' files name, and the members of `config.json` that the program names,
//! read from their source, so that an added one is measured immediately. A word that is not a key is an annotation like
//! any other.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;

/// The prefix of CRI-O's own names.
const CRIO: &str = "io.kubernetes.cri-o.";

/// Every word of the sources that can be a key.
pub(super) fn known() -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine");
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        // Comments may contain a single quotation mark.
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in lines {
            for word in line.split('"').skip(1).step_by(2) {
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
                if word.len() < 4 || !word.bytes().all(is_plain) || word.starts_with('/') {
                    continue;
                }
                if word.starts_with(|first: char| first.is_ascii_uppercase()) {
                    keys.insert(format!("{CRIO}{word}"));
                } else if word.contains(['.', '/']) {
                    keys.insert(word.to_owned());
                }
            }
        }
    }
    keys
}

/// The members of the specification that the program reads, or writes for a plugin, from the tables of their
/// names.
pub(super) fn members() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let decoded = read("crates/oci-document/src/decoded.rs");
    let (_, names) = decoded.split_once("const NAMES: &str = \"").unwrap();
    let (names, _) = names.split_once('"').unwrap();
    let names = names.split(|c: char| !c.is_ascii_alphanumeric()).filter(|name| !name.is_empty());
    let mut all: BTreeSet<String> = names.map(ToOwned::to_owned).collect();
    // The members that are renamed when they are read, and those that are opened, read or set by name.
    let renamed = Regex::new(r#"\w = "([A-Za-z0-9]+)"[:)]"#).unwrap();
    let opened = r#"\.(?:object|array|value|set|remove)\((?:[a-z]+, )?"([A-Za-z0-9]+)""#;
    let opened = Regex::new(opened).unwrap();
    for folder in ["src/describe", "src/spec/patch"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap().map(Result::unwrap) {
            if entry.path().is_file() {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                let code = text.split("#[cfg(test)]").next().unwrap();
                let found = [&renamed, &opened].map(|named| named.captures_iter(code));
                all.extend(found.into_iter().flatten().map(|found| found[1].to_owned()));
            }
        }
    }
    all
}

#[test]
fn the_keys_of_every_engine_are_found_in_its_source() {
    let known = known();
    for key in [
        "io.kubernetes.cri-o.Labels",
        "io.kubernetes.cri-o.Annotations",
        "io.kubernetes.cri-o.SandboxID",
        "io.kubernetes.cri.sandbox-uid",
        "nri-runc.dev/pod-name",
    ] {
        assert!(known.contains(key), "{key} is not among {known:?}");
    }
}
