// SPDX-License-Identifier: Apache-2.0
//! containerd's CRI, configuration versions 2, 3 and 4. Pure.
//!
//! Before containerd 2.1, an imported file replaces the whole section of a plugin that an earlier
//! file set. A separate file is therefore written only if that cannot happen: version 4, or no file
//! has the section. Otherwise the last file that has it is extended. The settings of the default
//! runtime's entry are copied: without SystemdCgroup, pods would fail.
//! Reference: containerd's docs/cri/config.md, docs/man/containerd-config.toml.5.md.

use toml_edit::{Document, Item, TableLike};

use super::edit::{self, at, text_at};
use super::nri_decision::{NriDecision, NriSetting};
use super::plan::{EngineFile, Plan, Registration, Texts, overruled, taken};
use crate::error::{Error, Result};

/// The file that containerd reads.
pub(super) const MAIN: &str = "/etc/containerd/config.toml";
const DROP_IN: &str = "50-nri-runc.toml";
/// What switches its own NRI off where nri-runc is registered with another engine.
const NRI_DROP_IN: &str = "50-nri-runc-nri.toml";
const SHIM: &str = "io.containerd.runc.v2";
const ALL: [&str; 2] = ["*", "*/*"];
const OLD_CRI: &str = "io.containerd.grpc.v1.cri";
const NEW_CRI: &str = "io.containerd.cri.v1.runtime";
const NRI: &str = "io.containerd.nri.v1.nri";
const IS_OFF: [&str; 3] = ["plugins", NRI, "disable"];
const CGROUP: &str = "SystemdCgroup";

type Files = Vec<(String, Document<String>)>;

/// The main file and what it imports.
pub(super) fn sources(main: &str, texts: &Texts) -> Vec<EngineFile> {
    let mut sources = vec![EngineFile::File(main.to_owned())];
    let document = texts.get(main).and_then(|text| Document::parse(text.as_str()).ok());
    let imports = document.and_then(|document| edit::list_at(document.as_table(), &["imports"]));
    for import in imports.unwrap_or_default() {
        let folder = main.rsplit_once('/').map_or("", |(folder, _)| folder);
        let path = if import.starts_with('/') { import } else { format!("{folder}/{import}") };
        sources.push(match path.rsplit_once("/*") {
            Some((folder, suffix)) => EngineFile::Folder(folder.to_owned(), suffix.to_owned()),
            None => EngineFile::File(path),
        });
    }
    sources
}

/// Where a containerd with this main file keeps what lives.
pub(super) fn state_directory(text: &str) -> String {
    first_setting(text, &[&["state"]]).unwrap_or_else(|| "/run/containerd".to_owned())
}

/// Where it answers; from version 4 on that is a plugin's.
pub(super) fn socket_path(text: &str) -> String {
    let keys: [&[&str]; 2] =
        [&["plugins", "io.containerd.server.v1.grpc", "address"], &["grpc", "address"]];
    first_setting(text, &keys).unwrap_or_else(|| "/run/containerd/containerd.sock".to_owned())
}

fn first_setting(text: &str, keys: &[&[&str]]) -> Option<String> {
    let document = Document::parse(text).ok()?;
    let mut told = keys.iter().filter_map(|keys| text_at(document.as_table(), keys));
    told.find(|told| !told.is_empty()).map(ToOwned::to_owned)
}

/// What would have to be written.
pub(super) fn plan(registration: &Registration, texts: &Texts) -> Result<Plan> {
    let main = registration.main.as_deref().unwrap_or(MAIN);
    let text = texts.get(main).map_or("", String::as_str);
    if text.trim().is_empty() {
        return plan_without_file(registration, main, texts.contains_key(main));
    }
    let mut plan = Plan::default();
    let files = parse_in_order(main, texts)?;
    let version = configuration_version(main, &files)?;
    require_cri(&files)?;
    let cri = ["plugins", if version == 2 { OLD_CRI } else { NEW_CRI }, "containerd"];
    let default = last_setting(&files, &[&cri[..], &["default_runtime_name"]].concat());
    let default = default.and_then(|(_, item)| item.as_str()).unwrap_or("runc");
    let template =
        find_template(&files, &cri, if default == registration.name { "runc" } else { default });
    let behind = template.and_then(|template| text_at(template, &["options", "BinaryName"]));
    let is_runc = |path: &str| ["", "runc"].contains(&path) || path.ends_with("/runc");
    if let Some(binary) = behind.filter(|path| !is_runc(path)) {
        plan.other_runtime(binary);
    }
    let written = last_setting(&files, &[&cri[..], &["runtimes", &registration.name]].concat());
    if let Some((path, item)) = &written {
        require_same_entry(path, item, registration)?;
    }
    let mut block = render_entry(registration, &cri, template);
    if version == 2 && last_setting(&files, &[&cri[..], &["runtimes", "runc"]].concat()).is_none() {
        block.insert_str(0, &runc_entry(&cri));
    }
    let name = (registration.default && default != registration.name)
        .then(|| edit::string(&registration.name));
    let holder = last_setting(&files, &cri[..2]).map(|(path, _)| path.to_owned());
    let folder = drop_in_path(main, DROP_IN, texts).filter(|_| version >= 4 || holder.is_none());
    let takes_over = registration.nri == NriDecision::TakeOver;
    if let (Some(path), None) = (folder, &written) {
        let mut new = format!("version = {version}\n\n{block}");
        if registration.default {
            let name = edit::string(&registration.name);
            new = edit::set(&path, &new, &cri, "default_runtime_name", &name)?;
            refuse_if_overruled(&files, &path, &cri)?;
        }
        if takes_over {
            new.push_str(&nri_off(&path, &files, texts, &mut plan)?);
        }
        plan.own_file(texts, &path, new)?;
        return Ok(plan);
    }
    let path = holder.unwrap_or_else(|| main.to_owned());
    let mut new = texts.get(&path).cloned().unwrap_or_default();
    if let Some(name) = name {
        new = edit::set(&path, &new, &cri, "default_runtime_name", &name)?;
    }
    if written.is_none() {
        new = edit::append(&path, &new, &block)?;
    }
    plan.files.insert(path.clone(), new);
    if takes_over {
        edit_nri_off(&path, &files, texts, &mut plan)?;
    }
    Ok(plan)
}

/// What the files say of containerd's own NRI.
pub(super) fn nri_setting(main: &str, texts: &Texts) -> Result<NriSetting> {
    let files = parse_in_order(main, texts)?;
    let socket = last_setting(&files, &["plugins", NRI, "socket_path"]);
    let socket = socket.and_then(|(_, item)| item.as_str()).filter(|path| !path.is_empty());
    let version = files.first().and_then(|(_, file)| at(file.as_table(), &["version"]));
    Ok(NriSetting {
        is_on: is_nri_off(&files).map(|is_off| !is_off),
        socket: socket.unwrap_or("/var/run/nri/nri.sock").to_owned(),
        is_on_by_form: version.and_then(Item::as_integer).is_some_and(|version| version >= 3),
    })
}

fn is_nri_off(files: &Files) -> Option<bool> {
    let disabled = last_setting(files, &["disabled_plugins"]).and_then(|(_, list)| list.as_array());
    if disabled.is_some_and(|list| list.iter().any(|name| name.as_str() == Some(NRI))) {
        return Some(true);
    }
    last_setting(files, &IS_OFF).and_then(|(_, item)| item.as_bool())
}

/// Switches it off, where nothing else is registered with containerd.
pub(super) fn plan_nri_off(main: &str, texts: &Texts, plan: &mut Plan) -> Result<()> {
    let files = parse_in_order(main, texts)?;
    if files.is_empty() || plan.text(texts, main).trim().is_empty() {
        plan.files.insert(main.to_owned(), format!("version = 2\n{}", nri_table()));
        return Ok(());
    }
    let Some(path) = drop_in_path(main, NRI_DROP_IN, texts) else {
        return edit_nri_off(main, &files, texts, plan);
    };
    let version = configuration_version(main, &files)?;
    match nri_off(&path, &files, texts, plan)? {
        none if none.is_empty() => Ok(()),
        table => plan.own_file(texts, &path, format!("version = {version}\n{table}")),
    }
}

fn nri_table() -> String {
    format!("\n{}\n  disable = true\n", edit::header(&["plugins", NRI]))
}

/// The text for our file `ours` that switches NRI off; a later file that has it on is edited.
fn nri_off(ours: &str, files: &Files, texts: &Texts, plan: &mut Plan) -> Result<String> {
    if is_nri_off(files) == Some(true) {
        return Ok(String::new());
    }
    match last_setting(files, &IS_OFF) {
        Some((later, _)) if is_later(later, ours) => {
            edit_nri_off(later, files, texts, plan)?;
            Ok(String::new())
        }
        Some(_) | None => Ok(nri_table()),
    }
}

/// Switches it off in the last file that has its section, else in `path`.
fn edit_nri_off(path: &str, files: &Files, texts: &Texts, plan: &mut Plan) -> Result<()> {
    if is_nri_off(files) == Some(true) {
        return Ok(());
    }
    let path = last_setting(files, &IS_OFF[..2]).map_or(path, |(holder, _)| holder);
    let new = edit::set(path, &plan.text(texts, path), &IS_OFF[..2], "disable", "true")?;
    plan.files.insert(path.to_owned(), new);
    Ok(())
}

/// Where there is no configuration. Version 2 is what every containerd from 1.5 on reads.
fn plan_without_file(registration: &Registration, main: &str, is_there: bool) -> Result<Plan> {
    let mut plan = Plan::default();
    let cri = ["plugins", OLD_CRI, "containerd"];
    let mut new =
        format!("version = 2\n\n{}{}", runc_entry(&cri), render_entry(registration, &cri, None));
    if registration.default {
        new =
            edit::set(main, &new, &cri, "default_runtime_name", &edit::string(&registration.name))?;
    }
    if registration.nri == NriDecision::TakeOver {
        new.push_str(&nri_table());
    }
    plan.files.insert(main.to_owned(), new);
    let state = if is_there { "is empty" } else { "does not exist" };
    plan.notes.push(format!("{main} {state}; using containerd defaults"));
    Ok(plan)
}

/// containerd 1.x forgets its own runc as soon as a file names another runtime.
fn runc_entry(cri: &[&str]) -> String {
    let keys = [cri, &["runtimes", "runc"]].concat();
    format!("{}\n  runtime_type = \"{SHIM}\"\n\n", edit::header(&keys))
}

fn parse_in_order(main: &str, texts: &Texts) -> Result<Files> {
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

/// The value at `keys` in the last file that has one, and that file.
fn last_setting<'f>(files: &'f Files, keys: &[&str]) -> Option<(&'f str, &'f Item)> {
    let found = |(path, document): &'f (String, Document<String>)| {
        Some((path.as_str(), at(document.as_table(), keys)?))
    };
    files.iter().rev().find_map(found)
}

fn configuration_version(main: &str, files: &Files) -> Result<i64> {
    let first = files.first().and_then(|(_, document)| at(document.as_table(), &["version"]));
    let version = first.and_then(Item::as_integer).unwrap_or(1);
    if (2..=4).contains(&version) {
        return Ok(version);
    }
    let hint = if version == 1 {
        "`containerd config migrate` prints it in a newer version; a file without `version` has version 1"
    } else {
        "this nri-runc supports versions 2, 3 and 4"
    };
    Err(Error::new(format!("{main} has configuration version {version}")).hint(hint))
}

fn require_cri(files: &Files) -> Result<()> {
    let Some((path, list)) = last_setting(files, &["disabled_plugins"]) else { return Ok(()) };
    let is_cri =
        |name: &str| ["cri", OLD_CRI, NEW_CRI, "io.containerd.grpc.v1.cri"].contains(&name);
    let mut names = list.as_array().into_iter().flatten().filter_map(|value| value.as_str());
    match names.find(|name| is_cri(name)) {
        None => Ok(()),
        Some(name) => Err(Error::new(format!(
            "{path} disables {name}: no pod would run with nri-runc"
        ))
        .hint("remove it from disabled_plugins; ctr, nerdctl and Docker need no registration with containerd")),
    }
}

/// The entry whose settings are copied: that of the default runtime, else of runc.
fn find_template<'f>(files: &'f Files, cri: &[&str], default: &str) -> Option<&'f dyn TableLike> {
    [default, "runc"].into_iter().find_map(|name| {
        let (_, item) = last_setting(files, &[cri, &["runtimes", name]].concat())?;
        let table = item.as_table_like()?;
        (text_at(table, &["runtime_type"]).unwrap_or(SHIM) == SHIM).then_some(table)
    })
}

fn require_same_entry(path: &str, item: &Item, registration: &Registration) -> Result<()> {
    let entry = format!("a runtime {}", registration.name);
    let table = item.as_table_like().ok_or_else(|| taken(path, &entry, "form"))?;
    if text_at(table, &["options", "BinaryName"]) != Some(registration.binary.as_str()) {
        return Err(taken(path, &entry, "BinaryName"));
    }
    if text_at(table, &["runtime_type"]) != Some(SHIM) {
        return Err(taken(path, &entry, "runtime_type"));
    }
    for key in ["pod_annotations", "container_annotations"] {
        let list = edit::list_at(table, &[key]).unwrap_or_default();
        if !ALL.iter().all(|all| list.iter().any(|word| word == all)) {
            return Err(taken(path, &entry, key));
        }
    }
    Ok(())
}

/// The entry to write, with the other settings of the template.
fn render_entry(
    registration: &Registration,
    cri: &[&str],
    template: Option<&dyn TableLike>,
) -> String {
    let keys = [cri, &["runtimes", registration.name.as_str()]].concat();
    let all = format!("[{}]", ALL.map(edit::string).join(", "));
    let mut text = format!(
        "{}\n  runtime_type = \"{SHIM}\"\n  pod_annotations = {all}\n  container_annotations = {all}\n",
        edit::header(&keys)
    );
    let ours = [
        "runtime_type",
        "runtime_path",
        "runtime_engine",
        "runtime_root",
        "pod_annotations",
        "container_annotations",
    ];
    for line in template.into_iter().flat_map(|template| copied_settings(template, &ours)) {
        text.push_str(&format!("  {line}\n"));
    }
    text.push_str(&format!("  {}\n", edit::header(&[&keys[..], &["options"]].concat())));
    text.push_str(&format!("    BinaryName = {}\n", edit::string(&registration.binary)));
    let options = template.and_then(|template| at_table(template, "options"));
    for line in options.into_iter().flat_map(|options| copied_settings(options, &["BinaryName"])) {
        text.push_str(&format!("    {line}\n"));
    }
    text
}

fn at_table<'t>(table: &'t dyn TableLike, key: &str) -> Option<&'t dyn TableLike> {
    table.get(key)?.as_table_like()
}

/// The settings of a table that are not empty, as lines.
fn copied_settings(table: &dyn TableLike, but: &[&str]) -> Vec<String> {
    let lines = table.iter().filter(|(key, _)| !but.contains(key)).filter_map(|(key, item)| {
        let value = item.as_value()?;
        let says_nothing = value.as_str() == Some("")
            || value.as_integer() == Some(0)
            || value.as_array().is_some_and(toml_edit::Array::is_empty)
            || (value.as_bool() == Some(false) && key != CGROUP);
        let text = value.to_string();
        (!says_nothing && !text.contains('\n')).then(|| format!("{key} = {}", text.trim()))
    });
    lines.collect()
}

/// Where a file of our own would be read.
fn drop_in_path(main: &str, name: &str, texts: &Texts) -> Option<String> {
    sources(main, texts).into_iter().find_map(|source| match source {
        EngineFile::Folder(folder, suffix) if name.ends_with(&suffix) => {
            Some(format!("{folder}/{name}"))
        }
        EngineFile::Folder(..) | EngineFile::File(_) => None,
    })
}

/// Whether a file is read after one of ours in the same folder.
fn is_later(path: &str, ours: &str) -> bool {
    let folder = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    folder(path) == folder(ours) && path > ours
}

fn refuse_if_overruled(files: &Files, ours: &str, cri: &[&str]) -> Result<()> {
    let key = [cri, &["default_runtime_name"]].concat();
    for (path, document) in files {
        if is_later(path, ours) && text_at(document.as_table(), &key).is_some() {
            return Err(overruled(path, "default_runtime_name"));
        }
    }
    Ok(())
}
