// SPDX-License-Identifier: Apache-2.0
//! The adapter with the crate's runtime, and plugins of NRI v0.1 as scripts.

#![expect(clippy::disallowed_methods, reason = "a test writes its files")]

use std::path::Path;

use nri_plugin::harness::{Runtime, container, pod};
use nri_plugin::{Blocking, Plugin, Resources, api};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Adapter;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/plugin.sh");
/// The time limit of plugins that must reach it.
const SHORT_MS: u64 = 300;
/// A time limit that no plugin reaches.
const LONG_MS: u64 = 60_000;

/// A runtime with the adapter, which has these plugins.
async fn with(plugins: &[&str], timeout_ms: u64) -> nri_plugin::Result<(Runtime, TempDir)> {
    let folder = tempfile::tempdir()?;
    for name in plugins.iter().filter(|name| !name.contains('/') && **name != "missing") {
        std::os::unix::fs::symlink(SCRIPT, folder.path().join(name))?;
    }
    let listed = plugins.iter().map(|name| json!({"type": name, "conf": {"of": name}}));
    let list = json!({"version": "0.1", "plugins": listed.collect::<Vec<_>>()});
    std::fs::write(folder.path().join("conf.json"), list.to_string())?;
    Ok((started(folder.path(), timeout_ms).await?, folder))
}

async fn started(folder: &Path, timeout_ms: u64) -> nri_plugin::Result<Runtime> {
    let conf = folder.join("conf.json");
    let config = json!({"conf": conf, "bin": folder, "timeout_ms": timeout_ms}).to_string();
    let mut runtime = Runtime::new()?;
    runtime.set_request_timeout(std::time::Duration::from_secs(60));
    let adapter = Blocking::new(Adapter::default());
    runtime.start(Plugin::new("50-v010-adapter", adapter)?.config(config)).await?;
    Ok(runtime)
}

fn requests(folder: &TempDir, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.path().join(format!("{name}.requests")));
    let text = text.unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn states(requests: &[Value]) -> Vec<String> {
    let of = |member: &str, one: &Value| one[member].as_str().unwrap().to_owned();
    requests.iter().map(|one| format!("{} {}", of("state", one), of("id", one))).collect()
}

fn web() -> api::PodSandbox {
    let mut pod = pod("web");
    pod.labels.insert("team".to_owned(), "blue".to_owned());
    pod
}

fn nginx() -> api::Container {
    let mut one = container("nginx", "web");
    one.pid = 4711;
    one.annotations.insert("a".to_owned(), "b".to_owned());
    let linux = one.linux.mut_or_insert_default();
    linux.cgroups_path = "/kube/nginx".to_owned();
    let (type_, path) = ("network".to_owned(), "/run/netns/a".to_owned());
    linux.namespaces = vec![api::LinuxNamespace { type_, path, ..Default::default() }];
    let resources = Resources::new().memory_limit(1_000_000).unified("memory.high", "9");
    linux.resources = Some(resources.into()).into();
    one
}

#[tokio::test]
async fn old_plugins_receive_create_and_delete_of_pod_and_container() {
    let (mut runtime, folder) = with(&["first", "second"], LONG_MS).await.unwrap();
    runtime.run_pod(web()).await.unwrap();
    runtime.create(nginx()).await.unwrap();
    runtime.start_container("nginx").await.unwrap();
    runtime.remove_pod("web").await.unwrap();
    let first = requests(&folder, "first");
    let (second, wanted) = (requests(&folder, "second"), ["create web", "create nginx"]);
    assert_eq!(states(&first)[..2], wanted);
    assert_eq!(states(&first)[2..], ["delete nginx", "delete web"]);
    assert_eq!(states(&first), states(&second));
    let create = &first[1];
    assert_eq!((&create["conf"], &create["version"]), (&json!({"of": "first"}), &json!("0.1")));
    assert_eq!((&create["sandboxID"], &create["pid"]), (&json!("web"), &json!(4711)));
    assert_eq!(create["labels"], json!({"team": "blue"}));
    assert_eq!(create["spec"]["namespaces"], json!({"network": "/run/netns/a"}));
    assert_eq!(create["spec"]["cgroupsPath"], "/kube/nginx");
    assert_eq!(create["spec"]["annotations"], json!({"a": "b"}));
    let resources = json!({"memory": {"limit": 1_000_000}, "unified": {"memory.high": "9"}});
    assert_eq!(create["spec"]["resources"], resources);
    assert!(create["results"].is_null(), "{create}");
    let of_first = json!({"plugin": "first", "version": "0.1", "metadata": {"by": "first"}});
    assert_eq!(second[1]["results"], json!([of_first]));
}

#[tokio::test]
async fn a_plugins_only_variable_is_path_and_it_may_ignore_its_input() {
    let (mut runtime, folder) = with(&["environment", "deaf"], LONG_MS).await.unwrap();
    let mut web = web();
    web.annotations.insert("long".to_owned(), "x".repeat(300_000));
    runtime.run_pod(web).await.unwrap();
    let text = std::fs::read_to_string(folder.path().join("environment.env")).unwrap();
    // The shell adds these.
    let own =
        |line: &&str| !["PWD=", "SHLVL=", "_=", "OLDPWD="].iter().any(|v| line.starts_with(v));
    let lines: Vec<_> = text.lines().filter(own).collect();
    assert_eq!(lines, ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "/"]);
}

#[tokio::test]
async fn a_failing_plugin_refuses_and_those_after_it_do_not_run() {
    for (name, wanted) in [
        ("fails", "plugin \"fails\" of NRI v0.1: no room"),
        ("refuses", "plugin \"refuses\" of NRI v0.1: not today"),
        ("babbles", "its answer is not a result: \"hello\\n\""),
        ("dies", "signal: 9"),
        ("missing", "No such file or directory"),
        ("../sh", "its name is not that of a file"),
    ] {
        let (mut runtime, folder) = with(&["first", name, "second"], LONG_MS).await.unwrap();
        let why = runtime.run_pod(web()).await.unwrap_err().to_string();
        assert!(why.contains(wanted), "{name}: {why}");
        assert_eq!(states(&requests(&folder, "first")), ["create web"], "{name}");
        assert!(requests(&folder, "second").is_empty(), "{name}");
        assert_eq!(runtime.plugins(), ["50-v010-adapter"], "{name}: the adapter has ended");
    }
}

#[tokio::test]
async fn a_failed_delete_stops_no_other_plugin() {
    let (mut runtime, folder) = with(&["keeps", "first"], LONG_MS).await.unwrap();
    runtime.run_pod(web()).await.unwrap();
    runtime.create(nginx()).await.unwrap();
    let _reported = runtime.stop("nginx").await;
    assert_eq!(states(&requests(&folder, "first")), ["create web", "delete nginx"]);
    assert_eq!(runtime.plugins(), ["50-v010-adapter"]);
}

#[tokio::test]
async fn a_plugin_that_hangs_or_floods_is_killed_and_reported() {
    for (name, limit, wanted) in [
        ("hangs", SHORT_MS, "no answer within 300 ms"),
        ("silent", SHORT_MS, "no answer within 300 ms"),
        ("floods", LONG_MS, "its answer exceeds 1048576 bytes"),
    ] {
        let (mut runtime, folder) = with(&[name], limit).await.unwrap();
        let why = runtime.run_pod(web()).await.unwrap_err().to_string();
        assert!(why.contains(wanted), "{name}: {why}");
        let pid = std::fs::read_to_string(folder.path().join(format!("{name}.pid"))).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "{name} runs");
    }
}

#[tokio::test]
async fn without_a_list_no_plugin_runs_and_an_invalid_one_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let mut runtime = started(folder.path(), LONG_MS).await.unwrap();
    runtime.run_pod(web()).await.unwrap();
    for text in ["{", r#"{"plugins": [{"conf": 1}]}"#, r#"{"plugins": 1}"#] {
        std::fs::write(folder.path().join("conf.json"), text).unwrap();
        let why = runtime.run_pod(pod("other")).await.unwrap_err().to_string();
        assert!(why.contains("conf.json: "), "{why}");
    }
}

#[tokio::test]
async fn an_invalid_configuration_ends_the_adapter() {
    for config in ["conf = 1", r#"{"timeout": 1}"#, r#"{"timeout_ms": -1}"#] {
        let mut runtime = Runtime::new().unwrap();
        let adapter = Blocking::new(Adapter::default());
        let plugin = Plugin::new("50-v010-adapter", adapter).unwrap().config(config);
        let why = runtime.start(plugin).await.unwrap_err().to_string();
        assert!(why.contains("its configuration"), "{config}: {why}");
    }
}
