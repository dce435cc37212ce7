// SPDX-License-Identifier: Apache-2.0
//! `[[inject]]`: values that are set in selected containers without a plugin (decisions D49, D59).
//! The table has each key with its default, meaning and form; `docs/config.md` is generated from
//! it.
//!
//! A section with a mistake is ignored as a whole, because a part of it could apply to pods for
//! which it was not meant. Only a section that refuses containers protects, so only its mistakes
//! make creates fail. Nothing here reads a file or injects a value.

mod forms;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value as Json, json};
use toml_edit::{ArrayOfTables, Item, TableLike, Value};

use super::lists::TableMistake;
use super::rules::{INJECTIONS, RuleMode, read_mode};
use super::selectors::{Mistake, PodSelectors, excluded, read_name, read_patterns, read_text};
use super::settings::{Config, Consequence, OnFailure};
use super::shape::Shape::{Integer, List, Name, Path, Table, Text};
use super::shape::{Shape, ShapeReader, key_place};
use super::spelling::{did_you_mean, distance_to_key};
use crate::error::quoted;
use crate::named::Named;
use Form::{Setting, Values};

use forms::{DEVICE, HOOKS, MOUNT, RESOURCES, RLIMIT, check_key, check_rlimit, check_variable};

/// Maximum edit distance at which a word is taken for a misspelled `on_failure`.
const TYPO_LETTERS: usize = 4;

/// Annotations on which runtimes and engines act; one that ends with a dot or slash stands for all
/// keys with that prefix.
const ACTED_ON: [&str; 14] = [
    "bundle",
    "cdi.k8s.io/",
    "com.github.containers.virtcontainers.",
    "dev.gvisor.",
    "io.containerd.",
    "io.katacontainers.",
    "io.kubernetes.cri-o.",
    "io.kubernetes.cri.",
    "io.podman.annotations.",
    "krun.",
    "module.wasm.image/variant",
    "org.criu.",
    "org.systemd.property.",
    "run.oci.",
];

/// One `[[inject]]` section as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InjectionSection {
    /// The injection's name, else `FILE:LINE` of its header.
    pub name: String,
    /// Two digits that place the injection among the plugins.
    pub index: String,
    /// The pods that the injection selects.
    pub pods: PodSelectors,
    /// Patterns of images; empty means any.
    pub images: Vec<String>,
    /// Whether the injection is applied, or only recorded.
    pub mode: RuleMode,
    /// Whether the injection replaces existing values.
    pub is_always: bool,
    /// What happens to a container to which the injection cannot be applied.
    pub on_failure: OnFailure,
    /// The values that the injection sets, as part of an OCI document.
    pub document: Json,
    /// Names of CDI devices.
    pub cdi: Vec<String>,
    /// The file of a seccomp profile.
    pub seccomp: Option<PathBuf>,
}

impl InjectionSection {
    /// Returns the injection's name as an owner: `inject:NAME`.
    pub fn owner(&self) -> String {
        format!("{INJECTIONS}{}", self.name)
    }

    /// Whether a container to which the injection cannot be applied is refused.
    pub fn refuses(&self) -> bool {
        self.on_failure == OnFailure::Refuse && self.mode == RuleMode::Enforce
    }
}

/// The values of a section that is being read, by key.
type InjectedValues = BTreeMap<&'static str, Json>;

/// How a key is read.
enum Form {
    /// The key is a setting of the section.
    Setting(fn(&mut InjectionSection, &Value) -> Result<(), Mistake>),
    /// The key is a value that is set in containers.
    Values(Shape),
}

/// One key of an injection.
struct InjectionKey {
    name: &'static str,
    default: &'static str,
    meaning: &'static str,
    form: Form,
}

/// Defines the keys of an injection: name, default as TOML, meaning, and parser.
macro_rules! injection_keys {
    ($($name:literal = $default:literal, $meaning:literal, $form:expr;)*) => {
        static INJECTION_KEYS: &[InjectionKey] = &[$(InjectionKey {
            name: $name,
            default: $default,
            meaning: $meaning,
            form: $form,
        }),*];
    };
}

injection_keys! {
    "name" = "", "Name of the injection: `inject:NAME` owns what it sets, in messages, `explain`, the audit log and metrics. It must be unique. Without it: `FILE:LINE`.", Setting(|s, v| read_owner(v).map(|name| s.name = name));
    "namespaces" = "[]", "Pods in one of these namespaces. `\"!NAME\"` excludes. Empty = any.", Setting(|s, v| s.pods.set("namespaces", v));
    "labels" = "[]", "Pods that have all of these labels, as in a [rule](#keys-of-a-rule). Pod authors write labels: an injection selected only by labels and images can set only `env` and `annotations`.", Setting(|s, v| s.pods.set("labels", v));
    "engines" = "[]", "Pods of one of these engines, as in a rule. Empty = any.", Setting(|s, v| s.pods.set("engines", v));
    "handlers" = "[]", "Pods with one of these runtime handlers; the default handler is `\"\"`. Empty = any.", Setting(|s, v| s.pods.set("handlers", v));
    "images" = "[]", "Containers of one of these images, by the engine's name for it. Empty = any.", Setting(|s, v| read_patterns(v).map(|images| s.images = images));
    "index" = "\"00\"", "Position in the order of plugins, before plugins with this index.", Setting(|s, v| read_index(v).map(|index| s.index = index));
    "mode" = "\"enforce\"", "`enforce`: apply it. `audit`: only log what it would do.", Setting(|s, v| read_mode(v).map(|mode| s.mode = mode));
    "when" = "\"absent\"", "`absent`: values of the container's document and of plugins win. `always`: it is merged like a plugin's response.", Setting(|s, v| read_when(v).map(|is_always| s.is_always = is_always));
    "on_failure" = "\"skip\"", "If it cannot be applied, the container is created without it (`skip`) or refused (`refuse`).", Setting(|s, v| read_on_failure(v).map(|on_failure| s.on_failure = on_failure));
    "env" = "", "Variables, `{ NAME = \"VALUE\" }`.", Values(Shape::Map(&Text, check_variable));
    "annotations" = "", "Annotations, `{ KEY = \"VALUE\" }`.", Values(Shape::Map(&Text, check_key));
    "sysctl" = "", "Sysctls, `{ \"net.core.somaxconn\" = \"1024\" }`.", Values(Shape::Map(&Text, check_key));
    "rlimits" = "", "Resource limits, `{ nofile = { soft = 1024, hard = 4096 } }`; a limit may be `\"unlimited\"`.", Values(Shape::Map(&Table(RLIMIT), check_rlimit));
    "mounts" = "", "Mounts: `destination`, `type`, `source`, `options`.", Values(List(&Table(MOUNT)));
    "devices" = "", "Device nodes: `path`, `type`, `major`, `minor`, `fileMode`, `uid`, `gid`.", Values(List(&Table(DEVICE)));
    "cdi" = "", "Names of CDI devices. Only with `when = \"always\"`.", Values(List(&Name));
    "hooks" = "", "OCI hooks: a list for each of `prestart`, `createRuntime`, `createContainer`, `startContainer`, `poststart`, `poststop`. Only with `when = \"always\"`.", Values(Table(HOOKS));
    "seccomp" = "", "File with a seccomp profile in the OCI specification's format, read at each create. Only with `when = \"always\"`.", Values(Path);
    "oom_score_adj" = "", "Adjustment of the OOM score.", Values(Integer(-1000, 1000));
    "resources" = "", "`memory`, `cpu`, `pids`, `hugepageLimits`, `unified`, `devices` with the members of the OCI specification.", Values(Table(RESOURCES));
}

fn read_owner(value: &Value) -> Result<String, Mistake> {
    let name = read_name(value)?;
    if name.contains(',') { Err("expected a name without a comma".into()) } else { Ok(name) }
}

fn read_index(value: &Value) -> Result<String, Mistake> {
    let index = read_text(value)?;
    let is_index = index.len() == 2 && index.bytes().all(|byte| byte.is_ascii_digit());
    is_index
        .then(|| index.to_owned())
        .ok_or_else(|| "expected two digits in quotes, \"00\" to \"99\"".into())
}

/// Parses `when`; returns whether the injection replaces existing values.
fn read_when(value: &Value) -> Result<bool, Mistake> {
    match read_text(value)? {
        "always" => Ok(true),
        "absent" => Ok(false),
        _ => Err("must be one of: absent, always".into()),
    }
}

fn read_on_failure(value: &Value) -> Result<OnFailure, Mistake> {
    OnFailure::named(read_text(value)?).ok_or_else(|| "must be one of: skip, refuse".into())
}

/// Keys that require `when = "always"`, because "set only if absent" is not defined for them.
const WITHOUT_ABSENCE: [&str; 3] = ["cdi", "hooks", "seccomp"];

/// Whether runtimes or engines act on this annotation.
fn is_acted_on(key: &str) -> bool {
    ACTED_ON.iter().any(|known| match known.ends_with(['.', '/']) {
        true => key.starts_with(known),
        false => key == *known,
    })
}

/// Reads the injections of one file into the configuration; `place` returns the `FILE:LINE` of an
/// offset.
pub(super) fn read_list(
    config: &mut Config,
    tables: &ArrayOfTables,
    place: &dyn Fn(usize) -> String,
) -> Vec<TableMistake> {
    let mut mistakes = Vec::new();
    for table in tables {
        let at = table.span().map_or(0, |span| span.start);
        let (section, mut wrong) = read_section(table, at);
        if let Some(mut section) = section {
            if section.name.is_empty() {
                section.name = place(at);
            }
            match config.section_names.add("inject", &section.name) {
                true => config.injections.push(section),
                false => {
                    let name = quoted(&section.name);
                    let what = format!("another injection has the name \"{name}\"");
                    wrong.push(TableMistake::new(at, what));
                }
            }
        }
        let consequence = consequence(table);
        wrong.iter_mut().for_each(|mistake| mistake.consequence = consequence);
        mistakes.extend(wrong);
    }
    mistakes
}

/// Returns the consequence of a mistake in this table: only an injection that refuses containers protects.
pub(super) fn consequence(table: &dyn TableLike) -> Consequence {
    let is_audit = table.get("mode").and_then(Item::as_str) == Some("audit");
    let refuses = table.iter().any(|(key, item)| is_refusal(key, item.as_str()));
    match refuses && !is_audit {
        true => Consequence::RefusesCreates,
        false => Consequence::KeepsLast,
    }
}

/// Returns the consequence of a value that was meant for an injection but is not below `[[inject]]`.
pub(super) fn consequence_of_value(path: &[String], value: &Value) -> Consequence {
    let last = path.last().map(String::as_str).unwrap_or_default();
    let tables = value.as_array().into_iter().flatten().filter_map(Value::as_inline_table);
    let in_list = tables.map(|table| consequence(table)).max();
    match is_refusal(last, value.as_str()) {
        true => Consequence::RefusesCreates,
        false => in_list.unwrap_or(Consequence::KeepsLast),
    }
}

/// Whether this is `on_failure = "refuse"`, or may be a misspelling of it.
fn is_refusal(key: &str, value: Option<&str>) -> bool {
    let is_known = INJECTION_KEYS.iter().any(|known| known.name == key);
    let is_close =
        key == "on_failure" || !is_known && distance_to_key(key, "on_failure") <= TYPO_LETTERS;
    is_close && value != Some("skip")
}

/// Whether a word may be a misspelled `inject`.
pub(super) fn is_meant(word: &str) -> bool {
    let lower = word.to_lowercase();
    lower.starts_with("inject") || distance_to_key(&lower, "inject") <= 2
}

fn read_section(table: &dyn TableLike, at: usize) -> (Option<InjectionSection>, Vec<TableMistake>) {
    let mut section = InjectionSection { index: "00".to_owned(), ..Default::default() };
    let (mut values, mut mistakes) = (InjectedValues::new(), Vec::new());
    for (name, item) in table.iter() {
        let at_key = key_place(table, name).unwrap_or(at);
        let Some(key) = INJECTION_KEYS.iter().find(|key| key.name == name) else {
            let hint = did_you_mean(name, INJECTION_KEYS.iter().map(|key| key.name));
            let what = format!("unknown key inject.{name}{hint}");
            mistakes.push(TableMistake::new(at_key, what));
            continue;
        };
        let path = format!("inject.{name}");
        let set = match (&key.form, item) {
            (Values(shape), item) => {
                let mut reader = ShapeReader { mistakes: &mut mistakes };
                if let Some(value) = reader.read(shape, item, at_key, &path) {
                    values.insert(key.name, value);
                }
                continue;
            }
            (Setting(set), Item::Value(value)) => set(&mut section, value),
            (Setting(_), Item::Table(table)) if name == "labels" => section.pods.set_labels(table),
            (Setting(_), _) => Err("expected a value, not a table".into()),
        };
        if let Err(what) = set {
            let at = item.span().map_or(at_key, |span| span.start);
            mistakes.push(TableMistake::new(at, format!("{path}: {what}")));
        }
    }
    if !mistakes.is_empty() {
        return (None, mistakes);
    }
    for (key, why) in section.contradictions(&values) {
        let at = key_place(table, key).unwrap_or(at);
        mistakes.push(TableMistake::new(at, format!("inject.{key}: {why}")));
    }
    if values.is_empty() {
        mistakes.push(TableMistake::new(at, "the injection sets nothing".to_owned()));
    }
    (mistakes.is_empty().then(|| section.with_values(values)), mistakes)
}

impl InjectionSection {
    /// Returns the keys that the section's other settings do not permit, with the reasons.
    fn contradictions(&self, values: &InjectedValues) -> Vec<(&'static str, &'static str)> {
        let mut found = Vec::new();
        for key in WITHOUT_ABSENCE {
            if values.contains_key(key) && !self.is_always {
                found.push((key, "it has no absence: write when = \"always\""));
            }
        }
        if self.is_authors() {
            let why = "pod and image authors write what selects here, labels and images: only env \
                       and annotations can be injected; select by namespaces, engines or handlers \
                       as well";
            let keys = values.keys().filter(|key| !["env", "annotations"].contains(key));
            found.extend(keys.map(|key| (*key, why)));
            let annotations = values.get("annotations").and_then(Json::as_object);
            if annotations.is_some_and(|all| all.keys().any(|key| is_acted_on(key))) {
                let why = "a runtime or an engine acts on one of these, and pod and image authors \
                           write what selects here; select by namespaces, engines or handlers as \
                           well";
                found.push(("annotations", why));
            }
        }
        found
    }

    /// Whether the injection selects only by labels and images, which pods' authors choose.
    fn is_authors(&self) -> bool {
        let is_any =
            |entry: &str| entry.chars().all(|c| matches!(c, '*' | '?')) && !entry.is_empty();
        let selects =
            |list: &[String]| list.iter().any(|entry| excluded(entry).is_none() && !is_any(entry));
        let PodSelectors { namespaces, labels, without_labels, engines, handlers } = &self.pods;
        let has_authors =
            !labels.is_empty() || !without_labels.is_empty() || !self.images.is_empty();
        has_authors && ![namespaces, engines, handlers].into_iter().any(|list| selects(list))
    }

    fn with_values(self, mut values: InjectedValues) -> Self {
        let mut take = |key| values.remove(key);
        let list = |value: Option<Json>| match value {
            Some(Json::Array(list)) => list,
            _ => Vec::new(),
        };
        let pairs = |value: Option<Json>| match value {
            Some(Json::Object(map)) => map,
            _ => Map::new(),
        };
        let texts = |list: Vec<Json>| -> Vec<String> {
            list.iter().filter_map(Json::as_str).map(str::to_owned).collect()
        };
        let env = pairs(take("env"));
        let env: Vec<String> = env
            .iter()
            .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
            .collect();
        let rlimits = pairs(take("rlimits")).into_iter().map(|(kind, limit)| {
            let kind = nri_adaptation::keys::rlimit(&kind);
            json!({"type": kind, "soft": limit["soft"], "hard": limit["hard"]})
        });
        let rlimits: Vec<Json> = rlimits.collect();
        let seccomp = take("seccomp");
        let cdi = texts(list(take("cdi")));
        let document = json!({
            "annotations": pairs(take("annotations")),
            "process": {"env": env, "rlimits": rlimits, "oomScoreAdj": take("oom_score_adj")},
            "mounts": list(take("mounts")),
            "hooks": pairs(take("hooks")),
            "linux": {
                "sysctl": pairs(take("sysctl")),
                "devices": list(take("devices")),
                "resources": pairs(take("resources")),
            },
        });
        let seccomp = seccomp.as_ref().and_then(Json::as_str).map(PathBuf::from);
        Self { document, cdi, seccomp, ..self }
    }
}

/// Returns the table as `docs/config.md` shows it.
pub(super) fn markdown() -> String {
    let mut page = String::from(
        "\n## Keys of an injection\n\nInjections are written as `[[inject]]`, any number of them; \
         [Injections](injections.md) explains them.\n\n| key | default | meaning |\n|---|---|---|\n",
    );
    for InjectionKey { name, default, meaning, form: _ } in INJECTION_KEYS {
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        page.push_str(&format!("| `inject.{name}` | {default} | {meaning} |\n"));
    }
    page
}
