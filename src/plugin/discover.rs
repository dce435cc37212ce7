// SPDX-License-Identifier: Apache-2.0
//! Finds the plugins installed on this node, each with its configuration's text.
//!
//! A file that is not a plugin is skipped with one line, and never prevents other plugins from
//! starting. Nothing is started here.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result, in_our_words};
use crate::files;
use crate::limits;
use crate::presence::{self, IfThere};

use super::PluginIdentity;

/// A pre-installed plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PluginFile {
    /// The executable.
    pub path: PathBuf,
    /// Two digits.
    pub index: String,
    /// The rest of the file's name, after the index.
    pub name: String,
    /// Text of its configuration file, empty without one.
    pub config: String,
    /// Distinguishes the executable from a later one at the same path.
    stamp: (u64, u64, i64, i64),
}

impl PluginFile {
    /// Returns `NN-name`.
    pub(crate) fn id(&self) -> String {
        format!("{}-{}", self.index, self.name)
    }
}

/// A file in the plugin folder that cannot be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unusable {
    /// The file.
    pub path: PathBuf,
    /// The reason, in one line.
    pub why: String,
    /// The kind of file.
    pub kind: UnusableKind,
}

/// Kinds of files that cannot be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnusableKind {
    /// The plugin folder itself, which cannot be read: any plugin may be in it.
    Folder,
    /// A plugin that cannot be examined or whose configuration is unreadable, permanently or for now.
    Plugin,
    /// A file with a plugin's name that is not executable.
    NotExecutable,
    /// An executable whose name is not a plugin's.
    Misnamed,
    /// A dangling link with a plugin's name.
    Dangling,
    /// A file that is neither executable nor named like a plugin, such as documentation.
    NoPlugin,
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} was skipped: {}", self.path.display(), self.why)
    }
}

/// Finds the plugins in `dir` with their configuration from `config_dir`, in name order; the second
/// value lists the skipped files.
pub(crate) fn discover(dir: &Path, config_dir: &Path) -> (Vec<PluginFile>, Vec<Unusable>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    let mut entries = presence::entries(dir).unwrap_or_else(|error| {
        let (path, why) = (dir.to_owned(), in_our_words(&error));
        problems.push(Unusable { path, why, kind: UnusableKind::Folder });
        Vec::new()
    });
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let mut kind = UnusableKind::NoPlugin;
        match inspect(&path, config_dir, &mut kind) {
            Ok(Some(file)) => found.push(file),
            Ok(None) => {}
            Err(error) => {
                let why = error.to_string();
                problems.push(Unusable { path, why, kind });
            }
        }
    }
    (found, problems)
}

/// Returns the identities (`NN-name`) of all files in `dir` with a plugin's name, even if they cannot be started.
///
/// # Errors
/// Fails when the list may be incomplete.
pub(crate) fn identities(dir: &Path) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in presence::entries(dir)? {
        let path = entry.path();
        if let Ok(identity) = identity_of(&path) {
            // A link may lead to a folder, or be dangling for now.
            let is_folder = std::fs::metadata(&path).or_absent().is_some_and(|meta| meta.is_dir());
            if !is_folder {
                found.insert(identity.to_string());
            }
        }
    }
    Ok(found)
}

/// Returns the plugin in this file; `None` for a folder. `kind` classifies a failure.
fn inspect(path: &Path, config_dir: &Path, kind: &mut UnusableKind) -> Result<Option<PluginFile>> {
    let identity = identity_of(path);
    let meta = std::fs::metadata(path).inspect_err(|error| {
        let is_gone = error.raw_os_error().is_some_and(presence::is_absence);
        if identity.is_ok() {
            *kind = if is_gone { UnusableKind::Dangling } else { UnusableKind::Plugin };
        }
    })?;
    if meta.is_dir() {
        return Ok(None);
    }
    if meta.permissions().mode() & 0o111 == 0 {
        if identity.is_err() {
            return Err(Error::new("it is neither executable nor named NN-name"));
        }
        *kind = UnusableKind::NotExecutable;
        return Err(Error::new("it is not executable"));
    }
    *kind = UnusableKind::Misnamed;
    let identity = identity?;
    *kind = UnusableKind::Plugin;
    Ok(Some(PluginFile {
        path: path.to_owned(),
        config: config_text(config_dir, &identity.index, &identity.name)?,
        index: identity.index,
        name: identity.name,
        stamp: (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()),
    }))
}

fn identity_of(path: &Path) -> Result<PluginIdentity> {
    let file_name = path.file_name().and_then(|name| name.to_str());
    let Some((index, name)) = file_name.and_then(|name| name.split_once('-')) else {
        return Err(Error::new("its name is not of the form NN-name"));
    };
    PluginIdentity::checked(index, name, "").map_err(Error::new)
}

fn config_text(dir: &Path, index: &str, name: &str) -> Result<String> {
    for file in [format!("{index}-{name}.conf"), format!("{name}.conf")] {
        let path = dir.join(file);
        match files::read_text(&path, limits::SETTINGS_FILE) {
            Ok(text) => return Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Error::new(in_our_words(&error)))
                    .doing(|| format!("reading {}", path.display()));
            }
        }
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &Path, name: &str, mode: u32) {
        let path = dir.join(name);
        files::replace(&path, b"#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_owns_its_identity_even_if_it_cannot_be_started() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        place(dir, "10-a", 0o755);
        place(dir, "20-b", 0o644);
        place(dir, "README", 0o755);
        std::os::unix::fs::symlink("nowhere", dir.join("30-c")).unwrap();
        std::fs::create_dir(dir.join("40-d")).unwrap();
        std::os::unix::fs::symlink("40-d", dir.join("50-e")).unwrap();
        let found = identities(dir).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["10-a", "20-b", "30-c"]);
        assert!(identities(&dir.join("none")).unwrap().is_empty());
        std::os::unix::fs::symlink("loop", dir.join("loop")).unwrap();
        assert!(identities(&dir.join("loop")).is_err(), "unknown is not absent");
    }

    #[test]
    fn plugins_are_found_with_their_configuration_in_both_forms() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["20-b-c.d", "10-a"] {
            place(temp.path(), name, 0o755);
        }
        let conf = tempfile::tempdir().unwrap();
        files::replace(&conf.path().join("10-a.conf"), b"exact").unwrap();
        files::replace(&conf.path().join("a.conf"), b"general").unwrap();
        files::replace(&conf.path().join("b-c.d.conf"), b"by name").unwrap();
        let (found, problems) = discover(temp.path(), conf.path());
        let told: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.config.as_str())).collect();
        assert_eq!(told, [("a", "exact"), ("b-c.d", "by name")]);
        assert_eq!(problems, []);
    }

    #[test]
    fn files_that_are_not_plugins_are_skipped_with_a_line_each() {
        let temp = tempfile::tempdir().unwrap();
        let files = [
            ("1-x", 0o755),
            ("100-x", 0o755),
            ("nodash", 0o755),
            ("10-off", 0o644),
            ("README", 0o644),
        ];
        for (name, mode) in files {
            place(temp.path(), name, mode);
        }
        place(temp.path(), "10-a b", 0o755);
        std::os::unix::fs::symlink("/nowhere", temp.path().join("10-lost")).unwrap();
        std::fs::create_dir(temp.path().join("10-dir")).unwrap();
        let (found, problems) = discover(temp.path(), temp.path());
        assert!(found.is_empty(), "{found:?}");
        let kind = |name: &str| problems.iter().find(|one| one.path.ends_with(name)).unwrap().kind;
        for name in ["1-x", "100-x", "nodash", "10-a b"] {
            assert_eq!(kind(name), UnusableKind::Misnamed, "{name}");
        }
        assert_eq!(kind("10-off"), UnusableKind::NotExecutable);
        assert_eq!(kind("README"), UnusableKind::NoPlugin);
        assert_eq!(kind("10-lost"), UnusableKind::Dangling);
        assert_eq!(problems.len(), 7, "{problems:?}");
    }

    #[test]
    fn a_plugin_with_unreadable_configuration_is_reported() {
        let temp = tempfile::tempdir().unwrap();
        place(temp.path(), "10-a", 0o755);
        files::replace(&temp.path().join("a.conf"), b"\xff\xfe").unwrap();
        std::fs::set_permissions(temp.path().join("a.conf"), PermissionsExt::from_mode(0o755))
            .unwrap();
        let (found, problems) = discover(temp.path(), temp.path());
        let told = problems.iter().find(|problem| problem.kind == UnusableKind::Plugin);
        let told = told.map(ToString::to_string);
        assert!(found.is_empty() && told.is_some_and(|line| line.contains("a.conf")));
    }

    #[test]
    fn an_irregular_configuration_file_blocks_nothing() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["10-fifo", "10-large", "10-link"] {
            place(temp.path(), name, 0o755);
        }
        let conf = tempfile::tempdir().unwrap();
        let fifo = conf.path().join("fifo.conf");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let large = vec![b' '; limits::SETTINGS_FILE + 1];
        files::replace(&conf.path().join("large.conf"), &large).unwrap();
        files::replace(&conf.path().join("shared"), b"text").unwrap();
        std::os::unix::fs::symlink("shared", conf.path().join("link.conf")).unwrap();
        let (found, problems) = discover(temp.path(), conf.path());
        let found: Vec<_> = found.iter().map(|file| file.config.as_str()).collect();
        let problems: Vec<_> = problems.iter().map(|problem| problem.why.as_str()).collect();
        assert_eq!((found, problems.len()), (vec!["text"], 2), "{problems:?}");
        assert!(problems[0].ends_with("it is not a regular file"), "{problems:?}");
        assert!(problems[1].ends_with("it has more than 4194304 bytes"), "{problems:?}");
    }

    #[test]
    fn an_unreadable_file_with_a_plugins_name_counts_as_a_plugin() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["10-a", "folder", "10-b c"] {
            std::os::unix::fs::symlink(name, temp.path().join(name)).unwrap();
        }
        let (found, problems) = discover(temp.path(), temp.path());
        let plugins = problems.iter().filter(|problem| problem.kind == UnusableKind::Plugin);
        let plugins: Vec<_> = plugins.map(|problem| problem.path.clone()).collect();
        assert_eq!((found.len(), problems.len()), (0, 3), "{problems:?}");
        assert_eq!(plugins, [temp.path().join("10-a")], "the others have no plugin's name");
        let (found, problems) = discover(&temp.path().join("folder"), temp.path());
        assert!(found.is_empty() && problems.len() == 1);
        assert_eq!(problems[0].kind, UnusableKind::Folder);
    }

    #[test]
    fn a_replaced_executable_is_another_plugin() {
        let temp = tempfile::tempdir().unwrap();
        place(temp.path(), "10-a", 0o755);
        let before = discover(temp.path(), temp.path());
        assert_eq!(discover(temp.path(), temp.path()), before);
        std::fs::rename(temp.path().join("10-a"), temp.path().join("old")).unwrap();
        place(temp.path(), "10-a", 0o755);
        assert_ne!(discover(temp.path(), temp.path()).0, before.0);
    }

    #[test]
    fn a_missing_folder_means_no_plugins() {
        assert_eq!(discover(Path::new("/nowhere"), Path::new("/nowhere")), (vec![], vec![]));
    }
}
