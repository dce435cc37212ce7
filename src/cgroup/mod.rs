// SPDX-License-Identifier: Apache-2.0
//! Writes resources to cgroup files, for running containers.
//!
//! [`plan`] only reads: from OCI resources and the files' content, it returns writes
//! in an order that the kernel accepts, or an error. [`carry_out`] makes them, and reverts all of
//! them when one fails. The caller decides which containers may be written to (D22), and no process
//! is ever moved to another cgroup, frozen or killed. Reference: kernel `cgroup-v1/`,
//! `cgroup-v2.rst`; runc's `cgroups` package.

mod blkio;
mod compare;
mod formulas;
mod place;
pub(crate) mod resctrl;
mod v1;
mod v2;
mod write;

#[cfg(test)]
mod gaps_tests;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::in_our_words;

pub(crate) use compare::difference;
pub(crate) use place::{Cgroups, Layout, Mounts, membership};
pub(crate) use write::{AppliedWrite, WriteError, carry_out, may_read_as, members, reads_as};

/// Reads a container's cgroup files by name; `controller` is empty on v2.
pub(crate) trait CgroupFiles {
    /// Whether the file exists; an error if it cannot be examined.
    fn exists(&self, controller: &str, file: &str) -> io::Result<bool>;
    /// Returns the file's text without the final line feed; `None` if it does not exist or is not UTF-8.
    fn text(&self, controller: &str, file: &str) -> io::Result<Option<String>>;
}

/// The files that [`plan`] reads; an unreadable one makes it fail.
struct SeenFiles<'a> {
    files: &'a dyn CgroupFiles,
    unknown: RefCell<Option<(String, io::Error)>>,
}

impl<'a> SeenFiles<'a> {
    fn new(files: &'a dyn CgroupFiles) -> Self {
        Self { files, unknown: RefCell::default() }
    }

    fn exists(&self, controller: &str, file: &str) -> bool {
        self.seen(file, self.files.exists(controller, file)).unwrap_or_default()
    }

    fn text(&self, controller: &str, file: &str) -> Option<String> {
        self.seen(file, self.files.text(controller, file)).flatten()
    }

    fn seen<T>(&self, file: &str, found: io::Result<T>) -> Option<T> {
        let unknown = match found {
            Ok(found) => return Some(found),
            Err(unknown) => unknown,
        };
        self.unknown.borrow_mut().get_or_insert((file.to_owned(), unknown));
        None
    }
}

/// One file to be written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Write {
    /// The controller on v1, empty on v2.
    pub controller: &'static str,
    /// Name of the file.
    pub file: String,
    /// The text; each of its lines is written separately.
    pub value: String,
    /// Path of the resource below `linux.resources`.
    pub field: String,
    /// File and value that revert the write, if writing the file's earlier text does not.
    pub undo: Option<(String, String)>,
    /// Another value that some runtimes write for the field.
    pub other: Option<String>,
    /// Whether the write is skipped if the file is absent.
    is_optional: bool,
    /// Whether another value after the write fails it, because the kernel may silently choose one; except bytes
    /// rounded down to pages, and `-1`, which v1 shows as its largest number.
    pub is_verified: bool,
}

impl Write {
    /// Whether the write may take seconds: within the call, the kernel reclaims memory for a limit
    /// below the current use, and moves pages to other memory nodes.
    pub(crate) fn may_take_long(&self) -> bool {
        self.file.starts_with("memory.") || self.file == "cpuset.mems"
    }
}

/// A result that fails with the reason why resources cannot be written.
pub(crate) type Result<T, E = Unfit> = std::result::Result<T, E>;

/// The reason why resources cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// This host's cgroups cannot take the value, or a cgroup file is unreadable.
    Refused {
        /// Path of the resource.
        field: String,
        /// Why.
        why: String,
    },
    /// The daemon cannot write this resource to the cgroup files, but the runtime may be able to
    /// set it.
    NotDirect(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { field, why } => write!(f, "{field}: {why}"),
            Self::NotDirect(what) => write!(f, "only a runtime could write it: {what}"),
        }
    }
}

/// The complete resources of a container before and after an update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around<'a> {
    /// The resources in force.
    pub before: &'a Map<String, Value>,
    /// The resources of a failed update, part of which may be in force.
    pub tried: Option<&'a Map<String, Value>>,
    /// The resources after the writes.
    pub after: &'a Map<String, Value>,
}

/// Plans the writes for `wanted`, in order.
///
/// # Errors
/// Fails with the resource that cannot be written, and the reason.
pub(crate) fn plan(
    layout: Layout,
    wanted: &Map<String, Value>,
    around: Around<'_>,
    files: &dyn CgroupFiles,
) -> Result<Vec<Write>> {
    let wanted = WritableResources::deserialize(Value::Object(wanted.clone()))
        .map_err(|error| Unfit::NotDirect(error.to_string()))?;
    let files = SeenFiles::new(files);
    let planned = plan_seen(layout, &wanted, around, &files);
    if let Some((file, unknown)) = files.unknown.into_inner() {
        let why = format!("{file} cannot be read: {}", in_our_words(&unknown));
        return refused("cgroup", why);
    }
    planned
}

fn plan_seen(
    layout: Layout,
    wanted: &WritableResources,
    around: Around<'_>,
    files: &SeenFiles<'_>,
) -> Result<Vec<Write>> {
    let mut writes = match layout {
        Layout::V1 => v1::plan(wanted, files)?,
        Layout::V2 => v2::plan(wanted, around, files)?,
    };
    writes.retain(|write| !write.is_optional || files.exists(write.controller, &write.file));
    for write in &writes {
        if !files.exists(write.controller, &write.file) {
            return refused(&write.field, format!("the cgroup has no {}", write.file));
        }
    }
    Ok(writes)
}

fn write(
    controller: &'static str,
    file: impl Into<String>,
    value: impl fmt::Display,
    field: impl Into<String>,
) -> Write {
    Write {
        controller,
        file: file.into(),
        value: value.to_string(),
        field: field.into(),
        ..Write::default()
    }
}

impl Write {
    fn optional(self, is_optional: bool) -> Self {
        Self { is_optional, ..self }
    }
}

fn plan_cpuset(controller: &'static str, cpu: &Cpu, writes: &mut Vec<Write>) {
    let lists = [("cpuset.cpus", &cpu.cpus, "cpu.cpus"), ("cpuset.mems", &cpu.mems, "cpu.mems")];
    for (file, value, field) in lists.into_iter().filter(|(_, value, _)| !value.is_empty()) {
        writes.push(write(controller, file, value, field));
    }
}

/// Plans the writes of huge page limits; `file` is the limit file's name without its page size.
fn plan_hugepages(
    controller: &'static str,
    file: &str,
    limits: &[HugepageLimit],
    writes: &mut Vec<Write>,
) {
    for HugepageLimit { page_size, limit } in limits {
        let field = format!("hugepageLimits[{page_size}]");
        let path = format!("hugetlb.{page_size}");
        writes.push(write(controller, format!("{path}.{file}"), limit, field.clone()));
        let reserved = write(controller, format!("{path}.rsvd.{file}"), limit, field);
        writes.push(reserved.optional(true));
    }
}

fn refused<T>(field: &str, why: impl Into<String>) -> Result<T> {
    Err(Unfit::Refused { field: field.to_owned(), why: why.into() })
}

/// The resources that can be written; parsing fails if there are others.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct WritableResources {
    memory: Memory,
    cpu: Cpu,
    pids: Pids,
    unified: BTreeMap<String, String>,
    #[serde(rename = "hugepageLimits")]
    hugepages: Vec<HugepageLimit>,
    devices: Vec<DeviceRule>,
    #[serde(rename = "blockIO")]
    block_io: blkio::BlockIoResources,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Memory {
    limit: Option<i64>,
    reservation: Option<i64>,
    swap: Option<i64>,
    kernel: Option<i64>,
    #[serde(rename = "kernelTCP")]
    kernel_tcp: Option<i64>,
    swappiness: Option<u64>,
    #[serde(rename = "disableOOMKiller")]
    disable_oom_killer: Option<bool>,
    use_hierarchy: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Cpu {
    shares: Option<u64>,
    quota: Option<i64>,
    burst: Option<u64>,
    period: Option<u64>,
    realtime_runtime: Option<i64>,
    realtime_period: Option<u64>,
    cpus: String,
    mems: String,
    idle: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Pids {
    limit: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HugepageLimit {
    #[serde(rename = "pageSize")]
    page_size: String,
    limit: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceRule {
    allow: bool,
    #[serde(default, rename = "type")]
    kind: String,
    major: Option<i64>,
    minor: Option<i64>,
    #[serde(default)]
    access: String,
}

/// Returns the value; `None` for zero, which means "unchanged" to every runtime.
fn set<T: Default + PartialEq>(value: Option<T>) -> Option<T> {
    value.filter(|value| *value != T::default())
}

/// Returns the write first if it lowers its file's value, else second. A burst may never exceed the
/// quota, so a lower burst is written before the quota, and a higher one after it.
fn early_or_late(write: Option<Write>, files: &SeenFiles<'_>) -> (Option<Write>, Option<Write>) {
    let falls = write.as_ref().is_some_and(|write| {
        let now = first_number(files.text(write.controller, &write.file)).unwrap_or(0);
        write.value.parse().is_ok_and(|value: i64| value < now)
    });
    if falls { (write, None) } else { (None, write) }
}

/// Formats a limit; a negative one is `max`.
fn or_max(limit: i64) -> String {
    if limit < 0 { "max".to_owned() } else { limit.to_string() }
}

fn number(resources: &Map<String, Value>, section: &str, key: &str) -> Option<i64> {
    resources.get(section)?.get(key)?.as_i64()
}

fn first_number(text: Option<String>) -> Option<i64> {
    text?.split_whitespace().next()?.parse().ok()
}
