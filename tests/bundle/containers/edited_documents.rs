// SPDX-License-Identifier: Apache-2.0
//! A document that is edited after a container was created from it runs as edited, and no older
//! version is restored. The content decides, not the inode.

use std::io::Write;

use test_support::{BUNDLE, Script, TestHost, wait_until};

use crate::{sets, started, succeeds};

const EDITED: &str = r#"{"process": {"args": ["edited"], "env": []}, "linux": {}}"#;

/// Overwrites the existing file in place, as an editor may.
fn edit_in_place(host: &TestHost, name: &str, text: &str) {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).truncate(true).open(host.path(name)).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn remove(host: &TestHost, id: &str) {
    succeeds(&host.verb(&["delete", "--force", id]));
    wait_until("it is removed", || !host.admin(&["pods"]).to_string().contains(id));
}

fn files_of(host: &TestHost, folder: &str) -> usize {
    std::fs::read_dir(host.path(folder)).unwrap().count()
}

#[test]
fn an_edited_document_is_used_and_outlives_the_first_container() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    edit_in_place(&host, "bundle/config.json", EDITED);
    succeeds(&host.create("c2"));
    let seen = host.read("fake/seen.json");
    assert!(seen.contains("edited") && seen.contains("HELLO=there"), "{seen}");
    remove(&host, "c1");
    assert_eq!(host.read("bundle/config.json"), seen, "c2's document is in place");
    remove(&host, "c2");
    assert_eq!(host.read("bundle/config.json"), EDITED);
    assert_eq!(files_of(&host, "bundle"), 2);
}

#[test]
fn an_edit_survives_the_removal_of_an_older_container() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    edit_in_place(&host, "bundle/config.json", EDITED);
    remove(&host, "c1");
    assert_eq!(host.read("bundle/config.json"), EDITED);
    assert_eq!(files_of(&host, "bundle"), 2);
}

#[test]
fn a_copy_of_the_patched_document_is_still_the_patched_document() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    let patched = host.read("bundle/config.json");
    std::fs::remove_file(host.path("bundle/config.json")).unwrap();
    host.write("bundle/config.json", &patched);
    succeeds(&host.create("c2"));
    assert_eq!(host.read("fake/seen.json").matches("HELLO").count(), 1);
    remove(&host, "c1");
    remove(&host, "c2");
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
}

#[test]
fn an_unadjusted_container_never_runs_another_ones_document() {
    let mut host = started("");
    let received = host.plugin(
        "10",
        "env",
        Script { leaves: true, at: Some("StartContainer".to_owned()), ..sets("HELLO", "there") },
    );
    succeeds(&host.create("c1"));
    drop(host.verb(&["start", "c1"]));
    wait_until("the plugin is gone", || {
        let plugins = host.admin(&["plugins"]);
        plugins.as_array().into_iter().flatten().all(|plugin| plugin["state"] != "synchronized")
    });
    drop(received);
    succeeds(&host.create("c2"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
    host.kill_daemon();
    host.start_daemon();
    remove(&host, "c1");
    remove(&host, "c2");
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
    assert_eq!(files_of(&host, "bundle"), 2);
}

#[test]
fn a_document_named_by_crun_config_is_restored_in_place() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    std::fs::create_dir(host.path("elsewhere")).unwrap();
    host.write("elsewhere/other.json", BUNDLE);
    let (bundle, file) = (host.path("bundle"), host.path("elsewhere/other.json"));
    let create = |id: &str| {
        let (bundle, file) = (bundle.display().to_string(), file.display().to_string());
        host.verb(&["create", "--bundle", &bundle, "--config", &file, id])
    };
    succeeds(&create("c1"));
    assert!(host.read("elsewhere/other.json").contains("HELLO=there"));
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
    succeeds(&create("c2"));
    assert_eq!(host.read("elsewhere/other.json").matches("HELLO").count(), 1);
    edit_in_place(&host, "elsewhere/other.json", EDITED);
    remove(&host, "c1");
    remove(&host, "c2");
    assert_eq!(host.read("elsewhere/other.json"), EDITED);
    succeeds(&create("c3"));
    remove(&host, "c3");
    assert_eq!(host.read("elsewhere/other.json"), EDITED);
    assert_eq!((files_of(&host, "elsewhere"), files_of(&host, "bundle")), (1, 2));
}

#[test]
fn an_edit_is_kept_after_a_restart_and_with_older_records() {
    for is_edited in [true, false] {
        let mut host = started("");
        let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
        succeeds(&host.create("c1"));
        wait_until("its creation is settled", || {
            host.admin(&["pods"])[0]["containers"][0]["state"] == "created"
        });
        host.kill_daemon();
        // Earlier versions wrote neither of these members.
        for entry in std::fs::read_dir(host.path("run/state/containers")).unwrap().flatten() {
            let name = format!("run/state/containers/{}", entry.file_name().to_str().unwrap());
            let mut record: serde_json::Value = serde_json::from_str(&host.read(&name)).unwrap();
            let patched = record["patched"].as_object_mut().unwrap();
            assert!(patched.remove("fingerprint").is_some() && patched.remove("folder").is_some());
            host.write(&name, &record.to_string());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        if is_edited {
            edit_in_place(&host, "bundle/config.json", EDITED);
        }
        host.start_daemon();
        remove(&host, "c1");
        let wanted = if is_edited { EDITED } else { BUNDLE };
        assert_eq!(host.read("bundle/config.json"), wanted);
        assert_eq!(files_of(&host, "bundle"), 2);
    }
}
