// SPDX-License-Identifier: Apache-2.0
//! The NRI cases of critest, the CRI validation suite of cri-tools. They take minutes, so they run
//! only if CRITEST names the program: in `make interop` and `make engines`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::skip;

/// Longer than an engine's default: the suite blocks a Synchronize so long that an engine with the
/// default would disconnect the suite's plugin.
pub const TIMEOUT: &str = "plugin_request_timeout = \"10s\"";

/// The result of each case, by its name: `passed`, `failed`, `skipped`.
pub type Results = BTreeMap<String, String>;

/// The program; `None` after printing why the test is skipped.
pub fn program() -> Option<PathBuf> {
    let named = std::env::var_os("CRITEST").map(PathBuf::from).filter(|path| path.exists());
    if named.is_none() {
        skip::machine_lacks("CRITEST does not name critest: make interop and make engines run it");
    }
    named
}

/// The properties of an engine that the suite needs.
pub struct Engine<'a> {
    /// The socket of its CRI, and that of plugins.
    pub cri: &'a Path,
    pub nri: &'a Path,
    /// The runtime handler; empty for the engine's default.
    pub handler: &'a str,
    /// The image that `registry` serves.
    pub image: &'a str,
}

/// Runs the cases; `dir` takes its files, of which `report.json` has the reason of each failure.
pub fn run(program: &Path, engine: &Engine<'_>, dir: &Path) -> Results {
    let images = dir.join("images.yaml");
    let image = engine.image;
    let text = format!("defaultTestContainerImage: {image}\nwebServerTestImage: {image}\n");
    nri_runc::testing::files::replace(&images, text.as_bytes()).unwrap();
    let report = dir.join("report.json");
    let endpoint = format!("unix://{}", engine.cri.display());
    let mut suite = Command::new(program);
    suite.args(["-runtime-endpoint", &endpoint, "-image-endpoint", &endpoint]);
    suite.args(["-runtime-handler", engine.handler]).arg("-nri-socket").arg(engine.nri);
    suite.arg("-test-images-file").arg(images).arg("-ginkgo.json-report").arg(&report);
    suite.args(["-ginkgo.focus", "NRI", "-ginkgo.no-color", "-ginkgo.timeout", "20m"]);
    let output = suite.current_dir(dir).output().unwrap();
    let text = std::fs::read(&report);
    assert!(text.is_ok(), "no report: {}", String::from_utf8_lossy(&output.stdout));
    let suites: Value = serde_json::from_slice(&text.unwrap()).unwrap();
    let cases = suites[0]["SpecReports"].as_array().unwrap().iter();
    let cases = cases.filter(|case| case["LeafNodeType"] == "It" && is_nri(case));
    cases.map(result).collect()
}

fn is_nri(case: &Value) -> bool {
    case["ContainerHierarchyTexts"][0].as_str().is_some_and(|text| text.contains("NRI"))
}

fn result(case: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&case["LeafNodeText"]), text(&case["State"]))
}

/// The results in the column of this name on the page.
pub fn published(column: &str) -> Results {
    let page = include_str!("../../../docs/compatibility.md");
    let (_, section) = page.split_once("\n## The CRI's own suite\n").unwrap();
    let rows = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|'));
    let mut rows = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect());
    let head: Vec<&str> = rows.next().unwrap();
    let at = head.iter().position(|name| *name == column).unwrap();
    rows.skip(1).map(|row| (row[0].to_owned(), row[at].to_owned())).collect()
}
