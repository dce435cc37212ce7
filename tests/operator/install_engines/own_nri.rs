// SPDX-License-Identifier: Apache-2.0
//! Two NRIs on one host: `install` requires a decision and records it, and `check` shows the
//! result.

use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::Value;

use super::next_step::{host, nri};
use super::{PROGRAM, Place, tree};

const MAIN: &str = "/etc/containerd/config.toml";
const BESIDE: &str = "/etc/nri-runc/config.d/50-beside-containerd.toml";
const IS_OFF: &str = "disable = true";

/// A host with a containerd 2.x and a file of version 3.
fn with_containerd_2() -> Place {
    let place = Place::new();
    place.write(MAIN, "version = 3\n# ours since 2019\n");
    place
}

#[test]
fn a_decision_lasts_until_another_decision_or_uninstall() {
    let place = with_containerd_2();
    let before = tree(place.root());
    let refusal = place.refused("install", "containerd");
    assert!(refusal.contains("--take-over-nri") && refusal.contains("--beside"), "{refusal}");
    assert_eq!(refusal.lines().count(), 1, "{refusal}");
    place.install("containerd --take-over-nri");
    assert!(place.read(MAIN).contains(IS_OFF));
    let taken_over = place.read(MAIN);
    assert!(place.install("containerd").contains("nothing to change"));
    place.install("containerd --default");
    assert!(place.read(MAIN).contains(IS_OFF), "the default took the decision back");
    place.install("containerd");
    assert_eq!(place.read(MAIN), taken_over);

    place.install("containerd --beside");
    assert!(!place.read(MAIN).contains(IS_OFF), "the engine's NRI is to stay on");
    assert!(place.read(BESIDE).contains("socket_path = \"/var/run/nri/nri-runc.sock\""));
    assert!(place.install("containerd").contains("nothing to change"));
    place.install("containerd --beside=/run/other.sock");
    assert!(place.read(BESIDE).contains("socket_path = \"/run/other.sock\""));
    place.install("containerd --take-over-nri");
    assert!(place.read(MAIN) == taken_over && !place.path(BESIDE).exists());
    let shown = place.uninstall("containerd");
    assert!(shown.contains("containerd uses its own NRI again after its restart"), "{shown}");
    assert_eq!(tree(place.root()), before);
}

#[test]
fn beside_writes_a_configuration_with_other_paths() {
    let place = with_containerd_2();
    place.install("containerd --beside");
    let loaded = nri_runc::testing::config::load(Some(&place.path(BESIDE)));
    assert_eq!(loaded.problems, []);
    let config = loaded.config;
    assert_eq!(config.socket_path, Path::new("/var/run/nri/nri-runc.sock"));
    assert_eq!(config.plugin_path, Path::new("/opt/nri-runc/plugins"));
}

#[test]
fn contradictory_decisions_are_usage_errors() {
    let place = with_containerd_2();
    let before = tree(place.root());
    for words in ["containerd --take-over-nri --beside", "containerd --beside /run/x.sock"] {
        assert_eq!(place.run("install", words).status.code(), Some(2), "{words}");
    }
    assert_eq!(tree(place.root()), before);
}

#[test]
fn a_dry_run_refuses_like_the_real_run() {
    let place = with_containerd_2();
    assert!(place.refused("install", "containerd --dry-run").contains("--take-over-nri"));
    let shown = place.install("containerd --take-over-nri --dry-run");
    assert!(shown.contains("+disable = true"), "{shown}");
    assert!(!place.read(MAIN).contains(IS_OFF));
}

#[test]
fn both_engines_need_a_restart_if_dockers_containerd_has_nri() {
    let place = Place::new();
    let program = "built from github.com/containerd/containerd/v2/cmd/containerd";
    place.write("/usr/bin/containerd", program);
    place.mode("/usr/bin/containerd", 0o755);
    let document = |shown: &str| -> Value { serde_json::from_str(shown).unwrap() };
    let printed = document(&place.install("docker --take-over-nri --json"));
    assert_eq!(printed["next"], "systemctl restart containerd && systemctl reload docker");
    assert_eq!(printed["files"][0]["path"], MAIN);
    let printed = document(&place.uninstall("docker --json"));
    assert_eq!(printed["next"], "systemctl restart containerd && systemctl restart docker");
    let shown = printed["notes"].to_string();
    assert!(shown.contains("containerd uses its own NRI again"), "{shown}");
    assert!(!place.path(MAIN).exists());
}

#[test]
fn two_registrations_are_undone_in_either_order() {
    for order in [["containerd", "docker"], ["docker", "containerd"]] {
        let place = with_containerd_2();
        std::fs::create_dir_all(place.path("/var/lib")).unwrap();
        place.write("/usr/bin/containerd", "github.com/containerd/containerd/v2/cmd/containerd");
        place.mode("/usr/bin/containerd", 0o755);
        let before = tree(place.root());
        for engine in order {
            place.install(&format!("{engine} --take-over-nri"));
        }
        for engine in order {
            place.uninstall(engine);
        }
        assert_eq!(tree(place.root()), before, "{order:?}");
    }
}

/// A CRI-O that prints this version, on a separate host.
fn with_crio(version: &str) -> Place {
    let place = host();
    place.write("usr/bin/crio", &format!("#!/bin/sh\necho crio version {version}\n"));
    place.mode("usr/bin/crio", 0o755);
    place
}

fn install(place: &Place, words: &[&str]) -> Result<Value, String> {
    let mut command = place.command(&place.path("here.toml"));
    let binary = ["--binary", PROGRAM];
    let output = command.args(["--json", "install"]).args(words).args(binary).output().unwrap();
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout).unwrap());
    }
    Err(String::from_utf8(output.stderr).unwrap())
}

/// Puts CRI-O's own NRI on its usual socket.
fn with_the_usual_socket(place: &Place) {
    let config = place
        .read("here.toml")
        .replace(&format!("{}/nri.sock", place.root().display()), "/var/run/nri/nri.sock");
    place.write("here.toml", &config);
    std::fs::create_dir_all(place.path("/var/run/nri")).unwrap();
}

#[test]
fn crio_is_queried_for_its_version() {
    for (version, serves) in
        [("1.29.4", false), ("1.30.0", true), ("1.37.0-dev", true), ("unknown", true)]
    {
        let place = with_crio(version);
        with_the_usual_socket(&place);
        let installed = install(&place, &["crio"]);
        let refusal = installed.err().unwrap_or_default();
        assert_eq!(refusal.contains("CRI-O serves NRI itself"), serves, "{version}: {refusal}");
        if serves {
            install(&place, &["crio", "--take-over-nri"]).unwrap();
            let written = place.read("/etc/crio/crio.conf.d/50-nri-runc.conf");
            assert!(written.contains("[crio.nri]\nenable_nri = false\n"), "{written}");
        }
    }
}

#[test]
fn beside_is_refused_where_our_drop_ins_are_not_read() {
    let place = with_crio("1.37.0");
    with_the_usual_socket(&place);
    let refusal = install(&place, &["crio", "--beside"]).unwrap_err();
    assert!(refusal.contains("here.toml") && refusal.contains("nri.socket_path"), "{refusal}");
    assert!(!place.path("/etc").exists());
}

/// The row of `check` with this name.
fn row(place: &Place, name: &str) -> (bool, String, String) {
    let all = nri(place, &["check"]);
    let row = all.as_array().unwrap().iter().find(|row| row["check"] == name).unwrap();
    let text = |key: &str| row[key].as_str().unwrap().to_owned();
    (row["ok"] == true, text("detail"), text("hint"))
}

/// Listens on the plugin socket, as a process of this name.
fn listens(place: &Place, name: &str) -> UnixListener {
    place.write(&format!("/proc/{}/comm", std::process::id()), &format!("{name}\n"));
    UnixListener::bind(place.path("nri.sock")).unwrap()
}

#[test]
fn the_listening_engine_is_named_with_the_command_for_it() {
    let place = host();
    let _engine = listens(&place, "containerd");
    let root = place.root().display().to_string();
    place.write(MAIN, &format!("version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\nsocket_path = \"{root}/nri.sock\"\n"));
    let before = place.read(MAIN);
    let us = format!("containerd (process {})", std::process::id());
    for engine in ["podman", "docker", "containerd"] {
        let refusal = install(&place, &[engine]).unwrap_err();
        let wanted = format!("{us} serves NRI itself on {root}/nri.sock");
        assert!(refusal.contains(&wanted), "{engine}: {refusal}");
    }
    let (is_well, detail, hint) = row(&place, "plugin socket");
    assert!(!is_well && detail.contains(&us), "{detail}");
    assert!(hint.contains("nri-runc nri install containerd --take-over-nri"), "{hint}");

    let shown = install(&place, &["podman", "--take-over-nri"]).unwrap();
    assert_eq!(shown["next"], "systemctl restart containerd");
    assert!(shown["notes"].to_string().contains("serves plugins until it is restarted"), "{shown}");
    assert!(place.read(MAIN).contains(IS_OFF));
    let (is_well, detail, hint) = row(&place, "registered with podman");
    assert!(!is_well && detail.contains(&format!("{us} still serves plugins")), "{detail}");
    assert_eq!(hint, "systemctl restart containerd");
    std::fs::remove_file(place.path("nri.sock")).unwrap();
    let (is_well, detail, _) = row(&place, "registered with podman");
    assert!(is_well && detail.contains("instead of the engine's own NRI"), "{detail}");
    nri(&place, &["uninstall", "podman"]);
    assert_eq!(place.read(MAIN), before);
}

#[test]
fn a_registered_engine_with_its_nri_on_again_is_a_finding() {
    let place = host();
    let root = place.root().display().to_string();
    let nri_of = |is_off: bool| {
        format!(
            "version = 3\n[plugins.\"io.containerd.nri.v1.nri\"]\ndisable = {is_off}\nsocket_path = \"{root}/nri.sock\"\n"
        )
    };
    place.write(MAIN, &nri_of(true));
    install(&place, &["containerd"]).unwrap();
    assert!(row(&place, "registered with containerd").0);
    let written = place.read(MAIN);
    place.write(MAIN, &written.replace(IS_OFF, "disable = false"));
    let (is_well, detail, hint) = row(&place, "registered with containerd");
    assert!(!is_well && detail.contains("containerd serves NRI itself on"), "{detail}");
    assert!(hint.contains("nri-runc nri install containerd --take-over-nri"), "{hint}");
}

#[test]
fn dockers_own_containerd_cannot_be_taken_over_by_its_file() {
    let place = host();
    let _engine = listens(&place, "containerd");
    let main = "/var/run/docker/containerd/containerd.toml";
    let line = format!("containerd\0--config\0{main}\0");
    place.write(&format!("/proc/{}/cmdline", std::process::id()), &line);
    let socket = place.path("nri.sock").display().to_string();
    let text = format!(
        "version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\nsocket_path = \"{socket}\"\n"
    );
    place.write(main, &text);
    let refusal = install(&place, &["docker", "--take-over-nri"]).unwrap_err();
    assert!(refusal.contains(&format!("dockerd rewrites {main} at each start")), "{refusal}");
    assert_eq!(place.read(main), text);
    assert!(!place.path("/etc/docker").exists());
}

#[test]
fn the_next_step_names_the_required_decision() {
    let place = host();
    let socket = place.path("nri.sock").display().to_string();
    place.write(
        MAIN,
        &format!(
            "version = 3\n[plugins.\"io.containerd.nri.v1.nri\"]\nsocket_path = \"{socket}\"\n"
        ),
    );
    place.write("usr/bin/containerd", "");
    let all = nri(&place, &["check"]);
    let last = all.as_array().unwrap().last().unwrap()["detail"].as_str().unwrap().to_owned();
    assert!(last.contains("nri-runc nri install containerd --take-over-nri|--beside"), "{last}");
}
