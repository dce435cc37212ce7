// SPDX-License-Identifier: Apache-2.0
//! The engines' files: read in full, replaced atomically with owner, mode and label preserved,
//! never through a symbolic link. It decides nothing.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::renameat;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::engine::Engine;
use super::plan::{EngineFile, Texts};
use super::root::{self, Root};
use crate::error::{Context, Error, Result};
use crate::files::{self, Original};

/// The mode of a new file of an engine's configuration: all users may read it.
const FOR_ALL: u32 = 0o644;

/// The mode of a new file that may hold secrets.
pub(super) const PRIVATE: u32 = 0o600;

/// Reads all configuration files of an engine.
pub(super) fn read_all(root: &Root, engine: Engine, main: Option<&str>) -> Result<Texts> {
    let mut texts = Texts::new();
    // Two rounds, because the files of the first may import more.
    for _round in 0..2 {
        for source in (engine.row().sources)(main, &texts) {
            for path in paths(root, &source) {
                if let Some(text) = read(root, &path)? {
                    texts.insert(path, text);
                }
            }
        }
    }
    Ok(texts)
}

/// Returns the path of one file, even if it is missing, or the paths of a directory's files with the suffix,
/// except hidden ones.
pub(super) fn paths(root: &Root, source: &EngineFile) -> Vec<String> {
    match source {
        EngineFile::File(path) => vec![path.clone()],
        EngineFile::Folder(folder, suffix) => {
            let is_named = |path: &String| {
                let name = path.rsplit('/').next().unwrap_or_default();
                name.ends_with(suffix.as_str()) && !name.starts_with('.')
            };
            let mut paths = root.entries(folder);
            paths.retain(|path| is_named(path) && root.has_file(path));
            paths
        }
    }
}

/// Reads a file's text, if the file exists. This follows symbolic links; `write` does not.
pub(super) fn read(root: &Root, path: &str) -> Result<Option<String>> {
    let Some(bytes) = root.read(path).doing(|| format!("reading {path}"))? else { return Ok(None) };
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|_bytes| not_text(path))
}

/// Returns the error for an engine's file that is not text; such a file is never written.
pub(super) fn not_text(path: &str) -> Error {
    Error::new(format!("{path} is not UTF-8 text")).hint("repair this file first")
}

/// Returns the missing parent directories of `path`, the outermost first.
pub(super) fn missing_folders(root: &Root, path: &str) -> Vec<String> {
    let parents = std::path::Path::new(path).ancestors().skip(1);
    let parents = parents.map(|folder| folder.display().to_string());
    let mut missing: Vec<String> = parents.take_while(|folder| !root.has(folder)).collect();
    missing.reverse();
    missing
}

/// Makes a file of an engine contain `text`, or removes it.
pub(super) fn write_or_remove(root: &Root, path: &str, text: Option<&str>) -> Result<()> {
    match text {
        Some(text) => write(root, path, text, FOR_ALL),
        None => remove(root, path),
    }
}

fn remove(root: &Root, path: &str) -> Result<()> {
    let doing = || format!("removing {path}");
    let (dir, name) = match root.parent(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found.doing(doing)?,
    };
    match unlinkat(&dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno).doing(doing),
    }
}

/// Replaces a file atomically, keeping its owner, mode and label, or creates it with this mode.
pub(super) fn write(root: &Root, path: &str, text: &str, mode: u32) -> Result<()> {
    let doing = || format!("writing {path}");
    let (folder, name) = root::split(path).doing(doing)?;
    let dir = root.make_folder(folder).doing(doing)?;
    let like = if files::inode_at(&dir, name).doing(doing)?.is_some() {
        files::read_at(&dir, name)
            .map_err(|error| error.hint("edit the file that it points to manually"))?
    } else {
        Original::new_with_mode(mode)
    };
    replace(&dir, name, text.as_bytes(), &like).doing(doing)
}

/// Replaces or creates a file of nri-runc atomically, with this mode.
pub(super) fn put(root: &Root, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
    let doing = || format!("writing {path}");
    let (folder, name) = root::split(path).doing(doing)?;
    let dir = root.make_folder(folder).doing(doing)?;
    replace(&dir, name, bytes, &Original::new_with_mode(mode)).doing(doing)
}

fn replace(dir: &OwnedFd, name: &str, bytes: &[u8], like: &Original) -> Result<()> {
    let temporary = format!(".{name}.nri-runc");
    files::remove_at(dir, &temporary);
    files::create_at(dir, &temporary, bytes, like)?;
    // Renames instead of exchanging: after an exchange, the old file would have the temporary name, and the
    // engine could read it as a drop-in.
    let renamed = renameat(dir, temporary.as_str(), dir, name);
    if renamed.is_err() {
        files::remove_at(dir, &temporary);
    }
    Ok(renamed?)
}

/// Removes the directories that `install` created, if they are empty.
pub(super) fn remove_folders(root: &Root, folders: &[String]) {
    for folder in folders.iter().rev() {
        root.remove_folder(folder);
    }
}
