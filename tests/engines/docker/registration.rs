// SPDX-License-Identifier: Apache-2.0
//! `install docker` and `uninstall docker` with a running Docker, whose settings were written
//! manually.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use test_support::{Script, wait_until};

use super::engine::{Docker, IMAGE, text};
use super::{LIFE, events, has_received};

/// The settings' bytes and their mode.
fn settings(docker: &Docker) -> (Vec<u8>, u32) {
    let mode = std::fs::metadata(docker.settings()).unwrap().permissions().mode();
    (std::fs::read(docker.settings()).unwrap(), mode)
}

fn info(docker: &Docker) -> Value {
    serde_json::from_str(&docker.output_of(&["info", "--format", "{{json .}}"])).unwrap()
}

/// Checks that Docker does not know the runtime.
#[track_caller]
fn is_unknown(run: &std::process::Output) {
    let printed = text(run);
    assert!(
        printed.to_lowercase().contains("unknown") && printed.contains("nri-runc"),
        "{printed}"
    );
}

/// Checks that `uninstall` is refused and names the container.
#[track_caller]
fn stays(docker: &Docker, id: &str) {
    let before = settings(docker);
    let output = docker.registers("uninstall", &[]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let printed = text(&output);
    let id = nri_runc::testing::text::short_id(id);
    assert!(printed.contains("1 container still uses") && printed.contains(id), "{printed}");
    assert_eq!(settings(docker), before);
}

/// Whether `check` shows the real runtime that this Docker finds. It also sees the engines of other tests.
fn finds_its_runc(docker: &Docker) -> bool {
    let found = format!("{} (found by ", docker.tools().join("runc").display());
    let runtimes = docker.checked("real runtime");
    let engines = runtimes.iter().filter_map(|row| row["detail"].as_str()?.strip_prefix(&found));
    engines.flat_map(|names| names.trim_end_matches(')').split(", ")).any(|name| name == "docker")
}

#[test]
fn docker_loads_the_runtime_on_reload_and_is_restored_exactly() {
    let Some(mut docker) = Docker::before_install() else { return };
    let before = settings(&docker);
    std::fs::create_dir(docker.host.path("plugins")).unwrap();
    docker.host.start_daemon();
    docker.start();
    docker.import_image();
    let received = docker.host.plugin("10", "witness", Script::default());
    let run = ["run", "--rm", "--runtime=nri-runc", "--name=web", IMAGE, "/bin/true"];
    is_unknown(&docker.call(&run));
    let next = |docker: &Docker| docker.checked("next step")[0]["detail"].to_string();
    let printed = text(&docker.registers("install", &[]));
    assert!(printed.contains("use:  docker run --runtime nri-runc IMAGE"), "{printed}");
    let registered = |docker: &Docker| docker.checked("registered with docker")[0].clone();
    let before_reload = registered(&docker);
    assert_eq!(before_reload["ok"], false, "{before_reload}");
    assert_eq!(before_reload["detail"], "as nri-runc; the running docker has not loaded it yet");
    assert!(next(&docker).contains("systemctl reload docker"), "{}", next(&docker));
    let (installed, mode) = settings(&docker);
    assert_eq!(mode & 0o777, 0o640);
    let again = docker.registers("install", &[]);
    assert!(text(&again).contains("nothing to change"), "{}", text(&again));
    assert_eq!(settings(&docker).0, installed);
    docker.reload();
    wait_until("Docker has loaded nri-runc", || !info(&docker)["Runtimes"]["nri-runc"].is_null());
    assert_eq!(registered(&docker)["detail"], "as nri-runc; docker has loaded it");
    // Meanwhile a daemon that responds late is the more urgent next step.
    wait_until("the next step is a container", || {
        next(&docker).contains("docker run --runtime nri-runc")
    });
    // The test's own PATH has another runc, or none.
    assert!(finds_its_runc(&docker));
    let info = info(&docker);
    assert_eq!(info["Runtimes"]["nri-runc"]["path"], json!(docker.program()));
    assert_eq!(
        (&info["DefaultRuntime"], &info["Labels"]),
        (&json!("runc"), &json!(["place=café"]))
    );
    assert!(!info["Runtimes"]["other"].is_null());
    docker.output_of(&run);
    wait_until("its life is reported", || has_received(&received, "RemovePodSandbox web"));
    assert_eq!(events(&received, "web"), LIFE);
    docker.output_of(&["run", "--rm", "--name=plain", IMAGE, "/bin/true"]);
    assert_eq!(events(&received, "plain"), Vec::<String>::new());

    let id = docker.runs("web", &[]);
    stays(&docker, &id);
    docker.output_of(&["stop", "--time=0", "web"]);
    wait_until("no pod is known", || docker.host.admin(&["pods"]) == json!([]));
    stays(&docker, &id);
    docker.output_of(&["rm", "web"]);
    let output = docker.registers("uninstall", &[]);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(settings(&docker), before);
    assert!(!docker.host.path("host/var").exists(), "the undo record and its folders go too");
    docker.stop();
    docker.start();
    is_unknown(&docker.call(&run));
    docker.output_of(&["run", "--rm", IMAGE, "/bin/true"]);
    docker.no_container_is_left();
}

#[test]
fn nri_runc_as_dockers_default_leaves_other_runtimes_usable() {
    let Some(mut docker) = Docker::before_install() else { return };
    let before = settings(&docker);
    docker.host.start_daemon();
    docker.start();
    docker.import_image();
    docker.installs(&["--default"]);
    docker.reload();
    wait_until("we are its default", || info(&docker)["DefaultRuntime"] == "nri-runc");
    let received = docker.host.plugin("10", "witness", Script::default());
    docker.output_of(&["run", "--rm", "--name=web", IMAGE, "/bin/true"]);
    wait_until("its life is reported", || has_received(&received, "RemovePodSandbox web"));
    assert_eq!(events(&received, "web"), LIFE);
    docker.output_of(&["run", "--rm", "--name=plain", "--runtime=runc", IMAGE, "/bin/true"]);
    assert_eq!(events(&received, "plain"), Vec::<String>::new());

    // A container that was created and never started also names nri-runc.
    let id = docker.output_of(&["create", IMAGE, "/bin/true"]);
    stays(&docker, &id);
    let forced = docker.registers("uninstall", &["--force"]);
    let printed = text(&forced);
    assert!(printed.contains("1 container still uses"), "{printed}");
    // At a reload Docker would keep nri-runc as its default, without an entry for it.
    assert!(printed.contains("next: systemctl restart docker"), "{printed}");
    assert_eq!(settings(&docker), before);
    docker.stop();
    docker.start();
    assert_eq!(info(&docker)["DefaultRuntime"], "runc");
    docker.output_of(&["rm", &id]);
    docker.output_of(&["run", "--rm", "--name=plain", IMAGE, "/bin/true"]);
    assert_eq!(events(&received, "plain"), Vec::<String>::new());
    docker.nothing_is_left();
}

/// Reformats the file as `jq -S '. + {"live-restore": true}'` does.
#[test]
fn a_reformatted_settings_file_loses_only_our_entries() {
    let Some(mut docker) = Docker::before_install() else { return };
    let original: Value = serde_json::from_slice(&settings(&docker).0).unwrap();
    docker.host.start_daemon();
    docker.installs(&["--default"]);
    let now: Value = serde_json::from_slice(&settings(&docker).0).unwrap();
    let edited = |value: &Value| {
        let mut sorted: Vec<(String, Value)> = value
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        sorted.push(("live-restore".to_owned(), json!(true)));
        sorted.sort_by(|one, other| one.0.cmp(&other.0));
        Value::Object(sorted.into_iter().collect())
    };
    docker.host.write("etc/daemon.json", &format!("{:#}\n", edited(&now)));
    docker.start();
    docker.import_image();
    assert_eq!(info(&docker)["DefaultRuntime"], "nri-runc");
    let output = docker.registers("uninstall", &[]);
    assert!(output.status.success(), "{}", text(&output));
    let left: Value = serde_json::from_slice(&settings(&docker).0).unwrap();
    assert_eq!(left, edited(&original));
    docker.stop();
    docker.start();
    let info = info(&docker);
    assert_eq!(
        (&info["DefaultRuntime"], &info["LiveRestoreEnabled"]),
        (&json!("runc"), &json!(true))
    );
    assert!(info["Runtimes"]["nri-runc"].is_null());
}
