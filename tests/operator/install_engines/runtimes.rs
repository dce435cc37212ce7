// SPDX-License-Identifier: Apache-2.0
//! The runtime that a running CRI-O's files name by path, and the one that nri-runc would find.

use super::Place;
use super::next_step::{host, nri};

const DROP_IN: &str = "etc/crio/crio.conf.d/50-nri-runc.conf";

/// A running CRI-O whose default runtime is at this path; nri-runc has `runtime`.
fn crio(path: &str, runtime: &str) -> Place {
    let place = host();
    place.write("proc/7/cmdline", "/usr/bin/crio\0");
    let text = format!("[crio.runtime.runtimes.runc]\nruntime_path = \"{path}\"\n");
    place.write("etc/crio/crio.conf.d/10-crio.conf", &text);
    let config = place.read("here.toml").replace("runtime = [\"/bin/sh\"]", runtime);
    place.write("here.toml", &config);
    place
}

/// The note of `install` about the runtime, or its refusal.
fn install(place: &Place, more: &[&str]) -> Result<Option<String>, String> {
    let mut command = place.command(&place.path("here.toml"));
    let words = ["--json", "install", "crio", "--take-over-nri", "--binary", super::PROGRAM];
    let output = command.args(words).args(more).output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let notes = printed["notes"].as_array().unwrap().iter().filter_map(|note| note.as_str());
    Ok(notes.map(str::to_owned).find(|note| note.contains("default runtime")))
}

#[test]
fn an_unresolvable_runtime_is_reported_before_any_write() {
    let place = crio("/bin/sh", "runtime = [\"/nowhere/runc\"]");
    let refusal = install(&place, &[]).unwrap_err();
    for words in ["no real runtime was found", "set runtime = \"/bin/sh\" in /etc/nri-runc"] {
        assert!(refusal.contains(words), "{words} is not in: {refusal}");
    }
    assert!(!place.path(DROP_IN).exists());
    // With that setting there is no note, also at the second call.
    let config = place.read("here.toml").replace("/nowhere/runc", "/bin/sh");
    place.write("here.toml", &config);
    assert_eq!(install(&place, &[]), Ok(None));
    assert_eq!(install(&place, &[]), Ok(None));
    assert!(place.path(DROP_IN).exists());
}

#[test]
fn a_different_default_runtime_is_noted_once() {
    let place = crio("/bin/cat", "runtime = [\"/bin/sh\"]");
    let note = install(&place, &[]).unwrap().unwrap();
    assert!(note.contains("is /bin/cat: to keep using it, set runtime = \"/bin/cat\""), "{note}");
    assert_eq!(install(&place, &[]), Ok(None), "it is registered");
}

/// A Podman whose files name no runtime, with these runtimes.
fn podman(programs: &[&str]) -> Place {
    let place = host();
    for name in programs {
        test_support::program::put(&place.path(&format!("usr/bin/{name}")), "");
    }
    std::fs::create_dir_all(place.path("etc/containers")).unwrap();
    place
}

#[test]
fn the_way_to_keep_podmans_default_runtime_is_noted() {
    let notes = |place: &Place| {
        let printed = nri(place, &["install", "podman", "--binary", super::PROGRAM]);
        let notes = printed["notes"].as_array().unwrap().iter().filter_map(|note| note.as_str());
        notes.filter(|note| note.contains("default runtime")).map(str::to_owned).collect()
    };
    let both = podman(&["podman", "crun", "runc"]);
    let printed: Vec<String> = notes(&both);
    assert_eq!(printed.len(), 1, "{printed:?}");
    assert!(
        printed[0].contains("is crun: to keep using it, set runtime = \"crun\""),
        "{printed:?}"
    );
    assert!(notes(&both).is_empty(), "it is registered");
    for alone in ["crun", "runc"] {
        assert!(notes(&podman(&["podman", alone])).is_empty(), "both take {alone}");
    }
}

#[test]
fn install_does_not_refuse_if_no_setting_would_help() {
    // The engine's own runtime is missing, a name has a separate runtime, CRI-O does not run.
    let place = crio("/nowhere/at/all/runc", "runtime = [\"/nowhere/runc\"]");
    assert_eq!(install(&place, &[]), Ok(None));
    let place = crio("/bin/cat", "");
    let own = "[instance.nri-runc]\npath = \"/bin/sh\"\n";
    place.write("here.toml", &format!("{}{own}", place.read("here.toml")));
    assert_eq!(install(&place, &[]), Ok(None));
    let place = crio("/bin/sh", "runtime = [\"/nowhere/runc\"]");
    std::fs::remove_dir_all(place.path("proc/7")).unwrap();
    let note = install(&place, &[]).unwrap().unwrap();
    assert!(note.contains("is /bin/sh: to keep using it"), "{note}");
    nri(&place, &["uninstall", "crio"]);
    assert!(!place.path(DROP_IN).exists());
}
