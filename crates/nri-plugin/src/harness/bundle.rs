// SPDX-License-Identifier: Apache-2.0
//! A container from a bundle's `config.json`, with the fields that plugins use most.

use std::path::Path;

use nri_api as api;
use serde_json::Value;

use crate::Result;

/// Reads the container of a bundle: its command line, environment, annotations and mounts, and
/// memory and CPU limits.
///
/// # Errors
/// Fails when the bundle has no `config.json` that is a JSON object.
pub fn bundle(id: &str, pod: &str, bundle: &Path) -> Result<api::Container> {
    let path = bundle.join("config.json");
    let text = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let document: Value =
        serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    if !document.is_object() {
        return Err(format!("{}: it is not an object", path.display()).into());
    }
    let annotations = document["annotations"].as_object().into_iter().flatten();
    let annotations = annotations.map(|(key, value)| (key.clone(), text_of(value)));
    let mounts = document["mounts"].as_array().into_iter().flatten().map(|mount| api::Mount {
        destination: text_of(&mount["destination"]),
        type_: text_of(&mount["type"]),
        source: text_of(&mount["source"]),
        options: texts(&mount["options"]),
        ..Default::default()
    });
    let resources = &document["linux"]["resources"];
    let limit = resources["memory"]["limit"].as_i64();
    let memory = api::LinuxMemory { limit: limit.map(Into::into).into(), ..Default::default() };
    let cpu = &resources["cpu"];
    let cpu = api::LinuxCPU {
        shares: cpu["shares"].as_u64().map(Into::into).into(),
        quota: cpu["quota"].as_i64().map(Into::into).into(),
        period: cpu["period"].as_u64().map(Into::into).into(),
        cpus: text_of(&cpu["cpus"]),
        mems: text_of(&cpu["mems"]),
        ..Default::default()
    };
    let resources = api::LinuxResources {
        memory: Some(memory).into(),
        cpu: Some(cpu).into(),
        ..Default::default()
    };
    let linux = api::LinuxContainer { resources: Some(resources).into(), ..Default::default() };
    Ok(api::Container {
        args: texts(&document["process"]["args"]),
        env: texts(&document["process"]["env"]),
        annotations: annotations.collect(),
        mounts: mounts.collect(),
        linux: Some(linux).into(),
        ..super::container(id, pod)
    })
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text_of).collect()
}
