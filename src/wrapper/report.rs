// SPDX-License-Identifier: Apache-2.0
//! The one place where the wrapper says that it failed: one entry in the engine's `--log`, in
//! its format, and one line on stderr, written in one go.
//!
//! containerd keeps the last `level=error` entry of the log; conmon reads stderr once; Podman
//! parses the whole log file as one object. So: one entry, one line, nothing else, ever.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::argv::Call;
use crate::error::Error;

/// Says `error` to the engine.
pub(super) fn failure(call: &Call, error: &Error) {
    let line = format!("nri-runc: {error}");
    append_to_log(call, &line);
    let mut text = line.into_bytes();
    text.push(b'\n');
    let _nobody_to_tell = std::io::stderr().write_all(&text);
}

fn append_to_log(call: &Call, line: &str) {
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

/// The file behind `--log`; crun also takes `file:F`, `journald:ID` and `syslog:ID`.
fn log_file(target: &OsStr) -> Option<PathBuf> {
    let Some(text) = target.to_str() else { return Some(PathBuf::from(target)) };
    if text.is_empty() || text.starts_with("journald:") || text.starts_with("syslog:") {
        return None;
    }
    Some(PathBuf::from(text.strip_prefix("file:").unwrap_or(text)))
}

/// UTC time as RFC 3339 with seconds, the form that containerd's shim can read.
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01 in 400-year eras of 146097 days (proleptic Gregorian calendar).
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + carry;
    let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_what_date_says() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_795_221_600, "2026-11-21T00:40:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn crun_log_targets_that_are_no_file_are_left_alone() {
        assert_eq!(log_file(OsStr::new("journald:x")), None);
        assert_eq!(log_file(OsStr::new("syslog:x")), None);
        assert_eq!(log_file(OsStr::new("file:/l")), Some(PathBuf::from("/l")));
        assert_eq!(log_file(OsStr::new("/l")), Some(PathBuf::from("/l")));
    }
}
