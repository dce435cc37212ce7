// SPDX-License-Identifier: Apache-2.0
//! Texts, lists and objects of tenants and engines: in a call's document, its command lines and
//! variables, the engine's files, records and responses about it, the document of an `exec`, and each
//! annotation that the source of an engine names. The calls are those of `fixtures/engines`;
//! `fixtures/oci/complete.json` has every member of the OCI runtime specification 1.3 for Linux, and a
//! test finds a member that the program names and the file lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nri_adaptation::{
    Creation, DefaultValidator, REQUIRED_PLUGINS, ValidatorExemptions, missing_required,
};
use nri_runc::plugin::api;
use nri_runc::testing::describe;
use nri_runc::testing::engine::{self, CallerInfo, FetchedFacts, StoreRecord};
use nri_runc::testing::exec::{ProcessValue, patch_later_process, process_in};
use nri_runc::testing::host::Host;
use nri_runc::testing::plugin::json;
use nri_runc::testing::rules::RuledPod;
use nri_runc::testing::sources::{Sources, runtimes_of_docker};
use nri_runc::testing::spec::patch::{HostFacts, patch_anyway};
use oci_document::SpecDocument;
use protobuf::Message;
use serde_json::{Value, json};

use super::{ENTRIES, Findings, SHAPES, Sample, keys, text};

/// One call of an engine.
struct Case {
    name: String,
    id: String,
    bundle: String,
    parent: Vec<Vec<u8>>,
    grandparent: Vec<Vec<u8>>,
    variables: Vec<(String, OsString)>,
    document: Value,
    found: FetchedFacts,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/engines")
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn call_of(case: &str) -> Value {
    read(&fixtures().join(case).join("call.json")).unwrap()
}

impl Case {
    fn load(name: &str) -> Self {
        let folder = fixtures().join(name);
        let document = read(&folder.join("config.json")).unwrap();
        let mut case = Self::of_call(&call_of(name), document);
        case.name = name.to_owned();
        case.found = case.fetched(&folder);
        case
    }

    /// This call of a `call.json`, before any file of the engine is read.
    fn of_call(call: &Value, document: Value) -> Self {
        let word = |word: &Value| word.as_str().unwrap().to_owned();
        let words = |key: &str| {
            let words = call[key].as_array().unwrap().iter();
            words.map(|one| word(one).into_bytes()).collect()
        };
        let variables = call["variables"].as_object().unwrap().iter();
        Self {
            name: String::new(),
            id: word(&call["id"]),
            bundle: word(&call["bundle"]),
            parent: words("parent"),
            grandparent: words("grandparent"),
            variables: variables.map(|(key, value)| (key.clone(), word(value).into())).collect(),
            document,
            found: FetchedFacts::default(),
        }
    }

    /// The engine's files and records.
    fn fetched(&self, folder: &Path) -> FetchedFacts {
        let spec = describe::Spec::parse(self.document.to_string().as_bytes()).unwrap();
        let (call, document) = (self.call(), spec.for_engine());
        let engine = engine::detect(&call, &document);
        let mut wanted = engine::wanted(&engine, &call, &document);
        wanted.store = None;
        let host = Host::new(&folder.join("host").display().to_string(), "");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let fetch =
            |wanted| runtime.block_on(Sources::default().fetch(&host, engine.name(), wanted));
        let mut found = fetch(wanted);
        let records = read(&folder.join("records.json")).unwrap_or_default();
        found.records = records_of(&records);
        for _round in 0..engine::ROUNDS {
            let seen = engine::Seen { call: &call, document: &document, found: &found };
            let more = fetch(engine::wanted_more(&engine, seen));
            found.files.extend(more.files);
        }
        found
    }

    fn call(&self) -> CallerInfo<'_> {
        CallerInfo {
            id: &self.id,
            bundle: &self.bundle,
            parent: &self.parent,
            grandparent: &self.grandparent,
            variables: &self.variables,
        }
    }

    /// All processing of tenants' and engines' input in a create, without files and plugins.
    fn create(&self, document: &[u8], found: &FetchedFacts) {
        let Ok(spec) = describe::Spec::parse(document) else { return };
        let (call, for_engine) = (self.call(), spec.for_engine());
        let engine = engine::detect(&call, &for_engine);
        let _wanted = engine::wanted(&engine, &call, &for_engine);
        let seen = engine::Seen { call: &call, document: &for_engine, found };
        let _more = engine::wanted_more(&engine, seen);
        let mut facts = engine::facts(engine, seen);
        let _instead = engine::wanted_instead(&facts, &for_engine);
        engine::fill_in(&mut facts, &for_engine, found);
        let _is_exempt = facts.is_in(&["kube-system".to_owned()], false);
        facts.forbid_image_annotation("tolerate.example.org");
        facts.name_namespace("");
        let (pod, container) = (describe::pod(&facts, &spec), describe::container(&facts, &spec));
        let _ruled = RuledPod::of(&pod, facts.engine.name(), facts.is_doubtful());
        for message in [pod.write_to_bytes(), container.write_to_bytes()] {
            assert!(!message.unwrap().is_empty());
        }
        assert!(!json::show(&container).is_null());
        let creation = Creation::new(pod, container);
        let validator = DefaultValidator {
            enable: true,
            tolerate_missing_plugins_annotation: TOLERATED.to_owned(),
            ..DefaultValidator::default()
        };
        let request = creation.validation_request(Vec::new());
        drop(validator.validate(&request));
        require(&validator, &request.pod, &request.container.name);
        let Ok(parsed) = SpecDocument::parse(document) else { return };
        assert_eq!(parsed.to_bytes(), document);
        drop(patch_anyway(document, &adjustment(), &HostFacts::default()));
    }
}

/// The annotation by which a pod tolerates missing required plugins.
const TOLERATED: &str = "tolerate.example.org";

/// The plugins that a pod's author requires, as `daemon/pods/required.rs` checks them.
fn require(validator: &DefaultValidator, pod: &api::PodSandbox, container: &str) {
    let is_present = |name: &str| name == "present";
    let _named = validator.plugins_of_pod(pod);
    for of in [None, Some(container)] {
        let absent = validator.absent_plugins(pod, of, is_present);
        assert!(absent.map_or_else(|why| why.len(), |names| names.len()) < 4 << 10);
        let exemptions = ValidatorExemptions {
            is_exempt: false,
            tolerate_missing_plugins_annotation: TOLERATED,
        };
        let missing = missing_required(pod, of, exemptions, ["10-a", "b"], is_present);
        assert!(missing.map_or_else(|why| why.len(), |names| names.len()) < 4 << 10);
    }
}

/// containerd's records, as far as these fixtures have them.
fn records_of(all: &Value) -> BTreeMap<String, StoreRecord> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let record = |record: &Value| StoreRecord {
        labels: object(&record["labels"]).iter().map(|(k, v)| (k.clone(), text(v))).collect(),
        image: text(&record["image"]),
        image_digest: text(&record["image_digest"]),
        created_at: (0, 0),
        runtime: text(&record["runtime"]),
        binary: text(&record["binary"]),
        extensions: object(&record["extensions"])
            .into_iter()
            .map(|(key, value)| (key, value.to_string().into_bytes()))
            .collect(),
    };
    object(all).iter().map(|(id, one)| (id.clone(), record(one))).collect()
}

/// An adjustment with each kind of edit of a list or an object of the document.
fn adjustment() -> api::ContainerAdjustment {
    test_support::adjustments::message(&json!({
        "annotations": {"new.example.org": "v"},
        "env": [{"key": "NEW", "value": "v"}],
        "mounts": [{"destination": "/new", "source": "/tmp", "type": "bind", "options": ["bind"]}],
        "rlimits": [{"type": "nofile", "hard": 9, "soft": 9}],
        "linux": {
            "devices": [{"path": "/dev/new", "type": "c", "major": 1, "minor": 3}],
            "resources": {"unified": {"memory.high": "1"}},
            "sysctl": {"net.ipv4.ip_forward": "1"},
        },
    }))
}

/// Collects the pointers to every text, list and object of a document.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(n, one)| places(one, &format!("{at}/{n}"), all));
        }
        Value::Object(members) => {
            let members = members.iter();
            members.for_each(|(key, one)| places(one, &format!("{at}/{}", escaped(key)), all));
        }
        Value::String(_) => {}
        Value::Null | Value::Bool(_) | Value::Number(_) => return,
    }
    all.push(at.to_owned());
}

/// The document with one place `times` times as long as usual.
fn longer(document: &Value, at: &str, shape: &str, times: usize) -> Value {
    let mut document = document.clone();
    let place = document.pointer_mut(at).unwrap();
    match place {
        Value::String(usual) => *usual = text(usual, shape, times),
        Value::Array(list) => {
            let one = list.first().cloned().unwrap_or_else(|| Value::from("v"));
            list.extend((0..ENTRIES * times).map(|number| numbered(&one, number)));
        }
        Value::Object(members) => {
            let one = members.values().next().cloned().unwrap_or_else(|| Value::from("v"));
            let more =
                (0..ENTRIES * times).map(|n| (format!("k{n}.example.org"), numbered(&one, n)));
            members.extend(more);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    document
}

/// A copy with different texts, because equal ones would count as one.
fn numbered(value: &Value, number: usize) -> Value {
    match value {
        Value::String(text) => Value::from(format!("{text}{number}")),
        Value::Array(list) => list.iter().map(|one| numbered(one, number)).collect(),
        Value::Object(members) => {
            let members = members.iter().map(|(key, one)| (key.clone(), numbered(one, number)));
            Value::Object(members.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn cases() -> Vec<String> {
    let entries = std::fs::read_dir(fixtures()).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn each_part_of_a_document_costs_linear_time() {
    let (mut findings, sample) = (Findings::default(), Sample::of_today());
    for case in cases() {
        let case = Case::load(&case);
        let mut all = Vec::new();
        places(&case.document, "", &mut all);
        for at in &all {
            let name = format!("{} config.json {at}", case.name);
            if sample.has(&name, 50) {
                let shape = sample.shape(&name);
                let made = |times| longer(&case.document, at, shape, times).to_string();
                let work = |made: &String| case.create(made.as_bytes(), &case.found);
                findings.measure(&format!("{name} {shape}"), made, work);
            }
        }
    }
    findings.are_none(10);
}

/// The document with every member of the specification.
fn complete() -> Value {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/oci/complete.json")).unwrap()
}

/// Collects the keys of all objects in a document.
fn members(value: &Value, all: &mut BTreeSet<String>) {
    match value {
        Value::Array(list) => list.iter().for_each(|one| members(one, all)),
        Value::Object(object) => {
            all.extend(object.keys().cloned());
            object.values().for_each(|one| members(one, all));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn the_complete_document_has_each_member_that_is_named() {
    let mut there = BTreeSet::new();
    members(&complete(), &mut there);
    let known = keys::members();
    assert!(known.len() > 100, "{known:?}");
    let missing: Vec<&String> = known.difference(&there).collect();
    assert!(missing.is_empty(), "fixtures/oci/complete.json lacks {missing:?}");
}

#[test]
fn each_member_of_the_oci_specification_costs_linear_time() {
    let (mut findings, sample) = (Findings::default(), Sample::of_today());
    let mut case = Case::load("plain-run");
    case.document = complete();
    let mut all = Vec::new();
    places(&case.document, "", &mut all);
    for at in &all {
        for shape in SHAPES {
            let name = format!("complete config.json {at} {shape}");
            if sample.has(&name, 40) {
                let made = |times| longer(&case.document, at, shape, times).to_string();
                findings.measure(&name, made, |made| case.create(made.as_bytes(), &case.found));
            }
        }
    }
    findings.are_none(10);
}

/// The limits of a process: a plugin that sets another one is refused.
const RLIMITS: [&str; 16] = [
    "RLIMIT_AS",
    "RLIMIT_CORE",
    "RLIMIT_CPU",
    "RLIMIT_DATA",
    "RLIMIT_FSIZE",
    "RLIMIT_LOCKS",
    "RLIMIT_MEMLOCK",
    "RLIMIT_MSGQUEUE",
    "RLIMIT_NICE",
    "RLIMIT_NOFILE",
    "RLIMIT_NPROC",
    "RLIMIT_RSS",
    "RLIMIT_RTPRIO",
    "RLIMIT_RTTIME",
    "RLIMIT_SIGPENDING",
    "RLIMIT_STACK",
];

/// `count` plugin values that an `exec` receives.
fn carried(count: usize) -> Vec<ProcessValue> {
    let value = |field: String, plugin: Value| {
        let (engine, plugin) =
            if field.ends_with("Gids") { (json!({}), plugin) } else { (Value::Null, plugin) };
        ProcessValue { field, engine, plugin }
    };
    let variables = (0..count).map(|n| value(format!("process.env[K{n}]"), format!("v{n}").into()));
    let limits = RLIMITS.iter().take(count).map(|kind| {
        let limit = json!({"type": kind, "hard": 1, "soft": 1});
        value(format!("process.rlimits[{kind}]"), limit)
    });
    let groups = value("process.user.additionalGids".to_owned(), (0..count).collect());
    let score = value("process.oomScoreAdj".to_owned(), 7.into());
    variables.chain(limits).chain([groups, score]).collect()
}

/// The processing of an `exec` with its document and with the values that plugins set.
fn exec(document: &[u8], values: &[ProcessValue]) {
    let process = process_in(document);
    assert!(process.args.unwrap_or_default().iter().map(String::len).sum::<usize>() < 64 << 10);
    drop(patch_later_process(document, values));
}

#[test]
fn each_member_of_a_process_document_costs_linear_time() {
    let (mut findings, sample) = (Findings::default(), Sample::of_today());
    let (process, values) = (complete()["process"].clone(), carried(2));
    let mut all = Vec::new();
    places(&process, "", &mut all);
    for at in &all {
        for shape in SHAPES {
            let name = format!("exec --process {at} {shape}");
            if sample.has(&name, 8) {
                let made = |times| longer(&process, at, shape, times).to_string();
                findings.measure(&name, made, |made| exec(made.as_bytes(), &values));
            }
        }
    }
    let made = |times: usize| {
        let variables: Vec<String> = (0..ENTRIES * times).map(|n| format!("K{n}=old")).collect();
        let mut process = process.clone();
        process["env"] = variables.into();
        (process.to_string(), carried(ENTRIES * times))
    };
    findings.measure("exec with many values", made, |(made, values)| exec(made.as_bytes(), values));
    findings.are_none(10);
}

#[test]
fn each_part_of_an_engines_files_costs_linear_time() {
    let (mut findings, sample) = (Findings::default(), Sample::of_today());
    for case in cases() {
        let case = Case::load(&case);
        let document = case.document.to_string();
        let records = read(&fixtures().join(&case.name).join("records.json"));
        let files = case.found.files.iter();
        let files = files.filter_map(|(path, bytes)| {
            Some((Some(path), serde_json::from_slice::<Value>(bytes).ok()?))
        });
        for (path, file) in files.chain(records.into_iter().map(|records| (None, records))) {
            let mut all = Vec::new();
            places(&file, "", &mut all);
            for at in &all {
                let name = format!("{} {path:?} {at}", case.name);
                if !sample.has(&name, 50) {
                    continue;
                }
                let shape = sample.shape(&name);
                let made = |times| {
                    let (file, mut found) = (longer(&file, at, shape, times), case.found.clone());
                    match path {
                        Some(path) => {
                            let bytes = file.to_string().into_bytes();
                            drop(found.files.insert(path.clone(), bytes));
                        }
                        None => found.records = records_of(&file),
                    }
                    found
                };
                let work = |found: &FetchedFacts| case.create(document.as_bytes(), found);
                findings.measure(&format!("{name} {shape}"), made, work);
            }
        }
    }
    findings.are_none(5);
}

#[test]
fn each_argument_of_an_engine_costs_linear_time() {
    let (mut findings, sample) = (Findings::default(), Sample::of_today());
    for case in cases() {
        let (call, usual) = (call_of(&case), Case::load(&case));
        let document = usual.document.to_string();
        let mut all = Vec::new();
        places(&call, "", &mut all);
        // The root is not a list.
        for at in all.iter().filter(|at| !at.is_empty()) {
            let name = format!("{case} call.json {at}");
            if !sample.has(&name, 40) {
                continue;
            }
            let shape = sample.shape(&name);
            let made = |times| Case::of_call(&longer(&call, at, shape, times), Value::Null);
            let work = |made: &Case| made.create(document.as_bytes(), &usual.found);
            findings.measure(&format!("{name} {shape}"), made, work);
        }
    }
    findings.are_none(10);
}

#[test]
fn each_part_of_dockers_response_costs_linear_time() {
    let mut findings = Findings::default();
    let info = json!({
        "Containers": 3,
        "Driver": "overlay2",
        "Labels": ["a=b"],
        "Runtimes": {"nri-runc": {"path": "/usr/bin/nri-runc"}, "io.containerd.runc.v2": {}},
        "DefaultRuntime": "runc",
    });
    let mut all = Vec::new();
    places(&info, "", &mut all);
    for at in &all {
        for shape in SHAPES {
            let made = |times| {
                let body = longer(&info, at, shape, times);
                format!("HTTP/1.0 200 OK\r\nApi-Version: 1.41\r\n\r\n{body}")
            };
            let work = |answer: &String| assert!(runtimes_of_docker(answer.as_bytes()).is_some());
            findings.measure(&format!("docker info {at} {shape}"), made, work);
        }
    }
    findings.are_none(50);
}

/// A container and an infrastructure container of each engine, if it has both.
const ENGINES: [&str; 11] = [
    "containerd-cri-container",
    "containerd-cri-sandbox",
    "crio-container",
    "crio-sandbox",
    "docker-run",
    "podman-run",
    "nerdctl-run",
    "containerd-ctr",
    "isulad-container",
    "kubernetes-unknown-engine",
    "plain-run",
];

#[test]
fn each_annotation_known_to_an_engine_costs_linear_time() {
    let (mut findings, sample) = (Findings::default(), Sample::of_today());
    let mut known = keys::known();
    known.insert(TOLERATED.to_owned());
    for form in ["", "/pod", "/container.c", "/container.web"] {
        known.insert(format!("{REQUIRED_PLUGINS}{form}"));
    }
    for case in ENGINES {
        let case = Case::load(case);
        for key in &known {
            for shape in SHAPES {
                let name = format!("{} annotation {key} {shape}", case.name);
                if !sample.has(&name, 60) {
                    continue;
                }
                let made = |times| {
                    let mut document = case.document.clone();
                    document["annotations"][key] = text("", shape, times).into();
                    document.to_string()
                };
                findings.measure(&name, made, |made| case.create(made.as_bytes(), &case.found));
            }
        }
    }
    findings.are_none(10);
}
