// SPDX-License-Identifier: Apache-2.0
//! Podman: one file in containers.conf.d. Tables merge by key but lists are replaced, so the list
//! of runtimes that log in JSON is written in full. This module does no I/O.
//! Reference: containers.conf(5).

use toml_edit::Document;

use super::edit::{self, at, list_at, text_at};
use super::plan::{EngineFile, Plan, Registration, Texts, overruled, taken};
use crate::error::Result;

const SHIPPED: &str = "/usr/share/containers/containers.conf";
const MAIN: &str = "/etc/containers/containers.conf";
const DROP_IN: &str = "50-nri-runc.conf";
/// The files that set root's storage; a later file overrides an earlier one.
pub(super) const STORAGE: [&str; 2] =
    ["/usr/share/containers/storage.conf", "/etc/containers/storage.conf"];
/// Directories in which Podman searches for a runtime that no file names; the list has no directory
/// that is a link to another.
const BUILT_IN_FOLDERS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
const JSON: [&str; 2] = ["engine", "runtime_supports_json"];

/// Lists the files that Podman reads, in its order; `main` is a user's main file.
pub(super) fn sources(main: Option<&str>) -> Vec<EngineFile> {
    let read_after = |main: &str| {
        let folder = EngineFile::Folder(folder(main), ".conf".to_owned());
        [EngineFile::File(main.to_owned()), folder]
    };
    let shipped = EngineFile::File(SHIPPED.to_owned());
    [shipped].into_iter().chain([MAIN].into_iter().chain(main).flat_map(read_after)).collect()
}

/// Returns the folder whose files Podman reads after this main file.
fn folder(main: &str) -> String {
    format!("{main}.d")
}

/// Whether both crun and runc are installed: without a runtime in its files, Podman then uses crun, and
/// nri-runc chooses runc.
pub(super) fn prefers_crun(has_program: impl Fn(&str) -> bool) -> bool {
    let has =
        |name: &str| BUILT_IN_FOLDERS.iter().any(|folder| has_program(&format!("{folder}/{name}")));
    has("crun") && has("runc")
}

/// Plans the drop-in of a registration.
pub(super) fn plan(registration: &Registration, texts: &Texts) -> Result<Plan> {
    let mut plan = Plan { may_prefer_crun: true, ..Plan::default() };
    let name = registration.name.as_str();
    let main = registration.main.as_deref();
    let folder = folder(main.unwrap_or(MAIN));
    let drop_in = format!("{folder}/{DROP_IN}");
    let files = parse_others(texts, main, &drop_in)?;
    let mut is_written = false;
    for (path, document) in &files {
        let keys = ["engine", "runtimes", name];
        if at(document.as_table(), &keys).is_none() {
            continue;
        }
        if list_at(document.as_table(), &keys) != Some(vec![registration.binary.clone()]) {
            return Err(taken(path, &format!("a runtime {name}"), "path"));
        }
        is_written = true;
    }
    let key = ["engine", "runtime"];
    let default_in =
        |(_, file): &(_, Document<String>)| text_at(file.as_table(), &key).map(str::to_owned);
    let default = files.iter().rev().find_map(default_in);
    plan.runtime = default.clone().filter(|word| ![name, ""].contains(&word.as_str()));
    let wants_default = registration.default && default.as_deref() != Some(name);
    let overrules = |(path, file): &&(String, Document<String>)| {
        *path > drop_in && path.starts_with(&folder) && text_at(file.as_table(), &key).is_some()
    };
    if let Some((path, _)) = files.iter().filter(|_| wants_default).find(overrules) {
        return Err(overruled(path, "runtime"));
    }
    if is_written && !wants_default {
        return Ok(plan);
    }
    let mut text = String::from("[engine]\n");
    if wants_default {
        text.push_str(&format!("runtime = {}\n", edit::string(name)));
    }
    text.push_str(&format!(
        "runtime_supports_json = [{}]\n",
        runtimes_with_json(&files, name).join(", ")
    ));
    if !is_written {
        let binary = edit::string(&registration.binary);
        let key = edit::header(&[name]);
        let key = key.trim_matches(['[', ']']);
        text.push_str(&format!("\n[engine.runtimes]\n{key} = [{binary}]\n"));
    }
    plan.own_file(texts, &drop_in, text)?;
    plan.notes.push("podman build uses BUILDAH_RUNTIME, not this file".to_owned());
    Ok(plan)
}

/// Returns the runtimes of which Podman requests logs in JSON, so that it can show their errors; `name` is
/// among them.
fn runtimes_with_json(files: &[(String, Document<String>)], name: &str) -> Vec<String> {
    let known = || ["crun", "runc", "kata", "runsc", "youki", "krun"].map(str::to_owned).to_vec();
    let found = files.iter().rev().find_map(|(_, file)| list_at(file.as_table(), &JSON));
    let mut list = found.unwrap_or_else(known);
    if !list.iter().any(|word| word == name) {
        list.push(name.to_owned());
    }
    list.iter().map(|word| edit::string(word)).collect()
}

/// Parses all files except nri-runc's drop-in, in the order in which Podman reads them.
fn parse_others(
    texts: &Texts,
    main: Option<&str>,
    drop_in: &str,
) -> Result<Vec<(String, Document<String>)>> {
    let read = |source| {
        let is_of = move |path: &str| match &source {
            EngineFile::File(file) => path == file,
            EngineFile::Folder(folder, _) => path.starts_with(folder.as_str()) && path != drop_in,
        };
        texts.iter().filter(move |(path, _)| is_of(path))
    };
    let files = sources(main).into_iter().flat_map(read);
    files.map(|(path, text)| Ok((path.clone(), edit::parse(path, text)?))).collect()
}
