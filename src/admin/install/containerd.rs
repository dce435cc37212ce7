// SPDX-License-Identifier: Apache-2.0
//! containerd's CRI, configuration versions 2, 3 and 4. This module does no I/O.
//!
//! Before containerd 2.1, an imported file replaces the whole section of a plugin that an earlier
//! file set. So a separate file is written only if that cannot happen: with version 4, or if no
//! file has the section. Otherwise the last file that has the section is extended. The settings of
//! the default runtime's entry are copied: without SystemdCgroup, pods would fail. `rendered` plans
//! for files that a distribution writes.
//! Reference: containerd's docs/cri/config.md, docs/man/containerd-config.toml.5.md.

pub(super) use super::containerd_files::{MAIN, socket_path, sources, state_directory};
use super::containerd_files::{OLD_CRI, drop_in_path, last_setting, parse_in_order};
use super::containerd_nri::{edit_nri_off, nri_table};
pub(super) use super::containerd_nri::{nri_setting, plan_nri_off};
use super::cri_entry::{Addition, DROP_IN, render_entry, runc_entry};
use super::distribution::{self, Distribution, FLATCAR_MAIN, is_flatcar};
use super::edit;
use super::ledger::Ledger;
use super::nri_decision::NriDecision;
use super::plan::{Plan, Registration, Texts};
use super::rendered;
use crate::error::Result;

/// The unit drop-in that makes Flatcar's containerd read a writable configuration file.
const FLATCAR_UNIT: &str = "/etc/systemd/system/containerd.service.d/50-nri-runc.conf";

/// Plans the changed files for a registration.
pub(super) fn plan(registration: &Registration, texts: &Texts) -> Result<Plan> {
    let main = registration.main.as_deref().unwrap_or(MAIN);
    let source = distribution::source(main);
    let text = texts.get(source).map_or("", String::as_str);
    let distribution = Distribution::of_main(main);
    if text.trim().is_empty() {
        return match (distribution, texts.get(FLATCAR_MAIN)) {
            (Some(distribution), _) => Err(distribution.is_not_started(source)),
            (None, Some(text)) if main == MAIN && is_flatcar(texts) => {
                plan_copy(registration, text, texts)
            }
            (None, _) => plan_without_file(registration, main, texts.contains_key(main)),
        };
    }
    match distribution {
        Some(distribution) if distribution::is_rendered(main, text) => {
            rendered::plan(main, distribution, registration, texts)
        }
        Some(_) | None => plan_for_files(registration, source, texts),
    }
}

/// Plans the changes of files that only the operator edits.
fn plan_for_files(registration: &Registration, main: &str, texts: &Texts) -> Result<Plan> {
    let mut plan = Plan::default();
    let files = parse_in_order(main, texts)?;
    let mut addition = Addition::of(registration, main, &files, &mut plan)?;
    let (version, cri) = (addition.version, addition.cri);
    let is_written = addition.entry.is_empty();
    if !is_written
        && version == 2
        && last_setting(&files, &[&cri[..], &["runtimes", "runc"]].concat()).is_none()
    {
        addition.entry.insert_str(0, &runc_entry(&cri));
    }
    let holder = last_setting(&files, &cri[..2]).map(|(path, _)| path.to_owned());
    let folder = drop_in_path(main, DROP_IN, texts).filter(|_| version >= 4 || holder.is_none());
    if let Some(path) = folder.filter(|_| !is_written) {
        addition.as_file(&path, &files, texts, &mut plan)?;
        return Ok(plan);
    }
    let path = holder.unwrap_or_else(|| main.to_owned());
    let mut new = addition.with_default(&path, texts.get(&path).cloned().unwrap_or_default())?;
    if !is_written {
        new = edit::append(&path, &new, &addition.entry)?;
    }
    plan.files.insert(path.clone(), new);
    if addition.takes_over() {
        edit_nri_off(&path, &files, texts, &mut plan)?;
    }
    Ok(plan)
}

/// Plans a copy of Flatcar's file, which is read-only, and a unit file that makes containerd read
/// the copy.
fn plan_copy(registration: &Registration, text: &str, texts: &Texts) -> Result<Plan> {
    let mut copied = texts.clone();
    copied.insert(MAIN.to_owned(), text.to_owned());
    let mut plan = plan_for_files(registration, MAIN, &copied)?;
    plan.files.entry(MAIN.to_owned()).or_insert_with(|| text.to_owned());
    let unit = "[Service]\nExecStart=\nExecStart=/usr/bin/containerd\n".to_owned();
    plan.own_file(texts, FLATCAR_UNIT, unit)?;
    plan.notes.push(format!(
        "{MAIN} is a copy of {FLATCAR_MAIN}: changes that an update of Flatcar makes there have to be \
         repeated"
    ));
    Ok(plan)
}

/// Returns the distribution's file of which `path` is nri-runc's copy, if `path` is one.
pub(super) fn copied_from(ledger: &Ledger, path: &str) -> Option<&'static str> {
    let is_copied = path == MAIN && ledger.files.iter().any(|file| file.path == FLATCAR_UNIT);
    is_copied.then_some(FLATCAR_MAIN)
}

/// Plans the file for a missing or empty configuration. Every containerd since 1.5 reads version 2.
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
