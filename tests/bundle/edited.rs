// SPDX-License-Identifier: Apache-2.0
//! A document that somebody edits after a container was made of it is that document: it is run as
//! it was edited, and nobody puts an older one back. Content decides, not the file's number.

use std::io::Write;

use super::player::Manner;
use super::rig::{BUNDLE, Rig, wait_until};
use super::{sets, started, succeeds};

const EDITED: &str = r#"{"process": {"args": ["edited"], "env": []}, "linux": {}}"#;

/// Writes into the file that is there, as an editor may.
fn edit_in_place(rig: &Rig, name: &str, text: &str) {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).truncate(true).open(rig.path(name)).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn remove(rig: &Rig, id: &str) {
    succeeds(&rig.verb(&["delete", "--force", id]));
    wait_until("it is removed", || !rig.admin(&["pods"]).to_string().contains(id));
}

fn files_of(rig: &Rig, folder: &str) -> usize {
    std::fs::read_dir(rig.path(folder)).unwrap().count()
}

#[test]
fn an_edited_document_is_run_as_edited_and_stays_when_the_first_container_goes() {
    let rig = started("");
    let _told = rig.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&rig.create("c1"));
    edit_in_place(&rig, "bundle/config.json", EDITED);
    succeeds(&rig.create("c2"));
    let seen = rig.read("fake/seen.json");
    assert!(seen.contains("edited") && seen.contains("HELLO=there"), "{seen}");
    remove(&rig, "c1");
    assert_eq!(rig.read("bundle/config.json"), seen, "c2's document is in place");
    remove(&rig, "c2");
    assert_eq!(rig.read("bundle/config.json"), EDITED);
    assert_eq!(files_of(&rig, "bundle"), 2);
}

#[test]
fn an_edit_survives_the_removal_of_the_container_that_was_made_before_it() {
    let rig = started("");
    let _told = rig.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&rig.create("c1"));
    edit_in_place(&rig, "bundle/config.json", EDITED);
    remove(&rig, "c1");
    assert_eq!(rig.read("bundle/config.json"), EDITED);
    assert_eq!(files_of(&rig, "bundle"), 2);
}

#[test]
fn a_copy_of_the_patched_document_is_still_the_patched_document() {
    let rig = started("");
    let _told = rig.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&rig.create("c1"));
    let patched = rig.read("bundle/config.json");
    std::fs::remove_file(rig.path("bundle/config.json")).unwrap();
    rig.write("bundle/config.json", &patched);
    succeeds(&rig.create("c2"));
    assert_eq!(rig.read("fake/seen.json").matches("HELLO").count(), 1);
    remove(&rig, "c1");
    remove(&rig, "c2");
    assert_eq!(rig.read("bundle/config.json"), BUNDLE);
}

#[test]
fn a_container_that_no_plugin_adjusts_does_not_run_the_document_of_another_one() {
    let mut rig = started("");
    let told = rig.plugin(
        "10",
        "env",
        Manner { leaves: true, at: Some("StartContainer".to_owned()), ..sets("HELLO", "there") },
    );
    succeeds(&rig.create("c1"));
    drop(rig.verb(&["start", "c1"]));
    wait_until("the plugin is gone", || {
        let plugins = rig.admin(&["plugins"]);
        plugins.as_array().into_iter().flatten().all(|plugin| plugin["state"] != "synchronized")
    });
    drop(told);
    succeeds(&rig.create("c2"));
    assert_eq!(rig.read("fake/seen.json"), BUNDLE);
    rig.kill_daemon();
    rig.start_daemon();
    remove(&rig, "c1");
    remove(&rig, "c2");
    assert_eq!(rig.read("bundle/config.json"), BUNDLE);
    assert_eq!(files_of(&rig, "bundle"), 2);
}

#[test]
fn the_document_that_crun_is_pointed_to_is_restored_where_it_lies() {
    let rig = started("");
    let _told = rig.plugin("10", "env", sets("HELLO", "there"));
    std::fs::create_dir(rig.path("elsewhere")).unwrap();
    rig.write("elsewhere/other.json", BUNDLE);
    let (bundle, file) = (rig.path("bundle"), rig.path("elsewhere/other.json"));
    let create = |id: &str| {
        let (bundle, file) = (bundle.display().to_string(), file.display().to_string());
        rig.verb(&["create", "--bundle", &bundle, "--config", &file, id])
    };
    succeeds(&create("c1"));
    assert!(rig.read("elsewhere/other.json").contains("HELLO=there"));
    assert_eq!(rig.read("bundle/config.json"), BUNDLE);
    succeeds(&create("c2"));
    assert_eq!(rig.read("elsewhere/other.json").matches("HELLO").count(), 1);
    edit_in_place(&rig, "elsewhere/other.json", EDITED);
    remove(&rig, "c1");
    remove(&rig, "c2");
    assert_eq!(rig.read("elsewhere/other.json"), EDITED);
    succeeds(&create("c3"));
    remove(&rig, "c3");
    assert_eq!(rig.read("elsewhere/other.json"), EDITED);
    assert_eq!((files_of(&rig, "elsewhere"), files_of(&rig, "bundle")), (1, 2));
}

#[test]
fn after_a_restart_and_with_a_record_of_an_earlier_version_an_edit_counts_as_well() {
    for is_edited in [true, false] {
        let mut rig = started("");
        let _told = rig.plugin("10", "env", sets("HELLO", "there"));
        succeeds(&rig.create("c1"));
        wait_until("its creation is settled", || {
            rig.admin(&["pods"])[0]["containers"][0]["state"] == "created"
        });
        rig.kill_daemon();
        // Earlier versions wrote neither of these.
        for entry in std::fs::read_dir(rig.path("run/state/containers")).unwrap().flatten() {
            let name = format!("run/state/containers/{}", entry.file_name().to_str().unwrap());
            let mut record: serde_json::Value = serde_json::from_str(&rig.read(&name)).unwrap();
            let patched = record["patched"].as_object_mut().unwrap();
            assert!(patched.remove("fingerprint").is_some() && patched.remove("folder").is_some());
            rig.write(&name, &record.to_string());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        if is_edited {
            edit_in_place(&rig, "bundle/config.json", EDITED);
        }
        rig.start_daemon();
        remove(&rig, "c1");
        let wanted = if is_edited { EDITED } else { BUNDLE };
        assert_eq!(rig.read("bundle/config.json"), wanted);
        assert_eq!(files_of(&rig, "bundle"), 2);
    }
}
