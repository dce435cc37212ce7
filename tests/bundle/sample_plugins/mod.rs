// SPDX-License-Identifier: Apache-2.0
//! The sample plugins as programs, launched and started manually, with the built binary, its daemon
//! and a small runtime: their changes, their output and their refusals.

mod injectors;
mod permitted;

use std::process::{Command, Stdio};

use nri_runc::plugin::api;
use serde_json::{Value, json};
use test_support::example::example;
use test_support::{BUNDLE, LIFE, Started, TestHost, succeeds, wait_until};

/// Installs a plugin in the folder of launched plugins, with its configuration.
fn install(host: &TestHost, name: &str, id: &str, config: &str) {
    std::fs::create_dir_all(host.path("plugins")).unwrap();
    // A link, because a child of another test may hold a new copy open.
    std::os::unix::fs::symlink(example(name), host.path("plugins").join(id)).unwrap();
    host.write(&format!("{id}.conf"), config);
}

fn is_synchronized(host: &TestHost, id: &str) -> bool {
    test_support::is_synchronized(&host.admin(&["plugins"]), id)
}

/// A daemon that launches one plugin.
fn launched(name: &str, id: &str, config: &str) -> TestHost {
    launched_by(TestHost::default(), name, id, config)
}

fn launched_by(mut host: TestHost, name: &str, id: &str, config: &str) -> TestHost {
    install(&host, name, id, config);
    host.start_daemon();
    wait_until("the plugin is synchronized", || is_synchronized(&host, id));
    host
}

/// A host whose node has only cgroup v2, with the controller `misc`.
fn with_misc() -> TestHost {
    let host = TestHost::default();
    let node = host.path("node").display().to_string();
    std::fs::create_dir_all(host.path("node/sys/fs/cgroup")).unwrap();
    host.write("node/sys/fs/cgroup/cgroup.controllers", "cpu memory misc\n");
    let more = format!("[debug]\nnode_root = \"{node}\"\n");
    host.configure(&host.path("fake/runc"), &more);
    host
}

fn by_hand(host: &TestHost, name: &str, more: &[&str]) -> Command {
    let file = |name: &str| {
        let mut options = std::fs::OpenOptions::new();
        options.create(true).append(true).open(host.path(name)).unwrap()
    };
    let mut command = Command::new(example(name));
    command.arg("--socket").arg(host.path("nri.sock")).args(more).stdin(Stdio::null());
    command.stdout(file("plugin.out")).stderr(file("plugin.err"));
    command
}

/// A daemon, and a manually started plugin.
fn external(name: &str, id: &str, more: &[&str]) -> (TestHost, Started) {
    let mut host = TestHost::default();
    host.start_daemon();
    let started = Started(by_hand(&host, name, more).spawn().unwrap());
    wait_until("the plugin is synchronized", || is_synchronized(&host, id));
    (host, started)
}

fn annotated(host: &TestHost, annotations: &[(&str, &str)]) {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let member = format!("\"annotations\": {},\n  \"root\"", Value::from(annotations));
    host.write("bundle/config.json", &BUNDLE.replace("\"root\"", &member));
}

fn seen(host: &TestHost) -> Value {
    serde_json::from_str(&host.read("fake/seen.json")).unwrap()
}

/// Checks for a refusal in one line with all these words, without a change or a start.
#[track_caller]
fn refuses(host: &TestHost, words: &[&str]) {
    let before = host.read("bundle/config.json");
    let output = host.create("c1");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    for word in words {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
    assert_eq!(host.read("bundle/config.json"), before);
    assert_eq!(host.read("fake/argv"), "");
}

const RESOURCES: &str = "resources.nri-runc.dev";

#[test]
fn resources_are_those_of_the_narrowest_annotation() {
    let (host, _started) = external("resource_defaults", "20-resource-defaults", &[]);
    let narrow = format!("{RESOURCES}/container.c1");
    let own = r#"{"cpu": {"shares": 300, "cpus": "0"}, "pids": {"limit": 50}}"#;
    annotated(&host, &[(&narrow, own), (RESOURCES, r#"{"memory": {"limit": 7}}"#)]);
    succeeds(&host.create("c1"));
    let resources = &seen(&host)["linux"]["resources"];
    assert_eq!(resources["cpu"], json!({"shares": 300, "x-future": true, "cpus": "0"}));
    assert_eq!(resources["pids"]["limit"], 50);
    assert_eq!(resources["memory"]["limit"], 1_000_000, "the wider annotation was merged in");
    let changes = host.admin(&["explain", "c1"])["changes"].clone();
    let changes = changes.as_array().unwrap();
    assert!(changes.iter().all(|change| change["plugin"] == "20-resource-defaults"));
    assert_eq!(changes.len(), 3);
}

#[test]
fn defaults_set_only_values_that_the_engine_left_unset() {
    let defaults =
        r#"{"cpu": {"shares": 2, "cpus": "0"}, "memory": {"limit": 5, "swap": 9000000}}"#;
    let host = launched("resource_defaults", "20-resource-defaults", defaults);
    succeeds(&host.create("c1"));
    let resources = &seen(&host)["linux"]["resources"];
    assert_eq!(resources["cpu"], json!({"shares": 1024, "x-future": true, "cpus": "0"}));
    assert_eq!(resources["memory"], json!({"limit": 1_000_000, "swap": 9_000_000}));
}

#[test]
fn a_container_without_annotation_and_defaults_is_unchanged() {
    let host = launched("resource_defaults", "20-resource-defaults", "");
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
}

#[test]
fn unreadable_resources_refuse_the_container_by_plugin_and_key() {
    let (host, _started) = external("resource_defaults", "20-resource-defaults", &[]);
    for bad in ["{", r#"{"cpu": {"share": 1}}"#, r#"{"memory": {"limit": "1G"}}"#, ""] {
        annotated(&host, &[(RESOURCES, bad)]);
        refuses(&host, &["20-resource-defaults", RESOURCES]);
    }
    annotated(&host, &[(RESOURCES, "{}")]);
    succeeds(&host.create("c1"));
}

#[test]
fn a_plugin_with_invalid_configuration_does_not_register() {
    let mut host = TestHost::default();
    install(&host, "resource_defaults", "20-resource-defaults", "cpu = 5");
    install(&host, "event_logger", "99-event-logger", "");
    host.start_daemon();
    for wanted in ["20-resource-defaults could not be configured: its config", "`file = PATH`"] {
        wait_until("the refusal is reported", || host.read("daemon.err").contains(wanted));
    }
    assert_eq!(host.admin(&["status"])["plugins"], 0);
    host.write("defaults.json", "cpu = 5");
    let config = host.path("defaults.json").display().to_string();
    let status = by_hand(&host, "resource_defaults", &["--config", &config]).status().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(host.read("plugin.err").contains("20-resource-defaults: its configuration"));
}

#[test]
fn devices_and_mounts_are_injected_by_annotation() {
    let (host, _started) = external("device_injector", "10-device-injector", &[]);
    let devices = r#"[{"path": "/dev/null2", "type": "c", "major": 1, "minor": 3,
        "file_mode": 438, "uid": 7}, {"path": "/dev/zero"}]"#;
    let mounts =
        r#"[{"source": "/srv", "destination": "/data", "type": "bind", "options": ["ro"]}]"#;
    let other = "mounts.noderesource.dev/container.other";
    annotated(
        &host,
        &[
            ("devices.noderesource.dev/container.c1", devices),
            ("mounts.noderesource.dev/pod", mounts),
            (other, "not for us"),
        ],
    );
    succeeds(&host.create("c1"));
    let document = seen(&host);
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
    let host = launched("device_injector", "10-device-injector", "");
    let cases = [
        ("devices.noderesource.dev", "[{\"path\": \"/dev/x\"", "devices.noderesource.dev: "),
        ("devices.noderesource.dev", "[{\"path\": \"/nowhere\"}]", "/nowhere"),
        ("devices.noderesource.dev", "[{\"path\": \"/\"}]", "/ is no device"),
        ("devices.noderesource.dev", "[{\"path\": \"/dev/x\", \"major\": 1}]", "/dev/x has one of"),
        ("mounts.noderesource.dev/pod", "[{\"source\": \"/a\"}]", "mounts.noderesource.dev/pod: "),
        ("cdi-devices.noderesource.dev", "vendor.com/a=b", "cdi-devices.noderesource.dev: "),
    ];
    for (key, value, wanted) in cases {
        annotated(&host, &[(key, value)]);
        refuses(&host, &["10-device-injector", wanted]);
    }
}

/// No specification on any node has it, so it must not be dropped silently.
#[test]
fn an_unknown_injected_cdi_device_refuses_the_container() {
    let host = launched("device_injector", "10-device-injector", "");
    annotated(&host, &[("cdi-devices.noderesource.dev", r#"["nri-runc.test/none=one"]"#)]);
    refuses(&host, &["nri-runc.test/none=one"]);
}

/// Writes the folder of a container, and that of its pod, as CRI-O does: the pod's folder has the
/// resources of the whole pod. Returns the bundle.
fn in_pod(host: &TestHost, id: &str, pod: &str, resources: &str, annotations: Value) -> String {
    const KEY: &str = "io.kubernetes.cri-o";
    let folder = |id: &str| format!("overlay-containers/{id}/userdata");
    let write = |id: &str, annotations: Value| {
        let member = format!("\"annotations\": {annotations},\n  \"root\"");
        std::fs::create_dir_all(host.path(&folder(id))).unwrap();
        let document = BUNDLE.replace("\"root\"", &member);
        host.write(&format!("{}/config.json", folder(id)), &document);
    };
    let name = format!("k8s_{pod}_shop_u-{pod}_0");
    let metadata = json!({"name": pod, "uid": format!("u-{pod}"), "namespace": "shop"});
    // CRI-O writes the pod's annotations twice: each separately, and all as a list.
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

fn cpus(host: &TestHost) -> String {
    seen(host)["linux"]["resources"]["cpu"]["cpus"].as_str().unwrap_or_default().to_owned()
}

/// KEP-4112, story 3: decided by the resources of the pod, before any of its containers is known.
#[test]
fn a_whole_cpu_pod_keeps_its_cpus_for_all_its_containers() {
    let config = r#"{"exclusive": "2-4", "shared": "0-1"}"#;
    let host = launched("pod_pinner", "30-pod-pinner", config);
    let create = |id: &str, pod: &str, resources: &str| {
        host.create_from(&in_pod(&host, id, pod, resources, json!({})), id)
    };
    for id in ["a1", "a2"] {
        succeeds(&create(id, "poda", TWO_CPUS));
        assert_eq!(cpus(&host), "2,3", "{id}");
    }
    succeeds(&create("b1", "podb", HALF_A_CPU));
    assert_eq!(cpus(&host), "0-1");
    let refused = create("c1", "podc", TWO_CPUS);
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && line.contains("2 exclusive CPUs, 1 are left"), "{line}");
    for id in ["a1", "a2"] {
        succeeds(&host.verb(&["delete", "--force", id]));
    }
    std::fs::remove_dir_all(host.path("overlay-containers/poda")).unwrap();
    wait_until("the pod is gone", || create("c1", "podc", TWO_CPUS).status.success());
    assert_eq!(cpus(&host), "2,3");
}

#[test]
fn a_pinned_pod_gets_cpus_and_memory_of_one_numa_node() {
    let mut host = TestHost::default();
    for (node, cpus) in [("node0", "0-3"), ("node1", "4-7"), ("possible", "0-1")] {
        std::fs::create_dir_all(host.path(&format!("nodes/{node}"))).unwrap();
        host.write(&format!("nodes/{node}/cpulist"), &format!("{cpus}\n"));
    }
    let nodes = host.path("nodes").display().to_string();
    let config = json!({"exclusive": "3-6", "shared": "0-2", "nodes": nodes});
    host.write("pinner.json", &config.to_string());
    host.start_daemon();
    let config = host.path("pinner.json").display().to_string();
    let started = by_hand(&host, "pod_pinner", &["--config", &config]).spawn().unwrap();
    let _pinner = Started(started);
    wait_until("it is synchronized", || is_synchronized(&host, "30-pod-pinner"));
    let mems = || seen(&host)["linux"]["resources"]["cpu"]["mems"].as_str().map(ToOwned::to_owned);
    let create = |id: &str, pod: &str, resources: &str| {
        host.create_from(&in_pod(&host, id, pod, resources, json!({})), id)
    };
    succeeds(&create("a1", "poda", TWO_CPUS));
    assert_eq!((cpus(&host), mems()), ("4,5".to_owned(), Some("1".to_owned())));
    // The remaining CPUs belong to both.
    succeeds(&create("b1", "podb", TWO_CPUS));
    assert_eq!((cpus(&host), mems()), ("3,6".to_owned(), Some("0,1".to_owned())));
    succeeds(&create("c1", "podc", HALF_A_CPU));
    assert_eq!((cpus(&host), mems()), ("0-2".to_owned(), None));
}

#[test]
fn a_restarted_cpu_pinner_keeps_the_assigned_cpus() {
    let mut host = TestHost::default();
    host.write("pinner.json", r#"{"exclusive": "2-4", "shared": "0"}"#);
    host.start_daemon();
    let config = host.path("pinner.json").display().to_string();
    let sits_down = |host: &TestHost| {
        let started = by_hand(host, "pod_pinner", &["--config", &config]).spawn().unwrap();
        wait_until("it is synchronized", || is_synchronized(host, "30-pod-pinner"));
        Started(started)
    };
    let first = sits_down(&host);
    succeeds(&host.create_from(&in_pod(&host, "a1", "poda", TWO_CPUS, json!({})), "a1"));
    drop(first);
    wait_until("it is gone", || !is_synchronized(&host, "30-pod-pinner"));
    let _second = sits_down(&host);
    let refused = host.create_from(&in_pod(&host, "b1", "podb", TWO_CPUS, json!({})), "b1");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("1 are left"));
}

/// KEP-4112, story 4: a resource that no field of the CRI has, enforced by the cgroup.
#[test]
fn misc_resources_are_enforced_up_to_what_the_node_has() {
    let limits = r#"{"sgx_epc": 100, "keys": 3}"#;
    let host = launched_by(with_misc(), "misc_limits", "40-misc-limits", limits);
    let create = |id: &str, annotations: Value| {
        host.create_from(&in_pod(&host, id, &format!("pod{id}"), "null", annotations), id)
    };
    let misc = || seen(&host)["linux"]["resources"]["unified"]["misc.max"].clone();
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
    succeeds(&host.verb(&["delete", "--force", "a1"]));
    succeeds(&create("d1", narrow));
}

/// The parsed lines of a log.
fn lines(host: &TestHost, name: &str) -> Vec<Value> {
    let text = host.read(name);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn lives_and_dies(host: &TestHost) {
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.verb(&["kill", "c1", "9"]));
    succeeds(&host.verb(&["delete", "c1"]));
}

#[test]
fn a_launched_logger_writes_all_events_and_changes_nothing() {
    let mut host = TestHost::default();
    let file = host.path("events.json");
    install(&host, "event_logger", "99-event-logger", &format!("file = {}\n", file.display()));
    host.start_daemon();
    wait_until("the plugin is synchronized", || is_synchronized(&host, "99-event-logger"));
    lives_and_dies(&host);
    wait_until("the end is reported", || host.read("events.json").contains("RemovePodSandbox"));
    let lines = lines(&host, "events.json");
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events[..2], ["Configure", "Synchronize"]);
    assert_eq!(events[2..], LIFE);
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
    let create = &lines[3];
    assert_eq!((&create["pod"], &create["container"]), (&json!("plain/c1"), &json!("c1")));
    let request = create["request"].to_string();
    let request: api::CreateContainerRequest =
        protobuf_json_mapping::parse_from_str(&request).unwrap();
    assert_eq!(request.container.env, ["PATH=/bin", "A=1"]);
    assert_eq!(request.container.linux.resources.memory.limit.value, 1_000_000);
}

#[test]
fn a_manual_logger_prints_what_other_plugins_changed() {
    let (host, _started) = external("event_logger", "99-event-logger", &[]);
    let _other =
        Started(by_hand(&host, "resource_defaults", &["--id", "05-early"]).spawn().unwrap());
    wait_until("the other is synchronized", || is_synchronized(&host, "05-early"));
    annotated(&host, &[(RESOURCES, r#"{"cpu": {"shares": 77}}"#)]);
    lives_and_dies(&host);
    wait_until("the end is reported", || host.read("plugin.out").contains("RemovePodSandbox"));
    let lines = lines(&host, "plugin.out");
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events[..2], ["Configure", "Synchronize"]);
    assert_eq!(events[2..], LIFE);
    let cpu = &lines[3]["request"]["container"]["linux"]["resources"]["cpu"];
    assert_eq!(cpu["shares"]["value"], "77");
}

#[test]
fn a_manual_plugin_without_a_runtime_exits_with_one_line() {
    let host = TestHost::default();
    let status = by_hand(&host, "device_injector", &[]).status().unwrap();
    assert_eq!(status.code(), Some(1));
    let received = host.read("plugin.err");
    assert_eq!(received.lines().count(), 1, "{received}");
    assert!(received.contains("nri.sock: No such file or directory"), "{received}");
}

#[test]
fn a_waiting_plugin_connects_to_the_next_daemon() {
    let (mut host, started) =
        external("resource_defaults", "20-resource-defaults", &["--reconnect"]);
    let pid = nix::unistd::Pid::from_raw(host.daemon_pid());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    host.start_daemon();
    wait_until("it is back", || is_synchronized(&host, "20-resource-defaults"));
    drop(started);
}
