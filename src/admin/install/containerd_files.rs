// SPDX-License-Identifier: Apache-2.0
//! The files that containerd reads: its main file and that file's imports, in their order; its
//! socket and its directories. This module does no I/O.
//! Reference: containerd's docs/man/containerd-config.toml.5.md.

use toml_edit::{Document, Item};

use super::distribution::{self, Distribution, USUAL_MAIN};
use super::edit::{self, at, text_at};
use super::plan::{EngineFile, Texts, overruled};
use crate::error::{Error, Result};

/// containerd's main file, unless a flag names another.
pub(super) const MAIN: &str = USUAL_MAIN;
/// The CRI plugin's section in version 2.
pub(super) const OLD_CRI: &str = "io.containerd.grpc.v1.cri";
/// The CRI plugin's section since version 3.
pub(super) const NEW_CRI: &str = "io.containerd.cri.v1.runtime";
/// Directory of imports that k0s generates from other files; those other files are read instead.
const GATHERED: &str = "/run/k0s/";

/// Parsed files, in the order in which containerd reads them.
pub(super) type Files = Vec<(String, Document<String>)>;

/// Returns the main file, its imports, and a directory that its distribution reads in addition.
pub(super) fn sources(main: &str, texts: &Texts) -> Vec<EngineFile> {
    let main = distribution::source(main);
    let mut sources = vec![EngineFile::File(main.to_owned())];
    let text = texts.get(main).map_or("", String::as_str);
    let document = Document::parse(text).ok();
    let imports = document.and_then(|document| edit::list_at(document.as_table(), &["imports"]));
    for import in imports.unwrap_or_default() {
        let folder = main.rsplit_once('/').map_or("", |(folder, _)| folder);
        let path = if import.starts_with('/') { import } else { format!("{folder}/{import}") };
        sources.push(match path.rsplit_once("/*") {
            Some((folder, suffix)) => EngineFile::Folder(folder.to_owned(), suffix.to_owned()),
            None if path.starts_with(GATHERED) => continue,
            None => EngineFile::File(path),
        });
    }
    let folder = distribution::folder(main, text).filter(|folder| !sources.contains(folder));
    sources.extend(folder);
    sources
}

/// Returns the state directory of the containerd with this main file.
pub(super) fn state_directory(main: &str, text: &str) -> String {
    first_setting(text, &[&["state"]]).unwrap_or_else(|| {
        Distribution::of_main(main).map_or("/run/containerd", Distribution::state_directory).into()
    })
}

/// Returns the path of containerd's socket. Since configuration version 4, the table of
/// containerd's gRPC plugin sets it.
pub(super) fn socket_path(main: &str, text: &str) -> String {
    let keys: [&[&str]; 2] =
        [&["plugins", "io.containerd.server.v1.grpc", "address"], &["grpc", "address"]];
    let usual = "/run/containerd/containerd.sock";
    first_setting(text, &keys).unwrap_or_else(|| {
        Distribution::of_main(main).map_or(usual, Distribution::socket_path).into()
    })
}

fn first_setting(text: &str, keys: &[&[&str]]) -> Option<String> {
    let document = Document::parse(text).ok()?;
    let mut told = keys.iter().filter_map(|keys| text_at(document.as_table(), keys));
    told.find(|told| !told.is_empty()).map(ToOwned::to_owned)
}

/// Parses the files of [`sources`] that exist, in the order in which containerd reads them.
pub(super) fn parse_in_order(main: &str, texts: &Texts) -> Result<Files> {
    let mut files = Files::new();
    for source in sources(main, texts) {
        let paths: Vec<&String> = match &source {
            EngineFile::File(path) => texts.keys().filter(|there| *there == path).collect(),
            EngineFile::Folder(folder, suffix) => texts
                .keys()
                .filter(|there| {
                    let is_in = there.rsplit_once('/').is_some_and(|(parent, _)| parent == folder);
                    is_in && there.ends_with(suffix.as_str())
                })
                .collect(),
        };
        for path in paths {
            let text = texts.get(path).map_or("", String::as_str);
            files.push((path.clone(), edit::parse(path, text)?));
        }
    }
    Ok(files)
}

/// Returns the value at `keys` in the last file that sets it, after that file's path.
pub(super) fn last_setting<'f>(files: &'f Files, keys: &[&str]) -> Option<(&'f str, &'f Item)> {
    let found = |(path, document): &'f (String, Document<String>)| {
        Some((path.as_str(), at(document.as_table(), keys)?))
    };
    files.iter().rev().find_map(found)
}

/// Returns the configuration version of the main file; fails if it is not supported.
pub(super) fn configuration_version(main: &str, files: &Files) -> Result<i64> {
    let first = files.first().and_then(|(_, document)| at(document.as_table(), &["version"]));
    let version = first.and_then(Item::as_integer).unwrap_or(1);
    if (2..=4).contains(&version) {
        return Ok(version);
    }
    let hint = if version == 1 {
        "`containerd config migrate` prints the file in a newer version; a file without `version` has version 1"
    } else {
        "this nri-runc supports versions 2, 3 and 4"
    };
    Err(Error::new(format!(
        "{main} has configuration version {version}, which nri-runc does not support"
    ))
    .hint(hint))
}

/// Refuses a configuration that disables the CRI plugin.
pub(super) fn require_cri(files: &Files) -> Result<()> {
    let Some((path, list)) = last_setting(files, &["disabled_plugins"]) else { return Ok(()) };
    let is_cri = |name: &str| ["cri", OLD_CRI, NEW_CRI].contains(&name);
    let mut names = list.as_array().into_iter().flatten().filter_map(|value| value.as_str());
    match names.find(|name| is_cri(name)) {
        None => Ok(()),
        Some(name) => Err(Error::new(format!(
            "{path} disables {name}: no pod would run with nri-runc"
        ))
        .hint("remove it from disabled_plugins; ctr, nerdctl and Docker need no registration with containerd")),
    }
}

/// Returns the path of a file `name` in the first imported directory that accepts its suffix.
pub(super) fn drop_in_path(main: &str, name: &str, texts: &Texts) -> Option<String> {
    sources(main, texts).into_iter().find_map(|source| match source {
        EngineFile::Folder(folder, suffix) if name.ends_with(&suffix) => {
            Some(format!("{folder}/{name}"))
        }
        EngineFile::Folder(..) | EngineFile::File(_) => None,
    })
}

/// Whether containerd reads `path` after nri-runc's file in the same folder.
pub(super) fn is_later(path: &str, ours: &str) -> bool {
    let folder = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    folder(path) == folder(ours) && path > ours
}

/// Refuses to set a default runtime in `ours` if a later file in the same folder overrides it.
pub(super) fn refuse_if_overruled(files: &Files, ours: &str, cri: &[&str]) -> Result<()> {
    let key = [cri, &["default_runtime_name"]].concat();
    for (path, document) in files {
        if is_later(path, ours) && text_at(document.as_table(), &key).is_some() {
            return Err(overruled(path, "default_runtime_name"));
        }
    }
    Ok(())
}
