// SPDX-License-Identifier: Apache-2.0
//! Writes values to cgroup files in order, either all of them or none.
//!
//! Files are never created, and links never followed. When the kernel refuses a value, all earlier
//! writes are reverted, last first.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;

use crate::error::in_our_words;
use crate::presence::IfThere;

use super::{CgroupFiles, Cgroups, Write};

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AppliedWrite {
    /// Name of the file.
    pub file: String,
    /// Path of the resource.
    pub field: String,
    /// The file's text before the write.
    pub before: String,
    /// The file's text immediately after its write; a later write of the same update may change it.
    pub after: String,
}

/// A refused write; the earlier writes were reverted as far as possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WriteError {
    /// Path of the resource.
    pub field: String,
    /// The failure, in one line.
    pub why: String,
}

/// Makes all writes in order.
///
/// # Errors
/// Fails with the first write that fails; reverts the earlier ones as far as possible.
pub(crate) fn carry_out(
    cgroups: &Cgroups,
    writes: &[Write],
) -> Result<Vec<AppliedWrite>, WriteError> {
    let mut done: Vec<(&Write, String, Option<String>)> = Vec::new();
    for write in writes {
        // A value that cannot be read could not be restored.
        let before = match cgroups.text(write.controller, &write.file) {
            // A file such as devices.allow can only be written.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            known => known,
        };
        let result = match before {
            Ok(before) => {
                let result = put(cgroups, write);
                let after = result.as_ref().ok().cloned().flatten();
                done.push((write, before.unwrap_or_default(), after));
                result.map(drop)
            }
            Err(unknown) => Err(format!("it cannot be read: {}", in_our_words(&unknown))),
        };
        if let Err(why) = result {
            let mut left = 0;
            for (write, before, _) in done.iter().rev() {
                left += usize::from(take_back(cgroups, write, before).is_err());
            }
            let more = match left {
                0 => String::new(),
                left => format!("; {left} files could not be restored"),
            };
            let why = format!("{} does not take {}: {why}{more}", write.file, one_line(write));
            return Err(WriteError { field: write.field.clone(), why });
        }
    }
    let written = done.into_iter().map(|(write, before, after)| AppliedWrite {
        file: write.file.clone(),
        field: write.field.clone(),
        after: after.unwrap_or_else(|| write.value.clone()),
        before,
    });
    Ok(written.collect())
}

/// Returns the current text of a write's file, for comparison or display only.
fn read(cgroups: &Cgroups, write: &Write) -> Option<String> {
    cgroups.text(write.controller, &write.file).or_absent().flatten()
}

/// Whether the file's value may result from the write; false only if it surely does not. Kernels
/// show CPU lists in another form and round byte limits, and there are two formulas for a weight.
pub(crate) fn may_read_as(cgroups: &Cgroups, write: &Write) -> bool {
    let Some(text) = read(cgroups, write) else { return true };
    match write.file.as_str() {
        "pids.max" => text == write.value,
        // crun does not write the file when a quota is removed.
        "cpu.max" => text == write.value || write.value.starts_with("max"),
        "memory.max" | "memory.low" => text == write.value || is_rounded(&text, &write.value),
        "cpuset.cpus" | "cpuset.mems" => match (members(&text), members(&write.value)) {
            (Some(now), Some(wanted)) => now == wanted,
            _ => true,
        },
        _ => true,
    }
}

/// Whether the file has the value of a write, in the form in which the kernel shows it.
pub(crate) fn reads_as(cgroups: &Cgroups, write: &Write) -> bool {
    let Some(text) = read(cgroups, write) else { return false };
    match write.field.as_str() {
        "memory.limit" | "memory.swap" | "memory.reservation" => {
            text == write.value || is_rounded(&text, &write.value)
        }
        "cpu.cpus" | "cpu.mems" => {
            let wanted = members(&write.value);
            wanted.is_some() && members(&text) == wanted
        }
        _ => text == write.value,
    }
}

/// The largest page size of any machine, in bytes: limits are rounded down to whole pages.
const LARGEST_PAGE: u64 = 64 << 10;

/// Whether the kernel may have rounded the wanted number of bytes to this one. A negative number
/// lifts the limit, which v1 shows as its largest number.
fn is_rounded(now: &str, wanted: &str) -> bool {
    match (now.parse::<u64>(), wanted.parse::<u64>()) {
        (Ok(now), Ok(wanted)) => is_within_a_page(now, wanted),
        (Ok(now), Err(_)) => wanted.starts_with('-') && now > u64::MAX / 4,
        (Err(_), _) => false,
    }
}

/// Whether the kernel may have rounded the wanted number of bytes to this one.
pub(super) fn is_within_a_page(now: u64, wanted: u64) -> bool {
    now <= wanted && wanted - now < LARGEST_PAGE
}

/// Returns the numbers of a list such as `0-3,7`; `None` for any other form.
pub(crate) fn members(list: &str) -> Option<BTreeSet<u16>> {
    let mut found = BTreeSet::new();
    for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        found.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(found)
}

fn one_line(write: &Write) -> String {
    crate::error::quoted(&write.value)
}

/// Writes a value; returns the file's text after it, if it can be read.
fn put(cgroups: &Cgroups, write: &Write) -> Result<Option<String>, String> {
    let dir = cgroups.dir(write.controller).ok_or("there is no such controller")?;
    let file = put_lines(&dir.join(&write.file), &write.value)?;
    let now = cgroups.text_now(&file, (write.controller, &write.file));
    if !write.is_verified {
        return Ok(now.or_absent().flatten());
    }
    let now = now.map_err(|unknown| in_our_words(&unknown))?.unwrap_or_default();
    let is_bytes = write.file.ends_with("_in_bytes");
    if now != write.value && !(is_bytes && is_rounded(&now, &write.value)) {
        return Err(format!("the kernel changed it to {now}"));
    }
    Ok(Some(now))
}

/// Writes each line of a value separately, because each is one setting of the file. Returns the file, open for
/// reading too if that is permitted.
fn put_lines(path: &Path, value: &str) -> Result<File, String> {
    let mut options = std::fs::OpenOptions::new();
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    options.write(true).truncate(true).custom_flags(flags);
    let said = |error: std::io::Error| in_our_words(&error);
    let opened = match options.clone().read(true).open(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => options.open(path),
        opened => opened,
    };
    let mut file = opened.map_err(said)?;
    let mut lines = value.split('\n').filter(|line| !line.is_empty()).peekable();
    if lines.peek().is_none() {
        // An empty line makes a file empty again, such as v2's cpuset.
        file.write_all(b"\n").map_err(said)?;
    }
    lines.try_for_each(|line| file.write_all(format!("{line}\n").as_bytes()).map_err(said))?;
    Ok(file)
}

fn take_back(cgroups: &Cgroups, write: &Write, before: &str) -> Result<(), String> {
    let dir = cgroups.dir(write.controller).ok_or("there is no such controller")?;
    let (file, value) = match &write.undo {
        Some((file, value)) => (file.as_str(), value.as_str()),
        None => (write.file.as_str(), before),
    };
    let now = read(cgroups, write);
    if write.undo.is_none() && now.as_deref() == Some(before) {
        return Ok(());
    }
    put_lines(&dir.join(file), value).map(drop)
}
