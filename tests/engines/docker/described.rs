// SPDX-License-Identifier: Apache-2.0
//! Compares the messages of plugins about Docker's containers with `docker inspect`.

use nri_plugin::Adjustment;
use serde_json::{Value, json};
use test_support::adjustments::gives_address;
use test_support::{Script, cgroup, wait_until};

use super::engine::{Docker, IMAGE};
use super::{LIFE, events, has_received, listening, requests};

/// Every option of a user that a plugin can see.
fn everything(docker: &Docker) -> Vec<String> {
    let volume = format!("{}:/data/in:ro", docker.host.path("etc").display());
    let words = [
        "--env=A=b c",
        "--env=EMPTY=",
        "--label=com.docker.compose.project=shop",
        "--label=com.docker.compose.service=web",
        "--label=com.docker.compose.container-number=1",
        "--memory=64m",
        "--memory-swap=96m",
        "--memory-reservation=32m",
        "--cpu-shares=512",
        "--cpus=0.5",
        "--cpuset-cpus=0",
        "--pids-limit=50",
        "--user=1001:1002",
        "--hostname=shop-web",
        "--network=none",
        "--device=/dev/null:/dev/my-null:rw",
        "--tmpfs=/scratch:size=1m",
        "--oom-score-adj=100",
        "--ulimit=nofile=512:1024",
        "--sysctl=net.ipv4.ip_default_ttl=65",
        "--volume",
    ];
    words.iter().map(ToString::to_string).chain([volume]).collect()
}

#[test]
fn plugins_receive_the_values_of_docker_inspect() {
    let Some(docker) = Docker::new() else { return };
    let (script, seen) = listening(Script::default());
    let received = docker.host.plugin("10", "witness", script);
    let words = everything(&docker);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let id = docker.runs("web", &words);
    wait_until("its start is reported", || has_received(&received, "PostStartContainer web"));
    let inspect = docker.inspect("web");
    let create = requests(&seen, "CreateContainer").remove(0);
    assert_eq!(differences(&create["pod"], &pod(&docker, &id, &inspect)), Vec::<String>::new());
    let document = docker.document(&id);
    assert_eq!(requests(&seen, "RunPodSandbox")[0]["pod"], create["pod"]);
    let mut container = create["container"].clone();
    the_mounts_are_dockers(&docker, &container["mounts"].take(), &inspect, &document);
    let seccomp = container["linux"]["seccompPolicy"].take();
    the_filter_is_dockers(&seccomp, &document["linux"]["seccomp"]);
    let mut wanted = container_by(&id, &inspect, &document);
    wanted["linux"]["resources"] = create["pod"]["linux"]["resources"].clone();
    wanted["linux"]["cgroupsPath"] = create["pod"]["linux"]["cgroupsPath"].clone();
    wanted["linux"]["namespaces"] = create["pod"]["linux"]["namespaces"].clone();
    assert_eq!(differences(&container, &wanted), Vec::<String>::new());

    let started = requests(&seen, "PostStartContainer").remove(0);
    assert_eq!(started["container"]["pid"], inspect["State"]["Pid"]);
    assert_eq!(started["container"]["state"], "CONTAINER_RUNNING");
    docker.output_of(&["rm", "--force", "web"]);
    assert_eq!(events(&received, "web"), LIFE);

    let open = ["--security-opt=seccomp=unconfined", "--pid=host", "--network=host"];
    docker.runs("open", &open);
    let linux = requests(&seen, "CreateContainer")[1]["container"]["linux"].clone();
    assert_eq!(linux["seccompProfile"]["profileType"], "UNCONFINED");
    assert_eq!(
        (&linux["seccompPolicy"], &linux["namespaces"][0]),
        (&json!(null), &json!({"type": "mount"}))
    );
    let kinds = linux["namespaces"].as_array().unwrap().iter().map(|space| &space["type"]);
    assert!(!kinds.clone().any(|kind| kind == "pid"), "{:?}", kinds.collect::<Vec<_>>());
    docker.output_of(&["rm", "--force", "open"]);
    docker.nothing_is_left();
}

/// The pod of a separate container: the container under another name.
fn pod(docker: &Docker, id: &str, inspect: &Value) -> Value {
    let settings = &inspect["HostConfig"];
    let quota = settings["NanoCpus"].as_i64().unwrap() / 10_000;
    let value = |number: &Value| json!({"value": number.to_string()});
    let mut devices = docker.document(id)["linux"]["resources"]["devices"].clone();
    for rule in devices.as_array_mut().unwrap() {
        as_message(rule, &["major", "minor"]);
    }
    let cgroups = docker.cgroup();
    let mut memory = json!({
        "limit": value(&settings["Memory"]),
        "swap": value(&settings["MemorySwap"]),
        "reservation": value(&settings["MemoryReservation"]),
    });
    // With cgroup v2 it cannot be set.
    if settings["OomKillDisable"].is_boolean() {
        memory["disableOomKiller"] = json!({});
    }
    json!({
        "id": inspect["Id"],
        "name": inspect["Name"].as_str().unwrap().trim_start_matches('/'),
        "uid": inspect["Id"],
        "namespace": "docker",
        "labels": inspect["Config"]["Labels"],
        "runtimeHandler": settings["Runtime"],
        "linux": {
            "cgroupParent": cgroup::in_message(&cgroups),
            "cgroupsPath": cgroup::in_document(&cgroups, ("docker", id)),
            "namespaces": docker.document(id)["linux"]["namespaces"],
            "resources": {
                "memory": memory,
                "cpu": {
                    "shares": value(&settings["CpuShares"]),
                    "quota": value(&json!(quota)),
                    "period": {"value": "100000"},
                    "cpus": settings["CpusetCpus"],
                },
                "devices": devices,
                "pids": {"limit": settings["PidsLimit"].to_string()},
            },
        },
    })
}

/// The members that differ, with the received and the expected values.
fn differences(received: &Value, wanted: &Value) -> Vec<String> {
    let (Some(received_members), Some(members)) = (received.as_object(), wanted.as_object()) else {
        let is_same = received == wanted;
        return if is_same { Vec::new() } else { vec![format!(": {received}, not {wanted}")] };
    };
    let mut names: Vec<&String> = received_members.keys().chain(members.keys()).collect();
    names.sort();
    names.dedup();
    let below = |name: &String| {
        let inner = differences(&received[name.as_str()], &wanted[name.as_str()]);
        inner.into_iter().map(|rest| format!(".{name}{rest}")).collect::<Vec<_>>()
    };
    names.into_iter().flat_map(below).collect()
}

/// The container without mounts, seccomp filter and the members that it shares with its pod.
fn container_by(id: &str, inspect: &Value, document: &Value) -> Value {
    let (settings, config) = (&inspect["HostConfig"], &inspect["Config"]);
    let args = [&[inspect["Path"].clone()][..], inspect["Args"].as_array().unwrap()].concat();
    let hostname = format!("HOSTNAME={}", config["Hostname"].as_str().unwrap());
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let env = [&[json!(path), json!(hostname)][..], config["Env"].as_array().unwrap()].concat();
    let user: Vec<u32> =
        config["User"].as_str().unwrap().split(':').map(|id| id.parse().unwrap()).collect();
    let limits = settings["Ulimits"].as_array().unwrap().iter().map(|limit| {
        let kind = limit["Name"].as_str().unwrap().to_uppercase();
        let (hard, soft) = (limit["Hard"].to_string(), limit["Soft"].to_string());
        json!({"type": format!("RLIMIT_{kind}"), "hard": hard, "soft": soft})
    });
    let devices = settings["Devices"].as_array().unwrap().iter().map(|device| {
        assert_eq!(device["PathOnHost"], "/dev/null");
        json!({"path": device["PathInContainer"], "type": "c", "major": "1", "minor": "3",
            "fileMode": {"value": 0o666}, "uid": {}, "gid": {}})
    });
    let name = inspect["Name"].as_str().unwrap().trim_start_matches('/');
    let mut sysctl = document["linux"]["sysctl"].clone();
    for (key, value) in settings["Sysctls"].as_object().unwrap() {
        sysctl[key] = value.clone();
    }
    // Newer versions have no hooks; NRI always sends the message.
    let hooks = document.get("hooks").cloned().unwrap_or_else(|| json!({}));
    json!({
        "id": id, "podSandboxId": id, "name": name, "labels": config["Labels"],
        "args": args, "env": env, "mounts": null,
        "hooks": hooks,
        "linux": {
            "devices": devices.collect::<Vec<_>>(),
            "oomScoreAdj": {"value": settings["OomScoreAdj"].to_string()},
            "seccompPolicy": null,
            "seccompProfile": {},
            "sysctl": sysctl,
        },
        "rlimits": limits.collect::<Vec<_>>(),
        "user": {"uid": user[0], "gid": user[1], "additionalGids": [user[1]]},
        "image": {"name": config["Image"], "configDigest": inspect["Image"]},
    })
}

/// Checks that the plugin received the document's mounts, among them all that Docker lists.
fn the_mounts_are_dockers(docker: &Docker, received: &Value, inspect: &Value, document: &Value) {
    // Since version 25, mounts below a read-only one are read-only too.
    let reads_only_below = docker.major_version >= 25;
    assert_eq!(received, &document["mounts"]);
    let at = |destination: &str| {
        let all = received.as_array().unwrap();
        let found = all.iter().find(|mount| mount["destination"] == destination);
        found.expect(destination).clone()
    };
    for mount in inspect["Mounts"].as_array().unwrap() {
        let received = at(mount["Destination"].as_str().unwrap());
        assert_eq!((&received["type"], &received["source"]), (&mount["Type"], &mount["Source"]));
        assert_eq!(mount["Mode"], "ro");
        let mode = if reads_only_below { "rro" } else { "ro" };
        assert_eq!(received["options"], json!(["rbind", mode, mount["Propagation"]]));
    }
    for (destination, source) in [
        ("/etc/resolv.conf", "ResolvConfPath"),
        ("/etc/hostname", "HostnamePath"),
        ("/etc/hosts", "HostsPath"),
    ] {
        assert_eq!(at(destination)["source"], inspect[source]);
    }
    for (destination, options) in inspect["HostConfig"]["Tmpfs"].as_object().unwrap() {
        let received = at(destination);
        assert_eq!(received["type"], "tmpfs");
        assert!(received["options"].as_array().unwrap().contains(options), "{received}");
    }
}

/// Compares the filter with the document: `docker inspect` does not show the default filter.
fn the_filter_is_dockers(received: &Value, document: &Value) {
    assert_eq!(received["defaultAction"], document["defaultAction"]);
    assert_eq!(received["architectures"], document["architectures"]);
    let rules = |filter: &Value| {
        let all = filter["syscalls"].as_array().unwrap();
        let part = |rule: &Value| (rule["names"].clone(), rule["action"].clone());
        all.iter().map(part).collect::<Vec<_>>()
    };
    assert_eq!(rules(received), rules(document));
}

/// Converts a rule to the form of NRI's messages: optional numbers are messages, and false is
/// omitted.
fn as_message(rule: &mut Value, numbers: &[&str]) {
    let rule = rule.as_object_mut().unwrap();
    rule.retain(|_, value| *value != json!(false));
    for number in numbers {
        if let Some(value) = rule.get_mut(*number) {
            let printed = value.as_i64().unwrap();
            *value = if printed == 0 { json!({}) } else { json!({"value": printed.to_string()}) };
        }
    }
}

#[test]
fn an_image_in_containerds_store_has_both_of_its_digests() {
    let Some(docker) = Docker::with_containerds_store() else { return };
    let (script, seen) = listening(Script::default());
    let received = docker.host.plugin("10", "witness", script);
    let pin = "--label=nri-runc.dev/annotation/cpu.example/pin=yes";
    docker.runs("web", &["--label=app=web", pin]);
    let create = requests(&seen, "CreateContainer").remove(0);
    let inspect = docker.inspect("web");
    let manifest = &inspect["ImageManifestDescriptor"]["digest"];
    let configuration = docker.digest_of_configuration();
    assert_ne!(manifest, &json!(configuration));
    let image = json!({"name": IMAGE, "digest": manifest, "configDigest": configuration});
    assert_eq!(create["container"]["image"], image);
    assert_eq!(create["container"]["labels"], inspect["Config"]["Labels"]);
    assert_eq!(create["pod"]["annotations"], json!({"cpu.example/pin": "yes"}));
    assert_eq!(docker.host.admin(&["status"])["missing"], json!([]));
    docker.output_of(&["rm", "--force", "web"]);
    docker.nothing_is_left();
    assert_eq!(events(&received, "web"), LIFE);
}

/// The data root is private here, and all its mounts from Docker belong to the other container.
#[test]
fn a_container_in_anothers_network_has_its_own_name_and_labels() {
    let Some(docker) = Docker::new() else { return };
    let (script, seen) = listening(Script::default());
    docker.host.plugin("10", "witness", script);
    let other = docker.runs("web", &["--label=app=web"]);
    let joins = "--network=container:web";
    let pin = "--label=nri-runc.dev/annotation/cpu.example/pin=yes";
    let id = docker.runs("sidecar", &[joins, "--label=app=sidecar", pin]);
    let document = docker.document(&id).to_string();
    assert!(document.contains(&format!("containers/{other}/hosts")), "{document}");
    assert!(!document.contains(&format!("containers/{id}/hosts")), "{document}");
    let creates = requests(&seen, "CreateContainer");
    let (pod, container) = (&creates[1]["pod"], &creates[1]["container"]);
    assert_eq!([&container["name"], &pod["name"]], ["sidecar", "sidecar"]);
    assert_eq!([&container["labels"]["app"], &pod["labels"]["app"]], ["sidecar", "sidecar"]);
    assert_eq!(pod["annotations"], json!({"cpu.example/pin": "yes"}));
    assert_eq!(pod["runtimeHandler"], "nri-runc");
    assert_eq!(docker.host.admin(&["status"])["missing"], json!([]));
    docker.output_of(&["rm", "--force", "sidecar", "web"]);
    docker.nothing_is_left();
}

#[test]
fn nri_runc_labels_join_two_services_in_one_pod() {
    let Some(docker) = Docker::new() else { return };
    let (script, seen) = listening(Script::default());
    let received = docker.host.plugin("10", "witness", script);
    let labels = |service: &str| {
        [
            "com.docker.compose.project=shop".to_owned(),
            format!("com.docker.compose.service={service}"),
            "nri-runc.dev/pod-id=shop".to_owned(),
            "nri-runc.dev/pod-name=shop".to_owned(),
            "nri-runc.dev/pod-namespace=prod".to_owned(),
            "nri-runc.dev/pod-uid=0b1c".to_owned(),
            "nri-runc.dev/label/app=shop".to_owned(),
            "nri-runc.dev/annotation/cpu.example/pin=yes".to_owned(),
            format!("nri-runc.dev/container-name={service}"),
        ]
    };
    for service in ["web", "db"] {
        let labels: Vec<String> =
            labels(service).iter().map(|label| format!("--label={label}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        docker.runs(&format!("shop-{service}-1"), &labels);
    }
    let creates = requests(&seen, "CreateContainer");
    for (create, service) in creates.iter().zip(["web", "db"]) {
        let (pod, container) = (&create["pod"], &create["container"]);
        assert_eq!(container["name"], service);
        assert_eq!(container["labels"]["com.docker.compose.service"], service);
        assert_eq!((&container["podSandboxId"], &pod["id"]), (&json!("shop"), &json!("shop")));
        assert_eq!((&pod["name"], &pod["namespace"]), (&json!("shop"), &json!("prod")));
        assert_eq!(pod["uid"], "0b1c");
        assert_eq!(pod["labels"]["app"], "shop");
        assert_eq!(pod["labels"]["com.docker.compose.project"], "shop");
        assert_eq!(pod["annotations"], json!({"cpu.example/pin": "yes"}));
    }
    let pods = docker.host.admin(&["pods"]);
    assert_eq!((pods.as_array().unwrap().len(), &pods[0]["engine"]), (1, &json!("docker")));
    docker.output_of(&["rm", "--force", "shop-web-1"]);
    wait_until("one has gone", || has_received(&received, "RemoveContainer web"));
    assert_eq!(events(&received, "shop"), ["RunPodSandbox"]);
    docker.output_of(&["rm", "--force", "shop-db-1"]);
    docker.nothing_is_left();
    assert_eq!(events(&received, "shop"), ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]);
}

#[test]
fn a_docker_pod_has_namespace_process_and_addresses() {
    let Some(hooks) = gives_address("192.0.2.7") else { return };
    let Some(docker) = Docker::new() else { return };
    let adjust = Adjustment::new().hooks(hooks);
    let (script, seen) = listening(Script { only: Some("web"), ..adjust.into() });
    docker.host.plugin("10", "network", script);
    docker.runs("web", &["--network=none"]);
    docker.runs("open", &["--network=host"]);
    let pid = docker.inspect("web")["State"]["Pid"].clone();
    let of = |event: &str, name: &str| {
        let all = requests(&seen, event);
        let found = all.into_iter().find(|request| request["container"]["name"] == name);
        found.map(|request| request["pod"].clone()).unwrap_or_default()
    };
    wait_until("both starts are reported", || requests(&seen, "PostStartContainer").len() == 2);
    for event in ["PostCreateContainer", "StartContainer", "PostStartContainer"] {
        let pod = of(event, "web");
        let received = [&pod["namespace"], &pod["pid"], &pod["ips"]];
        assert_eq!(received, [&json!("docker"), &pid, &json!(["192.0.2.7"])], "{event}");
        assert_eq!(of(event, "open")["ips"], json!(null), "{event}: the host's are not the pod's");
    }
    docker.output_of(&["rm", "--force", "web", "open"]);
    wait_until("both ends are reported", || requests(&seen, "StopContainer").len() == 2);
    assert_eq!(of("StopContainer", "web")["pid"], json!(null));
    docker.nothing_is_left();
}
