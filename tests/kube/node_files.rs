// SPDX-License-Identifier: Apache-2.0
//! The node's files at one moment, for comparison: each with its mode and a checksum.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Folders in which an installation may leave something.
const FOLDERS: [&str; 5] = ["/etc", "/opt", "/usr/local/bin", "/var/lib/nri-runc", "/run/nri-runc"];

/// Larger files are compared by size and time, because they are no configuration.
const LARGE: u64 = 1 << 20;

/// Mode and checksum of each file, or the target of a link.
pub(super) type NodeFiles = BTreeMap<PathBuf, (u32, String)>;

pub(super) fn all() -> NodeFiles {
    let mut files = NodeFiles::new();
    for folder in FOLDERS {
        collect(Path::new(folder), &mut files);
    }
    files
}

fn collect(folder: &Path, files: &mut NodeFiles) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let meta = std::fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            collect(&path, files);
            continue;
        }
        let content = if meta.is_symlink() {
            std::fs::read_link(&path).unwrap().display().to_string()
        } else if meta.len() > LARGE {
            format!("{} bytes of {}.{}", meta.len(), meta.mtime(), meta.mtime_nsec())
        } else if meta.is_file() {
            sum(&std::fs::read(&path).unwrap())
        } else {
            "neither file nor link".to_owned()
        };
        files.insert(path, (meta.mode(), content));
    }
}

fn sum(bytes: &[u8]) -> String {
    let mut hasher = std::collections::hash_map::DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("{:x} of {} bytes", hasher.finish(), bytes.len())
}

/// The paths that differ.
pub(super) fn differences(before: &NodeFiles, after: &NodeFiles) -> Vec<PathBuf> {
    let paths = before.keys().chain(after.keys().filter(|path| !before.contains_key(*path)));
    paths.filter(|path| before.get(*path) != after.get(*path)).cloned().collect()
}

#[test]
fn only_changed_added_or_removed_files_differ() {
    let file = |name: &str, sum: &str| (PathBuf::from(name), (0o644, sum.to_owned()));
    let before = NodeFiles::from([file("same", "1"), file("changed", "1"), file("removed", "1")]);
    let after = NodeFiles::from([file("same", "1"), file("changed", "2"), file("added", "1")]);
    let names: Vec<PathBuf> = ["changed", "removed", "added"].map(PathBuf::from).to_vec();
    assert_eq!(differences(&before, &after), names);
    assert!(differences(&before, &before).is_empty());
}
