// SPDX-License-Identifier: Apache-2.0
//! Builds the programs of `tests/interop` (NRI v0.12.5's own Go code), where Go is there; it
//! never fetches Go itself.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds one program; without a Go of at least 1.24 the test is skipped, and says so.
#[expect(clippy::disallowed_methods, clippy::print_stderr, reason = "the Go side of the test")]
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let version = Command::new("go").arg("version").output();
    let version =
        version.map(|v| String::from_utf8_lossy(&v.stdout).into_owned()).unwrap_or_default();
    let minor = version.split("go1.").nth(1).and_then(|rest| rest.split(['.', ' ']).next());
    if minor.and_then(|minor| minor.parse::<u32>().ok()).is_none_or(|minor| minor < 24) {
        eprintln!("skipped: no Go of at least 1.24 ({})", version.trim());
        return None;
    }
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(format!("./{name}"))
        .current_dir(source)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}
