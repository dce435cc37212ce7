// SPDX-License-Identifier: Apache-2.0
//! containerd's own NRI: its setting in the files, and the change that switches it off. This module
//! does no I/O.

use toml_edit::Item;

use super::containerd_files::{
    Files, configuration_version, drop_in_path, is_later, last_setting, parse_in_order,
};
use super::distribution::{self, Distribution};
use super::edit::{self, at};
use super::nri_decision::NriSetting;
use super::plan::{Plan, Texts};
use crate::error::{Error, Result};

/// The file that switches containerd's NRI off if nri-runc is registered with another engine.
const NRI_DROP_IN: &str = "50-nri-runc-nri.toml";
const NRI: &str = "io.containerd.nri.v1.nri";
const IS_OFF: [&str; 3] = ["plugins", NRI, "disable"];

/// Reads the setting of containerd's own NRI.
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

/// Whether the files switch containerd's NRI off; `None` if no file sets it.
pub(super) fn is_nri_off(files: &Files) -> Option<bool> {
    let disabled = last_setting(files, &["disabled_plugins"]).and_then(|(_, list)| list.as_array());
    if disabled.is_some_and(|list| list.iter().any(|name| name.as_str() == Some(NRI))) {
        return Some(true);
    }
    last_setting(files, &IS_OFF).and_then(|(_, item)| item.as_bool())
}

/// Plans to switch containerd's NRI off on a host on which nri-runc is registered only with another
/// engine.
pub(super) fn plan_nri_off(main: &str, texts: &Texts, plan: &mut Plan) -> Result<()> {
    let files = parse_in_order(main, texts)?;
    let source = distribution::source(main);
    let text = plan.text(texts, source);
    let distribution = Distribution::of_main(main);
    if files.is_empty() || text.trim().is_empty() {
        if let Some(distribution) = distribution {
            return Err(distribution.is_not_started(source));
        }
        plan.files.insert(main.to_owned(), format!("version = 2\n{}", nri_table()));
        return Ok(());
    }
    let is_rendered = distribution::is_rendered(main, &text);
    let Some(path) = drop_in_path(main, NRI_DROP_IN, texts) else {
        return match distribution.filter(|_| is_rendered) {
            Some(distribution) => Err(in_a_template(distribution)),
            None => edit_nri_off(source, &files, texts, plan),
        };
    };
    let version = configuration_version(main, &files)?;
    match nri_off(&path, &files, texts, plan)? {
        none if none.is_empty() => Ok(()),
        table => plan.own_file(texts, &path, format!("version = {version}\n{table}")),
    }
}

pub(super) fn has_nri_table(files: &Files) -> bool {
    last_setting(files, &IS_OFF[..2]).is_some()
}

/// Returns the error for a distribution that renders its file from a template: only a registration with
/// containerd extends the template.
fn in_a_template(distribution: Distribution) -> Error {
    let title = distribution.title();
    Error::new(format!("the containerd of {title} serves NRI itself, and {title} writes its file"))
        .hint(format!(
            "first: nri-runc nri install containerd --distribution {} --take-over-nri",
            distribution.name()
        ))
}

/// Renders the table that switches NRI off.
pub(super) fn nri_table() -> String {
    format!("\n{}\n  disable = true\n", edit::header(&["plugins", NRI]))
}

/// Returns the table with which the nri-runc file `ours` switches NRI off. Empty if NRI is off
/// already, or if a later file switches NRI on: that file is edited instead.
pub(super) fn nri_off(ours: &str, files: &Files, texts: &Texts, plan: &mut Plan) -> Result<String> {
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

/// Plans to switch NRI off in the last file that has the NRI plugin's table, else in `path`.
pub(super) fn edit_nri_off(
    path: &str,
    files: &Files,
    texts: &Texts,
    plan: &mut Plan,
) -> Result<()> {
    if is_nri_off(files) == Some(true) {
        return Ok(());
    }
    let path = last_setting(files, &IS_OFF[..2]).map_or(path, |(holder, _)| holder);
    let new = edit::set(path, &plan.text(texts, path), &IS_OFF[..2], "disable", "true")?;
    plan.files.insert(path.to_owned(), new);
    Ok(())
}
