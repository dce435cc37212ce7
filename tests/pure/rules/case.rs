// SPDX-License-Identifier: Apache-2.0
//! Reads one folder of `fixtures/rules` strictly, and decides it in the pure core.
//! `fixtures/rules/README.md` describes the format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nri_adaptation::{Creation, MergeError, Rights};
use nri_runc::plugin::api;
use nri_runc::testing::config;
use nri_runc::testing::rules::{PodsOfContainers, RuledPod, Rules};
use serde::Deserialize;
use serde_json::{Value, json};

/// One folder.
pub(super) struct Case {
    pub(super) name: String,
    rules: Rules,
    asked: Asked,
    verdict: PathBuf,
}

/// `reply.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// The property that the case shows, in words.
    claim: String,
    plugin: String,
    pod: CasePod,
    reply: Value,
    /// The pods of other containers.
    #[serde(default)]
    others: BTreeMap<String, CasePod>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CasePod {
    pub(super) namespace: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) engine: String,
    pub(super) handler: String,
    pub(super) doubtful: bool,
}

impl From<&CasePod> for RuledPod {
    fn from(pod: &CasePod) -> Self {
        let CasePod { namespace, labels, engine, handler, doubtful } = pod.clone();
        Self { namespace, labels, lacks_labels: false, engine, handler, is_doubtful: doubtful }
    }
}

impl PodsOfContainers for Asked {
    fn pod_of(&self, container: &str) -> Option<RuledPod> {
        self.others.get(container).map(RuledPod::from)
    }
}

/// The rules in this text, which has no mistake.
pub(super) fn rules_of(text: &str) -> Rules {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("config.toml");
    nri_runc::testing::files::replace(&file, text.as_bytes()).unwrap();
    let loaded = config::load(Some(&file));
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    Rules::new(&loaded.config.rules)
}

/// Every case, by name.
pub(super) fn all() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/rules");
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.iter().map(|folder| Case::load(folder)).collect()
}

impl Case {
    fn load(folder: &Path) -> Self {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let text = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
        let asked: Asked = serde_json::from_str(&text("reply.json")).unwrap();
        assert!(!asked.claim.is_empty(), "{name} claims nothing");
        let rules = rules_of(&text("rules.toml"));
        Self { name, rules, asked, verdict: folder.join("verdict.json") }
    }

    /// The expected verdict, from the file; with `UPDATE_GOLDEN`, the result.
    pub(super) fn verdict(&self, decided: &Value) -> Value {
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let text = format!("{decided:#}\n");
            nri_runc::testing::files::replace(&self.verdict, text.as_bytes()).unwrap();
        }
        serde_json::from_str(&std::fs::read_to_string(&self.verdict).unwrap_or_default())
            .unwrap_or_default()
    }

    /// The verdict of the pure core.
    pub(super) fn decide(&self) -> Value {
        let Asked { plugin, pod, reply, others, .. } = &self.asked;
        let pod = RuledPod::from(pod);
        let decision = self.rules.decide(plugin, &pod);
        let rules: Vec<&str> = decision.rulings.iter().map(|r| r.rule.as_str()).collect();
        let container = api::Container { id: "c1".to_owned(), ..Default::default() };
        let creation = Creation::new(api::PodSandbox::new(), container);
        let reply: api::CreateContainerResponse =
            protobuf_json_mapping::parse_from_str(&reply.to_string()).unwrap();
        let named = others.keys().map(String::as_str);
        let rights =
            self.rules.rights(&Rights::default(), plugin, Some(("c1", &pod)), named, &self.asked);
        let mut verdict = json!({"rules": rules, "hidden": decision.is_hidden});
        match creation.answer(plugin, &rights, reply) {
            Err(error) => {
                assert!(matches!(error, MergeError::AgainstRule(_)), "{error}");
                verdict["error"] = error.to_string().into();
            }
            Ok(creation) => {
                creation.check_owned(plugin, &rights).unwrap();
                let merged = creation.finish();
                let texts = |all: Vec<String>| Value::from(all);
                verdict["owners"] = json!(merged.owners.to_flat("c1"));
                verdict["noted"] = texts(merged.noted.iter().map(ToString::to_string).collect());
                let dropped = merged.dropped.iter().map(|dropped| dropped.note.to_string());
                verdict["dropped"] = texts(dropped.collect());
                let updated = merged.updates.iter().map(|update| update.container_id.clone());
                verdict["updated"] = texts(updated.collect());
                let evicted = merged.evictions.iter().map(|e| e.container_id.clone());
                verdict["evicted"] = texts(evicted.collect());
            }
        }
        verdict
    }
}
