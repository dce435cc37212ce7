// SPDX-License-Identifier: Apache-2.0
//! The host paths of a container's device nodes: an engine may give a device another path in the
//! container, but its number is the same. Links are not followed, and other file systems below
//! `/dev` are skipped. This module only reads.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Context, Error, Result};
use crate::host::Host;
use crate::limits;

/// The folder of the host's device nodes.
pub(crate) const DEV: &str = "/dev";

/// A device number: whether it is a block device, and its major and minor number.
type Number = (bool, u64, u64);

/// Returns the host paths of nodes with the number of one of these devices.
///
/// # Errors
/// Fails when the list may be incomplete.
pub(crate) fn device_paths(host: &Host, wanted: &BTreeSet<Number>) -> Result<Vec<String>> {
    let (root, mut seen, mut found) = (host.path(DEV), 0, Vec::new());
    let doing = || format!("reading {DEV}");
    let file_system = std::fs::metadata(&root).doing(doing)?.dev();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder)).doing(doing)? {
            let entry = entry.doing(doing)?;
            seen += 1;
            if seen > limits::DEVICE_NODES {
                return Err(Error::new(format!(
                    "{DEV} has more than {} entries",
                    limits::DEVICE_NODES
                )));
            }
            // The node has just vanished, so it belongs to no container.
            let Ok(there) = entry.metadata() else { continue };
            let path = folder.join(entry.file_name());
            let (kind, rdev) = (there.file_type(), there.rdev());
            let own =
                (kind.is_block_device(), nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev));
            if kind.is_dir() && there.dev() == file_system {
                folders.push(path);
            } else if (kind.is_block_device() || kind.is_char_device()) && wanted.contains(&own) {
                found.push(Path::new(DEV).join(path).to_string_lossy().into_owned());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(host: &Host, number: Number) -> Result<Vec<String>> {
        device_paths(host, &[number].into())
    }

    #[test]
    fn a_device_has_the_hosts_path_under_any_name() {
        let found = paths(&Host::default(), (false, 1, 3)).unwrap();
        assert!(found.contains(&"/dev/null".to_owned()), "{found:?}");
        assert!(!found.contains(&"/dev/zero".to_owned()), "{found:?}");
        assert_eq!(paths(&Host::default(), (true, 1, 3)).unwrap(), [""; 0], "no block device");
    }

    #[test]
    fn a_host_without_nodes_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        let host = Host::new(&temp.path().display().to_string(), "");
        let error = paths(&host, (false, 1, 3)).unwrap_err().why();
        assert!(error.starts_with("reading /dev: "), "{error}");
        std::fs::create_dir_all(temp.path().join("dev/dri")).unwrap();
        assert_eq!(paths(&host, (false, 1, 3)).unwrap(), [""; 0]);
    }
}
