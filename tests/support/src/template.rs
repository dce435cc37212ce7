// SPDX-License-Identifier: Apache-2.0
//! The plugin of `contrib/plugin-template` as a program, `10-trial`: the one that
//! `NRI_RUNC_PACKAGED_PLUGIN` names (`scripts/plugin-package.sh` builds it from packaged crates),
//! else built here once with the crate beside it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::example::built;
use crate::{Started, program, skip};

/// Index and name of the plugin.
pub const ID: &str = "10-trial";
/// The annotation of a pod whose value becomes the variable `GREETING` of its containers; an empty
/// one refuses them.
pub const KEY: &str = "greeting.example.org";

/// The built program; `None` after printing why a test is skipped.
pub fn plugin() -> Option<PathBuf> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(packaged) = std::env::var_os("NRI_RUNC_PACKAGED_PLUGIN").map(PathBuf::from) {
        assert!(packaged.is_absolute() && packaged.exists(), "{} is not there", packaged.display());
        return Some(packaged);
    }
    let Some(nri_plugin) = &built().nri_plugin else {
        skip::machine_lacks("no cargo here, which builds the template of a plugin");
        return None;
    };
    Some(BUILT.get_or_init(|| build(nri_plugin)).clone())
}

/// Starts it outside of any runtime; it connects to `socket`, again whenever it is disconnected,
/// and logs to `log`.
pub fn start(mut command: Command, socket: &Path, log: &Path) -> Started {
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    command.arg("--reconnect").arg("--socket").arg(socket);
    Started(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
}

/// The number of its registrations, by its log.
pub fn registrations(log: &Path) -> usize {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    log.matches(&format!("{ID}: registered")).count()
}

/// Compiles its source as `cargo generate` fills it in; cargo would compile all of its crates again
/// for its separate features.
fn build(nri_plugin: &Path) -> PathBuf {
    let source = program::project().join("contrib/plugin-template/src/main.rs");
    let (index, name) = ID.split_once('-').unwrap();
    let text = std::fs::read_to_string(source).unwrap();
    let text = text.replace("{{project-name}}", name).replace("{{plugin_index}}", index);
    let folder = tempfile::tempdir_in(program::scratch()).unwrap();
    std::fs::write(folder.path().join("main.rs"), text).unwrap();
    let built = folder.path().join(ID);
    let mut rustc = Command::new(Path::new(env!("CARGO")).with_file_name("rustc"));
    rustc.args(["--edition", "2024", "-o"]).arg(&built).arg(folder.path().join("main.rs"));
    rustc.arg("--extern").arg(format!("nri_plugin={}", nri_plugin.display()));
    rustc.arg("-L").arg(format!("dependency={}", nri_plugin.with_file_name("").display()));
    let output = rustc.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // In one step, because another test program may run the existing one.
    let kept = program::scratch().join(ID);
    std::fs::rename(built, &kept).unwrap();
    kept
}
