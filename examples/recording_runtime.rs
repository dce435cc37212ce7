// SPDX-License-Identifier: Apache-2.0
//! Replaces the real runtime in `tests/bundle/transparency.rs`: records its inputs in a file beside
//! itself, and fails with the code 7. It does not use std's entry point, which would change signal
//! dispositions and descriptors before they could be recorded.
#![no_main]

use std::ffi::{c_char, c_int};
use std::io::Write;

/// The C entry point.
#[expect(unsafe_code, reason = "the C entry point has an unmangled name")]
// SAFETY: no other symbol of this program is called `main`.
#[unsafe(no_mangle)]
pub extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    let mut fds: Vec<String> = Vec::new();
    for fd in 0..64 {
        if let Ok(target) = std::fs::read_link(format!("/proc/self/fd/{fd}")) {
            fds.push(format!("{fd} {}", target.display()));
        }
    }
    let read = |name: &str| std::fs::read(format!("/proc/self/{name}")).unwrap_or_default();
    let status = String::from_utf8_lossy(&read("status")).into_owned();
    let kept = ["Umask", "SigBlk", "SigIgn", "SigCgt"];
    let status = status.lines().filter(|line| kept.iter().any(|name| line.starts_with(name)));
    let mut record = Vec::new();
    for part in [read("cmdline"), read("environ"), fds.join("\n").into_bytes()] {
        record.extend_from_slice(&part);
        record.extend_from_slice(b"\n====\n");
    }
    record.extend_from_slice(status.collect::<Vec<_>>().join("\n").as_bytes());
    let cwd = std::fs::read_link("/proc/self/cwd").unwrap_or_default();
    record.extend_from_slice(cwd.as_os_str().as_encoded_bytes());
    let Ok(own) = std::fs::read_link("/proc/self/exe") else { return 1 };
    let _test_sees_it = nri_runc::testing::files::replace(&own.with_extension("record"), &record);
    let _nobody_reads = std::io::stdout().write_all(b"out\n");
    let _nobody_reads = std::io::stderr().write_all(b"err\n");
    7
}
