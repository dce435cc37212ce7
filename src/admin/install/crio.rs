// SPDX-License-Identifier: Apache-2.0
//! CRI-O: one drop-in file. CRI-O merges drop-ins key by key in the order of their names, and
//! passes annotations to the runtime without a setting. Only `socket_path` does I/O.
//! Reference: crio.conf(5), crio.conf.d(5).

use toml_edit::{Document, TableLike};

use super::edit::{self, at, text_at};
use super::nri_decision::{NriDecision, NriSetting};
use super::plan::{EngineFile, Plan, Registration, Texts, overruled, taken};
use super::root::Root;
use crate::error::Result;

const MAIN: &str = "/etc/crio/crio.conf";
const FOLDER: &str = "/etc/crio/crio.conf.d";
const DROP_IN: &str = "/etc/crio/crio.conf.d/50-nri-runc.conf";
/// The drop-in that switches CRI-O's own NRI off if nri-runc is registered with another engine.
const NRI_DROP_IN: &str = "/etc/crio/crio.conf.d/50-nri-runc-nri.conf";
const RUNTIME: [&str; 2] = ["crio", "runtime"];
const NRI: [&str; 2] = ["crio", "nri"];
const IS_ON: &str = "enable_nri";

type Files = Vec<(String, Document<String>)>;

/// Returns the main file and the drop-in directory, where CRI-O reads files of any suffix.
pub(super) fn sources() -> Vec<EngineFile> {
    vec![EngineFile::File(MAIN.to_owned()), EngineFile::Folder(FOLDER.to_owned(), String::new())]
}

/// Returns the path of CRI-O's socket, according to its files.
pub(super) fn socket_path(root: &Root) -> String {
    let mut files = vec![MAIN.to_owned()];
    files.extend(root.entries(FOLDER));
    let listen = root.last_setting(&files, &["crio", "api", "listen"]);
    listen.unwrap_or_else(|| "/var/run/crio/crio.sock".to_owned())
}

/// Plans the changed files for a registration.
pub(super) fn plan(registration: &Registration, texts: &Texts) -> Result<Plan> {
    let mut plan = Plan::default();
    let files = parse_others(texts)?;
    let name = registration.name.as_str();
    let tables = [&RUNTIME[..], &["runtimes"]].concat();
    let mut is_written = false;
    for (path, document) in &files {
        let Some(table) = at(document.as_table(), &[&tables[..], &[name]].concat()) else {
            continue;
        };
        let table = table.as_table_like();
        if table.and_then(|table| text_at(table, &["runtime_path"])) != Some(&registration.binary) {
            return Err(taken(path, &format!("a runtime {name}"), "runtime_path"));
        }
        is_written = true;
    }
    let key = [&RUNTIME[..], &["default_runtime"]].concat();
    let default_in = |(_, document): &(_, Document<String>)| {
        text_at(document.as_table(), &key).map(str::to_owned)
    };
    let default = files.iter().rev().find_map(default_in);
    let runtime = default.as_deref().filter(|default| *default != name && !default.is_empty());
    let template = files.iter().rev().find_map(|(_, document)| {
        let keys = [&tables[..], &[runtime.unwrap_or("runc")]].concat();
        at(document.as_table(), &keys)?.as_table_like()
    });
    let path = template.and_then(|template| text_at(template, &["runtime_path"]));
    plan.runtime = path.filter(|path| !path.is_empty()).or(runtime).map(str::to_owned);
    let wants_default = registration.default && default.as_deref() != Some(name);
    if wants_default {
        let overrules = |(path, document): &&(String, Document<String>)| {
            path.as_str() > DROP_IN && text_at(document.as_table(), &key).is_some()
        };
        if let Some((path, _)) = files.iter().find(overrules) {
            return Err(overruled(path, "default_runtime"));
        }
    }
    let mut text = String::new();
    if wants_default {
        let line = format!("default_runtime = {}\n", edit::string(name));
        text.push_str(&format!("{}\n{line}\n", edit::header(&RUNTIME)));
    }
    if !is_written {
        text.push_str(&render_entry(registration, template));
    }
    if registration.nri == NriDecision::TakeOver {
        let off = nri_off(DROP_IN, &files, texts, &mut plan)?;
        text.push_str(if text.is_empty() { off.trim_start() } else { &off });
    }
    if !text.is_empty() {
        plan.own_file(texts, DROP_IN, text)?;
    }
    Ok(plan)
}

/// Reads the setting of CRI-O's own NRI.
pub(super) fn nri_setting(texts: &Texts) -> Result<NriSetting> {
    let files = parse_all(texts)?;
    let nri = |key: &str| {
        let keys = [&NRI[..], &[key]].concat();
        files.iter().rev().find_map(|(_, file)| at(file.as_table(), &keys).cloned())
    };
    let socket = nri("nri_listen").and_then(|item| item.as_str().map(str::to_owned));
    Ok(NriSetting {
        is_on: nri(IS_ON).and_then(|item| item.as_bool()),
        socket: socket.unwrap_or_else(|| "/var/run/nri/nri.sock".to_owned()),
        is_on_by_form: false,
    })
}

/// Plans to switch CRI-O's NRI off on a host on which nri-runc is registered only with another
/// engine.
pub(super) fn plan_nri_off(texts: &Texts, plan: &mut Plan) -> Result<()> {
    let files: Files = parse_all(texts)?.into_iter().filter(|(p, _)| p != NRI_DROP_IN).collect();
    let text = nri_off(NRI_DROP_IN, &files, texts, plan)?;
    let text = text.trim_start().to_owned();
    if text.is_empty() { Ok(()) } else { plan.own_file(texts, NRI_DROP_IN, text) }
}

/// Returns the table with which the nri-runc file `ours` switches NRI off. Empty if NRI is off
/// already, or if a later file switches NRI on: that file is edited instead.
fn nri_off(ours: &str, files: &Files, texts: &Texts, plan: &mut Plan) -> Result<String> {
    let keys = [&NRI[..], &[IS_ON]].concat();
    let last = files
        .iter()
        .rev()
        .find_map(|(path, file)| Some((path.as_str(), at(file.as_table(), &keys)?.as_bool()?)));
    match last {
        Some((_, false)) => Ok(String::new()),
        Some((later, true)) if later > ours => {
            let text = edit::set(later, &plan.text(texts, later), &NRI, IS_ON, "false")?;
            plan.files.insert(later.to_owned(), text);
            Ok(String::new())
        }
        Some((_, true)) | None => Ok(format!("\n{}\n{IS_ON} = false\n", edit::header(&NRI))),
    }
}

fn render_entry(registration: &Registration, template: Option<&dyn TableLike>) -> String {
    let keys = [&RUNTIME[..], &["runtimes", registration.name.as_str()]].concat();
    let mut text = format!(
        "{}\nruntime_path = {}\nruntime_type = \"oci\"\nruntime_root = \"/run/runc\"\n",
        edit::header(&keys),
        edit::string(&registration.binary)
    );
    // conmon's path and the annotations that pods may use do not depend on the runtime, so they are
    // copied.
    for key in ["monitor_path", "monitor_cgroup", "monitor_env", "allowed_annotations"] {
        let value = template.and_then(|template| template.get(key)?.as_value());
        if let Some(value) = value.map(|value| value.to_string()).filter(|v| !v.contains('\n')) {
            text.push_str(&format!("{key} = {}\n", value.trim()));
        }
    }
    text
}

fn parse_others(texts: &Texts) -> Result<Files> {
    Ok(parse_all(texts)?.into_iter().filter(|(path, _)| path != DROP_IN).collect())
}

/// Parses all files in the order in which CRI-O reads them.
fn parse_all(texts: &Texts) -> Result<Files> {
    let main = texts.iter().filter(|(path, _)| *path == MAIN);
    let is_in = |path: &str| path.rsplit_once('/').is_some_and(|(folder, _)| folder == FOLDER);
    let rest = texts.iter().filter(|(path, _)| is_in(path));
    main.chain(rest).map(|(path, text)| Ok((path.clone(), edit::parse(path, text)?))).collect()
}
