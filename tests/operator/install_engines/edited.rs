// SPDX-License-Identifier: Apache-2.0
//! Files that were edited between `install` and `uninstall`, manually or by a script that changes the
//! layout: the result has the same values as the same edit of the original.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};
use toml_edit::{DocumentMut, Item, TableLike};

use super::{DOCKER, PROGRAM, Place, tree};

const CONTAINERD: &str = "/etc/containerd/config.toml";
const V3: &str = "io.containerd.cri.v1.runtime";

/// An edit of a document.
#[derive(Debug, Clone)]
enum Edit {
    Set(Vec<String>, Value),
    Remove(Vec<String>),
}

impl Edit {
    fn apply(&self, value: &mut Value) {
        let (keys, new) = match self {
            Self::Set(keys, new) => (keys, Some(new)),
            Self::Remove(keys) => (keys, None),
        };
        let (last, above) = keys.split_last().unwrap();
        let mut table = value;
        for key in above {
            let Value::Object(members) = table else { return };
            if new.is_none() && !members.contains_key(key) {
                return;
            }
            table = members.entry(key.clone()).or_insert_with(|| json!({}));
        }
        let Value::Object(members) = table else { return };
        match new {
            Some(new) => drop(members.insert(last.clone(), new.clone())),
            None => drop(members.shift_remove(last)),
        }
    }
}

/// The layout in which an editor saves a file.
#[derive(Debug, Clone, Copy)]
enum Layout {
    /// `jq .`
    Pretty,
    /// `jq -S .`
    Sorted,
    /// `jq -c .`
    Compact,
    /// `python3 -m json.tool`, which escapes non-ASCII characters.
    Escaped,
}

fn layouts() -> impl Strategy<Value = Layout> {
    let all = [Layout::Pretty, Layout::Sorted, Layout::Compact, Layout::Escaped];
    proptest::sample::select(all.to_vec())
}

fn sorted(value: &Value) -> Value {
    let Value::Object(members) = value else { return value.clone() };
    let mut members: Vec<_> = members.iter().collect();
    members.sort_by_key(|(key, _)| key.as_str());
    members.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect()
}

fn json_text(value: &Value, layout: Layout) -> String {
    match layout {
        Layout::Pretty => format!("{value:#}\n"),
        Layout::Sorted => format!("{:#}\n", sorted(value)),
        Layout::Compact => format!("{value}\n"),
        Layout::Escaped => {
            let text = format!("{value:#}\n").replace("\n  ", "\n    ");
            let escape = |c: char| {
                if c.is_ascii() { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) }
            };
            text.chars().map(escape).collect()
        }
    }
}

/// Settings of operators in `daemon.json`, beside nri-runc's.
fn docker_settings() -> Vec<(&'static [&'static str], Value)> {
    vec![
        (&["live-restore"], json!(true)),
        (&["debug"], json!(false)),
        (&["data-root"], json!("/srv/docker")),
        (&["log-driver"], json!("json-file")),
        (&["log-opts"], json!({"max-size": "10m", "labels": "größe"})),
        (&["dns"], json!(["10.0.0.1", "10.0.0.2"])),
        (&["runtimes", "crun"], json!({"path": "/usr/bin/crun"})),
        (&["runtimes", "kata", "options", "TypeUrl"], json!("x")),
        (&["default-runtime"], json!("crun")),
        (&["default-runtime"], json!("runc")),
    ]
}

/// Settings of operators in containerd's file, beside nri-runc's.
fn containerd_settings() -> Vec<(&'static [&'static str], Value)> {
    vec![
        (&["root"], json!("/srv/containerd")),
        (&["oom_score"], json!(-999)),
        (&["metrics", "address"], json!("127.0.0.1:1338")),
        (&["required_plugins"], json!(["io.containerd.x", "y"])),
        (&["plugins", "io.containerd.cri.v1.images", "snapshotter"], json!("overlayfs")),
        (&["plugins", V3, "enable_selinux"], json!(true)),
        (&["plugins", V3, "containerd", "default_runtime_name"], json!("crun")),
        (
            &["plugins", V3, "containerd", "runtimes", "runc", "runtime_type"],
            json!("io.containerd.runc.v2"),
        ),
        (
            &["plugins", V3, "containerd", "runtimes", "crun", "runtime_type"],
            json!("io.containerd.runc.v2"),
        ),
        (
            &["plugins", V3, "containerd", "runtimes", "crun", "options", "BinaryName"],
            json!("/usr/bin/crun"),
        ),
    ]
}

type Settings = Vec<(&'static [&'static str], Value)>;

fn edits(settings: &Settings, count: usize) -> impl Strategy<Value = Vec<Edit>> + use<> {
    let one = (proptest::sample::select(settings.clone()), 0..4_u8).prop_map(|(setting, kind)| {
        let keys = setting.0.iter().map(|key| (*key).to_owned()).collect();
        if kind == 0 { Edit::Remove(keys) } else { Edit::Set(keys, setting.1) }
    });
    vec(one, 0..count)
}

fn edited(edits: &[Edit], value: &Value) -> Value {
    let mut value = value.clone();
    edits.iter().for_each(|edit| edit.apply(&mut value));
    value
}

/// Removes empty tables, which mean the same as absent ones.
fn without_empty_tables(value: Value) -> Value {
    let Value::Object(members) = value else { return value };
    let members = members.into_iter().map(|(key, value)| (key, without_empty_tables(value)));
    Value::Object(members.filter(|(_, value)| *value != json!({})).collect())
}

fn runner() -> TestRunner {
    TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() })
}

/// The lines of a diff that differ in more than a comma.
fn changed_lines(diff: &str) -> Vec<String> {
    let lines = |sign: char| -> Vec<String> {
        let lines =
            diff.lines().filter(|line| !line.starts_with("---") && !line.starts_with("+++"));
        let lines = lines.filter_map(|line| line.strip_prefix(sign));
        lines.map(|line| line.trim().trim_end_matches(',').to_owned()).collect()
    };
    let (mut removed, mut added) = (lines('-'), lines('+'));
    removed.retain(|line| match added.iter().position(|other| other == line) {
        Some(place) => {
            added.remove(place);
            false
        }
        None => true,
    });
    removed.extend(added);
    removed
}

#[test]
fn uninstall_leaves_only_the_operators_edit_of_daemon_json() {
    let strategy = (
        proptest::option::weighted(0.8, edits(&docker_settings(), 5)),
        edits(&docker_settings(), 4),
        (layouts(), layouts()),
        any::<bool>(),
    );
    let story = |(original, edits, (first, later), default)| {
        let (place, edits): (Place, Vec<Edit>) = (Place::new(), edits);
        let original: Option<Vec<Edit>> = original;
        let before = original.map(|original| edited(&original, &json!({})));
        if let Some(before) = &before {
            place.write(DOCKER, &json_text(before, first));
        }
        place.install(if default { "docker --default" } else { "docker" });
        let installed: Value = serde_json::from_str(&place.read(DOCKER)).unwrap();
        place.write(DOCKER, &json_text(&edited(&edits, &installed), later));
        let dry = place.uninstall("docker --dry-run");
        if !matches!(later, Layout::Compact) {
            // With --default the drop-in with the scope is removed too.
            let ours = ["nri-runc", "runtimes", "default-runtime", "{", "}", "[nri]", "scope = "];
            let is_ours =
                |line: &String| line.is_empty() || ours.iter().any(|word| line.contains(word));
            let lines = changed_lines(&dry);
            prop_assert!(lines.iter().all(is_ours), "{lines:?} in {dry}");
        }
        place.uninstall("docker");
        let wanted = edited(&edits, before.as_ref().unwrap_or(&json!({})));
        let nothing = [json!({}), json!({"runtimes": {}})];
        if before.is_none() && nothing.contains(&wanted) {
            prop_assert!(!place.path(DOCKER).exists());
            return Ok(());
        }
        let left: Value = serde_json::from_str(&place.read(DOCKER)).unwrap();
        prop_assert_eq!(without_empty_tables(left), without_empty_tables(wanted));
        Ok(())
    };
    runner().run(&strategy, story).unwrap();
}

fn toml_value(item: &Item) -> Value {
    if let Some(table) = item.as_table_like() {
        return toml_table(table);
    }
    let value = item.as_value().unwrap();
    if let Some(list) = value.as_array() {
        return list.iter().map(|value| toml_value(&Item::Value(value.clone()))).collect();
    }
    let text = value.as_str().map(Value::from);
    text.or(value.as_bool().map(Value::from)).or(value.as_integer().map(Value::from)).unwrap()
}

fn toml_table(table: &dyn TableLike) -> Value {
    Value::Object(table.iter().map(|(key, item)| (key.to_owned(), toml_value(item))).collect())
}

fn toml_of(text: &str) -> Value {
    toml_table(text.parse::<DocumentMut>().unwrap().as_table())
}

/// A document as a program writes it: values before tables, sorted.
fn toml_text(value: &Value) -> String {
    fn write(table: &Map<String, Value>, keys: &str, text: &mut String) {
        let is_table = |value: &&Value| value.is_object();
        for (key, value) in table.iter().filter(|(_, value)| !is_table(value)) {
            text.push_str(&format!("{key} = {value}\n"));
        }
        for (key, value) in table {
            let Value::Object(inner) = value else { continue };
            let keys = format!("{keys}{}\"{key}\"", if keys.is_empty() { "" } else { "." });
            text.push_str(&format!("[{keys}]\n"));
            write(inner, &keys, text);
        }
    }
    let mut text = String::new();
    if let Value::Object(table) = sorted(value) {
        write(&table, "", &mut text);
    }
    text
}

fn edit_table(table: &mut dyn TableLike, above: &[String], last: &str, edit: &Edit) {
    match (above.split_first(), edit) {
        (Some((key, _)), Edit::Remove(_)) if !table.contains_key(key) => {}
        (Some((key, rest)), _) => {
            let inner = table.entry(key).or_insert_with(toml_edit::table);
            edit_table(inner.as_table_like_mut().unwrap(), rest, last, edit);
        }
        (None, Edit::Remove(_)) => drop(table.remove(last)),
        (None, Edit::Set(_, new)) => {
            let new: toml_edit::Value = new.to_string().parse().unwrap();
            drop(table.insert(last, toml_edit::value(new)));
        }
    }
}

/// An edit by a program that keeps everything else.
fn edit_in_place(text: &str, edits: &[Edit]) -> String {
    let mut document: DocumentMut = text.parse().unwrap();
    for edit in edits {
        let (Edit::Set(keys, _) | Edit::Remove(keys)) = edit;
        let (last, above) = keys.split_last().unwrap();
        edit_table(document.as_table_mut(), above, last, edit);
    }
    document.to_string()
}

#[test]
fn uninstall_leaves_only_the_operators_containerd_edit() {
    let settings = containerd_settings();
    let strategy =
        (edits(&settings, 6), edits(&settings, 4), any::<bool>(), any::<bool>(), any::<bool>());
    let story = |(original, edits, default, is_rewritten, is_crlf)| {
        let place = Place::new();
        let edits: Vec<Edit> = edits;
        let original: Vec<Edit> = original;
        let mut before = json!({"version": 3});
        original.iter().for_each(|edit| edit.apply(&mut before));
        before["plugins"][V3]["sandbox"] = json!("x");
        let text = format!("# by hand\n{}", toml_text(&before));
        place.write(CONTAINERD, &if is_crlf { text.replace('\n', "\r\n") } else { text });
        let words = if default { "containerd --default" } else { "containerd" };
        place.install(&format!("{words} --take-over-nri"));
        let installed = place.read(CONTAINERD);
        let now = if is_rewritten {
            toml_text(&edited(&edits, &toml_of(&installed)))
        } else {
            edit_in_place(&installed, &edits)
        };
        place.write(CONTAINERD, &now);
        place.uninstall("containerd");
        let left = place.read(CONTAINERD);
        let wanted = edited(&edits, &before);
        prop_assert_eq!(without_empty_tables(toml_of(&left)), without_empty_tables(wanted));
        let keeps = |word: &str| now.contains(word) == left.contains(word);
        prop_assert!(keeps("# by hand") && (!now.contains("\r\n") || keeps("\r\n")), "{left}");
        Ok(())
    };
    runner().run(&strategy, story).unwrap();
}

#[test]
fn additions_of_the_operator_to_our_file_stay() {
    for (engine, path, added) in [
        (
            "crio",
            "/etc/crio/crio.conf.d/50-nri-runc.conf",
            "[crio.runtime]\nlog_level = \"debug\"\n",
        ),
        ("podman", "/etc/containers/containers.conf.d/50-nri-runc.conf", "[network]\nx = 1\n"),
    ] {
        let place = Place::new();
        place.install(engine);
        let ours = place.read(path);
        place.write(path, &format!("{ours}\n{added}"));
        let printed = place.uninstall(engine);
        assert!(
            printed.contains("was edited since: only the values that `install` set"),
            "{printed}"
        );
        assert_eq!(toml_of(&place.read(path)), toml_of(added), "{engine}");
    }
}

#[test]
fn uninstall_removes_only_its_own_name_from_an_edited_list() {
    let place = Place::new();
    place.install("podman");
    let path = "/etc/containers/containers.conf.d/50-nri-runc.conf";
    let ours = place.read(path);
    place.write(path, &ours.replace("[\"crun\"", "[\"mine\", \"crun\""));
    let printed = place.uninstall("podman");
    let wanted = "runtime_supports_json was edited since, and only the handler was removed from it";
    assert!(printed.contains(wanted), "{printed}");
    let left = place.read(path);
    assert!(left.contains("\"mine\"") && !left.contains("nri-runc"), "{left}");
}

#[test]
fn a_list_that_no_longer_names_the_handler_is_kept() {
    let place = Place::new();
    place.install("podman");
    let path = "/etc/containers/containers.conf.d/50-nri-runc.conf";
    let ours = place.read(path);
    let (list, _) = ours.split_once("[engine.runtimes]").unwrap();
    place.write(path, &ours.replacen(list, "[engine]\nruntime_supports_json = [\"mine\"]\n", 1));
    let printed = place.uninstall("podman");
    let wanted = "engine.runtime_supports_json was edited since, and was kept";
    assert!(printed.contains(wanted), "{printed}");
    assert!(place.read(path).contains("\"mine\""));
}

#[test]
fn an_extended_entry_is_removed_if_it_names_our_program() {
    let place = Place::new();
    place.write(DOCKER, "{\"debug\": true}\n");
    place.install("docker --default");
    let mut now: Value = serde_json::from_str(&place.read(DOCKER)).unwrap();
    now["runtimes"]["nri-runc"]["runtimeArgs"] = json!(["--debug"]);
    place.write(DOCKER, &format!("{now:#}"));
    let printed = place.uninstall("docker");
    assert!(printed.contains("runtimes.nri-runc was edited since, and was removed"), "{printed}");
    let left: Value = serde_json::from_str(&place.read(DOCKER)).unwrap();
    assert_eq!(left, json!({"debug": true}));
}

#[test]
fn a_default_chosen_after_install_stays() {
    let place = Place::new();
    place.write(DOCKER, "{\"default-runtime\": \"runc\"}\n");
    place.install("docker --default");
    let now = place
        .read(DOCKER)
        .replace("\"default-runtime\": \"nri-runc\"", "\"default-runtime\": \"crun\"");
    place.write(DOCKER, &now);
    let printed = place.uninstall("docker");
    assert!(printed.contains("default-runtime was edited since, and was kept"), "{printed}");
    let left: Value = serde_json::from_str(&place.read(DOCKER)).unwrap();
    assert_eq!(left, json!({"default-runtime": "crun"}));
}

#[test]
fn a_default_that_names_the_handler_is_removed_with_it() {
    let place = Place::new();
    place.write(DOCKER, "{\"debug\": true}\n");
    place.install("docker");
    let mut now: Value = serde_json::from_str(&place.read(DOCKER)).unwrap();
    now["default-runtime"] = json!("nri-runc");
    place.write(DOCKER, &format!("{now:#}"));
    let printed = place.uninstall("docker");
    assert!(printed.contains("default-runtime was edited since, and was removed"), "{printed}");
    let left: Value = serde_json::from_str(&place.read(DOCKER)).unwrap();
    assert_eq!(left, json!({"debug": true}));
}

#[test]
fn a_broken_file_stops_uninstall_and_force_leaves_it_unchanged() {
    for (engine, path) in [("docker", DOCKER), ("containerd", CONTAINERD)] {
        let place = Place::new();
        let is_docker = engine == "docker";
        place.write(
            path,
            if is_docker { "{}\n" } else { "version = 2\n[metrics]\naddress = \"\"\n" },
        );
        place.install(engine);
        let broken = format!("{}{}", place.read(path), if is_docker { "{" } else { "[[\n" });
        let broken = if is_docker { broken.replacen('{', "", 1) } else { broken };
        place.write(path, &broken);
        let printed = place.refused("uninstall", engine);
        assert!(printed.contains(path) && printed.contains("--force"), "{printed}");
        let printed = place.uninstall(&format!("{engine} --force"));
        assert!(
            printed.contains("left as it is") && printed.contains("runtimes.nri-runc"),
            "{printed}"
        );
        assert_eq!(place.read(path), broken);
        let printed = place.refused("uninstall", engine);
        assert!(printed.contains("is not registered with"), "{printed}");
    }
}

#[test]
fn a_unit_file_of_ours_loses_our_lines_and_keeps_the_others() {
    let case = super::fixtures().join("flatcar-copy");
    let args = std::fs::read_to_string(case.join("args")).unwrap();
    let place = Place::of(&case);
    place.install(args.trim());
    let unit = "/etc/systemd/system/containerd.service.d/50-nri-runc.conf";
    let main = place.read(CONTAINERD);
    place.write(unit, &format!("{}Environment=A=b\n", place.read(unit)));
    place.write(CONTAINERD, &format!("{main}\n[metrics]\naddress = \"127.0.0.1:1\"\n"));
    place.uninstall("containerd");
    assert_eq!(place.read(unit), "[Service]\nEnvironment=A=b\n");
    let left = place.read(CONTAINERD);
    assert!(left.contains("127.0.0.1:1") && !left.contains(PROGRAM), "{left}");
    assert!(toml_of(&left)["version"].is_number(), "a copy stays a whole file: {left}");
}

#[test]
fn an_unedited_file_is_restored_byte_for_byte() {
    let place = Place::new();
    let text = "{\n\t\"debug\" : true,\n\n\t\"dns\": [ \"10.0.0.1\" ]\n}";
    place.write(DOCKER, text);
    let before = tree(place.root());
    place.install("docker");
    place.uninstall("docker");
    assert_eq!(tree(place.root()), before);
    place.install("docker");
    let now = place.read(DOCKER);
    place.write(DOCKER, &now.replace("true", "false"));
    place.uninstall("docker");
    assert_eq!(place.read(DOCKER), text.replace("true", "false"), "the layout stays too");
}
