// SPDX-License-Identifier: Apache-2.0
//! The policy for containers of unprivileged users (decision D58), in a file beside the run
//! directory, readable by these users. Root's daemon keeps it current while it runs, and does not
//! remove it when it exits. An unprivileged wrapper reads it before it creates a container. The
//! policy does not bind a user, who can call a runtime directly.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Context, Error, Result};
use crate::files;
use crate::limits::ROOTLESS_MARKER;
use crate::named::Named;
use crate::presence::{self, IfThere};

use super::settings::RootlessPolicy;

/// Reads the policy; `Pass` without the file. It may be a link: rootless Docker's `/run` consists of
/// links to the host's files.
///
/// # Errors
/// Fails if the file is unreadable or has neither value, or if its folder cannot be listed for
/// another reason than a missing permission.
pub(crate) fn read(marker: &Path) -> Result<RootlessPolicy> {
    let at = |place: &Path| {
        let doing = || format!("reading {}", place.display());
        let text = files::read_text(place, ROOTLESS_MARKER).if_there().doing(doing)?;
        text.map(|text| policy_of(&text).doing(doing)).transpose()
    };
    if let Some(policy) = at(marker)? {
        return Ok(policy);
    }
    for place in below_links(marker)? {
        if let Some(policy) = at(&place)? {
            return Ok(policy);
        }
    }
    Ok(RootlessPolicy::Pass)
}

/// Returns the possible paths of the file if root's daemon wrote it after rootlesskit made the
/// links: rootlesskit mounts the host's folder in the folder of links, as `.ro` and a number.
fn below_links(marker: &Path) -> Result<Vec<PathBuf>> {
    let (Some(folder), Some(name)) = (marker.parent(), marker.file_name()) else {
        return Ok(Vec::new());
    };
    let entries = match presence::entries(folder) {
        // The user could list a folder of the user's own rootlesskit, so this is another folder.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Vec::new(),
        entries => entries.doing(|| format!("listing {}", folder.display()))?,
    };
    let kept = entries.iter().filter(|entry| entry.file_name().as_bytes().starts_with(b".ro"));
    Ok(kept.map(|entry| entry.path().join(name)).collect())
}

fn policy_of(text: &str) -> Result<RootlessPolicy> {
    RootlessPolicy::named(text.trim_end()).ok_or_else(|| Error::new("must contain pass or refuse"))
}

/// Writes the policy, unless the file has it already.
///
/// # Errors
/// Fails when the file cannot be written; the old one is then unchanged.
pub(crate) fn keep(marker: &Path, policy: RootlessPolicy) -> Result<()> {
    let text = format!("{}\n", policy.name());
    match files::read_own(marker, ROOTLESS_MARKER) {
        Ok(there) if there == text.as_bytes() => Ok(()),
        // A link or an unreadable file is replaced. Unlike the daemon's other files, this one is
        // readable by users.
        Ok(_) | Err(_) => files::replace_with_mode(marker, text.as_bytes(), 0o644),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_policy_file_is_read_back_and_its_absence_means_pass() {
        let temp = tempfile::tempdir().unwrap();
        let marker = temp.path().join("run.rootless");
        assert_eq!(read(&marker).unwrap(), RootlessPolicy::Pass);
        for policy in [RootlessPolicy::Refuse, RootlessPolicy::Pass] {
            keep(&marker, policy).unwrap();
            assert_eq!(read(&marker).unwrap(), policy);
            let mode = std::fs::metadata(&marker).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o644, "users read it");
        }
        let link = temp.path().join("link");
        symlink(&marker, &link).unwrap();
        assert_eq!(read(&link).unwrap(), RootlessPolicy::Pass);
        keep(&link, RootlessPolicy::Refuse).unwrap();
        assert_eq!(read(&marker).unwrap(), RootlessPolicy::Pass, "a link is replaced");
    }

    #[test]
    fn a_policy_file_is_read_although_rootlesskit_did_not_link_it() {
        let temp = tempfile::tempdir().unwrap();
        let kept = temp.path().join(".ro123");
        std::fs::create_dir(&kept).unwrap();
        let marker = temp.path().join("run.rootless");
        assert_eq!(read(&marker).unwrap(), RootlessPolicy::Pass);
        keep(&kept.join("run.rootless"), RootlessPolicy::Refuse).unwrap();
        assert_eq!(read(&marker).unwrap(), RootlessPolicy::Refuse);
        keep(&marker, RootlessPolicy::Pass).unwrap();
        assert_eq!(read(&marker).unwrap(), RootlessPolicy::Pass);
    }

    #[test]
    fn an_invalid_policy_file_is_an_error_until_rewritten() {
        let temp = tempfile::tempdir().unwrap();
        let marker = temp.path().join("run.rootless");
        for text in ["", "refused\n", "pass refuse", &"x".repeat(2 * ROOTLESS_MARKER)] {
            files::replace(&marker, text.as_bytes()).unwrap();
            assert!(read(&marker).unwrap_err().to_string().contains("reading"), "{text:.9}");
        }
        keep(&marker, RootlessPolicy::Refuse).unwrap();
        assert_eq!(read(&marker).unwrap(), RootlessPolicy::Refuse);
        let missing = temp.path().join("no/folder.rootless");
        assert!(keep(&missing, RootlessPolicy::Pass).is_err());
    }
}
