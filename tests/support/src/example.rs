// SPDX-License-Identifier: Apache-2.0
//! The sample programs that tests run. `cargo test --test X` builds none of them and leaves stale
//! ones where they are, so each test program has them built once, before it uses the first.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

/// What cargo built.
pub(crate) struct Built {
    /// The samples.
    folder: PathBuf,
    /// The library that plugins are written with; none in a guest.
    pub(crate) nri_plugin: Option<PathBuf>,
}

/// The built sample program `name`, as the sources have it now.
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
    // cargo calls one profile by another name than its folder.
    let profile = if profile == "debug" { "dev" } else { profile };
    let folder = folder.join("examples");
    let cargo = Path::new(env!("CARGO"));
    if !cargo.exists() {
        // A guest has what was built for it, and nothing to build with.
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
