// SPDX-License-Identifier: Apache-2.0
//! Reads one folder of `fixtures/bundles` strictly: a missing or unknown file is an error, so that
//! every file in a fixture has an effect. `fixtures/bundles/README.md` describes the format.

use std::path::{Path, PathBuf};

use nri_runc::plugin::{ALL_EVENTS, api};
use protobuf::Enum;
use serde::Deserialize;
use serde_json::Value;
use test_support::Script;

/// The content of one folder.
pub(super) struct Case {
    pub(super) folder: PathBuf,
    /// The document of the bundle.
    pub(super) config: Vec<u8>,
    /// The document of the pod's infrastructure container.
    pub(super) sandbox: Option<Vec<u8>>,
    /// Further lines of nri-runc's configuration.
    pub(super) settings: String,
    /// The runtime's output of `--version` and of `features`.
    pub(super) says: [Option<Vec<u8>>; 2],
    pub(super) call: Call,
    pub(super) plugins: Vec<Scripted>,
}

/// The engine's calls.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Call {
    /// Container id.
    pub(super) id: String,
    /// The bundle's path below a private folder, by which engines are identified.
    pub(super) bundle: String,
    /// Verbs before the `delete --force` at the end of every case.
    pub(super) verbs: Vec<String>,
    /// Whether the runtime refuses to create.
    pub(super) runtime_fails: bool,
}

impl Default for Call {
    fn default() -> Self {
        let (id, bundle) = ("c1".to_owned(), "bundle".to_owned());
        Self { id, bundle, verbs: vec!["create".to_owned()], runtime_fails: false }
    }
}

/// A plugin and its script.
pub(super) struct Scripted {
    pub(super) index: String,
    pub(super) name: String,
    pub(super) script: Script,
}

/// A file of `plugins/`.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Part {
    adjust: Option<Value>,
    update: Vec<Value>,
    unknown_field: Option<u32>,
    refuse: Option<String>,
    status: Option<String>,
    hang: bool,
    crash: bool,
    at: Option<String>,
    reject: Option<String>,
    events: Option<Vec<String>>,
}

/// The names of all cases, sorted. Only folders are cases; the other files document them.
pub(super) fn names(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root).unwrap().map(Result::unwrap);
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

impl Case {
    pub(super) fn load(root: &Path, name: &str) -> Result<Self, String> {
        let folder = root.join(name);
        let known = ["README.md", "call.json", "config.json", "nri-runc.toml", "sandbox.json"];
        only(&folder, &known, &["expected", "host", "plugins", "runtime"])?;
        only(&folder.join("runtime"), &["version", "features.json"], &[])?;
        only(&folder.join("expected"), &["config.json", "events.jsonl", "stderr"], &[])?;
        let read = |file: &str| std::fs::read(folder.join(file)).ok();
        let purpose = read("README.md").ok_or("README.md is missing")?;
        if purpose.trim_ascii().is_empty() {
            return Err("README.md does not say what the case is for".to_owned());
        }
        let config = read("config.json").ok_or("config.json is missing")?;
        let settings = read("nri-runc.toml").unwrap_or_default();
        let call = match read("call.json") {
            Some(bytes) => {
                serde_json::from_slice(&bytes).map_err(|error| format!("call.json: {error}"))?
            }
            None => Call::default(),
        };
        let plugins = plugins(&folder.join("plugins"))?;
        let sandbox = read("sandbox.json");
        let says = [read("runtime/version"), read("runtime/features.json")];
        let settings = String::from_utf8(settings).map_err(|error| error.to_string())?;
        Ok(Self { folder, config, sandbox, settings, says, call, plugins })
    }

    /// A file of `expected/`, if it exists.
    pub(super) fn expected(&self, file: &str) -> Option<Vec<u8>> {
        std::fs::read(self.folder.join("expected").join(file)).ok()
    }
}

/// All files below `folder`, by their relative path.
pub(super) fn files_below(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            let below = files_below(&path).into_iter();
            files.extend(below.map(|(deeper, bytes)| (format!("{name}/{deeper}"), bytes)));
        } else {
            files.push((name.to_owned(), std::fs::read(&path).unwrap()));
        }
    }
    files
}

/// Fails if the folder has other entries.
fn only(folder: &Path, files: &[&str], folders: &[&str]) -> Result<(), String> {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.map_err(|error| error.to_string())?.path();
        let known = if path.is_dir() { folders } else { files };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !known.contains(&name) {
            return Err(format!("{name} is no file of a case"));
        }
    }
    Ok(())
}

fn plugins(folder: &Path) -> Result<Vec<Scripted>, String> {
    let mut plugins = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.map_err(|error| error.to_string())?.path();
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let id = file.strip_suffix(".json").and_then(|id| id.split_once('-'));
        let (index, name) = id
            .filter(|(index, _)| index.len() == 2)
            .ok_or_else(|| format!("plugins/{file} is not named NN-name.json"))?;
        let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let script = script(&text).map_err(|error| format!("plugins/{file}: {error}"))?;
        plugins.push(Scripted { index: index.to_owned(), name: name.to_owned(), script });
    }
    plugins.sort_by_key(|plugin| (plugin.index.clone(), plugin.name.clone()));
    Ok(plugins)
}

fn script(text: &str) -> Result<Script, String> {
    let part: Part = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut adjust: api::ContainerAdjustment = match part.adjust {
        Some(adjust) => message(&adjust)?,
        None => api::ContainerAdjustment::default(),
    };
    if let Some(number) = part.unknown_field {
        let unknown = adjust.special_fields.mut_unknown_fields();
        unknown.add_length_delimited(number, b"new".to_vec());
    }
    let known = |name: &str| ALL_EVENTS.into_iter().find(|event| event.name() == name);
    let mut events = part.events.as_ref().map(|_| 0);
    for name in part.events.iter().flatten() {
        let event = known(name).ok_or_else(|| format!("there is no event {name}"))?;
        events = events.map(|bits| bits | event.bit());
    }
    if let Some(at) = part.at.as_deref().filter(|at| known(at).is_none()) {
        return Err(format!("there is no event {at}"));
    }
    let status = match part.status {
        Some(name) => {
            Some(ttrpc::Code::from_str(&name).ok_or_else(|| format!("there is no status {name}"))?)
        }
        None => None,
    };
    Ok(Script {
        adjust,
        update: part.update.iter().map(message).collect::<Result<_, _>>()?,
        // Leaking the string is harmless: the test needs it until its process exits.
        refuses: part.refuse.map(|why| &*why.leak()),
        status,
        hangs: part.hang,
        leaves: part.crash,
        at: part.at,
        rejects: part.reject,
        events,
        ..Script::default()
    })
}

fn message<M: protobuf::MessageFull>(json: &Value) -> Result<M, String> {
    protobuf_json_mapping::parse_from_str(&json.to_string()).map_err(|error| error.to_string())
}
