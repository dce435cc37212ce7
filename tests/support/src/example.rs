// SPDX-License-Identifier: Apache-2.0
//! The sample programs that tests run. `cargo test --test X` builds none of them and leaves stale
//! ones where they are, so each test program has them built once, before it uses the first.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The built sample program `name`, as the sources have it now.
pub fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let program = BUILT.get_or_init(build).join(name);
    assert!(program.exists(), "cargo build --examples makes no {}", program.display());
    program
}

/// Builds them beside the binary under test, with its profile; returns their folder.
#[expect(clippy::disallowed_methods, reason = "cargo is the build tool of this project")]
fn build() -> PathBuf {
    let binary = crate::program::nri_runc();
    let (folder, target) = (binary.parent().unwrap(), binary.ancestors().nth(2).unwrap());
    let profile = folder.file_name().and_then(|name| name.to_str()).unwrap();
    // cargo calls one profile by another name than its folder.
    let profile = if profile == "debug" { "dev" } else { profile };
    let cargo = std::path::Path::new(env!("CARGO"));
    if !cargo.exists() {
        // A guest has what was built for it, and nothing to build with.
        return folder.join("examples");
    }
    let output = std::process::Command::new(cargo)
        .args(["build", "--quiet", "--offline", "--locked", "--examples", "--profile", profile])
        .arg("--manifest-path")
        .arg(crate::program::project().join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder.join("examples")
}
