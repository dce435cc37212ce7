// SPDX-License-Identifier: Apache-2.0
//! The files of a `sysdump`, written as one archive, or as files in a directory. Both are created
//! anew and readable only by their owner; no existing file is written, not even through a link.

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::error::{Context, Result};

/// One file: its name and content.
pub(super) type Part = (&'static str, Vec<u8>);

/// Writes the archive, whose files are in a directory `name` and have the modification time `seconds`, a Unix
/// time. A failed write leaves no file.
///
/// # Errors
/// Fails when the file exists, even as a link, or cannot be written.
pub(super) fn write(path: &Path, name: &str, seconds: u64, parts: &[Part]) -> Result<()> {
    let file = create(path)?;
    let written = write_parts(file, name, seconds, parts);
    if written.is_err() {
        let _best_effort = std::fs::remove_file(path);
    }
    written.doing(|| format!("writing {}", path.display()))
}

fn write_parts(file: File, name: &str, seconds: u64, parts: &[Part]) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for (part, bytes) in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        header.set_mode(0o600);
        header.set_mtime(seconds);
        archive.append_data(&mut header, format!("{name}/{part}"), bytes.as_slice())?;
    }
    archive.into_inner()?.finish()?.sync_all()
}

/// Writes the files into a new directory.
///
/// # Errors
/// Fails when the directory exists, or cannot be written.
pub(super) fn write_plain(dir: &Path, parts: &[Part]) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).create(dir);
    made.doing(|| format!("creating {}", dir.display()))?;
    for (part, bytes) in parts {
        let path = dir.join(part);
        create(&path)?.write_all(bytes).doing(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn create(path: &Path) -> Result<File> {
    let mut options = File::options();
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    options.write(true).create_new(true).mode(0o600).custom_flags(flags);
    options.open(path).doing(|| format!("creating {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_its_owner_can_read_an_archive_that_replaces_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let parts = [("a.json", b"{}".to_vec()), ("b.txt", Vec::new())];
        let path = temp.path().join("x.tar.gz");
        write(&path, "x", 1, &parts).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let before = std::fs::read(&path).unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(temp.path().join("elsewhere"), &link).unwrap();
        for there in [&path, &link] {
            assert!(write(there, "x", 1, &parts).is_err());
        }
        assert_eq!(std::fs::read(&path).unwrap(), before, "it is what it was");
        assert!(!temp.path().join("elsewhere").exists());
        let plain = temp.path().join("plain");
        write_plain(&plain, &parts).unwrap();
        assert_eq!(std::fs::read(plain.join("a.json")).unwrap(), b"{}");
        assert_eq!(plain.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert!(write_plain(&plain, &parts).is_err() && write_plain(&link, &parts).is_err());
    }
}
