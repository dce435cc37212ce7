// SPDX-License-Identifier: Apache-2.0
//! `adjust`: adjustments from a file, from connecting plugins and from pre-installed ones; the
//! output, the written file, and that a failure changes nothing.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use nri_runc::plugin::Event;
use serde_json::{Value, json};
use test_support::example::example;
use test_support::replay::{Action, ReplayPlugin, command, prepared, setting};

/// Laid out by a person, with unknown members.
const BUNDLE: &str = r#"{
  "ociVersion": "1.0.2", "x-vendor": {"n": 1.0e3, "u": "\u00e9"},
  "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["sleep", "1"],
    "env": ["PATH=/bin", "A=1"]},
  "root": {"path": "rootfs"},
  "mounts": [ {"destination": "/proc", "type": "proc", "source": "proc"} ],
  "linux": {"resources": {"cpu": {"shares": 1024, "x-future": true}}}
}
"#;

struct Stand(tempfile::TempDir);

impl Stand {
    fn new(more: &str) -> Self {
        let stand = Self(prepared(more));
        std::fs::create_dir(stand.path("web")).unwrap();
        stand.put("web/config.json", BUNDLE);
        stand
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        nri_runc::testing::files::replace(&self.path(name), text.as_bytes()).unwrap();
    }

    fn document(&self) -> String {
        std::fs::read_to_string(self.path("web/config.json")).unwrap()
    }

    fn adjust(&self, words: &[&str]) -> Output {
        self.adjust_bundle("web", words)
    }

    fn adjust_bundle(&self, bundle: &str, words: &[&str]) -> Output {
        let bundle = self.path(bundle);
        let mut all = vec!["adjust", "--bundle", bundle.to_str().unwrap()];
        all.extend(words);
        command(&self.0, &all).stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap()
    }

    /// Applies documents from a file.
    fn apply(&self, documents: &[Value], words: &[&str]) -> Output {
        let lines: Vec<String> = documents.iter().map(ToString::to_string).collect();
        self.put("adjust.json", &lines.join("\n"));
        let file = self.path("adjust.json");
        let mut all = vec!["--apply", file.to_str().unwrap()];
        all.extend(words);
        self.adjust(&all)
    }
}

fn shown(output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The line of a failure.
fn refused(output: &Output) -> String {
    let printed = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), printed.lines().count()), (Some(1), 1), "{printed}");
    assert!(output.stdout.is_empty());
    printed
}

fn env(name: &str, value: &str) -> Value {
    json!({"env": [{"key": name, "value": value}]})
}

#[test]
fn a_diff_shows_the_changes_and_the_bundle_stays() {
    let stand = Stand::new("");
    let diff = shown(&stand.apply(&[env("B", "2")], &[]));
    assert!(diff.contains("-    \"env\": [\"PATH=/bin\", \"A=1\"]},\n"), "{diff}");
    assert!(diff.contains("+    \"env\": [\"PATH=/bin\", \"A=1\",\"B=2\"]},\n"), "{diff}");
    assert!(diff.starts_with("--- ") && diff.contains("\n+++ "), "{diff}");
    assert_eq!(stand.document(), BUNDLE);
}

#[test]
fn the_document_is_printed_as_it_would_be_written() {
    let stand = Stand::new("");
    let wanted = BUNDLE.replace("\"A=1\"]", "\"A=1\",\"B=2\"]");
    assert_eq!(shown(&stand.apply(&[env("B", "2")], &["--output", "spec"])), wanted);
    assert_eq!(stand.document(), BUNDLE);
    shown(&stand.apply(&[env("B", "2")], &["--write"]));
    assert_eq!(stand.document(), wanted);
    assert_eq!(std::fs::read_dir(stand.path("web")).unwrap().count(), 1);
}

#[test]
fn a_document_without_a_final_line_feed_is_printed_to_its_end() {
    let stand = Stand::new("");
    let bundle = BUNDLE.replace('\n', " ");
    stand.put("web/config.json", &bundle);
    let wanted = bundle.replace("\"A=1\"]", "\"A=1\",\"B=2\"]");
    assert_eq!(shown(&stand.apply(&[env("B", "2")], &["--output", "spec"])), wanted);
    assert_eq!(shown(&stand.apply(&[], &["--output", "spec"])), bundle);
}

/// A value that would refuse a create is shown here, because the bundle may be for another kernel.
#[test]
fn a_value_that_a_kernel_may_refuse_is_a_warning() {
    let stand = Stand::new("");
    let resources = |part: Value| json!({"linux": {"resources": part}});
    for (adjust, place, wanted) in [
        (resources(json!({"cpu": {"quota": {"value": 123}}})), "/resources/cpu/quota", json!(123)),
        (resources(json!({"cpu": {"period": {"value": 9}}})), "/resources/cpu/period", json!(9)),
        (resources(json!({"cpu": {"cpus": "all"}})), "/resources/cpu/cpus", json!("all")),
        (resources(json!({"memory": {"swap": {"value": 7}}})), "/resources/memory/swap", json!(7)),
        (
            resources(json!({"memory": {"swappiness": {"value": 123}}})),
            "/resources/memory/swappiness",
            json!(123),
        ),
        (json!({"linux": {"seccompPolicy": {}}}), "/seccomp", json!({"defaultAction": ""})),
        (
            json!({"linux": {"memoryPolicy": {"mode": "MPOL_BIND"}}}),
            "/memoryPolicy/mode",
            json!("MPOL_BIND"),
        ),
        (json!({"linux": {"sysctl": {"a.b": "1"}}}), "/sysctl", json!({"a.b": "1"})),
    ] {
        let mut adjust = adjust;
        adjust["plugin"] = json!("10-odd");
        let output = stand.apply(&[adjust], &["--output", "spec"]);
        let spec: Value = serde_json::from_str(&shown(&output)).unwrap();
        assert_eq!(spec["linux"].pointer(place), Some(&wanted));
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(printed.contains("would be refused: 10-odd: "), "{printed}");
    }
    for adjust in [
        resources(json!({"unified": {"cgroup.procs": "1"}})),
        resources(json!({"pids": {"limit": 0}})),
        json!({"linux": {"sysctl": {"kernel.core_pattern": "x"}}}),
        json!({"linux": {"cgroupsPath": "/../x"}}),
    ] {
        refused(&stand.apply(&[adjust], &["--output", "spec"]));
    }
}

#[test]
fn owners_are_named_plugins_or_positions_in_the_file() {
    let stand = Stand::new("");
    let mut named = env("A", "9");
    named["plugin"] = json!("10-foo");
    let documents = [named, json!({"annotations": {"k": "v"}})];
    let verdict: Value =
        serde_json::from_str(&shown(&stand.apply(&documents, &["--output", "json"]))).unwrap();
    assert_eq!(verdict["owners"], json!({"Env[A]": "10-foo", "Annotations[k]": "2"}));
    assert_eq!(verdict["adjust"]["env"][0], json!({"key": "A", "value": "9"}));
    assert_eq!((&verdict["update"], &verdict["evict"]), (&json!([]), &json!([])));
}

#[test]
fn without_changes_the_diff_is_empty_and_bytes_stay() {
    let stand = Stand::new("");
    assert_eq!(shown(&stand.apply(&[json!({})], &[])), "");
    assert_eq!(shown(&stand.apply(&[], &["--output", "spec"])), BUNDLE);
}

#[test]
fn snake_case_and_removals_are_understood() {
    let stand = Stand::new("");
    let documents = [json!({"env": [{"key": "-A"}], "linux": {"oom_score_adj": {"value": -5}},
        "mounts": [{"destination": "-/proc"}]})];
    let spec: Value =
        serde_json::from_str(&shown(&stand.apply(&documents, &["--output", "spec"]))).unwrap();
    assert_eq!(spec["process"]["env"], json!(["PATH=/bin"]));
    assert_eq!(spec["process"]["oomScoreAdj"], -5);
    assert_eq!(spec["mounts"], json!([]));
}

#[test]
fn a_conflict_in_the_file_names_both_and_changes_nothing() {
    let stand = Stand::new("");
    let line = refused(&stand.apply(&[env("B", "1"), env("B", "2")], &["--write", "--id", "c7"]));
    for word in ["\"1\"", "\"2\"", "Env", "B", "c7"] {
        assert!(line.contains(word), "{line}");
    }
    assert_eq!(stand.document(), BUNDLE);
}

#[test]
fn an_invalid_adjustment_is_refused_with_its_number() {
    let stand = Stand::new("");
    for (documents, word) in [
        (vec![json!({}), json!({"envy": 1})], "adjustment 2"),
        (vec![json!([])], "adjustment 1"),
        (vec![json!({"plugin": 5})], "plugin"),
    ] {
        let line = refused(&stand.apply(&documents, &["--write"]));
        assert!(line.contains(word), "{line}");
    }
    stand.put("cut.json", "{\"env\": [");
    let cut = stand.path("cut.json");
    refused(&stand.adjust(&["--apply", cut.to_str().unwrap()]));
    refused(&stand.adjust(&["--apply", "/nowhere/at/all"]));
    assert_eq!(stand.document(), BUNDLE);
}

/// The author of a plugin sees on a laptop the result for a host with RDT.
#[test]
fn an_rdt_class_without_resctrl_is_shown_with_a_warning() {
    let resctrl = tempfile::tempdir().unwrap();
    let config = format!("[rdt]\nresctrl_path = \"{}\"", resctrl.path().display());
    let stand = Stand::new(&config);
    let class = |name: &str| {
        let resources = json!({"rdtClass": {"value": name}});
        json!({"plugin": "10-gold", "linux": {"resources": resources}})
    };
    let output = stand.apply(&[class("gold")], &["--output", "spec"]);
    let spec: Value = serde_json::from_str(&shown(&output)).unwrap();
    assert_eq!(spec["linux"]["intelRdt"], json!({"closID": "gold"}));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(
        printed.contains("would be refused: 10-gold: ") && printed.contains("resctrl"),
        "{printed}"
    );
    refused(&stand.apply(&[class("../gold")], &[]));
    // If groups exist, a class that is not among them is a mistake.
    std::fs::create_dir(resctrl.path().join("info")).unwrap();
    refused(&stand.apply(&[class("gold")], &[]));
    std::fs::create_dir(resctrl.path().join("gold")).unwrap();
    let output = stand.apply(&[class("gold")], &["--output", "spec"]);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!printed.contains("needs resctrl"), "{printed}");
    assert!(shown(&output).contains("gold"));
}

#[test]
fn an_inapplicable_adjustment_names_its_plugin() {
    let stand = Stand::new("");
    let limit = json!({"type": "RLIMIT_NOFILE", "hard": 1, "soft": 2});
    let bad = json!({"plugin": "10-bad", "rlimits": [limit]});
    let line = refused(&stand.apply(&[bad], &["--write"]));
    assert!(line.contains("10-bad") && line.contains("Rlimits"), "{line}");
    assert_eq!(stand.document(), BUNDLE);
}

#[test]
fn an_invalid_bundle_is_refused() {
    let stand = Stand::new("");
    for document in ["", "[]", "{\"process\": 5}", "{\"a\": 1"] {
        stand.put("web/config.json", document);
        refused(&stand.apply(&[env("B", "1")], &["--write"]));
        assert_eq!(stand.document(), document);
    }
    std::fs::remove_file(stand.path("web/config.json")).unwrap();
    let line = refused(&stand.apply(&[env("B", "1")], &[]));
    assert!(line.contains("config.json"), "{line}");
}

#[test]
fn plugins_cannot_adjust_a_pods_infrastructure_container() {
    let stand = Stand::new("");
    let bundle = "io.containerd.runtime.v2.task/k8s.io/web";
    std::fs::create_dir_all(stand.path(bundle)).unwrap();
    let annotated = BUNDLE.replace(
        "\"root\"",
        "\"annotations\": {\"io.kubernetes.cri.container-type\": \"sandbox\",\
         \"io.kubernetes.cri.sandbox-id\": \"web\"},\n  \"root\"",
    );
    stand.put(&format!("{bundle}/config.json"), &annotated);
    let line = refused(&stand.adjust_bundle(bundle, &[]));
    assert!(line.contains("infrastructure"), "{line}");
    // Rules do not restrict adjustments from a file.
    stand.put("one.json", &env("B", "2").to_string());
    let file = stand.path("one.json");
    let output = stand.adjust_bundle(bundle, &["--apply", file.to_str().unwrap()]);
    assert!(shown(&output).contains("B=2"));
}

#[test]
fn a_connecting_plugin_is_awaited_and_receives_all_events() {
    let stand = Stand::new("");
    let socket = stand.path("nri.sock");
    let received = ReplayPlugin::new().creating(setting("B", "2")).connect(socket.clone(), "10-a");
    let socket = socket.to_str().unwrap();
    let words = ["--wait", "a", "--socket", socket, "--output", "json", "--id", "c7"];
    let verdict: Value = serde_json::from_str(&shown(&stand.adjust(&words))).unwrap();
    assert_eq!(verdict["owners"], json!({"Env[B]": "10-a"}));
    let methods = received.methods();
    let wanted = [
        "Configure",
        "Synchronize",
        "RunPodSandbox",
        "CreateContainer",
        "StopContainer",
        "RemoveContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
    ];
    assert_eq!(methods[..wanted.len()], wanted);
    assert!(received.last("CreateContainer").contains("c7"));
    assert!(!std::path::Path::new(socket).exists());
}

#[test]
fn a_plugin_that_does_not_connect_is_named() {
    let stand = Stand::new("plugin_registration_timeout = \"100ms\"");
    let socket = stand.path("nri.sock");
    let line = refused(&stand.adjust(&["--wait", "10-late", "--socket", socket.to_str().unwrap()]));
    assert!(line.contains("10-late"), "{line}");
}

#[test]
fn a_refusal_has_the_plugins_message_and_the_bundle_stays() {
    for event in [Event::CreateContainer, Event::RunPodSandbox] {
        let stand = Stand::new("");
        let socket = stand.path("nri.sock");
        ReplayPlugin::new().at(event, Action::Refuse("not here")).connect(socket.clone(), "10-no");
        let words = ["--wait", "10-no", "--socket", socket.to_str().unwrap(), "--write"];
        let line = refused(&stand.adjust(&words));
        assert!(line.contains("10-no") && line.contains("not here"), "{line}");
        assert_eq!(stand.document(), BUNDLE);
    }
}

#[test]
fn a_pre_installed_plugin_answers() {
    let stand = Stand::new("");
    std::os::unix::fs::symlink(example("demo_plugin"), stand.path("plugins/10-demo")).unwrap();
    let output = stand.adjust(&["--output", "json"]);
    let verdict: Value = serde_json::from_str(&shown(&output)).unwrap();
    let owners = verdict["owners"].as_object().unwrap();
    assert!(!owners.is_empty() && owners.values().all(|owner| owner == "10-demo"), "{verdict}");
}

#[test]
fn without_any_plugin_a_dry_run_changes_nothing() {
    let stand = Stand::new("");
    let output = stand.adjust(&["--write"]);
    assert_eq!(shown(&output), "");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no plugin takes part"));
    assert_eq!(stand.document(), BUNDLE);
}

#[test]
fn flags_that_contradict_each_other_are_a_usage_error() {
    let stand = Stand::new("");
    for words in
        [&["--wait", "a"] as &[&str], &["--output", "xml"], &["--apply", "x", "--wait", "a"]]
    {
        assert_eq!(stand.adjust(words).status.code(), Some(2), "{words:?}");
    }
}
