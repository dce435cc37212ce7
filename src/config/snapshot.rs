// SPDX-License-Identifier: Apache-2.0
//! The last valid configuration, as the daemon stores it in the run directory: the concatenated
//! text of its files. It is in force while the files on disk have an error that makes a reload
//! fail. Nothing here writes it.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};
use crate::files;
use crate::limits;
use crate::presence::IfThere;

use super::settings::Config;
use super::{Files, SNAPSHOT, reader};

/// Precedes each file; the file's path follows. To TOML it is a comment.
const SEPARATOR: &str = "#---- next file ----#";

/// The last valid configuration.
pub(super) struct Snapshot {
    pub(super) config: Box<Config>,
    pub(super) files: Files,
}

/// Returns the text to store for these files.
pub(crate) fn text(files: &Files) -> String {
    pieces(files).collect()
}

fn pieces(files: &Files) -> impl Iterator<Item = Cow<'_, str>> {
    files.iter().flat_map(|(path, text)| {
        // A line break in the path would end the comment.
        let path = path.display().to_string().replace('\n', " ");
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        [Cow::from(format!("{SEPARATOR} {path}\n")), Cow::from(text.as_str()), Cow::from(end)]
    })
}

/// Whether these files are the last valid configuration stored in `run_dir`.
pub(super) fn is_of(run_dir: &Path, files: &Files) -> bool {
    let Ok(bytes) = files::read_own(&run_dir.join(SNAPSHOT), limits::OWN_FILE) else {
        return false;
    };
    let mut pieces = pieces(files);
    let rest = pieces.try_fold(&bytes[..], |rest, piece| rest.strip_prefix(piece.as_bytes()));
    rest.is_some_and(<[u8]>::is_empty)
}

/// Reads the snapshot in `run_dir` over the values of `config`; `None` if it is missing or not
/// UTF-8.
///
/// # Errors
/// Fails when the snapshot cannot be read.
pub(super) fn read(run_dir: &Path, mut config: Box<Config>) -> Result<Option<Snapshot>> {
    let path = run_dir.join(SNAPSHOT);
    let bytes = files::read_own(&path, limits::OWN_FILE).if_there();
    let bytes = bytes.doing(|| format!("reading {}", path.display()))?;
    let Some(Ok(text)) = bytes.map(String::from_utf8) else { return Ok(None) };
    let files = parts(&text);
    let mut ignored = Vec::new();
    for (path, text) in &files {
        reader::apply(&mut config, &path.display().to_string(), text, &mut ignored);
    }
    // A new `run_dir` in the files applies at the daemon's next start; until then the daemon uses
    // the directory that has this snapshot.
    run_dir.clone_into(&mut config.run_dir);
    Ok(Some(Snapshot { config, files }))
}

fn parts(text: &str) -> Files {
    let mut files: Files = Vec::new();
    for line in text.split_inclusive('\n') {
        if let Some(path) = line.strip_prefix(SEPARATOR) {
            let path = Some(path.trim()).filter(|path| !path.is_empty()).unwrap_or(SNAPSHOT);
            files.push((PathBuf::from(path), String::new()));
            continue;
        }
        if files.is_empty() {
            files.push((PathBuf::from(SNAPSHOT), String::new()));
        }
        let Some((_, text)) = files.last_mut() else { continue };
        // Earlier versions stored `[instance.NAME]` as `[runtime.NAME]`.
        match line.trim_start().strip_prefix("[runtime.") {
            Some(rest) => text.push_str(&format!("[instance.{rest}")),
            None => text.push_str(line),
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(text: &str) -> (tempfile::TempDir, Option<Snapshot>) {
        let temp = tempfile::tempdir().unwrap();
        files::replace(&temp.path().join(SNAPSHOT), text.as_bytes()).unwrap();
        let snapshot = read(temp.path(), Box::default()).unwrap();
        (temp, snapshot)
    }

    #[test]
    fn a_snapshot_keeps_the_paths_and_texts_of_its_files() {
        let file = |name: &str, text: &str| (PathBuf::from(name), text.to_owned());
        let rule = "[[rule]]\nhide = true\n";
        let files = vec![file("/a/b.toml", "runtime = [\"x\"]\n[nri]\n"), file("/c", rule)];
        let (temp, snapshot) = keep(&text(&files));
        let config = snapshot.unwrap().config;
        assert_eq!((config.runtime[0].as_str(), config.rules[0].name.as_str()), ("x", "/c:1"));
        assert_eq!(config.run_dir, temp.path());
    }

    #[test]
    fn a_snapshot_of_an_earlier_version_is_read() {
        let old = "runtime = [\"x\"]\nrun_dir = \"/elsewhere\"\n[runtime.nri-crun]\npath = \"/c\"\n\
                   \n#---- next file ----#\nautostart = false\n\n";
        let (temp, snapshot) = keep(old);
        let config = snapshot.unwrap().config;
        assert_eq!((config.runtime[0].as_str(), config.autostart), ("x", false));
        assert_eq!(config.instances["nri-crun"], "/c");
        assert_eq!(config.run_dir, temp.path());
    }

    #[test]
    fn an_absent_snapshot_is_none_and_an_unreadable_one_an_error() {
        assert!(read(Path::new("/nowhere"), Box::default()).unwrap().is_none());
        let temp = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(SNAPSHOT, temp.path().join(SNAPSHOT)).unwrap();
        assert!(read(temp.path(), Box::default()).is_err(), "what cannot be read may be there");
    }
}
