// SPDX-License-Identifier: Apache-2.0
//! CRI-O: one drop-in file. CRI-O merges drop-ins by key in the order of their names, and passes
//! annotations to the runtime without any setting. Pure.
//! Reference: crio.conf(5), crio.conf.d(5).

use toml_edit::{Document, TableLike};

use super::edit::{self, at, text_at};
use super::plan::{EngineFile, Plan, Registration, Texts, overruled, taken};
use super::root::Root;
use crate::error::Result;

const MAIN: &str = "/etc/crio/crio.conf";
const FOLDER: &str = "/etc/crio/crio.conf.d";
const DROP_IN: &str = "/etc/crio/crio.conf.d/50-nri-runc.conf";
const RUNTIME: [&str; 2] = ["crio", "runtime"];

/// The main file, and the folder, whatever its files are called.
pub(super) fn sources() -> Vec<EngineFile> {
    vec![EngineFile::File(MAIN.to_owned()), EngineFile::Folder(FOLDER.to_owned(), String::new())]
}

/// Where a CRI-O with these files answers.
pub(super) fn socket_path(root: &Root) -> String {
    let mut files = vec![MAIN.to_owned()];
    files.extend(root.entries(FOLDER));
    let listen = root.last_setting(&files, &["crio", "api", "listen"]);
    listen.unwrap_or_else(|| "/var/run/crio/crio.sock".to_owned())
}

/// What would have to be written.
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
    if let Some(runtime) = runtime.filter(|runtime| *runtime != "runc") {
        let path = template.and_then(|template| text_at(template, &["runtime_path"]));
        plan.other_runtime(path.filter(|path| !path.is_empty()).unwrap_or(runtime));
    }
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
    if !text.is_empty() {
        plan.own_file(texts, DROP_IN, text)?;
    }
    note_own_nri(&mut plan, registration, &files);
    Ok(plan)
}

fn render_entry(registration: &Registration, template: Option<&dyn TableLike>) -> String {
    let keys = [&RUNTIME[..], &["runtimes", registration.name.as_str()]].concat();
    let mut text = format!(
        "{}\nruntime_path = {}\nruntime_type = \"oci\"\nruntime_root = \"/run/runc\"\n",
        edit::header(&keys),
        edit::string(&registration.binary)
    );
    // Where conmon is and what pods may ask for is the same, whatever the runtime.
    for key in ["monitor_path", "monitor_cgroup", "monitor_env", "allowed_annotations"] {
        let value = template.and_then(|template| template.get(key)?.as_value());
        if let Some(value) = value.map(|value| value.to_string()).filter(|v| !v.contains('\n')) {
            text.push_str(&format!("{key} = {}\n", value.trim()));
        }
    }
    text
}

/// All files but our own, in their order.
fn parse_others(texts: &Texts) -> Result<Vec<(String, Document<String>)>> {
    let main = texts.iter().filter(|(path, _)| *path == MAIN);
    let rest = texts.iter().filter(|(path, _)| *path != MAIN && *path != DROP_IN);
    main.chain(rest).map(|(path, text)| Ok((path.clone(), edit::parse(path, text)?))).collect()
}

/// On from 1.30 on, unless it is switched off.
fn note_own_nri(
    plan: &mut Plan,
    registration: &Registration,
    files: &[(String, Document<String>)],
) {
    let nri = |key: &str| {
        files.iter().rev().find_map(|(_, file)| at(file.as_table(), &["crio", "nri", key]).cloned())
    };
    let is_on = nri("enable_nri").and_then(|item| item.as_bool()).unwrap_or(true);
    let socket = nri("nri_listen");
    let socket = socket.as_ref().and_then(|item| item.as_str());
    if is_on && socket.unwrap_or("/var/run/nri/nri.sock") == registration.socket {
        plan.clash("CRI-O (1.30 and later)", registration, "enable_nri = false in [crio.nri]");
    }
}
