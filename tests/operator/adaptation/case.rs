// SPDX-License-Identifier: Apache-2.0
//! Reads one folder of `fixtures/adaptation` strictly, and decides it in the pure core.
//! `fixtures/adaptation/README.md` describes the format.

use std::path::{Path, PathBuf};

use nri_adaptation::{Creation, MergeError, Merged, Rights, Updated, Updates};
use nri_runc::plugin::api;
use protobuf::MessageFull;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The content of one folder.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) asked: Asked,
    /// Plugins with their responses, in the order of the plugins.
    pub(super) answers: Vec<(String, Value)>,
    verdict: PathBuf,
}

/// `request.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// The property that the case shows, in words.
    pub(super) claim: String,
    pub(super) call: String,
    pub(super) request: Value,
}

/// Every case, by name.
pub(super) fn all() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/adaptation");
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.iter().map(|folder| Case::load(folder)).collect()
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Reads a message; an unknown field is an error.
pub(super) fn message<M: MessageFull>(value: &Value) -> M {
    protobuf_json_mapping::parse_from_str(&value.to_string())
        .unwrap_or_else(|why| panic!("{value}: {why}"))
}

/// Shows a message as `replay` does.
fn show(message: &impl MessageFull) -> Value {
    serde_json::from_str(&protobuf_json_mapping::print_to_string(message).unwrap()).unwrap()
}

/// Shows a container without the empty parts that every plugin receives.
pub(super) fn show_container(container: &api::Container) -> Value {
    let mut shown = show(container);
    for path in [
        &["hooks"][..],
        &["linux", "resources", "memory"],
        &["linux", "resources", "cpu"],
        &["linux", "resources"],
        &["linux"],
    ] {
        drop_empty(&mut shown, path);
    }
    shown
}

/// Shows the resources that an update results in, as `replay` does.
pub(super) fn show_resources(resources: &api::LinuxResources) -> Value {
    let mut shown = show(resources);
    drop_empty(&mut shown, &["memory"]);
    drop_empty(&mut shown, &["cpu"]);
    shown
}

fn drop_empty(value: &mut Value, path: &[&str]) {
    let Some((last, parents)) = path.split_last() else { return };
    let holder = parents.iter().try_fold(value, |value, key| value.get_mut(*key));
    let Some(holder) = holder.and_then(Value::as_object_mut) else { return };
    if holder.get(*last).and_then(Value::as_object).is_some_and(Map::is_empty) {
        holder.shift_remove(*last);
    }
}

impl Case {
    fn load(folder: &Path) -> Self {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let asked = serde_json::from_value(read(&folder.join("request.json")));
        let asked = asked.unwrap_or_else(|why| panic!("{name}/request.json: {why}"));
        let mut answers = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            if file == "request.json" || file == "verdict.json" {
                continue;
            }
            let plugin = file.strip_suffix(".json").unwrap_or_default();
            let index = plugin.split_once('-').map_or("", |(index, _)| index);
            let is_plugin = index.len() == 2 && index.bytes().all(|byte| byte.is_ascii_digit());
            assert!(is_plugin, "{name}/{file} is no part of a case");
            answers.push((plugin.to_owned(), read(&folder.join(&file))));
        }
        answers.sort_by(|(one, _), (other, _)| one.cmp(other));
        assert!(!answers.is_empty(), "{name}: no plugin answers");
        Self { name, asked, answers, verdict: folder.join("verdict.json") }
    }

    /// The expected verdict, from the file; with `UPDATE_GOLDEN` the pure core's, which is then
    /// written to the file.
    pub(super) fn verdict(&self) -> Value {
        if std::env::var_os("UPDATE_GOLDEN").is_none() {
            return read(&self.verdict);
        }
        let mut verdict = self.decide();
        if !self.verdict.exists() || read(&self.verdict) != verdict {
            verdict.sort_all_objects();
            let text = format!("{verdict:#}\n");
            nri_runc::testing::files::replace(&self.verdict, text.as_bytes()).unwrap();
        }
        verdict
    }

    /// The verdict of the pure core.
    pub(super) fn decide(&self) -> Value {
        match self.asked.call.as_str() {
            "CreateContainer" => self.create(),
            "UpdateContainer" => self.update(),
            "StopContainer" => self.stop(),
            call => panic!("{}: {call} asks for nothing", self.name),
        }
    }

    fn create(&self) -> Value {
        let request: api::CreateContainerRequest = message(&self.asked.request);
        let id = request.container.id.clone();
        let pod = request.pod.unwrap_or_default();
        let mut creation = Creation::new(pod, request.container.unwrap_or_default());
        for (plugin, answer) in &self.answers {
            match creation.answer(plugin, &Rights::default(), message(answer)) {
                Ok(next) => creation = next,
                Err(error) => return refused(&error),
            }
        }
        let seen = show_container(&creation.request().container);
        let Merged { adjust, container, owners, updates: update, evictions: evict, .. } =
            creation.finish();
        assert_eq!(show_container(&container), seen, "{}", self.name);
        let adjust = Some(adjust).into();
        let reply = api::CreateContainerResponse { adjust, update, evict, ..Default::default() };
        json!({"reply": show(&reply), "owners": owners.to_flat(&id), "seen": seen})
    }

    fn update(&self) -> Value {
        let request: api::UpdateContainerRequest = message(&self.asked.request);
        let id = request.container.id.clone();
        let mut updates = Updates::for_update(request);
        for (plugin, answer) in &self.answers {
            if let Err(error) = updates.answer_update(plugin, &Rights::default(), message(answer)) {
                return refused(&error);
            }
        }
        let seen = show_resources(&updates.request().unwrap().linux_resources);
        let Updated { updates: update, evictions: evict, owners, .. } = updates.finish();
        let reply = api::UpdateContainerResponse { update, evict, ..Default::default() };
        json!({"reply": show(&reply), "owners": owners.to_flat(&id), "seen": seen})
    }

    /// Every plugin receives the stop, whatever one of them answers.
    fn stop(&self) -> Value {
        let mut updates = Updates::for_stop();
        let mut errors = Vec::new();
        for (plugin, answer) in &self.answers {
            errors.extend(updates.answer_stop(plugin, &Rights::default(), message(answer)).err());
        }
        if let Some(error) = errors.first() {
            return refused(error);
        }
        let update = updates.finish().updates;
        let reply = api::StopContainerResponse { update, ..Default::default() };
        json!({"reply": show(&reply)})
    }
}

fn refused(error: &MergeError) -> Value {
    let cause = if matches!(error, MergeError::NotAllowed { .. }) { "refused" } else { "conflict" };
    json!({"error": error.to_string(), "cause": cause})
}
