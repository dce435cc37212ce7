// SPDX-License-Identifier: Apache-2.0
//! A plain container: the messages of plugins equal Podman's output.

use nri_plugin::Adjustment;
use serde_json::{Value, json};
use test_support::adjustments::gives_address;
use test_support::{Script, cgroup};

use super::{inspect, installed, listening, request_of, run};

/// Compares pairs of a plugin's value and Podman's, by name.
fn compare(pairs: &[(&str, &Value, Value)]) {
    let wrong: Vec<String> = pairs
        .iter()
        .filter(|(_, received, printed)| *received != printed)
        .map(|(what, received, printed)| {
            format!("{what}: received {received}, Podman says {printed}")
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn plugins_receive_the_values_of_podman_inspect() {
    let Some(host) = installed("") else { return };
    let (script, requests) = listening(Script::default());
    let received = host.plugin("10", "witness", script);
    let options = [
        "--label=app=web",
        "--annotation=example.org/note=mine",
        "--env=A=1",
        "--user=5:6",
        "--memory=64m",
        "--cpu-shares=512",
        "--cpu-quota=50000",
        "--pids-limit=99",
        "--volume=/tmp:/tmp/host:ro",
    ];
    run(&host, "web", &options, &["sleep", "500"]);
    host.wait_until("the start is reported", || received.lock().unwrap().len() >= 5);
    let printed = inspect(&host, "web");
    let container = &request_of(&requests, "CreateContainer", "web")["container"];
    let (config, limits) = (&printed["Config"], &printed["HostConfig"]);
    let args = [vec![printed["Path"].clone()], words(&printed["Args"])].concat();
    let received_env = json!(sorted(&container["env"]));
    let linux = &container["linux"];
    let id = printed["Id"].as_str().unwrap();
    let parent = limits["CgroupParent"].as_str().unwrap();
    let number = |value: &Value| json!({"value": value.to_string()});
    let image = format!("sha256:{}", printed["Image"].as_str().unwrap());
    compare(&[
        ("id", &container["id"], printed["Id"].clone()),
        ("pod of its own", &container["podSandboxId"], printed["Id"].clone()),
        ("name", &container["name"], printed["Name"].clone()),
        ("labels", &container["labels"], config["Labels"].clone()),
        ("args", &container["args"], json!(args)),
        ("env", &received_env, json!(sorted(&config["Env"]))),
        ("user", &container["user"]["uid"], json!(5)),
        ("group", &container["user"]["gid"], json!(6)),
        ("image", &container["image"]["name"], printed["ImageName"].clone()),
        ("image's config", &container["image"]["configDigest"], json!(image)),
        ("cgroup", &linux["cgroupsPath"], json!(cgroup::in_document(parent, ("libpod", id)))),
        ("memory", &linux["resources"]["memory"]["limit"], number(&limits["Memory"])),
        ("shares", &linux["resources"]["cpu"]["shares"], number(&limits["CpuShares"])),
        ("quota", &linux["resources"]["cpu"]["quota"], number(&limits["CpuQuota"])),
        ("pids", &linux["resources"]["pids"]["limit"], json!(limits["PidsLimit"].to_string())),
    ]);
    for (key, value) in config["Annotations"].as_object().unwrap() {
        assert_eq!(&container["annotations"][key], value, "{key}");
    }
    lists_match(container, &printed);
    let pod = &request_of(&requests, "RunPodSandbox", "web")["pod"];
    compare(&[
        ("pod's id", &pod["id"], printed["Id"].clone()),
        ("pod's uid", &pod["uid"], printed["Id"].clone()),
        ("pod's name", &pod["name"], printed["Name"].clone()),
        ("pod's labels", &pod["labels"], config["Labels"].clone()),
        ("handler", &pod["runtimeHandler"], printed["OCIRuntime"].clone()),
        ("parent", &pod["linux"]["cgroupParent"], json!(cgroup::in_message(parent))),
        ("pod's annotations", &pod["annotations"], json!({"example.org/note": "mine"})),
        ("pod's namespace", &pod["namespace"], json!("podman")),
    ]);
    let started = &request_of(&requests, "PostStartContainer", "web")["container"];
    assert_eq!(started["pid"], printed["State"]["Pid"]);
}

/// Checks that the requested volume and limits are in the message.
fn lists_match(container: &Value, printed: &Value) {
    let mounts = words(&container["mounts"]);
    let volume = mounts.iter().find(|mount| mount["destination"] == "/tmp/host").unwrap();
    assert_eq!(volume["source"], printed["Mounts"][0]["Source"]);
    let rlimits = words(&container["rlimits"]);
    for ulimit in words(&printed["HostConfig"]["Ulimits"]) {
        let (hard, soft) = (ulimit["Hard"].to_string(), ulimit["Soft"].to_string());
        let wanted = json!({"type": ulimit["Name"], "hard": hard, "soft": soft});
        assert!(rlimits.contains(&wanted), "{wanted} in {rlimits:?}");
    }
}

fn words(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn sorted(list: &Value) -> Vec<&str> {
    let words = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut words: Vec<&str> = words.collect();
    words.sort_unstable();
    words
}

#[test]
fn a_podman_pod_has_namespace_process_and_addresses() {
    let Some(hooks) = gives_address("192.0.2.7") else { return };
    let Some(host) = installed("") else { return };
    let (script, requests) = listening(Adjustment::new().hooks(hooks));
    host.plugin("10", "network", script);
    run(&host, "web", &[], &[]);
    let pod = |event: &str| request_of(&requests, event, "web")["pod"].clone();
    let pid = inspect(&host, "web")["State"]["Pid"].clone();
    host.wait_until("its start is reported", || {
        requests.lock().unwrap().iter().any(|(event, _)| event == "PostStartContainer")
    });
    assert_eq!(pod("CreateContainer")["ips"], json!(null));
    for event in ["PostCreateContainer", "StartContainer", "PostStartContainer"] {
        let received = pod(event);
        let received = [&received["namespace"], &received["pid"], &received["ips"]];
        assert_eq!(received, [&json!("podman"), &pid, &json!(["192.0.2.7"])], "{event}");
    }
    host.good(&["rm", "--force", "--time", "0", "web"]);
    host.wait_until_no_pods();
}
