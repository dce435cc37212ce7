// SPDX-License-Identifier: Apache-2.0
//! The folders of `fixtures/bundles`, each through the built binary: the runtime's document byte
//! for byte, the messages of each plugin, and the refusal. `UPDATE_GOLDEN=1` writes the expected
//! files; review the diff.

mod case;
mod play;
mod received;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use case::Case;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bundles")
}

/// Plays a case and compares the results; returns the differences.
fn run(name: &str) -> Result<(), String> {
    let case = Case::load(&root(), name)?;
    let came = catch_unwind(AssertUnwindSafe(|| play::play(&case))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default()
    })?;
    let mut wrong = Vec::new();
    for (file, got) in came.files() {
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            bless(&case.folder.join("expected").join(file), got.as_deref());
        }
        let wanted = case.expected(file);
        if wanted != got {
            let (wanted, got) = (shown(wanted), shown(got));
            wrong.push(format!("expected/{file}\n--- wanted\n{wanted}\n--- got\n{got}"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn shown(bytes: Option<Vec<u8>>) -> String {
    bytes.map_or("(no such file)".to_owned(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn bless(path: &Path, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            nri_runc::testing::files::replace(path, bytes).unwrap();
        }
        None => drop(std::fs::remove_file(path)),
    }
}

#[test]
fn each_bundle_matches_its_expected_folder() {
    let names = case::names(&root());
    let next = Mutex::new(names.iter());
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _worker in 0..3 {
            scope.spawn(|| {
                loop {
                    let Some(name) = next.lock().unwrap().next() else { break };
                    let result = run(name);
                    results.lock().unwrap().push((name, result));
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    assert_eq!(results.len(), names.len(), "not every folder was run");
    assert!(names.len() >= 30, "only {} folders", names.len());
    let wrong: Vec<String> = results
        .into_iter()
        .filter_map(|(name, result)| Some(format!("=== {name}: {}", result.err()?)))
        .collect();
    assert!(wrong.is_empty(), "{} cases differ\n{}", wrong.len(), wrong.join("\n"));
}

/// At least a third of all cases must end in a failure.
#[test]
fn at_least_a_third_of_the_golden_cases_are_failures() {
    let names = case::names(&root());
    let fails = |name: &&String| root().join(name).join("expected/stderr").exists();
    let failing = names.iter().filter(fails).count();
    assert!(failing * 3 >= names.len(), "{failing} of {} cases end in a failure", names.len());
}

fn spoilt(spoil: impl Fn(&Path)) -> Result<(), String> {
    let temp = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = temp.path().join("case").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        nri_runc::testing::files::replace(&path, text.as_bytes()).unwrap();
    };
    put("README.md", "A case.\n");
    put("config.json", "{}");
    put("plugins/10-a.json", "{\"adjust\": {\"args\": [\"a\"]}}");
    put("expected/events.jsonl", "");
    spoil(&temp.path().join("case"));
    Case::load(temp.path(), "case").map(|_| ())
}

#[test]
fn a_folder_with_a_missing_or_unknown_file_is_an_error() {
    assert_eq!(spoilt(|_| {}), Ok(()));
    for file in ["README.md", "config.json"] {
        assert!(spoilt(|case| std::fs::remove_file(case.join(file)).unwrap()).is_err(), "{file}");
    }
    let unknown = ["notes", "plugins/a.json", "plugins/10-b.txt", "expected/stdout", "more/a"];
    for file in unknown {
        let spoilt = spoilt(|case| {
            std::fs::create_dir_all(case.join(file).parent().unwrap()).unwrap();
            nri_runc::testing::files::replace(&case.join(file), b"{}").unwrap();
        });
        assert!(spoilt.is_err(), "{file}");
    }
}

#[test]
fn a_misspelt_member_of_a_plugin_file_is_an_error() {
    for part in [
        "{\"adjsut\": {}}",
        "{\"adjust\": {\"environment\": []}}",
        "{\"refuse\": \"no\", \"at\": \"CreateContainers\"}",
        "{\"events\": [\"Create\"]}",
        "{\"refuse\": \"no\", \"status\": \"NOPE\"}",
        "",
    ] {
        let spoilt = spoilt(|case| {
            nri_runc::testing::files::replace(&case.join("plugins/10-a.json"), part.as_bytes())
                .unwrap();
        });
        assert!(spoilt.is_err(), "{part}");
    }
}
