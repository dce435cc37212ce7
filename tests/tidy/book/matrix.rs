// SPDX-License-Identifier: Apache-2.0
//! The first table of `docs/compatibility.md`: the tested versions, from `docs/matrix.csv`, to which make's targets
//! append rows (`scripts/matrix.sh`); the recorded versions, from the folders of fixtures; and engines whose sources
//! were read.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::super::root;

const BEGIN: &str = "<!-- table of tests/tidy/book/matrix.rs; `UPDATE_GOLDEN=1 cargo test --test tidy matrix` renews it -->\n";
const END: &str = "<!-- end of the table -->\n";

/// Engines that a row may name, each with its name on the page.
const ENGINES: [(&str, &str); 9] = [
    ("containerd", "containerd"),
    ("crio", "CRI-O"),
    ("docker", "Docker"),
    ("k3s", "k3s"),
    ("kubelet", "kubelet on containerd 2.4.2"),
    ("kubernetes", "Kubernetes"),
    ("nerdctl", "nerdctl"),
    ("podman", "Podman"),
    ("isulad", "iSulad"),
];

/// Engines of which only the sources were available.
const READ: [&str; 1] = ["isulad"];

/// The name on the page.
fn title(engine: &str) -> &'static str {
    let found = ENGINES.iter().find(|(name, _)| *name == engine);
    found.expect("the matrix knows its engines").1
}

/// Rows of the CSV: engine, version, cgroups, driver, kernel, runtime, target, date.
fn runs(csv: &str) -> Vec<Vec<&str>> {
    let rows = csv.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    rows.inspect(|row| assert_eq!(row.len(), 8, "{row:?}")).collect()
}

/// Engine and version of the recorded fixtures, `ENGINE-VERSION-CASE`.
fn recorded() -> BTreeSet<(String, String)> {
    let folders = ["fixtures/captures", "fixtures/engines"].map(|folder| root().join(folder));
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap().flatten());
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_version = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    let recorded =
        ["containerd-1.6.20", "containerd-2.4.2", "crio-1.37", "docker-20.10", "podman-4.3.1"];
    let split =
        names.filter(|name| recorded.iter().any(|one| name.starts_with(one))).filter_map(|name| {
            let mut words = name.split('-');
            let (engine, version) = (words.next()?.to_owned(), words.next()?.to_owned());
            is_version(&version).then_some((engine, version))
        });
    split.collect()
}

fn table(csv: &str) -> String {
    let mut page = "| engine | version | cgroups | driver | kernel | runtime | how |\n|---|---|---|---|---|---|---|\n".to_owned();
    let mut seen = BTreeSet::new();
    for row in runs(csv) {
        let [engine, version, cgroups, driver, kernel, runtime, target, date] = row[..] else {
            continue;
        };
        seen.insert(engine.to_owned());
        let _infallible = writeln!(
            page,
            "| {} | {version} | {cgroups} | {driver} | {kernel} | {runtime} | run: `{target}`, {date} |",
            title(engine)
        );
    }
    for (engine, version) in recorded() {
        let _infallible = writeln!(
            page,
            "| {} | {version} | v1 | cgroupfs | | runc | recorded |",
            title(&engine)
        );
        seen.insert(engine);
    }
    for engine in READ.iter().filter(|engine| !seen.contains(**engine)) {
        let _infallible = writeln!(page, "| {} | | | | | | read |", title(engine));
    }
    page
}

#[test]
fn the_table_of_compatibility_matches_matrix_csv() {
    let csv = std::fs::read_to_string(root().join("docs/matrix.csv")).unwrap();
    let path = root().join("docs/compatibility.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let wanted = [before, BEGIN, &table(&csv), END, after].concat();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        nri_runc::testing::files::replace(&path, wanted.as_bytes()).unwrap();
        return;
    }
    assert_eq!(page, wanted, "UPDATE_GOLDEN=1 cargo test --test tidy matrix renews it");
}

#[test]
fn only_an_engine_that_no_test_runs_is_marked_as_read() {
    let csv = "engine,version,cgroups,driver,kernel,runtime,target,date\ncrio,1.36.3,v2,systemd,6.1,crun 1.21,make vm-engines,2026-11-25\n";
    let table = table(csv);
    assert!(table.contains(
        "| CRI-O | 1.36.3 | v2 | systemd | 6.1 | crun 1.21 | run: `make vm-engines`, 2026-11-25 |"
    ));
    assert!(table.contains("| iSulad | | | | | | read |") && !table.contains("| CRI-O | | |"));
    assert!(table.contains("| Podman | 4.3.1 | v1 | cgroupfs | | runc | recorded |"), "{table}");
}
