// SPDX-License-Identifier: Apache-2.0
//! The sample plugins as programs, launched and started by hand, against the built binary and its
//! daemon with a small runtime: what they change, what they write, and how they refuse.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/example.rs"]
mod example;
#[path = "support/player.rs"]
mod player;
#[path = "bundle/rig.rs"]
#[expect(dead_code, reason = "not every test needs all of it")]
mod rig;

use std::process::{Child, Command, Output, Stdio};

use nri_runc::plugin::api;
use serde_json::{Value, json};

use example::example;
use rig::{BUNDLE, LIFE, Rig, wait_until};

/// Puts a plugin where it is launched from, with its configuration.
fn install(rig: &Rig, name: &str, id: &str, config: &str) {
    std::fs::create_dir_all(rig.path("plugins")).unwrap();
    // A link, as a fresh copy may be held open by a child of another test.
    std::os::unix::fs::symlink(example(name), rig.path("plugins").join(id)).unwrap();
    rig.write(&format!("{id}.conf"), config);
}

fn is_synchronized(rig: &Rig, id: &str) -> bool {
    rig.admin(&["plugins"]).as_array().into_iter().flatten().any(|plugin| {
        let (index, name) = (plugin["index"].as_str(), plugin["name"].as_str());
        format!("{}-{}", index.unwrap_or_default(), name.unwrap_or_default()) == id
            && plugin["state"] == "synchronized"
    })
}

/// A daemon that launches one plugin.
fn launched(name: &str, id: &str, config: &str) -> Rig {
    launched_by(Rig::new(""), name, id, config)
}

fn launched_by(mut rig: Rig, name: &str, id: &str, config: &str) -> Rig {
    install(&rig, name, id, config);
    rig.start_daemon();
    wait_until("the plugin is synchronized", || is_synchronized(&rig, id));
    rig
}

/// A rig whose node has cgroups of version 2 alone, with the controller `misc`.
fn with_misc() -> Rig {
    let rig = Rig::new("");
    let node = rig.path("node").display().to_string();
    std::fs::create_dir_all(rig.path("node/sys/fs/cgroup")).unwrap();
    rig.write("node/sys/fs/cgroup/cgroup.controllers", "cpu memory misc\n");
    let more = format!("---[debug]\nnode_root = \"{node}\"\n");
    rig.configure(&rig.path("fake/runc"), &more);
    rig
}

/// A plugin started by hand; ends with the test.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "the program under test")]
fn by_hand(rig: &Rig, name: &str, more: &[&str]) -> Command {
    let file = |name: &str| {
        let mut options = std::fs::OpenOptions::new();
        options.create(true).append(true).open(rig.path(name)).unwrap()
    };
    let mut command = Command::new(example(name));
    command.arg("--socket").arg(rig.path("nri.sock")).args(more).stdin(Stdio::null());
    command.stdout(file("plugin.out")).stderr(file("plugin.err"));
    command
}

/// A daemon, and a plugin started by hand.
fn external(name: &str, id: &str, more: &[&str]) -> (Rig, Started) {
    let mut rig = Rig::new("");
    rig.start_daemon();
    let started = Started(by_hand(&rig, name, more).spawn().unwrap());
    wait_until("the plugin is synchronized", || is_synchronized(&rig, id));
    (rig, started)
}

fn annotated(rig: &Rig, annotations: &[(&str, &str)]) {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let member = format!("\"annotations\": {},\n  \"root\"", Value::from(annotations));
    rig.write("bundle/config.json", &BUNDLE.replace("\"root\"", &member));
}

fn seen(rig: &Rig) -> Value {
    serde_json::from_str(&rig.read("fake/seen.json")).unwrap()
}

#[track_caller]
fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Refused in one line with all these words, and nothing was changed or started.
#[track_caller]
fn refuses(rig: &Rig, words: &[&str]) {
    let before = rig.read("bundle/config.json");
    let output = rig.create("c1");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    for word in words {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
    assert_eq!(rig.read("bundle/config.json"), before);
    assert_eq!(rig.read("fake/argv"), "");
}

const RESOURCES: &str = "resources.nri-runc.dev";

#[test]
fn resources_are_those_of_the_narrowest_annotation() {
    let (rig, _started) = external("resource_defaults", "20-resource-defaults", &[]);
    let narrow = format!("{RESOURCES}/container.c1");
    let own = r#"{"cpu": {"shares": 300, "cpus": "0"}, "pids": {"limit": 50}}"#;
    annotated(&rig, &[(&narrow, own), (RESOURCES, r#"{"memory": {"limit": 7}}"#)]);
    succeeds(&rig.create("c1"));
    let resources = &seen(&rig)["linux"]["resources"];
    assert_eq!(resources["cpu"], json!({"shares": 300, "x-future": true, "cpus": "0"}));
    assert_eq!(resources["pids"]["limit"], 50);
    assert_eq!(resources["memory"]["limit"], 1_000_000, "the wider annotation was merged in");
    let changes = rig.admin(&["explain", "c1"])["changes"].clone();
    let changes = changes.as_array().unwrap();
    assert!(changes.iter().all(|change| change["plugin"] == "20-resource-defaults"));
    assert_eq!(changes.len(), 3);
}

#[test]
fn defaults_fill_in_only_what_the_engine_left_open() {
    let defaults =
        r#"{"cpu": {"shares": 2, "cpus": "0"}, "memory": {"limit": 5, "swap": 9000000}}"#;
    let rig = launched("resource_defaults", "20-resource-defaults", defaults);
    succeeds(&rig.create("c1"));
    let resources = &seen(&rig)["linux"]["resources"];
    assert_eq!(resources["cpu"], json!({"shares": 1024, "x-future": true, "cpus": "0"}));
    assert_eq!(resources["memory"], json!({"limit": 1_000_000, "swap": 9_000_000}));
}

#[test]
fn a_container_without_annotation_and_defaults_is_left_alone() {
    let rig = launched("resource_defaults", "20-resource-defaults", "");
    succeeds(&rig.create("c1"));
    assert_eq!(rig.read("fake/seen.json"), BUNDLE);
}

#[test]
fn resources_that_cannot_be_read_refuse_the_container_with_plugin_and_key() {
    let (rig, _started) = external("resource_defaults", "20-resource-defaults", &[]);
    for bad in ["{", r#"{"cpu": {"share": 1}}"#, r#"{"memory": {"limit": "1G"}}"#, ""] {
        annotated(&rig, &[(RESOURCES, bad)]);
        refuses(&rig, &["20-resource-defaults", RESOURCES]);
    }
    annotated(&rig, &[(RESOURCES, "{}")]);
    succeeds(&rig.create("c1"));
}

#[test]
fn a_plugin_whose_configuration_is_bad_does_not_sit_down_and_says_why() {
    let mut rig = Rig::new("");
    install(&rig, "resource_defaults", "20-resource-defaults", "cpu = 5");
    install(&rig, "event_logger", "99-event-logger", "");
    rig.start_daemon();
    for wanted in ["20-resource-defaults could not be configured: its config", "`file = PATH`"] {
        wait_until("the refusal is told", || rig.read("daemon.err").contains(wanted));
    }
    assert_eq!(rig.admin(&["status"])["plugins"], 0);
    rig.write("defaults.json", "cpu = 5");
    let config = rig.path("defaults.json").display().to_string();
    let status = by_hand(&rig, "resource_defaults", &["--config", &config]).status().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(rig.read("plugin.err").contains("20-resource-defaults: its configuration"));
}

#[test]
fn devices_and_mounts_are_injected_by_annotation() {
    let (rig, _started) = external("device_injector", "10-device-injector", &[]);
    let devices = r#"[{"path": "/dev/null2", "type": "c", "major": 1, "minor": 3,
        "file_mode": 438, "uid": 7}, {"path": "/dev/zero"}]"#;
    let mounts =
        r#"[{"source": "/srv", "destination": "/data", "type": "bind", "options": ["ro"]}]"#;
    let other = "mounts.noderesource.dev/container.other";
    annotated(
        &rig,
        &[
            ("devices.noderesource.dev/container.c1", devices),
            ("mounts.noderesource.dev/pod", mounts),
            (other, "not for us"),
        ],
    );
    succeeds(&rig.create("c1"));
    let document = seen(&rig);
    let device = json!({"path": "/dev/null2", "type": "c", "major": 1, "minor": 3,
        "fileMode": 438, "uid": 7});
    assert_eq!(document["linux"]["devices"][0], device);
    let own = json!({"path": "/dev/zero", "type": "c", "major": 1, "minor": 5});
    assert_eq!(document["linux"]["devices"][1], own);
    let mount =
        json!({"destination": "/data", "type": "bind", "source": "/srv", "options": ["ro"]});
    assert!(document["mounts"].as_array().unwrap().contains(&mount), "{document}");
}

#[test]
fn injections_that_cannot_be_read_or_found_refuse_the_container() {
    let rig = launched("device_injector", "10-device-injector", "");
    let cases = [
        ("devices.noderesource.dev", "[{\"path\": \"/dev/x\"", "devices.noderesource.dev: "),
        ("devices.noderesource.dev", "[{\"path\": \"/nowhere\"}]", "/nowhere"),
        ("devices.noderesource.dev", "[{\"path\": \"/\"}]", "/ is no device"),
        ("devices.noderesource.dev", "[{\"path\": \"/dev/x\", \"major\": 1}]", "/dev/x has one of"),
        ("mounts.noderesource.dev/pod", "[{\"source\": \"/a\"}]", "mounts.noderesource.dev/pod: "),
        ("cdi-devices.noderesource.dev", "vendor.com/a=b", "cdi-devices.noderesource.dev: "),
    ];
    for (key, value, wanted) in cases {
        annotated(&rig, &[(key, value)]);
        refuses(&rig, &["10-device-injector", wanted]);
    }
}

/// No specification on any node has it, so it must not be dropped in silence.
#[test]
fn an_injected_cdi_device_that_nobody_knows_refuses_the_container() {
    let rig = launched("device_injector", "10-device-injector", "");
    annotated(&rig, &[("cdi-devices.noderesource.dev", r#"["nri-runc.test/none=one"]"#)]);
    refuses(&rig, &["nri-runc.test/none=one"]);
}

/// The folder of a container, and that of its pod, as CRI-O keeps them: what the whole pod was
/// given stands in the pod's. Returns the bundle.
fn in_pod(rig: &Rig, id: &str, pod: &str, resources: &str, annotations: Value) -> String {
    const KEY: &str = "io.kubernetes.cri-o";
    let folder = |id: &str| format!("overlay-containers/{id}/userdata");
    let write = |id: &str, annotations: Value| {
        let member = format!("\"annotations\": {annotations},\n  \"root\"");
        std::fs::create_dir_all(rig.path(&folder(id))).unwrap();
        let document = BUNDLE.replace("\"root\"", &member);
        rig.write(&format!("{}/config.json", folder(id)), &document);
    };
    let name = format!("k8s_{pod}_shop_u-{pod}_0");
    let metadata = json!({"name": pod, "uid": format!("u-{pod}"), "namespace": "shop"});
    // CRI-O writes the pod's annotations twice: each as one of the document's, and all as a list.
    let mut of_sandbox = annotations.clone();
    of_sandbox[format!("{KEY}.Metadata")] = metadata.to_string().into();
    of_sandbox[format!("{KEY}.Annotations")] = annotations.to_string().into();
    of_sandbox["pod-linux-resources.crio.io"] = resources.into();
    of_sandbox["spoofed.crio.io"] = "true".into();
    write(pod, of_sandbox);
    write(
        id,
        json!({
            "io.container.manager": "cri-o",
            format!("{KEY}.ContainerType"): "container",
            format!("{KEY}.SandboxID"): pod,
            format!("{KEY}.SandboxName"): name,
            format!("{KEY}.Metadata"): "{\"name\": \"main\"}",
        }),
    );
    folder(id)
}

const TWO_CPUS: &str = r#"{"cpu_quota": 200000, "cpu_period": 100000, "cpu_shares": 2048}"#;
const HALF_A_CPU: &str = r#"{"cpu_quota": 50000, "cpu_period": 100000, "cpu_shares": 512}"#;

fn cpus(rig: &Rig) -> String {
    seen(rig)["linux"]["resources"]["cpu"]["cpus"].as_str().unwrap_or_default().to_owned()
}

/// KEP-4112, story 3: decided by what the pod was given, before any of its containers is seen.
#[test]
fn a_pod_of_whole_cpus_gets_them_for_all_its_containers_until_it_is_gone() {
    let config = r#"{"exclusive": "2-4", "shared": "0-1"}"#;
    let rig = launched("pod_pinner", "30-pod-pinner", config);
    let create = |id: &str, pod: &str, resources: &str| {
        rig.create_from(&in_pod(&rig, id, pod, resources, json!({})), id)
    };
    for id in ["a1", "a2"] {
        succeeds(&create(id, "poda", TWO_CPUS));
        assert_eq!(cpus(&rig), "2,3", "{id}");
    }
    succeeds(&create("b1", "podb", HALF_A_CPU));
    assert_eq!(cpus(&rig), "0-1");
    let refused = create("c1", "podc", TWO_CPUS);
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && line.contains("2 exclusive CPUs, 1 are left"), "{line}");
    for id in ["a1", "a2"] {
        succeeds(&rig.verb(&["delete", "--force", id]));
    }
    std::fs::remove_dir_all(rig.path("overlay-containers/poda")).unwrap();
    wait_until("the pod is gone", || create("c1", "podc", TWO_CPUS).status.success());
    assert_eq!(cpus(&rig), "2,3");
}

#[test]
fn a_pinner_that_comes_back_knows_what_is_taken() {
    let mut rig = Rig::new("");
    rig.write("pinner.json", r#"{"exclusive": "2-4", "shared": "0"}"#);
    rig.start_daemon();
    let config = rig.path("pinner.json").display().to_string();
    let sits_down = |rig: &Rig| {
        let started = by_hand(rig, "pod_pinner", &["--config", &config]).spawn().unwrap();
        wait_until("it is synchronized", || is_synchronized(rig, "30-pod-pinner"));
        Started(started)
    };
    let first = sits_down(&rig);
    succeeds(&rig.create_from(&in_pod(&rig, "a1", "poda", TWO_CPUS, json!({})), "a1"));
    drop(first);
    wait_until("it is gone", || !is_synchronized(&rig, "30-pod-pinner"));
    let _second = sits_down(&rig);
    let refused = rig.create_from(&in_pod(&rig, "b1", "podb", TWO_CPUS, json!({})), "b1");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("1 are left"));
}

/// KEP-4112, story 4: a resource that no field of the CRI carries, enforced by the cgroup.
#[test]
fn misc_resources_are_enforced_and_never_more_than_the_node_has() {
    let limits = r#"{"sgx_epc": 100, "keys": 3}"#;
    let rig = launched_by(with_misc(), "misc_limits", "40-misc-limits", limits);
    let create = |id: &str, annotations: Value| {
        rig.create_from(&in_pod(&rig, id, &format!("pod{id}"), "null", annotations), id)
    };
    let misc = || seen(&rig)["linux"]["resources"]["unified"]["misc.max"].clone();
    let narrow = json!({"misc.nri-runc.dev/container.main": "{\"sgx_epc\": 60}"});
    succeeds(&create("a1", narrow.clone()));
    assert_eq!(misc(), "keys 0\nsgx_epc 60");
    succeeds(&create("b1", json!({"misc.nri-runc.dev/container.other": "{\"keys\": 1}"})));
    assert_eq!(misc(), "keys 0\nsgx_epc 0");
    let cases = [
        (narrow.clone(), "it needs 60 of sgx_epc, 40 are left"),
        (json!({"misc.nri-runc.dev": "{\"gold\": 1}"}), "this node has no gold"),
        (json!({"misc.nri-runc.dev": "{"}), "misc.nri-runc.dev: "),
    ];
    for (at, (annotations, wanted)) in cases.into_iter().enumerate() {
        let refused = create(&format!("c{at}"), annotations);
        let line = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && line.contains(wanted), "{line}");
    }
    succeeds(&rig.verb(&["delete", "--force", "a1"]));
    succeeds(&create("d1", narrow));
}

/// The lines of a log, taken apart.
fn lines(rig: &Rig, name: &str) -> Vec<Value> {
    let text = rig.read(name);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn lives_and_dies(rig: &Rig) {
    succeeds(&rig.create("c1"));
    succeeds(&rig.verb(&["start", "c1"]));
    succeeds(&rig.verb(&["kill", "c1", "9"]));
    succeeds(&rig.verb(&["delete", "c1"]));
}

#[test]
fn a_launched_logger_writes_a_life_into_its_file_and_changes_nothing() {
    let mut rig = Rig::new("");
    let file = rig.path("events.json");
    install(&rig, "event_logger", "99-event-logger", &format!("file = {}\n", file.display()));
    rig.start_daemon();
    wait_until("the plugin is synchronized", || is_synchronized(&rig, "99-event-logger"));
    lives_and_dies(&rig);
    wait_until("the end is told", || rig.read("events.json").contains("RemovePodSandbox"));
    let lines = lines(&rig, "events.json");
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events[..2], ["Configure", "Synchronize"]);
    assert_eq!(events[2..], LIFE);
    assert_eq!(rig.read("fake/seen.json"), BUNDLE);
    let create = &lines[3];
    assert_eq!((&create["pod"], &create["container"]), (&json!("c1"), &json!("c1")));
    let request = create["request"].to_string();
    let request: api::CreateContainerRequest =
        protobuf_json_mapping::parse_from_str(&request).unwrap();
    assert_eq!(request.container.env, ["PATH=/bin", "A=1"]);
    assert_eq!(request.container.linux.resources.memory.limit.value, 1_000_000);
}

#[test]
fn a_logger_by_hand_writes_to_stdout_and_sees_what_others_have_changed() {
    let (rig, _started) = external("event_logger", "99-event-logger", &[]);
    let _other =
        Started(by_hand(&rig, "resource_defaults", &["--id", "05-early"]).spawn().unwrap());
    wait_until("the other is synchronized", || is_synchronized(&rig, "05-early"));
    annotated(&rig, &[(RESOURCES, r#"{"cpu": {"shares": 77}}"#)]);
    lives_and_dies(&rig);
    wait_until("the end is told", || rig.read("plugin.out").contains("RemovePodSandbox"));
    let lines = lines(&rig, "plugin.out");
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events[..2], ["Configure", "Synchronize"]);
    assert_eq!(events[2..], LIFE);
    let cpu = &lines[3]["request"]["container"]["linux"]["resources"]["cpu"];
    assert_eq!(cpu["shares"]["value"], "77");
}

#[test]
fn a_plugin_by_hand_without_its_runtime_ends_with_one_line() {
    let rig = Rig::new("");
    let status = by_hand(&rig, "device_injector", &[]).status().unwrap();
    assert_eq!(status.code(), Some(1));
    let told = rig.read("plugin.err");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains("nri.sock") && told.contains("it is missing"), "{told}");
}

#[test]
fn a_plugin_that_waits_comes_back_to_the_next_daemon() {
    let (mut rig, started) =
        external("resource_defaults", "20-resource-defaults", &["--reconnect"]);
    let pid = nix::unistd::Pid::from_raw(rig.daemon_pid());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    rig.start_daemon();
    wait_until("it is back", || is_synchronized(&rig, "20-resource-defaults"));
    drop(started);
}
