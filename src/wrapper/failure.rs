// SPDX-License-Identifier: Apache-2.0
//! Reports a failure of the wrapper: one entry in the engine's `--log`, in its format, and one line on
//! stderr, written in a single call.
//!
//! containerd uses the last `level=error` entry of the log; conmon reads stderr once; Podman parses
//! the whole log file as one object. So exactly one entry and one line are written.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::argv::CommandLine;
use crate::error::Error;
use crate::messages;
use crate::text::rfc3339;

/// Reports `error` to the engine.
pub(super) fn report(call: &CommandLine, error: &Error) {
    let line = messages::with_code(&format!("nri-runc: {error}"));
    append_to_log(call, &line);
    let mut text = line.into_bytes();
    text.push(b'\n');
    let _nobody_to_tell = std::io::stderr().write_all(&text);
}

fn append_to_log(call: &CommandLine, line: &str) {
    let Some(path) = call.log.as_deref().and_then(log_file) else { return };
    let now = rfc3339(SystemTime::now());
    let is_json = call.log_format.as_deref() == Some(OsStr::new("json"));
    let entry = if is_json {
        format!("{}\n", serde_json::json!({ "level": "error", "msg": line, "time": now }))
    } else {
        format!("time=\"{now}\" level=error msg={}\n", serde_json::Value::from(line))
    };
    // A log that cannot be written must not hide the failure itself.
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) {
        let _nobody_to_tell = file.write_all(entry.as_bytes());
    }
}

/// Returns the file of `--log`, if it names a file; crun also takes `file:F`, `journald:ID` and `syslog:ID`.
fn log_file(target: &OsStr) -> Option<PathBuf> {
    let Some(text) = target.to_str() else { return Some(PathBuf::from(target)) };
    if text.is_empty() || text.starts_with("journald:") || text.starts_with("syslog:") {
        return None;
    }
    Some(PathBuf::from(text.strip_prefix("file:").unwrap_or(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crun_log_targets_that_are_not_files_are_ignored() {
        assert_eq!(log_file(OsStr::new("journald:x")), None);
        assert_eq!(log_file(OsStr::new("syslog:x")), None);
        assert_eq!(log_file(OsStr::new("file:/l")), Some(PathBuf::from("/l")));
        assert_eq!(log_file(OsStr::new("/l")), Some(PathBuf::from("/l")));
    }
}
