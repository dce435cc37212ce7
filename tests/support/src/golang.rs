// SPDX-License-Identifier: Apache-2.0
//! Builds the Go programs of `tests/interop`, on the official Go packages of NRI, if Go is
//! installed; it never fetches Go itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::skip;

/// Builds one program: a folder of `tests/interop` (NRI v0.12.5), `cri` for the client of an
/// engine's CRI, `promtool` and `prometheus` of the version in `tests/mixin/go.mod`, `stub-vX.Y.Z`
/// for the plugin in `stubs` on that version, or `runtime-vX.Y.Z` for the runtime in `runtimes`.
/// Without a Go of at least 1.24, or if the Go packages cannot be fetched, the test is skipped;
/// under CI it fails.
pub fn program(name: &str) -> Option<PathBuf> {
    // One at a time, because two tests may need the same file.
    static BUILDING: Mutex<()> = Mutex::new(());
    let program = crate::program::scratch().join(name);
    let version = Command::new("go").arg("version").output();
    let version =
        version.map(|v| String::from_utf8_lossy(&v.stdout).into_owned()).unwrap_or_default();
    let minor = version.split("go1.").nth(1).and_then(|rest| rest.split(['.', ' ']).next());
    if minor.and_then(|minor| minor.parse::<u32>().ok()).is_none_or(|minor| minor < 24) {
        let found = if version.is_empty() { "there is none" } else { version.trim() };
        skip::go_lacks(&format!("no Go of at least 1.24: {found}"));
        return None;
    }
    let (folder, arguments) = source(name);
    let _alone = BUILDING.lock();
    let mut go = Command::new("go");
    go.args(["build", "-ldflags=-s -w", "-o"]).arg(&program).args(arguments);
    let source = match name.strip_prefix("runtime-") {
        Some(version) => copy(&crate::program::project().join(folder), version),
        None => crate::program::project().join(folder),
    };
    let built = go.current_dir(source).output().unwrap();
    let printed = String::from_utf8_lossy(&built.stderr);
    if printed.contains("dial tcp") {
        skip::setup_lacks("the Go packages cannot be fetched");
        return None;
    }
    if printed.contains("requires go >=") {
        skip::setup_lacks(&format!("this Go is too old for {name}: {}", printed.trim()));
        return None;
    }
    assert!(built.status.success(), "{printed}");
    Some(program)
}

/// The folder of a program's source, and the build command there.
fn source(name: &str) -> (&'static str, Vec<String>) {
    if name == "cri" {
        return ("tests/interop/cri", vec![".".to_owned()]);
    }
    if matches!(name, "promtool" | "prometheus") {
        // Without the service discovery of clouds, the build takes a third of the time.
        let path = format!("github.com/prometheus/prometheus/cmd/{name}");
        let flags = ["-trimpath", "-tags=remove_all_sd"].map(str::to_owned);
        return ("tests/mixin", flags.into_iter().chain([path]).collect());
    }
    let (folder, version, module) = if let Some(version) = name.strip_prefix("stub-") {
        ("tests/interop/stubs", version, format!("-modfile={version}.mod"))
    } else if let Some(version) = name.strip_prefix("runtime-") {
        ("tests/interop/runtimes", version, "-mod=mod".to_owned())
    } else {
        return ("tests/interop", vec![format!("./{name}")]);
    };
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    let known = [3, 4, 7, 10, 11, 12].into_iter().filter(|since| minor >= Some(*since));
    // Without WebAssembly, the build takes a third of the time.
    let tags =
        known.fold("nri_no_wasm".to_owned(), |tags, since| tags + &format!(",since_0_{since}"));
    (folder, vec![module, format!("-tags={tags}"), ".".to_owned()])
}

/// A copy of a folder whose module file requires this version.
fn copy(folder: &Path, version: &str) -> PathBuf {
    let copy = crate::program::scratch().join(format!("runtime-{version}.source"));
    std::fs::create_dir_all(&copy).unwrap();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let text = if path.ends_with("go.mod") { text.replace("v0.12.5", version) } else { text };
        crate::program::put_with(&copy.join(path.file_name().unwrap()), text, 0o644);
    }
    copy
}
