// SPDX-License-Identifier: Apache-2.0
//! `policy test --compare`: what other rules, injections and promises would have decided about a recording,
//! and about the pods of a manifest; recordings that lack data for a decision.

use std::process::{Child, Output};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use test_support::adjustments::sets;
use test_support::{TestHost, fails, succeeds, wait_until};

use crate::rules::pod_container;

/// Records during `act`, until a creation of this container is decided.
fn record(host: &TestHost, last: &str, act: impl FnOnce()) {
    let file = host.path("script.jsonl").display().to_string();
    let mut recorder: Child =
        host.spawn_kept(&["nri", "replay", "--record", &file], None, "recorder.err");
    wait_until("the recording listens", || host.read("script.jsonl").ends_with('\n'));
    act();
    wait_until("the last creation is recorded", || {
        let text = host.read("script.jsonl");
        text.contains("\"decision\":")
            && text.contains("\"PostCreateContainer\"")
            && text.contains(last)
    });
    kill(Pid::from_raw(i32::try_from(recorder.id()).unwrap()), Signal::SIGTERM).unwrap();
    recorder.wait().unwrap();
}

/// A recording of `shop/c1` and `stage/d1`, in which the plugin 10-a sets a variable.
fn recorded(more: &str) -> TestHost {
    let mut host = TestHost::new(more);
    host.start_daemon();
    let _plugin = host.plugin("10", "a", sets("TOKEN", "secret"));
    record(&host, "d1", || {
        for (namespace, id) in [("shop", "c1"), ("stage", "d1")] {
            let bundle = pod_container(&host, namespace, id);
            succeeds(&host.create_from(&bundle, id));
        }
        wait_until("both are created", || {
            host.read("script.jsonl").matches("\"PostCreateContainer\"").count() == 2
        });
    });
    host
}

/// Compares the recording with these lines added to the current configuration.
fn compare(host: &TestHost, more: &str, words: &[&str]) -> Output {
    let present = host.read("config.toml");
    host.write("new.toml", &format!("{present}\n{more}"));
    let (new, script) = (host.path("new.toml"), host.path("script.jsonl"));
    let words = [&["nri", "policy", "test"][..], words].concat();
    let named =
        ["--recording", &script.display().to_string(), "--compare", &new.display().to_string()]
            .map(ToOwned::to_owned);
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    host.call(&[&words[..], &named].concat())
}

fn document(output: &Output) -> Value {
    let why = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).expect(&why)
}

/// The containers with another decision, each with the new decision.
fn verdicts(output: &Output) -> Vec<(String, String)> {
    let document = document(output);
    let rows = document["decisions"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    rows.map(|row| (text(&row["container"]), text(&row["decision"]["after"]))).collect()
}

#[test]
fn changed_rules_injections_and_promises_change_decisions() {
    let host = recorded("");
    let script = host.read("script.jsonl");
    assert!(!script.contains("secret") && script.contains("TOKEN"), "values are left out");
    let nothing = compare(&host, "", &["-o", "json"]);
    assert_eq!(nothing.status.code(), Some(0), "{nothing:?}");
    assert_eq!((document(&nothing)["containers"].as_u64(), verdicts(&nothing)), (Some(2), vec![]));
    for (more, wanted) in [
        ("[[rule]]\nname = \"no env\"\nnamespaces = [\"shop\"]\ndeny = [\"Env\"]\n", "refused: "),
        ("[[rule]]\nname = \"hide\"\nnamespaces = [\"shop\"]\nhide = true\n", "created"),
        (
            "[[rule]]\nname = \"noted\"\nnamespaces = [\"shop\"]\ndeny = [\"Env\"]\nmode = \"audit\"\n",
            "created",
        ),
        ("[[inject]]\nname = \"ca\"\nnamespaces = [\"shop\"]\nenv = { CA = \"/ca\" }\n", "created"),
        (
            "[[inject]]\nname = \"clash\"\nnamespaces = [\"shop\"]\nenv = { TOKEN = \"b\" }\nwhen = \"always\"\n",
            "refused: ",
        ),
        (
            "[[require]]\nname = \"guard\"\nnamespaces = [\"shop\"]\nplugin = \"guard\"\n",
            "refused: the promise \"guard\"",
        ),
        ("[[require]]\nname = \"met\"\nnamespaces = [\"shop\"]\nplugin = \"a\"\n", "created"),
    ] {
        let output = compare(&host, more, &["-o", "json"]);
        assert_eq!(output.status.code(), Some(3), "{more}: {output:?}");
        let verdicts = verdicts(&output);
        assert_eq!(verdicts.len(), 1, "{more}: {verdicts:?}");
        assert!(verdicts[0].0 == "c1" && verdicts[0].1.starts_with(wanted), "{more}: {verdicts:?}");
    }
    // A recording is independent of the present: no plugin is connected now.
    let page = compare(&host, "[plugin.a]\ndeny = [\"Env\"]\n", &[]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.starts_with("2 containers, 2 with another decision"), "{page}");
    let report = compare(&host, "[plugin.a]\ndeny = [\"Env\"]\n", &["-o", "junit"]);
    let report = String::from_utf8(report.stdout).unwrap();
    assert!(report.contains("tests=\"3\" failures=\"2\"") && report.contains("shop/"), "{report}");
}

#[test]
fn a_hidden_pod_has_no_recorded_answer() {
    let rule =
        "[[rule]]\nname = \"hide\"\nnamespaces = [\"shop\"]\nplugins = [\"a\"]\nhide = true\n";
    let host = recorded(rule);
    let present = host.read("config.toml");
    let open = present.replace("hide = true", "deny = [\"Mounts\"]");
    host.write("open.toml", &open);
    let (new, script) = (host.path("open.toml"), host.path("script.jsonl"));
    let output = host.call(&[
        "nri",
        "policy",
        "test",
        "-o",
        "json",
        "--recording",
        script.to_str().unwrap(),
        "--compare",
        new.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(3));
    let text = document(&output)["decisions"].to_string();
    assert!(text.contains("would be asked; its answer is not in the recording"), "{text}");
}

#[test]
fn a_recording_that_lacks_needed_data_is_refused() {
    let host = recorded("");
    let script = host.read("script.jsonl");
    let claims = "[[require]]\nname = \"gpu\"\nclaims = [\"gpu.example\"]\nplugin = \"gpu\"\n";
    let output = compare(&host, claims, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let decisions = document(&output)["decisions"].to_string();
    assert!(decisions.contains("does not have what kubelet allocated"), "{decisions}");
    // The same recording as an earlier version would write it.
    let lines = script.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let earlier = lines.filter(|line| line.get("decision").is_none()).map(|mut line| {
        let members = line.as_object_mut().unwrap();
        members.retain(|key, _| key != "engine" && key != "proven");
        line.to_string() + "\n"
    });
    host.write("script.jsonl", &earlier.collect::<String>());
    fails(&compare(&host, "", &[]), &["does not have the engine of pods and answers of plugins"]);
    let state = script.lines().next().unwrap();
    host.write("script.jsonl", &format!("{state}\n"));
    fails(&compare(&host, "", &[]), &["does not have a creation with the answers of plugins"]);
    host.write("script.jsonl", "not json\n");
    fails(&compare(&host, "", &[]), &["script.jsonl, line 1"]);
    host.write("script.jsonl", &script);
    fails(&compare(&host, "[[rule]]\nname = 5\n", &[]), &["new.toml:"]);
    // The recording can still be replayed.
    host.write("script.jsonl", &script.replace("\"plugins\":[\"10-a\"]", "\"plugins\":[]"));
    let socket = host.path("dry.sock").display().to_string();
    let script = host.path("script.jsonl").display().to_string();
    let replayed =
        host.call(&["nri", "replay", "--wait-timeout", "0s", "--socket", &socket, &script]);
    let answers = String::from_utf8(replayed.stdout).unwrap();
    assert!(replayed.status.success() && !answers.contains("\"error\""), "{answers}");
}

const MANIFEST: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: web, namespace: shop }
spec:
  template:
    metadata:
      labels: { app: web }
    spec:
      initContainers: [{ name: init, image: "busybox:1" }]
      containers:
        - name: app
          image: registry.example/app:2
          env: [{ name: PORT, value: "80" }]
          resources: { limits: { cpu: 1, vendor.example/gpu: 2 } }
          volumeMounts: [{ name: dev, mountPath: /dev/x }]
      volumes: [{ name: dev, hostPath: { path: /dev/vendor0 } }]
---
apiVersion: v1
kind: Service
metadata: { name: web }
---
apiVersion: v1
kind: Pod
metadata: { name: tool }
spec:
  containers: [{ name: tool, image: "alpine:3" }]
"#;

#[test]
fn a_manifest_is_compared_without_a_node() {
    let host = TestHost::default();
    host.write("pod.yaml", MANIFEST);
    let sections = "[[inject]]\nname = \"ca\"\nnamespaces = [\"shop\"]\nimages = [\"registry.example/*\"]\nenv = { CA = \"/ca\" }\n\
        [[require]]\nname = \"gpu\"\nresources = [\"vendor.example/*\"]\nplugin = \"gpu\"\n\
        [[require]]\nname = \"device\"\ndevices = [\"/dev/vendor*\"]\nplugin = \"gpu\"\n\
        [[rule]]\nname = \"r\"\nlabels = { app = \"web\" }\nplugins = [\"10-a\"]\ndeny = [\"Env\"]\n";
    host.write("new.toml", &(host.read("config.toml") + sections));
    let (pod, new) = (host.path("pod.yaml"), host.path("new.toml"));
    let words = ["-f", pod.to_str().unwrap(), "--compare", new.to_str().unwrap()];
    let output = host.call(&[&["nri", "policy", "test", "-o", "json"][..], &words].concat());
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let document = document(&output);
    assert_eq!((&document["containers"], &document["changed"]), (&json!(3), &json!(2)));
    let of = |container: &str| {
        let mut rows = document["decisions"].as_array().unwrap().iter();
        let changes = rows.find(|row| row["container"] == container).unwrap()["changes"].clone();
        let changes = changes.as_array().unwrap().iter();
        let whats = changes.map(|change| change["what"].as_str().unwrap().to_owned());
        whats.collect::<Vec<_>>()
    };
    assert_eq!(of("app"), ["Env[CA]", "plugin 10-a", "promise device", "promise gpu"]);
    assert_eq!(of("init"), ["plugin 10-a"]);
    let page =
        host.call(&["nri", "--config", new.to_str().unwrap(), "policy", "test", "-f", words[1]]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("shop/web/app") && page.contains("needs the plugin gpu"), "{page}");
    assert!(page.contains("set by inject:ca") && page.contains("default/tool/tool"), "{page}");
    let same = host.call(&[
        "nri",
        "policy",
        "test",
        "-f",
        words[1],
        "--compare",
        host.path("config.toml").to_str().unwrap(),
    ]);
    assert_eq!(same.status.code(), Some(0), "{same:?}");
}

#[test]
fn a_policy_test_without_a_pod_or_a_subject_is_an_error() {
    let host = TestHost::default();
    for (text, line) in
        [("kind: Service\n", "has no pod"), ("a: [\n", "is not YAML"), ("", "has no pod")]
    {
        host.write("pod.yaml", text);
        let file = host.path("pod.yaml").display().to_string();
        fails(&host.call(&["nri", "policy", "test", "-f", &file]), &[line]);
    }
    fails(&host.call(&["nri", "policy", "test", "-f", "/none.yaml"]), &["/none.yaml"]);
    for words in [
        &["--recording", "x"][..],
        &[],
        &["-f", "x", "--bundle", "y"],
        &["--pod", "p", "--compare", "n"],
        &["--pod", "p", "-o", "junit"],
        &["--bundle", "b", "-o", "junit"],
    ] {
        let output = host.call(&[&["nri", "policy", "test"][..], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
}
