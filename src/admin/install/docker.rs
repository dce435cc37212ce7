// SPDX-License-Identifier: Apache-2.0
//! Docker and iSulad read one JSON file and no drop-ins, so that file is edited losslessly.
//! Docker's `runtimeArgs` is not written: with it, Docker runs the runtime through a shell. This
//! module does no I/O. References: dockerd(8), "Daemon configuration file"; iSulad's `daemon.json`.

use oci_document::{DocumentError, SpecDocument};
use serde_json::{Value, json};

use super::engine_files;
use super::nri_decision::{NriDecision, NriSetting};
use super::plan::{Plan, Registration, Texts, taken};
use crate::error::{Error, Result};

/// The file in which an engine lists its runtimes, and the engine's keys and names in it.
pub(super) struct RuntimesFile {
    /// The usual path of the file.
    pub(super) main: &'static str,
    /// The engine, as people write it.
    pub(super) title: &'static str,
    /// Names of runtimes to which the engine gives a special meaning.
    reserved: &'static [&'static str],
    /// Default runtimes that `install` replaces without a note: runc, and iSulad's lcr, which is no OCI runtime.
    usual: &'static [&'static str],
    /// The key of a runtime's arguments, and whether every entry must have it.
    arguments: (&'static str, bool),
    /// The keys of the setting that switches the engine's own NRI on.
    nri: &'static [&'static str],
}

/// Docker's file.
pub(super) const DOCKER: RuntimesFile = RuntimesFile {
    main: "/etc/docker/daemon.json",
    title: "Docker",
    reserved: &["runc", "io.containerd.runc.v2"],
    usual: &["runc"],
    arguments: ("runtimeArgs", false),
    nri: &["nri-opts", "enable"],
};

/// iSulad's file.
pub(super) const ISULAD: RuntimesFile = RuntimesFile {
    main: "/etc/isulad/daemon.json",
    title: "iSulad",
    reserved: &["lcr", "runc", "kata-runtime", "runsc"],
    usual: &["lcr", "runc"],
    arguments: ("runtime-args", true),
    nri: &["nri-support"],
};

/// Plans a registration's changes to the engine's file.
pub(super) fn plan(
    engine: &RuntimesFile,
    registration: &Registration,
    texts: &Texts,
) -> Result<Plan> {
    let path = registration.main.as_deref().unwrap_or(engine.main);
    if engine.reserved.contains(&registration.name.as_str()) {
        return Err(Error::new(format!(
            "{} reserves the name {}",
            engine.title, registration.name
        ))
        .hint("choose another with --name; --default makes it the default runtime"));
    }
    let mut plan = Plan::default();
    let text = texts.get(path).map_or("", String::as_str);
    let unreadable = |error| unreadable(path, &error);
    if text.trim().is_empty() {
        plan.files.insert(path.to_owned(), render_new_file(engine, registration));
        return Ok(plan);
    }
    let mut document = SpecDocument::parse(text.as_bytes()).map_err(unreadable)?;
    let root = document.root();
    let before = root.value("default-runtime").map_err(unreadable)?;
    let runtimes = root.map("runtimes").map_err(unreadable)?;
    let path_of = |runtime: &Value| runtime["path"].as_str().map(str::to_owned);
    let before = before.as_ref().and_then(Value::as_str).filter(|name| *name != registration.name);
    if let Some(before) = before.filter(|name| !engine.usual.contains(name)) {
        let there = runtimes.value(before).map_err(unreadable)?;
        let path = there.as_ref().and_then(path_of);
        plan.runtime = Some(path.unwrap_or_else(|| before.to_owned()));
    }
    match runtimes.value(&registration.name).map_err(unreadable)? {
        None => {
            runtimes.set(&registration.name, &entry(engine, registration)).map_err(unreadable)?;
        }
        Some(there) => require_same_entry(engine, path, &there, registration)?,
    }
    if registration.default
        && root.value("default-runtime").map_err(unreadable)? != Some(json!(registration.name))
    {
        root.set("default-runtime", &json!(registration.name)).map_err(unreadable)?;
    }
    if registration.nri == NriDecision::TakeOver {
        switch_nri_off(engine, &mut document).map_err(unreadable)?;
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

/// Reads the setting of the engine's own NRI, which is off by default.
pub(super) fn nri_setting(
    engine: &RuntimesFile,
    main: Option<&str>,
    texts: &Texts,
) -> Result<NriSetting> {
    let main = main.unwrap_or(engine.main);
    let unreadable = |error| unreadable(main, &error);
    let text = texts.get(main).map_or("", String::as_str);
    let mut nri = Value::Null;
    if !text.trim().is_empty() {
        let mut document = SpecDocument::parse(text.as_bytes()).map_err(unreadable)?;
        nri = document.root().value(engine.nri[0]).map_err(unreadable)?.unwrap_or_default();
    }
    let socket = nri["socket-path"].as_str().unwrap_or("/var/run/nri/nri.sock").to_owned();
    let is_on = engine.nri[1..].iter().fold(&nri, |value, key| &value[*key]).as_bool();
    Ok(NriSetting { is_on, socket, is_on_by_form: false })
}

/// Plans to switch the engine's own NRI off on a host on which nri-runc is registered only with
/// another engine.
pub(super) fn plan_nri_off(
    engine: &RuntimesFile,
    main: Option<&str>,
    texts: &Texts,
    plan: &mut Plan,
) -> Result<()> {
    let main = main.unwrap_or(engine.main);
    let unreadable = |error| unreadable(main, &error);
    let text = plan.text(texts, main);
    let mut document = SpecDocument::parse(text.as_bytes()).map_err(unreadable)?;
    switch_nri_off(engine, &mut document).map_err(unreadable)?;
    let new = String::from_utf8(document.to_bytes());
    let new = new.map_err(|_not_text| engine_files::not_text(main))?;
    plan.files.insert(main.to_owned(), new);
    Ok(())
}

fn switch_nri_off(
    engine: &RuntimesFile,
    document: &mut SpecDocument<'_>,
) -> std::result::Result<(), DocumentError> {
    let root = document.root();
    match engine.nri {
        [table, key] if root.value(table)?.is_some_and(|nri| nri[*key] == true) => {
            root.map(table)?.set(key, &json!(false))
        }
        [key] if root.value(key)? == Some(json!(true)) => root.set(key, &json!(false)),
        _ => Ok(()),
    }
}

fn entry(engine: &RuntimesFile, registration: &Registration) -> Value {
    let mut entry = json!({"path": registration.binary});
    if let (arguments, true) = engine.arguments {
        entry[arguments] = json!([]);
    }
    entry
}

fn require_same_entry(
    engine: &RuntimesFile,
    path: &str,
    there: &Value,
    registration: &Registration,
) -> Result<()> {
    let (arguments, _) = engine.arguments;
    let entry = format!("a runtime {}", registration.name);
    if there["path"] != registration.binary.as_str()
        && there["options"]["BinaryName"] != registration.binary.as_str()
    {
        return Err(taken(path, &entry, "path"));
    }
    if there[arguments].as_array().is_some_and(|words| !words.is_empty()) {
        return Err(taken(path, &entry, arguments));
    }
    Ok(())
}

fn render_new_file(engine: &RuntimesFile, registration: &Registration) -> String {
    let entry = entry(engine, registration);
    let mut root = json!({"runtimes": {registration.name.as_str(): entry}});
    if registration.default {
        root["default-runtime"] = json!(registration.name);
    }
    format!("{root:#}\n")
}
