// SPDX-License-Identifier: Apache-2.0
//! Each field of an adjustment, with each installed runtime, on this machine's cgroups: a plugin sets
//! it on a real container. Either its value is found in the container's cgroup, in `/proc` or inside,
//! or the create is refused with plugin and field. `make test` sets all fields at once except for the
//! refused ones (`FIELDS=each`, as in `make soak`: one container for each); `make vm` runs it on
//! cgroup v2.
//!
//! The results are compared with the table of `docs/compatibility.md`; `UPDATE_GOLDEN=1` writes it.

mod cases;
mod leaves;
mod look;
mod page;
mod resources;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use nri_runc::plugin::api;
use serde_json::{Value, json};
use test_support::{Script, TestHost, cgroup, skip, succeeds, tools};

use self::cases::{FieldCase, Furniture};
use self::look::{Layout, Running};
use super::Place;

/// A guest without KVM is slow.
const PATIENT: &str = "[nri]\nplugin_request_timeout = \"20s\"";

/// The plugin that sets the fields.
const PLUGIN: &str = "10-fields";

/// The result for a field.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    InForce,
    /// Refused by nri-runc, with plugin and field.
    Refused(String),
}

/// A runtime and its name in the table.
struct RuntimeAtHand {
    program: PathBuf,
    name: String,
}

/// The installed runtimes, in the order of their names.
fn runtimes() -> Vec<RuntimeAtHand> {
    let Some(tools) = tools::find(&["busybox", "runc"]) else { return Vec::new() };
    let mut programs = vec![tools.join("runc")];
    // Debian 12's crun writes no blkio.bfq.weight: it is tried in the guest, which has none.
    if cgroup::v2_beside_v1().is_none() {
        programs.push(tools.join("crun"));
    }
    cgroup::leave_v2_beside_v1();
    let newer = tools.with_file_name("newer");
    let mut newer: Vec<PathBuf> =
        std::fs::read_dir(newer).into_iter().flatten().flatten().map(|e| e.path()).collect();
    newer.sort();
    programs.extend(newer.iter().flat_map(|dir| [dir.join("runc"), dir.join("crun")]));
    let found = programs.into_iter().filter(|program| program.exists()).map(|program| {
        let printed = look::output(&program, &["--version"]);
        let mut words = printed.split_whitespace();
        let (name, version) = (words.next().unwrap(), words.nth(1).unwrap().to_owned());
        let mut numbers = version.split('.');
        let version = [numbers.next().unwrap(), numbers.next().unwrap()].join(".");
        RuntimeAtHand { name: format!("{name} {version}"), program }
    });
    found.collect()
}

/// A host with that runtime and all objects that the fields name.
fn world(runtime: &RuntimeAtHand) -> Option<(Place, Furniture)> {
    let mut place = super::unstarted_place("runc", PATIENT)?;
    let furniture = Furniture::put(&place);
    let more = format!("{PATIENT}\n{}", furniture.settings(&place));
    place.host.configure(&runtime.program, &more);
    place.real.becomes(&runtime.program);
    place.host.start_daemon();
    let next = Some(Arc::clone(&furniture.plugin));
    let _plugin = place.host.plugin("10", "fields", Script { next, ..Script::default() });
    Some((place, furniture))
}

/// The result of an attempt.
enum Attempt {
    Created(Running),
    Refused(String),
}

/// Creates and starts a container with these fields.
fn attempt(
    place: &Place,
    furniture: &Furniture,
    fields: &[&FieldCase],
    runtime: &RuntimeAtHand,
) -> Attempt {
    let wanted = fields.iter().fold(json!({}), |sum, field| merged(sum, &field.adjust));
    let adjust: api::ContainerAdjustment =
        protobuf_json_mapping::parse_from_str(&wanted.to_string()).unwrap();
    *furniture.plugin.lock().unwrap() = adjust;
    let mut document = place.real.document("c1", &["sleep", "1000"]);
    document["linux"]["resources"] = json!({"devices": [{"allow": false, "access": "rwm"}]});
    document["linux"]["devices"] =
        json!([{"path": "/dev/odd", "type": "c", "major": 10, "minor": 250, "fileMode": 0o666}]);
    let dev = json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"});
    document["mounts"].as_array_mut().unwrap().push(dev);
    furniture.clear();
    std::fs::create_dir_all(place.host.path("c1")).unwrap();
    place.host.write("c1/config.json", &document.to_string());
    let output = place.host.create_from("c1", "c1");
    if !output.status.success() {
        let log = place.host.read("log.json");
        return Attempt::Refused(log.lines().last().unwrap_or_default().to_owned());
    }
    place.settled("c1");
    succeeds(&place.host.verb(&["start", "c1"]));
    let pid = place.host.read("pid").trim().parse().unwrap();
    let dir = place.host.path("");
    let running = Running { pid, runtime: runtime.program.clone(), dir };
    // runc may return a moment before its first process executes the container's program.
    test_support::wait_until("it runs", || running.proc("cmdline").starts_with("sleep"));
    Attempt::Created(running)
}

/// Merges two documents: lists are concatenated without duplicates.
fn merged(mut sum: Value, more: &Value) -> Value {
    match (&mut sum, more) {
        (Value::Object(sum), Value::Object(more)) => {
            for (key, value) in more {
                let there = sum.remove(key);
                let value = there.map_or_else(|| value.clone(), |there| merged(there, value));
                sum.insert(key.clone(), value);
            }
        }
        (Value::Array(sum), Value::Array(more)) => {
            let new = more.iter().filter(|entry| !sum.contains(entry)).cloned();
            let new: Vec<Value> = new.collect();
            sum.extend(new);
        }
        (sum, more) => assert_eq!(sum, more, "two fields want one place"),
    }
    sum
}

/// Ends the container.
fn end(place: &Place) {
    let _gone = place.host.verb(&["delete", "--force", "c1"]);
    test_support::wait_until("it is gone", || place.state("c1").is_none());
}

/// The results of fields that are set together, without the refused ones, which are removed one by
/// one. The error lists the fields that are neither in force nor refused.
fn found(
    place: &Place,
    furniture: &Furniture,
    runtime: &RuntimeAtHand,
    layout: Layout,
    group: &[FieldCase],
) -> Result<BTreeMap<String, Outcome>, String> {
    let mut outcomes = BTreeMap::new();
    let mut fields: Vec<&FieldCase> = group.iter().collect();
    while !fields.is_empty() {
        match attempt(place, furniture, &fields, runtime) {
            Attempt::Created(running) => {
                let looked = fields.iter().map(|field| ((field.look)(&running, layout), field));
                let wrong = looked.filter_map(|(look, field)| {
                    look.err().map(|seen| format!("{} is not in force: {seen}", field.row))
                });
                let wrong: Vec<String> = wrong.collect();
                end(place);
                let later = fields.iter().filter_map(|field| {
                    let seen = (field.look_after)(&place.host.path("")).err()?;
                    Some(format!("{} is not in force: {seen}", field.row))
                });
                let wrong: Vec<String> = wrong.into_iter().chain(later).collect();
                if !wrong.is_empty() {
                    return Err(wrong.join("\n"));
                }
                outcomes.extend(fields.drain(..).map(|f| (f.row.to_owned(), Outcome::InForce)));
            }
            Attempt::Refused(why) => {
                end(place);
                let names =
                    |field: &&FieldCase| why.contains(&format!("{PLUGIN}: {}", field.names));
                let Some(at) = fields.iter().position(names) else {
                    let fields: Vec<&str> = fields.iter().map(|field| field.row).collect();
                    return Err(format!("{fields:?} are refused without a field: {why}"));
                };
                let row = fields.remove(at).row.to_owned();
                let explained = place.host.admin(&["explain", "c1"]);
                assert_eq!(explained["changes"], json!([]), "a refusal applies nothing");
                outcomes.insert(row, Outcome::Refused(why));
            }
        }
    }
    Ok(outcomes)
}

/// The cases that share a container.
fn grouped(cases: Vec<FieldCase>, is_alone: bool) -> Vec<Vec<FieldCase>> {
    let mut groups: BTreeMap<usize, Vec<FieldCase>> = BTreeMap::new();
    for (place, case) in cases.into_iter().enumerate() {
        let group = if is_alone { place } else { case.group };
        groups.entry(group).or_default().push(case);
    }
    groups.into_values().collect()
}

/// Prints one line for each case, because the closing summary counts them.
#[expect(clippy::print_stderr, reason = "the table of cases")]
fn show(runtime: &str, row: &str, outcome: &Outcome) {
    match outcome {
        Outcome::InForce => eprintln!("case {runtime}: {row} is in force: ok"),
        Outcome::Refused(_) => eprintln!("case {runtime}: {row} is refused: ok"),
    }
}

#[test]
fn each_field_of_an_adjustment_is_in_force_or_refused() {
    let Some(layout) = Layout::here() else {
        return skip::machine_lacks("this host has no cgroups of one version");
    };
    let is_alone = std::env::var_os("FIELDS").is_some();
    let (mut columns, mut failed) = (BTreeMap::new(), Vec::new());
    for runtime in runtimes() {
        let Some((place, furniture)) = world(&runtime) else { return };
        let cases = cases::all(&place, &furniture, layout);
        let groups = grouped(cases, is_alone);
        let mut column = BTreeMap::new();
        for group in &groups {
            match found(&place, &furniture, &runtime, layout, group) {
                Ok(outcomes) => column.extend(outcomes),
                Err(why) => {
                    page::print_failure(&runtime.name, &why);
                    failed.push(format!("{}: {why}", runtime.name));
                }
            }
        }
        column.iter().for_each(|(row, outcome)| show(&runtime.name, row, outcome));
        let name = format!("{}, {}", runtime.name, layout.name());
        page::print(&name, &column);
        columns.insert(name, column);
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    page::compare(&columns);
}

#[test]
fn the_matrix_has_every_field_of_an_adjustment() {
    let host = TestHost::default();
    let furniture = Furniture::named(&host);
    let cases = [Layout::V1, Layout::V2].map(|layout| cases::of(&host, &furniture, layout, "/c"));
    let set = leaves::set_by(cases.iter().flatten().map(|case| &case.adjust));
    let known = leaves::of_schema();
    let missing: Vec<&String> = known.difference(&set).collect();
    assert!(missing.is_empty(), "no case of tests/node/resources/matrix/cases.rs sets {missing:?}");
    assert!(known.len() > 100, "{}", known.len());
}
