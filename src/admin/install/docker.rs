// SPDX-License-Identifier: Apache-2.0
//! Docker reads one JSON file and no drop-ins, so that file is edited losslessly. `runtimeArgs` is not
//! written: with it, Docker runs the runtime through a shell. Pure.
//! Reference: dockerd(8), "Daemon configuration file".

use oci_document::{DocumentError, SpecDocument};
use serde_json::{Value, json};

use super::engine_files;
use super::nri_decision::{NriDecision, NriSetting};
use super::plan::{Plan, Registration, Texts, taken};
use crate::error::{Error, Result};

/// The file that dockerd reads.
pub(super) const MAIN: &str = "/etc/docker/daemon.json";

/// The key of Docker's own NRI.
const NRI: &str = "nri-opts";

/// Plans the changed file for a registration.
pub(super) fn plan(registration: &Registration, texts: &Texts) -> Result<Plan> {
    let path = registration.main.as_deref().unwrap_or(MAIN);
    if ["runc", "io.containerd.runc.v2"].contains(&registration.name.as_str()) {
        return Err(Error::new(format!("Docker reserves the name {}", registration.name))
            .hint("choose another with --name; --default makes it the default runtime"));
    }
    let mut plan = Plan::default();
    let text = texts.get(path).map_or("", String::as_str);
    let unreadable = |error| unreadable(path, &error);
    if text.trim().is_empty() {
        plan.files.insert(path.to_owned(), render_new_file(registration));
        return Ok(plan);
    }
    let mut document = SpecDocument::parse(text.as_bytes()).map_err(unreadable)?;
    let root = document.root();
    let before = root.value("default-runtime").map_err(unreadable)?;
    let runtimes = root.map("runtimes").map_err(unreadable)?;
    let path_of = |runtime: &Value| runtime["path"].as_str().map(str::to_owned);
    let before = before.as_ref().and_then(Value::as_str).filter(|name| *name != registration.name);
    if let Some(before) = before.filter(|name| *name != "runc") {
        let there = runtimes.value(before).map_err(unreadable)?;
        let path = there.as_ref().and_then(path_of);
        plan.runtime = Some(path.unwrap_or_else(|| before.to_owned()));
    }
    match runtimes.value(&registration.name).map_err(unreadable)? {
        None => {
            runtimes
                .set(&registration.name, &json!({"path": registration.binary}))
                .map_err(unreadable)?;
        }
        Some(there) => require_same_entry(path, &there, registration)?,
    }
    if registration.default
        && root.value("default-runtime").map_err(unreadable)? != Some(json!(registration.name))
    {
        root.set("default-runtime", &json!(registration.name)).map_err(unreadable)?;
    }
    if registration.nri == NriDecision::TakeOver {
        switch_nri_off(&mut document).map_err(unreadable)?;
    }
    let new = String::from_utf8(document.to_bytes());
    let new = new.map_err(|_not_text| engine_files::not_text(path))?;
    plan.files.insert(path.to_owned(), new);
    Ok(plan)
}

fn unreadable(path: &str, error: &DocumentError) -> Error {
    let what = error.to_string().replace("config.json", path);
    Error::new(what).hint("fix this file; nothing was changed")
}

/// Reads the setting of Docker's own NRI, which is off by default.
pub(super) fn nri_setting(main: &str, texts: &Texts) -> Result<NriSetting> {
    let unreadable = |error| unreadable(main, &error);
    let text = texts.get(main).map_or("", String::as_str);
    let mut nri = Value::Null;
    if !text.trim().is_empty() {
        let mut document = SpecDocument::parse(text.as_bytes()).map_err(unreadable)?;
        nri = document.root().value(NRI).map_err(unreadable)?.unwrap_or_default();
    }
    let socket = nri["socket-path"].as_str().unwrap_or("/var/run/nri/nri.sock").to_owned();
    Ok(NriSetting { is_on: nri["enable"].as_bool(), socket, is_on_by_form: false })
}

/// Plans to switch it off, where nothing else is registered with Docker.
pub(super) fn plan_nri_off(main: &str, texts: &Texts, plan: &mut Plan) -> Result<()> {
    let unreadable = |error| unreadable(main, &error);
    let text = plan.text(texts, main);
    let mut document = SpecDocument::parse(text.as_bytes()).map_err(unreadable)?;
    switch_nri_off(&mut document).map_err(unreadable)?;
    let new = String::from_utf8(document.to_bytes());
    let new = new.map_err(|_not_text| engine_files::not_text(main))?;
    plan.files.insert(main.to_owned(), new);
    Ok(())
}

fn switch_nri_off(document: &mut SpecDocument<'_>) -> std::result::Result<(), DocumentError> {
    let root = document.root();
    let is_on = root.value(NRI)?.is_some_and(|nri| nri["enable"] == true);
    if is_on { root.map(NRI)?.set("enable", &json!(false)) } else { Ok(()) }
}

fn require_same_entry(path: &str, there: &Value, registration: &Registration) -> Result<()> {
    let entry = format!("a runtime {}", registration.name);
    if there["path"] != registration.binary.as_str()
        && there["options"]["BinaryName"] != registration.binary.as_str()
    {
        return Err(taken(path, &entry, "path"));
    }
    if there["runtimeArgs"].as_array().is_some_and(|words| !words.is_empty()) {
        return Err(taken(path, &entry, "runtimeArgs"));
    }
    Ok(())
}

fn render_new_file(registration: &Registration) -> String {
    let mut root = json!({"runtimes": {registration.name.as_str(): {"path": registration.binary}}});
    if registration.default {
        root["default-runtime"] = json!(registration.name);
    }
    format!("{root:#}\n")
}
