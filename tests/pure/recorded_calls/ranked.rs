// SPDX-License-Identifier: Apache-2.0
//! The fields that real plugins read, the most read first (28 plugins were counted), on each
//! engine: the expected values are handwritten from the fixture's inputs, not copied from the
//! results. Prints the table of `docs/engines.md`.

use std::io::Write;

use serde_json::{Value, json};

use super::{play, value};

/// The expected values of a case; `None` if the engine has no such value.
struct ExpectedValues {
    engine: &'static str,
    case: &'static str,
    pod: &'static str,
    pod_name: &'static str,
    namespace: Option<&'static str>,
    uid: &'static str,
    id: &'static str,
    name: &'static str,
    annotation: (&'static str, &'static str),
    label: (&'static str, &'static str),
    own_annotation: Option<(&'static str, &'static str)>,
    cgroup_parent: &'static str,
}

const UID: &str = "3f1c2b9a-8d5e-4c77-9b1a-2f6e0d9c4a11";
const KUBEPODS: &str = "/kubepods/burstable/pod3f1c2b9a-8d5e-4c77-9b1a-2f6e0d9c4a11";
const POD: &str = "a526b6e5204eeabe9e3db99dea5c41d7f17e59a424784c199c45542b55939f83";
const SLICE: &str = "/machine.slice/machine-libpod_pod_a526b6e5204eeabe9e3db99dea5c41d7f17e59a424784c199c45542b55939f83.slice";

/// A pod of Kubernetes; the values of other engines differ from it.
const CRI: ExpectedValues = ExpectedValues {
    engine: "containerd-cri",
    case: "containerd-cri-container",
    pod: "5a0d",
    pod_name: "web-7",
    namespace: Some("shop"),
    uid: UID,
    id: "c1",
    name: "app",
    annotation: ("example.org/hint", "yes"),
    label: ("app", "web"),
    own_annotation: Some(("io.kubernetes.container.hash", "5d9c")),
    cgroup_parent: KUBEPODS,
};
const ALL: [ExpectedValues; 9] = [
    CRI,
    ExpectedValues {
        engine: "cri-o",
        case: "crio-container",
        own_annotation: Some(("io.kubernetes.cri-o.ContainerType", "container")),
        ..CRI
    },
    ExpectedValues {
        engine: "docker",
        case: "docker-compose",
        pod: "shop-pod",
        pod_name: "shop",
        namespace: Some("prod"),
        uid: "d0c1",
        id: "d0c1",
        name: "shop-web-1",
        annotation: ("cpu.example/pin", "yes"),
        label: ("com.docker.compose.project", "shop"),
        own_annotation: None,
        cgroup_parent: "/docker",
    },
    ExpectedValues {
        engine: "podman",
        case: "podman-5-database",
        pod: POD,
        pod_name: "shop",
        namespace: Some("podman"),
        uid: POD,
        id: "b0b1",
        name: "shop-web",
        annotation: ("cpu.example/pin", "yes"),
        label: ("app", "shop"),
        own_annotation: Some(("cpu.example/pin", "yes")),
        cgroup_parent: SLICE,
    },
    ExpectedValues {
        engine: "nerdctl",
        case: "nerdctl-run",
        pod: "ab12",
        pod_name: "web",
        namespace: Some("default"),
        uid: "ab12",
        id: "ab12",
        name: "web",
        annotation: ("nerdctl/name", "web"),
        label: ("tier", "front"),
        own_annotation: Some(("nerdctl/name", "web")),
        cgroup_parent: "/default",
    },
    ExpectedValues {
        engine: "containerd",
        case: "containerd-ctr",
        pod: "demo",
        pod_name: "mine",
        namespace: Some("containerd"),
        uid: "demo",
        id: "demo",
        name: "demo",
        annotation: ("demo/label", "one"),
        label: ("demo/label", "one"),
        own_annotation: Some(("demo/label", "one")),
        cgroup_parent: "/default",
    },
    ExpectedValues {
        engine: "isulad",
        case: "isulad-container",
        label: ("io.kubernetes.pod.name", "web-7"),
        own_annotation: Some(("io.kubernetes.cri.container-attempt", "0")),
        ..CRI
    },
    ExpectedValues {
        engine: "kubernetes",
        case: "kubernetes-unknown-engine",
        annotation: ("io.kubernetes.cri.container-type", "sandbox"),
        label: ("io.kubernetes.pod.name", "web-7"),
        own_annotation: Some(("io.kubernetes.cri.container-type", "container")),
        ..CRI
    },
    ExpectedValues {
        engine: "plain",
        case: "plain-run",
        pod: "p1",
        pod_name: "batch",
        namespace: Some("me"),
        uid: "u1",
        id: "job1",
        name: "main",
        annotation: ("note", "x"),
        label: ("app", "sim"),
        own_annotation: Some(("note", "x")),
        cgroup_parent: "/me",
    },
];

/// Rows of the table: the field, and the number of plugins that read it.
const ROWS: [(&str, u32); 10] = [
    ("pod.annotations", 19),
    ("container.name", 16),
    ("pod.namespace, pod.name", 11),
    ("container.id", 10),
    ("pod.uid", 7),
    ("pod.labels", 7),
    ("pod.id, container.pod_sandbox_id", 7),
    ("container.annotations", 7),
    ("cpu and memory of the container", 6),
    ("pod.linux.cgroup_parent", 5),
];

/// Path and expected value of a row.
fn wanted(received: &ExpectedValues, row: usize) -> Vec<(String, Option<Value>)> {
    let entry = |map: &str, (key, value): (&str, &str)| {
        (format!("/{map}/{}", key.replace('/', "~1")), Some(json!(value)))
    };
    let one = |path: &str, text: &str| (path.to_owned(), Some(json!(text)));
    match row {
        0 => vec![entry("pod/annotations", received.annotation)],
        1 => vec![one("/container/name", received.name)],
        2 => vec![
            ("/pod/namespace".to_owned(), received.namespace.map(|name| json!(name))),
            one("/pod/name", received.pod_name),
        ],
        3 => vec![one("/container/id", received.id)],
        4 => vec![one("/pod/uid", received.uid)],
        5 => vec![entry("pod/labels", received.label)],
        6 => vec![one("/pod/id", received.pod), one("/container/podSandboxId", received.pod)],
        7 => match received.own_annotation {
            Some(pair) => vec![entry("container/annotations", pair)],
            None => vec![("/container/annotations".to_owned(), None)],
        },
        8 => vec![
            one("/container/linux/resources/cpu/shares/value", "512"),
            one("/container/linux/resources/memory/limit/value", "268435456"),
        ],
        _ => vec![one("/pod/linux/cgroupParent", received.cgroup_parent)],
    }
}

/// The table, after every value in it was compared.
pub(super) fn table() -> String {
    let engines: Vec<&str> = ALL.iter().map(|received| received.engine).collect();
    let mut page = format!("| # | read by | what | {} |\n|---|---|---|", engines.join(" | "));
    page += &"---|".repeat(engines.len());
    let cases: Vec<Value> = ALL
        .iter()
        .map(|received| {
            let came = play(received.case);
            assert_eq!(came.engine.name(), received.engine, "{}", received.case);
            json!({"pod": value(&came.pod), "container": value(&came.container)})
        })
        .collect();
    for (row, (what, readers)) in ROWS.iter().enumerate() {
        let cells = ALL.iter().zip(&cases).map(|(received, came)| {
            let wanted = wanted(received, row);
            for (path, value) in &wanted {
                assert_eq!(came.pointer(path), value.as_ref(), "{} {path}", received.case);
            }
            match wanted.iter().filter(|(_, value)| value.is_some()).count() {
                0 => "-",
                count if count == wanted.len() => "yes",
                _ => "partly",
            }
        });
        let cells: Vec<&str> = cells.collect();
        page += &format!("\n| {} | {readers} | `{what}` | {} |", row + 1, cells.join(" | "));
    }
    page
}

/// Prints the table for `make test`.
pub(super) fn print(table: &str) {
    let _nobody_reads = std::io::stderr().write_all(format!("{table}\n").as_bytes());
}
