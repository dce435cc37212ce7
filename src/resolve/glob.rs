// SPDX-License-Identifier: Apache-2.0
//! Expands path names with wildcards, as in configuration files of classes. A wildcard never matches `/`.

use std::path::PathBuf;

use crate::glob::matches;
use crate::host::Host;
use crate::presence::{self, IfThere};

/// Returns the host paths that match the absolute `pattern`, in name order.
pub(super) fn expand(pattern: &str, host: &Host) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let mut next = Vec::new();
        for dir in found {
            if !part.contains(['*', '?', '[', '\\']) {
                let path = dir.join(part);
                if std::fs::symlink_metadata(host.path(&path)).or_absent().is_some() {
                    next.push(path);
                }
                continue;
            }
            let entries = presence::entries(&host.path(&dir)).or_absent().into_iter().flatten();
            let mut names: Vec<String> =
                entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
            names.sort();
            next.extend(names.iter().filter(|name| matches(part, name)).map(|name| dir.join(name)));
        }
        found = next;
    }
    found
}
