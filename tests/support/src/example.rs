// SPDX-License-Identifier: Apache-2.0
//! The sample programs that tests run. `cargo test --test X` builds none of them and keeps stale
//! ones, so each test program builds them once, before the first use.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

/// The result of the build.
pub(crate) struct Built {
    /// The samples.
    folder: PathBuf,
    /// The library for plugins; `None` in a guest.
    pub(crate) nri_plugin: Option<PathBuf>,
}

/// The sample program `name`, built from the current sources.
pub fn example(name: &str) -> PathBuf {
    let program = built().folder.join(name);
    assert!(program.exists(), "cargo build --examples makes no {}", program.display());
    program
}

/// Builds once.
pub(crate) fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(build)
}

/// Builds them beside the binary under test, with its profile.
fn build() -> Built {
    let binary = crate::program::nri_runc();
    let (folder, target) = (binary.parent().unwrap(), binary.ancestors().nth(2).unwrap());
    let profile = folder.file_name().and_then(|name| name.to_str()).unwrap();
    // The folder of cargo's profile `dev` is named `debug`.
    let profile = if profile == "debug" { "dev" } else { profile };
    let folder = folder.join("examples");
    let cargo = Path::new(env!("CARGO"));
    if !cargo.exists() {
        // A guest has programs that were built for it, and no compiler.
        return Built { folder, nri_plugin: None };
    }
    let output = std::process::Command::new(cargo)
        .args(["build", "--quiet", "--offline", "--locked", "--examples", "--profile", profile])
        .arg("--message-format=json-render-diagnostics")
        .arg("--manifest-path")
        .arg(crate::program::project().join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let nri_plugin = messages.map_while(Result::ok).find_map(|message: Value| {
        let is_it = message["target"]["name"] == "nri_plugin";
        let files = message["filenames"].as_array().filter(|_| is_it)?;
        files
            .iter()
            .filter_map(Value::as_str)
            .find(|file| file.ends_with(".rlib"))
            .map(PathBuf::from)
    });
    Built { folder, nri_plugin }
}
