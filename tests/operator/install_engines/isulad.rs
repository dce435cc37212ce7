// SPDX-License-Identifier: Apache-2.0
//! iSulad's `daemon.json`, whose format is known from iSulad's sources. No iSulad runs in these tests.

use serde_json::{Value, json};

use super::{PROGRAM, Place, tree};

const ISULAD: &str = "/etc/isulad/daemon.json";

/// The packaged file, shortened.
const PACKAGED: &str = "{\n    \"group\": \"isula\",\n    \"default-runtime\": \"lcr\",\n    \"graph\": \"/srv/isulad\",\n    \"nri-support\": true\n}\n";

fn settings(place: &Place) -> Value {
    serde_json::from_str(&place.read(ISULAD)).unwrap()
}

#[test]
fn isulad_is_registered_and_its_file_restored() {
    for text in [None, Some(PACKAGED), Some("{}\n")] {
        let place = Place::new();
        if let Some(text) = text {
            place.write(ISULAD, text);
        }
        let before = tree(place.root());
        let printed = place.install("isulad --beside");
        assert!(printed.contains("systemctl restart isulad"), "{printed}");
        assert!(printed.contains("isula run --runtime nri-runc IMAGE"), "{printed}");
        let runtime = json!({"path": PROGRAM, "runtime-args": []});
        assert_eq!(settings(&place)["runtimes"], json!({"nri-runc": runtime}));
        let printed = place.install("isulad --default --beside");
        assert_eq!(settings(&place)["default-runtime"], "nri-runc", "{printed}");
        place.uninstall("isulad");
        assert_eq!(tree(place.root()), before);
    }
}

#[test]
fn isulads_own_nri_is_switched_off_when_it_is_taken_over() {
    let place = Place::new();
    place.write(ISULAD, PACKAGED);
    place.install("isulad --take-over-nri");
    assert_eq!(settings(&place)["nri-support"], false);
    place.uninstall("isulad");
    assert_eq!(place.read(ISULAD), PACKAGED);
}

#[test]
fn isulads_reserved_names_and_foreign_entries_are_refused() {
    for name in ["runc", "lcr", "kata-runtime", "runsc"] {
        let printed = Place::new().refused("install", &format!("isulad --name {name}"));
        assert!(printed.contains(&format!("iSulad reserves the name {name}")), "{printed}");
    }
    for (entry, word) in [
        (json!({"path": "/opt/other"}), "path"),
        (json!({"path": PROGRAM, "runtime-args": ["--debug"]}), "runtime-args"),
    ] {
        let place = Place::new();
        let text = json!({"runtimes": {"nri-runc": entry}}).to_string();
        place.write(ISULAD, &text);
        let printed = place.refused("install", "isulad");
        assert!(printed.contains(ISULAD) && printed.contains(word), "{printed}");
        assert_eq!(place.read(ISULAD), text);
    }
    let place = Place::new();
    place.write(ISULAD, "{ broken");
    assert!(place.refused("install", "isulad").contains(ISULAD));
}

#[test]
fn isulads_containers_keep_the_registration_unless_forced() {
    let place = Place::new();
    place.write(ISULAD, PACKAGED);
    place.install("isulad --beside");
    place.write("/srv/isulad/engines/runc/other/config.json", "{}");
    place.write("/srv/isulad/engines/nri-runc/ours/config.json", "{}");
    let printed = place.refused("uninstall", "isulad");
    assert!(
        printed.contains("1 container still uses") && printed.contains(": ours ("),
        "{printed}"
    );
    assert!(place.uninstall("isulad --force").contains("1 container still uses"));
    assert_eq!(place.read(ISULAD), PACKAGED);
}
