// SPDX-License-Identifier: Apache-2.0
//! Docker: it reads one JSON file and no drop-ins, so that is edited, losslessly, without a word
//! about `runtimeArgs` (with them Docker puts a shell before the runtime). Pure.
//! Reference: dockerd(8), "Daemon configuration file".

use serde_json::{Value, json};

use super::plan::{Plan, Texts, Wish, taken};
use crate::error::{Error, Result};
use crate::spec::document::{Document, DocumentError};

/// The file that dockerd reads.
pub(super) const MAIN: &str = "/etc/docker/daemon.json";

/// What would have to be written.
pub(super) fn plan(wish: &Wish, texts: &Texts) -> Result<Plan> {
    let path = wish.main.as_deref().unwrap_or(MAIN);
    if ["runc", "io.containerd.runc.v2"].contains(&wish.name.as_str()) {
        return Err(Error::new(format!("Docker keeps the name {} for itself", wish.name))
            .hint("take another with --name, and --default for every container"));
    }
    let mut plan = Plan::default();
    let text = texts.get(path).map_or("", String::as_str);
    let told = |error: DocumentError| {
        let what = error.to_string().replace("config.json", path);
        Error::new(what).hint("mend it; nothing was changed")
    };
    if text.trim().is_empty() {
        plan.files.insert(path.to_owned(), fresh(wish));
        return Ok(plan);
    }
    let mut document = Document::parse(text.as_bytes()).map_err(told)?;
    let root = document.root();
    let before = root.value("default-runtime").map_err(told)?;
    let own_nri = root.value("nri-opts").map_err(told)?.unwrap_or_default();
    let runtimes = root.map("runtimes").map_err(told)?;
    let path_of = |runtime: &Value| runtime["path"].as_str().map(str::to_owned);
    let before = before.as_ref().and_then(Value::as_str).filter(|name| *name != wish.name);
    if let Some(before) = before.filter(|name| *name != "runc") {
        let there = runtimes.value(before).map_err(told)?;
        plan.other_runtime(&there.as_ref().and_then(path_of).unwrap_or_else(|| before.to_owned()));
    }
    match runtimes.value(&wish.name).map_err(told)? {
        None => {
            runtimes.set(&wish.name, &json!({"path": wish.binary})).map_err(told)?;
        }
        Some(there) => agrees(path, &there, wish)?,
    }
    if wish.default && root.value("default-runtime").map_err(told)? != Some(json!(wish.name)) {
        root.set("default-runtime", &json!(wish.name)).map_err(told)?;
    }
    let socket = own_nri["socket-path"].as_str().unwrap_or("/var/run/nri/nri.sock");
    if own_nri["enable"] == true && socket == wish.socket {
        plan.clash("Docker", wish, "\"enable\": false in \"nri-opts\"");
    }
    let new = String::from_utf8(document.to_bytes());
    let new = new.map_err(|_not_text| Error::new(format!("{path} is no text")))?;
    plan.files.insert(path.to_owned(), new);
    Ok(plan)
}

fn agrees(path: &str, there: &Value, wish: &Wish) -> Result<()> {
    let entry = format!("a runtime {}", wish.name);
    if there["path"] != wish.binary.as_str()
        && there["options"]["BinaryName"] != wish.binary.as_str()
    {
        return Err(taken(path, &entry, "path"));
    }
    if there["runtimeArgs"].as_array().is_some_and(|words| !words.is_empty()) {
        return Err(taken(path, &entry, "runtimeArgs"));
    }
    Ok(())
}

fn fresh(wish: &Wish) -> String {
    let mut root = json!({"runtimes": {wish.name.as_str(): {"path": wish.binary}}});
    if wish.default {
        root["default-runtime"] = json!(wish.name);
    }
    format!("{root:#}\n")
}
