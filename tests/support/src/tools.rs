// SPDX-License-Identifier: Apache-2.0
//! Where `scripts/setup.sh` put the programs that some tests run, and why such a test is skipped
//! without them; under CI a missing one is a failure.

use std::path::PathBuf;

/// The folder that has all the `wanted` programs; `None` after saying why a test is skipped.
pub fn find(wanted: &[&str]) -> Option<PathBuf> {
    let default = crate::program::project().join("target/tools");
    let dir = std::env::var_os("NRI_RUNC_TOOLS").map_or(default, PathBuf::from).join("bin");
    let missing: Vec<&str> =
        wanted.iter().copied().filter(|name| !dir.join(name).exists()).collect();
    let why = if !nix::unistd::geteuid().is_root() {
        "real containers need root".to_owned()
    } else if missing.is_empty() {
        return Some(dir);
    } else {
        format!("{} not in {} (make setup)", missing.join(", "), dir.display())
    };
    skip(&why);
    None
}

/// Says why a test is skipped; under CI that is a failure.
#[expect(clippy::print_stderr, reason = "a skip says why")]
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "required under CI: {why}");
    eprintln!("skipped: {why}");
}
