// SPDX-License-Identifier: Apache-2.0
//! The folders of `fixtures/engines`: the result of each engine's call, message by message, and the
//! table of fields and engines in `docs/engines.md`. `UPDATE_GOLDEN=1` writes the expected files and the
//! table; review the diff.

mod attacks;
mod identity;
mod ranked;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nri_runc::plugin::api;
use nri_runc::testing::describe;
use nri_runc::testing::engine::{self, DetectedEngine, FetchedFacts, Role, StoreRecord};
use nri_runc::testing::host::Host;
use nri_runc::testing::sources::Sources;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    id: String,
    bundle: String,
    parent: Vec<String>,
    grandparent: Vec<String>,
    variables: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    labels: BTreeMap<String, String>,
    image: String,
    #[serde(default)]
    image_digest: String,
    runtime: String,
    #[serde(default)]
    binary: String,
    extensions: BTreeMap<String, Value>,
}

/// The result of a case.
struct CaseResult {
    engine: DetectedEngine,
    missing: Vec<String>,
    contradictions: Vec<String>,
    role: Role,
    is_exempt: bool,
    has_image_annotations: bool,
    pod: api::PodSandbox,
    container: api::Container,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/engines")
}

fn names() -> Vec<String> {
    let entries = std::fs::read_dir(root()).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The folders with an engine's data, without those with false claims.
fn honest() -> Vec<String> {
    names().into_iter().filter(|name| !name.starts_with("attack-")).collect()
}

fn words(line: &[String]) -> Vec<Vec<u8>> {
    line.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// The records as containerd's response would have them.
fn records(folder: &Path) -> Option<BTreeMap<String, StoreRecord>> {
    let bytes = std::fs::read(folder.join("records.json")).ok()?;
    let kept: BTreeMap<String, Kept> = serde_json::from_slice(&bytes).unwrap();
    let records = kept.into_iter().map(|(id, kept)| {
        let Kept { labels, image, image_digest, runtime, binary, extensions } = kept;
        let extensions = extensions.into_iter().map(|(key, json)| (key, json.to_string().into()));
        let extensions = extensions.collect();
        let created_at = (0, 0);
        let record =
            StoreRecord { labels, image, image_digest, created_at, runtime, binary, extensions };
        (id, record)
    });
    Some(records.collect())
}

fn play(name: &str) -> CaseResult {
    let folder = root().join(name);
    let call: Call =
        serde_json::from_slice(&std::fs::read(folder.join("call.json")).unwrap()).unwrap();
    let spec = describe::Spec::parse(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let (parent, grandparent) = (words(&call.parent), words(&call.grandparent));
    let variables: Vec<(String, OsString)> =
        call.variables.into_iter().map(|(key, value)| (key, value.into())).collect();
    let call = engine::CallerInfo {
        id: &call.id,
        bundle: &call.bundle,
        parent: &parent,
        grandparent: &grandparent,
        variables: &variables,
    };
    let document = spec.for_engine();
    let engine = engine::detect(&call, &document);
    let mut wanted = engine::wanted(&engine, &call, &document);
    let query = wanted.store.take();
    let host = Host::new(&folder.join("host").display().to_string(), "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let of = engine.name();
    let mut found: FetchedFacts = runtime.block_on(Sources::default().fetch(&host, of, wanted));
    runtime.block_on(Sources::default().complete(&host, &engine, &call, &document, &mut found));
    match (query, records(&folder)) {
        (Some(query), Some(records)) => {
            assert!(records.keys().all(|id| query.ids.contains(id)), "{name} asks {query:?}");
            found.records = records;
        }
        (Some(query), None) => found.store_problem = Some(format!("{}: away", query.socket)),
        (None, records) => assert!(records.is_none(), "{name} asks for no record"),
    }
    for _round in 0..engine::ROUNDS {
        let seen = engine::Seen { call: &call, document: &document, found: &found };
        let more = engine::wanted_more(&engine, seen);
        let more = runtime.block_on(Sources::default().fetch(&host, of, more));
        found.files.extend(more.files);
    }
    let seen = engine::Seen { call: &call, document: &document, found: &found };
    let mut facts = engine::facts(engine, seen);
    let instead = engine::wanted_instead(&facts, &document);
    let found = runtime.block_on(Sources::default().fetch(&host, of, instead));
    engine::fill_in(&mut facts, &document, &found);
    let is_exempt = facts.is_in(&["kube-system".to_owned()], false);
    facts.name_namespace("");
    CaseResult {
        pod: describe::pod(&facts, &spec),
        container: describe::container(&facts, &spec),
        role: facts.role,
        has_image_annotations: facts.has_image_annotations,
        is_exempt,
        contradictions: facts.contradictions,
        missing: facts.missing,
        engine: facts.engine,
    }
}

fn value(message: &dyn protobuf::MessageDyn) -> Value {
    let mut value = test_support::scripted_plugin::json_of(message);
    value.sort_all_objects();
    value
}

fn is_blessing() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some()
}

#[test]
fn each_recorded_call_gives_the_expected_files() {
    let mut wrong = Vec::new();
    for name in names() {
        let came = play(&name);
        let engine = json!({
            "engine": came.engine.name(),
            "evidence": came.engine.evidence(),
            "missing": came.missing,
            "contradictions": came.contradictions,
            "role": if came.role == Role::Sandbox { "sandbox" } else { "container" },
            "is_exempt": came.is_exempt,
        });
        let files =
            [("engine", engine), ("pod", value(&came.pod)), ("container", value(&came.container))];
        for (file, got) in files {
            let path = root().join(&name).join(format!("expected/{file}.json"));
            let got = format!("{got:#}\n");
            if is_blessing() {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                nri_runc::testing::files::replace(&path, got.as_bytes()).unwrap();
            }
            let wanted = std::fs::read_to_string(&path).unwrap_or_default();
            if wanted != got {
                wrong.push(format!("=== {name} {file}\n--- wanted\n{wanted}--- got\n{got}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every file in a folder is used: a misspelt file would test nothing.
#[test]
fn case_folders_contain_only_known_files() {
    let known: BTreeSet<&str> =
        ["README.md", "call.json", "config.json", "host", "records.json", "expected"].into();
    for name in names() {
        for entry in std::fs::read_dir(root().join(&name)).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            assert!(known.contains(file.as_str()), "{name}/{file}");
        }
    }
}

/// Each engine has a case, and each with separate sources has a case without them.
#[test]
fn every_engine_has_a_case_and_one_without_its_sources() {
    let engines: BTreeSet<&str> = honest().iter().map(|name| play(name).engine.name()).collect();
    let all = [
        "containerd",
        "containerd-cri",
        "cri-o",
        "docker",
        "isulad",
        "kubernetes",
        "nerdctl",
        "plain",
        "podman",
    ];
    assert_eq!(engines, all.into());
    let without: BTreeSet<&str> = honest()
        .iter()
        .map(|name| play(name))
        .filter(|came| !came.missing.is_empty())
        .map(|came| came.engine.name())
        .collect();
    assert_eq!(without, ["containerd-cri", "cri-o", "docker", "nerdctl", "podman"].into());
}

#[test]
fn a_pods_author_cannot_change_its_identity() {
    for name in ["containerd-cri-spoofed", "crio-sandbox", "crio-sandbox-disagrees"] {
        let pod = play(name).pod;
        let identity = (pod.id.as_str(), pod.namespace.as_str(), pod.name.as_str());
        assert_eq!(identity, ("5a0d", "shop", "web-7"), "{name}");
    }
}

/// Columns of the table, and its rows: a field by its path in the message.
const ENGINES: [&str; 9] = [
    "containerd-cri",
    "cri-o",
    "docker",
    "podman",
    "nerdctl",
    "containerd",
    "isulad",
    "kubernetes",
    "plain",
];
const FIELDS: [&str; 28] = [
    "pod/id",
    "pod/name",
    "pod/namespace",
    "pod/uid",
    "pod/labels",
    "pod/annotations",
    "pod/runtimeHandler",
    "pod/pid",
    "pod/ips",
    "pod/linux/cgroupParent",
    "pod/linux/cgroupsPath",
    "pod/linux/namespaces",
    "pod/linux/resources",
    "pod/linux/podResources",
    "pod/linux/podOverhead",
    "container/name",
    "container/labels",
    "container/annotations",
    "container/args",
    "container/linux/cgroupsPath",
    "container/linux/resources",
    "container/linux/seccompProfile",
    "container/linux/resources/rdtClass",
    "container/linux/resources/blockioClass",
    "container/CDIDevices",
    "container/image/name",
    "container/image/digest",
    "container/image/configDigest",
];

/// Recorded cases; the captures have the messages of the engines' own NRI. A plain bundle has no engine
/// that could be recorded, so it is handwritten.
const RECORDED: [&str; 4] = ["containerd-1.6.20-", "docker-20.10-", "podman-4.3.1-", "plain-"];
const CAPTURED: [(&str, &str); 4] = [
    ("containerd-cri", "containerd-2.4.2-pod"),
    ("containerd-cri", "containerd-2.4.2-pod-default"),
    ("cri-o", "crio-1.37-pod"),
    ("cri-o", "crio-1.37-pod-noinfra"),
];

/// Fields that no file has at `create`: unless the engine reports them, they are looked up once the
/// container has a process (tests/engines/docker, tests/engines/podman, tests/bundle).
const LOOKED_UP: [&str; 2] = ["pod/pid", "pod/ips"];
const LOOKED_UP_ON: [&str; 7] =
    ["docker", "podman", "nerdctl", "containerd", "isulad", "kubernetes", "plain"];

fn fields_in(received: &Value) -> impl Iterator<Item = &'static str> {
    FIELDS.into_iter().filter(|field| received.pointer(&format!("/{field}")).is_some())
}

/// A message of the captures, with members spelt as in the protocol.
fn spelt_as_json(value: Value) -> Value {
    let spelt = |name: String| {
        let mut words = name.split('_');
        let first = words.next().unwrap_or_default().to_owned();
        words.fold(first, |all, word| {
            let (initial, rest) = word.split_at_checked(1).unwrap_or(("", word));
            all + &initial.to_uppercase() + rest
        })
    };
    let Value::Object(members) = value else { return value };
    let members = members.into_iter().map(|(name, one)| (spelt(name), spelt_as_json(one)));
    members.collect::<serde_json::Map<_, _>>().into()
}

/// The fields that an engine's own NRI sent about a pod and its containers.
fn captured(capture: &str) -> BTreeSet<&'static str> {
    let path = root().join("../captures").join(capture).join("native.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let printed = text.lines().map(|line| spelt_as_json(serde_json::from_str(line).unwrap()));
    printed.flat_map(|printed| fields_in(&printed).collect::<Vec<_>>()).collect()
}

fn table() -> String {
    let mut known: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut recorded: BTreeSet<(&str, &str)> = BTreeSet::new();
    for name in honest() {
        let came = play(&name);
        let received = json!({"pod": value(&came.pod), "container": value(&came.container)});
        let there: Vec<_> = fields_in(&received).map(|field| (came.engine.name(), field)).collect();
        if RECORDED.iter().any(|start| name.starts_with(start)) {
            recorded.extend(&there);
        }
        known.extend(there);
    }
    for (engine, capture) in CAPTURED {
        recorded.extend(captured(capture).into_iter().map(|field| (engine, field)));
    }
    let mut page = format!("| field | {} |\n|---|", ENGINES.join(" | "));
    page += &"---|".repeat(ENGINES.len());
    for field in FIELDS {
        let cell = |engine: &&str| match (*engine, field) {
            one if known.contains(&one) && recorded.contains(&one) => "yes",
            (engine, field) if LOOKED_UP.contains(&field) && LOOKED_UP_ON.contains(&engine) => {
                "running"
            }
            one if known.contains(&one) => "read",
            _ => "-",
        };
        let cells: Vec<&str> = ENGINES.iter().map(cell).collect();
        page += &format!("\n| `{}` | {} |", field.replace('/', "."), cells.join(" | "));
    }
    page
}

/// Compares a table of a page with the expected one, or writes it.
fn is_kept(page: &str, mark: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {mark} -->\n"), "\n<!-- end of table -->");
    let (before, rest) = page.split_once(&begin).unwrap();
    let (shown, after) = rest.split_once(end).unwrap();
    if is_blessing() {
        let page = [before, &begin, wanted, end, after].concat();
        nri_runc::testing::files::replace(&path, page.as_bytes()).unwrap();
    } else {
        assert!(
            shown == wanted,
            "{} is stale: UPDATE_GOLDEN=1 cargo test --test pure recorded_calls::\n{wanted}",
            path.display()
        );
    }
}

/// One test for both tables, because they are written to one page.
#[test]
fn the_tables_of_fields_and_engines_are_what_the_fixtures_show() {
    let ranked = ranked::table();
    ranked::print(&ranked);
    is_kept("docs/engines.md", "ranked table of tests/pure/recorded_calls/mod.rs", &ranked);
    is_kept("docs/engines.md", "table of tests/pure/recorded_calls/mod.rs", &table());
}
