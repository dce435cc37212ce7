// SPDX-License-Identifier: Apache-2.0
//! Skips a test. The reason goes to standard error, and with the test's name to the list that
//! `NRI_RUNC_SKIPS` names: the harness hides the output of a passing test, so `make test` shows the
//! list at its end. Under CI a test is never skipped for a program that the setup installs: it
//! fails.

use std::io::Write;
use std::panic::Location;

/// Skips the calling test because of a property of this machine.
#[track_caller]
pub fn machine_lacks(why: &str) {
    record(why, Location::caller());
}

/// Skips the calling test because of something that `make setup`, `make newer` or CI's machine
/// should have installed; under CI that is a failure.
#[track_caller]
pub fn setup_lacks(why: &str) {
    let why = why.trim();
    assert!(std::env::var_os("CI").is_none(), "required under CI: {why}");
    record(why, Location::caller());
}

/// Skips the calling test because of a missing Go. The machine of `make fresh` has no Go, and sets
/// `NRI_RUNC_FRESH`: there everything else is required.
#[track_caller]
pub fn go_lacks(why: &str) {
    if std::env::var_os("NRI_RUNC_FRESH").is_some() { machine_lacks(why) } else { setup_lacks(why) }
}

/// Prints the reason, and writes a line `TEST<tab>REASON` to the list.
#[expect(clippy::print_stderr, reason = "a skip says why")]
fn record(why: &str, caller: &Location<'_>) {
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    eprintln!("skipped: {why}");
    let Some(list) = std::env::var_os("NRI_RUNC_SKIPS") else { return };
    // The harness runs each test in a thread of its name.
    let thread = std::thread::current();
    let test = thread.name().map_or_else(|| caller.to_string(), str::to_owned);
    let line = format!("{}::{test}\t{why}\n", program());
    // In one write, because other tests append to the same list.
    let mut options = std::fs::OpenOptions::new();
    let mut list = options.create(true).append(true).open(list).unwrap();
    list.write_all(line.as_bytes()).unwrap();
}

/// The test program's name, without the hash that cargo adds.
fn program() -> String {
    let path = std::env::current_exe().unwrap();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.rsplit_once('-').map_or(name.clone(), |(name, _hash)| name.to_owned())
}
