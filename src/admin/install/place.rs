// SPDX-License-Identifier: Apache-2.0
//! The engines' files: read whole, replaced in one step with owner, mode and label kept, never
//! through a link. It decides nothing.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use super::plan::{Engine, Source, Texts};
use crate::error::{Context, Error, Result};
use crate::files;
use crate::host::Host;

/// Reads all that an engine reads.
pub(super) fn read_all(host: &Host, engine: Engine, main: Option<&str>) -> Result<Texts> {
    let mut texts = Texts::new();
    // Twice: what is read first may name more.
    for _round in 0..2 {
        for source in engine.sources(main, &texts) {
            for path in paths(host, &source) {
                if let Some(text) = read(host, &path)? {
                    texts.insert(path, text);
                }
            }
        }
    }
    Ok(texts)
}

fn paths(host: &Host, source: &Source) -> Vec<String> {
    match source {
        Source::File(path) => vec![path.clone()],
        Source::Folder(folder, suffix) => {
            let entries = std::fs::read_dir(host.path(folder)).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            let named = names.filter(|name| name.ends_with(suffix) && !name.starts_with('.'));
            let mut paths: Vec<String> = named.map(|name| format!("{folder}/{name}")).collect();
            paths.retain(|path| host.path(path).is_file());
            paths.sort();
            paths
        }
    }
}

/// A file's text, if it is there.
pub(super) fn read(host: &Host, path: &str) -> Result<Option<String>> {
    let real = host.path(path);
    match std::fs::symlink_metadata(&real) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(_) | Ok(_) => {}
    }
    // Through a link it is read, but see `put`.
    let bytes = std::fs::read(&real).doing(|| format!("reading {path}"))?;
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|_bytes| Error::new(format!("{path} is no UTF-8 text")))
}

/// Folders of `path` that are missing, the outermost first.
pub(super) fn missing_folders(host: &Host, path: &str) -> Vec<String> {
    let parents = Path::new(path).ancestors().skip(1);
    let missing = parents.take_while(|folder| !host.path(folder).exists());
    let mut missing: Vec<String> = missing.map(|folder| folder.display().to_string()).collect();
    missing.reverse();
    missing
}

/// Makes a file say `text`, or go.
pub(super) fn put(host: &Host, path: &str, text: Option<&str>) -> Result<()> {
    let real = host.path(path);
    let doing = || format!("writing {path}");
    let Some(text) = text else {
        return match std::fs::remove_file(&real) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).doing(|| format!("removing {path}"))
            }
            Ok(()) | Err(_) => Ok(()),
        };
    };
    let (Some(folder), Some(name)) = (real.parent(), real.file_name().and_then(|n| n.to_str()))
    else {
        return Err(Error::new(format!("{path} has no usable file name")));
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).doing(doing)?;
    let dir = files::open_dir(folder)?;
    if std::fs::symlink_metadata(&real).is_err() {
        files::replace(&real, text.as_bytes()).doing(doing)?;
        let mode = std::fs::Permissions::from_mode(0o644);
        return std::fs::set_permissions(&real, mode).doing(doing);
    }
    let like = files::read_at(&dir, name).map_err(|error| {
        error.hint("what a link points to is somebody else's: register there by hand")
    })?;
    let temporary = format!(".{name}.nri-runc");
    files::remove_at(&dir, &temporary);
    files::create_at(&dir, &temporary, text.as_bytes(), &like).doing(doing)?;
    // Not an exchange: an engine must not find the other file under a name that it reads.
    let renamed = std::fs::rename(folder.join(&temporary), &real);
    if renamed.is_err() {
        files::remove_at(&dir, &temporary);
    }
    renamed.doing(doing)
}

/// Removes folders that we made and that nobody uses.
pub(super) fn remove_folders(host: &Host, folders: &[String]) {
    for folder in folders.iter().rev() {
        let _in_use = std::fs::remove_dir(host.path(folder));
    }
}
