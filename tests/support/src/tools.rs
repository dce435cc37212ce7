// SPDX-License-Identifier: Apache-2.0
//! The place where `scripts/setup.sh` put the programs of some tests, and the reason why such a
//! test is skipped without them; under CI that is a failure, except for programs that only a guest,
//! `make engines` or a later Debian has.

use std::path::{Path, PathBuf};

use crate::skip;

/// The folder that has all the `wanted` programs; `None` after printing why a test is skipped.
///
/// # Panics
/// Panics if `make setup` does not install one of the programs, because CI would require it in
/// vain.
pub fn find(wanted: &[&str]) -> Option<PathBuf> {
    let Err(why) = look_for(wanted, "make setup") else { return Some(folder().join("bin")) };
    let foreign: Vec<&&str> = wanted.iter().filter(|name| !is_set_up(name)).collect();
    let is_foreign = !foreign.is_empty() && nix::unistd::geteuid().is_root();
    assert!(!is_foreign, "make setup does not bring {foreign:?}: {why}");
    skip::setup_lacks(&why);
    None
}

/// Whether a line of `scripts/setup.sh` unpacks this program: `unpack PACKAGE PROGRAM...`.
fn is_set_up(program: &str) -> bool {
    let setup = include_str!("../../../scripts/setup.sh").lines().map(str::trim);
    setup
        .filter_map(|line| line.strip_prefix("unpack "))
        .any(|words| words.split_whitespace().skip(1).any(|word| word == program))
}

/// Returns the folder of programs that only a guest has.
pub fn find_in_guest(wanted: &[&str]) -> Option<PathBuf> {
    look_for(wanted, "make vm or make vm-engines has a guest with it")
        .map_err(|why| skip::machine_lacks(&why))
        .ok()
}

fn look_for(wanted: &[&str], source: &str) -> Result<PathBuf, String> {
    let dir = folder().join("bin");
    let missing: Vec<&str> =
        wanted.iter().copied().filter(|name| !dir.join(name).exists()).collect();
    if !nix::unistd::geteuid().is_root() {
        Err("real containers need root".to_owned())
    } else if missing.is_empty() {
        Ok(dir)
    } else {
        Err(format!("{} not in {} ({source})", missing.join(", "), dir.display()))
    }
}

/// Returns the folder of programs that only `make engines` builds.
pub fn find_built(wanted: &[&str]) -> Option<PathBuf> {
    look_for(wanted, "make engines builds it").map_err(|why| skip::machine_lacks(&why)).ok()
}

/// The folder of an engine or runtime that is newer than this Debian's, such as `containerd-2.4.2`;
/// `None` after printing why a test is skipped.
pub fn newer(name: &str) -> Option<PathBuf> {
    let dir = folder().join("newer").join(name);
    if dir.join(".done").exists() {
        return Some(dir);
    }
    skip::go_lacks(&format!("{name} is not there (make newer builds it, where Go is)"));
    None
}

/// The crun of a later Debian, such as `crun-1.28`; `None` after printing why a test is skipped.
/// Debian may replace it by another version.
pub fn later_crun(name: &str) -> Option<PathBuf> {
    let crun = folder().join("newer").join(name).join("crun");
    if !crun.exists() {
        skip::machine_lacks(&format!("{name} is not there (make newer says why)"));
        return None;
    }
    Some(crun)
}

/// A script in `dir` that is Debian's crun with its libraries: it executes a copy of itself, from
/// which `$ORIGIN` does not lead to them. `None` after printing why a test is skipped.
pub fn crun(dir: &Path) -> Option<PathBuf> {
    let tools = find(&["crun"])?;
    let tools = tools.parent()?.display();
    let script =
        format!("#!/bin/sh\nexec env LD_LIBRARY_PATH={tools}/lib {tools}/bin/crun \"$@\"\n");
    let path = dir.join("real/crun");
    crate::program::put(&path, script);
    Some(path)
}

/// The folder of a Kubernetes; `None` after printing why a test is skipped.
pub fn kube() -> Option<PathBuf> {
    let dir = folder().join("kube");
    if dir.join(".done").exists() {
        return Some(dir);
    }
    skip::go_lacks("Kubernetes is not there (make kube builds it, where Go is)");
    None
}

fn folder() -> PathBuf {
    let default = || crate::program::project().join("target/tools");
    std::env::var_os("NRI_RUNC_TOOLS").map_or_else(default, PathBuf::from)
}
