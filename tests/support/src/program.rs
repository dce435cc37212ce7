// SPDX-License-Identifier: Apache-2.0
//! Paths that cargo gives only to the test crates: the program under test, the project's folder, a
//! folder for test builds.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The program under test: the one that `NRI_RUNC_BINARY` names (in a guest), else the one that
/// cargo built for the running tests.
pub fn nri_runc() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let named = ["NRI_RUNC_BINARY", "CARGO_BIN_EXE_nri-runc"];
        let named = named.iter().find_map(std::env::var_os).map(PathBuf::from);
        let program = named.unwrap_or_else(|| profile().join("nri-runc"));
        assert!(
            program.exists(),
            "there is no program under test: {} (cargo build, or NRI_RUNC_BINARY)",
            program.display()
        );
        program
    })
}

/// Writes a program to this path in one step. A child process writes it: children of other tests
/// inherit a file that this process has open for writing, and meanwhile it cannot be executed.
pub fn put(path: &Path, bytes: impl AsRef<[u8]>) {
    put_with(path, bytes, 0o755);
}

/// Writes a program like [`put`], with another mode, and creates its folder.
pub fn put_with(path: &Path, bytes: impl AsRef<[u8]>, mode: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Hidden until it is complete, because programs in the folder may be launched.
    let script =
        "new=${1%/*}/.${1##*/}.new; cat >\"$new\" && chmod $2 \"$new\" && mv \"$new\" \"$1\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(path).arg(format!("{mode:o}"));
    let mut shell = shell.stdin(std::process::Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(bytes.as_ref()).unwrap();
    assert!(shell.wait().unwrap().success(), "{} cannot be written", path.display());
}

/// Copies a file, possibly a program, in one step; by a child process, like `put`.
pub fn copy(from: &Path, to: &Path) {
    put(to, std::fs::read(from).unwrap());
}

/// The project's folder, as it was when the tests were built.
pub fn project() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is in tests/support")
}

/// A folder in cargo's target folder for programs that tests build; it is not removed after the
/// tests.
pub(crate) fn scratch() -> PathBuf {
    let scratch = profile().parent().map_or_else(std::env::temp_dir, |target| target.join("tmp"));
    std::fs::create_dir_all(&scratch).unwrap();
    scratch
}

/// The folder of a profile below cargo's target folder: test programs are in its `deps`.
fn profile() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).expect("cargo puts tests into target/PROFILE/deps").to_owned()
}
