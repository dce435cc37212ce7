// SPDX-License-Identifier: Apache-2.0
//! The documents that real engines passed to `exec` (`fixtures/exec`): each value that a plugin
//! changed at the creation reaches them, and the caller's own values stay.

use std::collections::BTreeMap;

use nri_plugin::Adjustment;
use serde_json::{Value, json};
use test_support::{Script, started, succeeds};

use super::{exec, seen};

/// The engines, each with the variables of the recorded `exec` that the caller added.
const ENGINES: [(&str, &[&str]); 8] = [
    ("containerd-1.6.20", &[]),
    ("containerd-2.4.2", &[]),
    ("crio-1.37", &[]),
    ("crio-1.37-noinfra", &[]),
    ("ctr-containerd-2.4.2", &[]),
    // `docker exec --env X=y`
    ("docker-20.10", &["X"]),
    // Podman also sets HOME itself.
    ("podman-4.3.1", &["X", "HOME"]),
    ("podman-4.3.1-pod", &[]),
];

fn read(engine: &str, name: &str) -> String {
    let path = test_support::program::project().join("fixtures/exec").join(engine).join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The variables of a process; the last one counts if a name repeats.
fn variables(process: &Value) -> BTreeMap<String, String> {
    let entries = process["env"].as_array().into_iter().flatten();
    let pairs = entries.filter_map(|entry| entry.as_str()?.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn limits(process: &Value) -> BTreeMap<String, (u64, u64)> {
    let limits = process["rlimits"].as_array().into_iter().flatten();
    let pairs = limits.map(|limit| {
        let number = |name: &str| limit[name].as_u64().unwrap();
        (limit["type"].as_str().unwrap().to_owned(), (number("hard"), number("soft")))
    });
    pairs.collect()
}

/// Removes every other variable of the container, changes the rest and the limits, and adds one of
/// each.
fn changing(process: &Value) -> Script {
    let mut adjust = Adjustment::new().oom_score_adj(555);
    for (place, (name, value)) in variables(process).into_iter().enumerate() {
        adjust = match place % 2 {
            0 => adjust.env(&name, &format!("{value} of a plugin")),
            _ => adjust.remove_env(&name),
        };
    }
    let mut limits = limits(process);
    limits.entry("RLIMIT_CORE".to_owned()).or_default();
    limits.keys().fold(adjust.env("NEW", "of a plugin"), |all, name| all.rlimit(name, 7, 77)).into()
}

/// The expected document, computed from the rule in another way than in the program.
fn wanted(container: &Value, process: &Value, callers: &[&str]) -> Value {
    let mut wanted = process.clone();
    let mut variables = variables(process);
    for (place, (name, value)) in self::variables(container).into_iter().enumerate() {
        if callers.contains(&name.as_str()) {
            continue;
        }
        if place % 2 == 0 {
            variables.insert(name, format!("{value} of a plugin"));
        } else {
            variables.remove(&name);
        }
    }
    variables.insert("NEW".to_owned(), "of a plugin".to_owned());
    wanted["env"] = json!(variables);
    let mut limits = limits(process);
    limits.entry("RLIMIT_CORE".to_owned()).or_default();
    limits.values_mut().for_each(|limit| *limit = (77, 7));
    wanted["rlimits"] = json!(limits);
    wanted["oomScoreAdj"] = json!(555);
    wanted
}

#[test]
fn plugin_changes_reach_later_processes_of_every_engine() {
    for (engine, callers) in ENGINES {
        let host = started("");
        let (create, document) = (read(engine, "create.json"), read(engine, "process.json"));
        let container: Value = serde_json::from_str(&create).unwrap();
        let process: Value = serde_json::from_str(&document).unwrap();
        let _plugin = host.plugin("10", "all", changing(&container["process"]));
        std::fs::create_dir_all(host.path("recorded")).unwrap();
        host.write("recorded/config.json", &create);
        succeeds(&host.create_from("recorded", "c1"));
        succeeds(&exec(&host, "c1", &document));
        let mut found = seen(&host);
        let written = found["env"].as_array().unwrap().len();
        let (env, rlimits) = (variables(&found), limits(&found));
        assert_eq!(written, env.len(), "{engine}: a variable is there twice");
        (found["env"], found["rlimits"]) = (json!(env), json!(rlimits));
        assert_eq!(found, wanted(&container["process"], &process, callers), "{engine}");
        // In a container that no plugin changed, every byte of the document stays.
        let host = started("");
        std::fs::create_dir_all(host.path("recorded")).unwrap();
        host.write("recorded/config.json", &create);
        succeeds(&host.create_from("recorded", "c1"));
        succeeds(&exec(&host, "c1", &document));
        assert_eq!(host.read("fake/process.json"), document, "{engine}");
    }
}
