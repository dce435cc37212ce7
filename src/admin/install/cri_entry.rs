// SPDX-License-Identifier: Apache-2.0
//! A handler's entry in the section of containerd's CRI plugin: the settings that it copies, its
//! text, and whether an existing entry equals it. An [`Addition`] has the entry, the default runtime and
//! the decision about NRI. This module does no I/O.

use toml_edit::{Item, TableLike};

use super::containerd_files::{
    Files, NEW_CRI, OLD_CRI, configuration_version, last_setting, refuse_if_overruled, require_cri,
};
use super::containerd_nri::nri_off;
use super::edit::{self, text_at};
use super::nri_decision::NriDecision;
use super::plan::{Plan, Registration, Texts, taken};
use crate::error::Result;

/// Name of nri-runc's drop-in in an imported directory.
pub(super) const DROP_IN: &str = "50-nri-runc.toml";

const SHIM: &str = "io.containerd.runc.v2";
const ALL: [&str; 2] = ["*", "*/*"];
const CGROUP: &str = "SystemdCgroup";

/// Renders an entry for runc, because containerd 1.x drops its built-in entry for runc as soon as a file names
/// another runtime.
pub(super) fn runc_entry(cri: &[&str]) -> String {
    let keys = [cri, &["runtimes", "runc"]].concat();
    format!("{}\n  runtime_type = \"{SHIM}\"\n\n", edit::header(&keys))
}

/// The lines that a registration adds to the CRI plugin's section.
pub(super) struct Addition<'r> {
    pub(super) registration: &'r Registration,
    /// The version of the main file.
    pub(super) version: i64,
    /// The keys of the section.
    pub(super) cri: [&'static str; 3],
    /// The handler's entry; empty if the files already have an equal one.
    pub(super) entry: String,
    /// Whether to change the default runtime.
    pub(super) sets_default: bool,
}

impl<'r> Addition<'r> {
    /// Computes what these files lack for the registration; records the program of the current default runtime
    /// in the plan.
    pub(super) fn of(
        registration: &'r Registration,
        main: &str,
        files: &Files,
        plan: &mut Plan,
    ) -> Result<Self> {
        let version = configuration_version(main, files)?;
        require_cri(files)?;
        let cri = ["plugins", if version == 2 { OLD_CRI } else { NEW_CRI }, "containerd"];
        let name = registration.name.as_str();
        let default = last_setting(files, &[&cri[..], &["default_runtime_name"]].concat());
        let default = default.and_then(|(_, item)| item.as_str()).unwrap_or("runc");
        let like = find_template(files, &cri, if default == name { "runc" } else { default });
        note_runtime(like, plan);
        let written = last_setting(files, &[&cri[..], &["runtimes", name]].concat());
        let entry = match written {
            Some((path, item)) => {
                require_same_entry(path, item, registration)?;
                String::new()
            }
            None => render_entry(registration, &cri, like),
        };
        let sets_default = registration.default && default != name;
        Ok(Self { registration, version, cri, entry, sets_default })
    }

    /// Whether to switch containerd's own NRI off.
    pub(super) fn takes_over(&self) -> bool {
        self.registration.nri == NriDecision::TakeOver
    }

    /// Returns the text with nri-runc as the default runtime, if the default is to be changed.
    pub(super) fn with_default(&self, path: &str, text: String) -> Result<String> {
        if !self.sets_default {
            return Ok(text);
        }
        let name = edit::string(&self.registration.name);
        edit::set(path, &text, &self.cri, "default_runtime_name", &name)
    }

    /// Plans the whole addition as nri-runc's drop-in in an imported directory.
    pub(super) fn as_file(
        &self,
        path: &str,
        files: &Files,
        texts: &Texts,
        plan: &mut Plan,
    ) -> Result<()> {
        let begin = format!("version = {}\n", self.version);
        let mut new = begin.clone();
        if !self.entry.is_empty() {
            new.push_str(&format!("\n{}", self.entry));
        }
        if self.sets_default {
            new = self.with_default(path, new)?;
            refuse_if_overruled(files, path, &self.cri)?;
        }
        if self.takes_over() {
            new.push_str(&nri_off(path, files, texts, plan)?);
        }
        if new == begin { Ok(()) } else { plan.own_file(texts, path, new) }
    }
}

/// Returns the entry whose settings are copied: that of the default runtime, else of runc, if its
/// type is [`SHIM`].
fn find_template<'f>(files: &'f Files, cri: &[&str], default: &str) -> Option<&'f dyn TableLike> {
    [default, "runc"].into_iter().find_map(|name| {
        let (_, item) = last_setting(files, &[cri, &["runtimes", name]].concat())?;
        let table = item.as_table_like()?;
        (text_at(table, &["runtime_type"]).unwrap_or(SHIM) == SHIM).then_some(table)
    })
}

fn note_runtime(template: Option<&dyn TableLike>, plan: &mut Plan) {
    let behind = template.and_then(|template| text_at(template, &["options", "BinaryName"]));
    plan.runtime = behind.filter(|path| !path.is_empty()).map(str::to_owned);
}

/// Refuses an existing entry of that name whose program or type differs, or that does not pass all annotations.
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

/// Renders the handler's entry, with those settings of `template` that nri-runc does not set itself.
pub(super) fn render_entry(
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

/// Returns a line for each setting of a table. Leaves out the keys in `but`, tables, values of several lines,
/// and empty, zero or false values (except of SystemdCgroup).
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
