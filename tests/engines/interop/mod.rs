// SPDX-License-Identifier: Apache-2.0
//! Plugins on the official Go stub: five releases from v0.2.0 to v0.12.5, one source (`stubs`).
//! Their messages during the whole lifecycle of a container through the built binary, and the
//! effect of each field that they can set.
//!
//! Skipped without Go (`tests/support/src/golang.rs`).

mod calls;
mod document;
mod life;
mod mixin;
mod names;
mod real;
mod runtimes;

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Starts the plugin of a version, which connects to `socket`, writes to `told` and sets `fields`.
fn by_hand(program: &Path, socket: &Path, received: &Path, fields: &str) -> Started {
    let mut command = Command::new(program);
    command.arg("-socket").arg(socket).arg("-out").arg(received).args(["-set", fields]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Started(command.spawn().unwrap())
}

/// The lines that the plugin wrote.
fn lines(received: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(received).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits until the plugin wrote a line with these words.
fn wait_for(received: &Path, words: &[&str]) {
    let there = || {
        let text = std::fs::read_to_string(received).unwrap_or_default();
        text.lines().any(|line| words.iter().all(|word| line.contains(word)))
    };
    test_support::wait_until(&format!("{words:?} was recorded"), there);
}

/// One test for each version; a function of the minor number for each.
macro_rules! of_each_version {
    ($claim:ident) => {
        mod $claim {
            #[test]
            fn v0_2_0() {
                super::$claim("v0.2.0", 2);
            }
            #[test]
            fn v0_6_1() {
                super::$claim("v0.6.1", 6);
            }
            #[test]
            fn v0_9_0() {
                super::$claim("v0.9.0", 9);
            }
            #[test]
            fn v0_11_0() {
                super::$claim("v0.11.0", 11);
            }
            #[test]
            fn v0_12_5() {
                super::$claim("v0.12.5", 12);
            }
        }
    };
}
use of_each_version;
use test_support::Started;
