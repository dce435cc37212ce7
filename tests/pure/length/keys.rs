// SPDX-License-Identifier: Apache-2.0
//! The annotations and labels that the engines' files know, read from their source: a key that is added
//! there is measured at once. A word that is no key is an annotation like any other.

use std::collections::BTreeSet;
use std::path::Path;

/// What stands before CRI-O's own names.
const CRIO: &str = "io.kubernetes.cri-o.";

/// Every word of the sources that can be a key.
pub(super) fn known() -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine");
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        // Comments may hold a quotation mark alone.
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
