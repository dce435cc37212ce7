// SPDX-License-Identifier: Apache-2.0
//! Compares cgroup files with the expected values. The kernel shows many values in another form:
//! lists of CPUs, bytes in whole pages, "max". A value that cannot be compared is an error, never a
//! difference. This module only reads. Reference: kernel `cgroup-v1/`, `cgroup-v2.rst`.

use std::path::PathBuf;
use std::str::SplitWhitespace;

use crate::error::in_our_words;
use crate::presence::IfThere;

use super::write::{is_within_a_page, members};
use super::{CgroupFiles, Cgroups, Write};

/// A file whose value differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) file: PathBuf,
    /// The compared part of the write's value; `A or B` if runtimes write one of two values.
    pub(crate) expected: String,
    /// The compared part of the file's text.
    pub(crate) actual: String,
    /// Whether exactly one value is expected.
    pub(crate) is_certain: bool,
}

/// Files whose value runtimes and kernels accept without applying it.
const NOT_APPLIED: [&str; 2] = ["memory.kmem.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"];

/// Microseconds in a second.
const SECOND: u128 = 1_000_000;
/// The step, in microseconds, to which runtimes round up the CPU time per second that they give systemd.
const SYSTEMD_STEP: u128 = 10_000;

/// Compares the file of a write with its value; `None` if the file has the value, in any form.
///
/// # Errors
/// Fails with one line if they cannot be compared.
pub(crate) fn difference(cgroups: &Cgroups, write: &Write) -> Result<Option<Difference>, String> {
    let Write { controller, file, value, field, other, .. } = write;
    if NOT_APPLIED.contains(&file.as_str()) {
        return Err(format!("{file} is not applied by kernels and runtimes"));
    }
    let dir = cgroups.dir(controller).ok_or_else(|| format!("there is no {file}"))?;
    let text = cgroups.text(controller, file);
    let text = text.map_err(|why| format!("{file} cannot be read: {}", in_our_words(&why)))?;
    let text = text.ok_or_else(|| format!("there is no {file}"))?;
    let (expected, actual) = match (file.as_str(), field.as_str()) {
        // The file has quota and period; only the value of this field is compared.
        ("cpu.max", "cpu.quota") => (word(value, 0), word(&text, 0)),
        ("cpu.max", "cpu.period") => (word(value, 1), word(&text, 1)),
        // A unified value may be given without the period.
        ("cpu.max", _) if !value.contains(' ') => (value.as_str(), word(&text, 0)),
        ("memory.oom_control", _) => (value.as_str(), oom_kill_disable(&text)),
        _ => (value.as_str(), text.as_str()),
    };
    let is_rounded = || is_rounded_quota(cgroups, write, expected, actual, &text);
    if other.as_deref() == Some(actual) || is_rounded() {
        return Ok(None);
    }
    match is_same(file, expected, actual) {
        Some(true) => Ok(None),
        Some(false) => Ok(Some(Difference {
            file: dir.join(file),
            expected: match other {
                Some(other) => format!("{expected} or {other}"),
                None => expected.to_owned(),
            },
            actual: actual.to_owned(),
            is_certain: other.is_none(),
        })),
        None => Err(format!("{file} has a form that is not compared")),
    }
}

/// Whether `actual` is the quota as systemd rounds it: runc gives systemd the CPU time per second,
/// rounded up to 10 ms, and systemd sets the quota from it again at each `daemon-reload`.
fn is_rounded_quota(
    cgroups: &Cgroups,
    write: &Write,
    expected: &str,
    actual: &str,
    text: &str,
) -> bool {
    if write.field != "cpu.quota" || !cgroups.is_scope() {
        return false;
    }
    let period = match write.file.as_str() {
        "cpu.max" => word(text, 1).to_owned(),
        _ => {
            let period = cgroups.text(write.controller, "cpu.cfs_period_us");
            period.or_absent().flatten().unwrap_or_default()
        }
    };
    let [quota, actual, period] = [expected, actual, &period].map(|text| text.parse::<u128>().ok());
    let (Some(quota), Some(actual), Some(period @ 1..)) = (quota, actual, period) else {
        return false;
    };
    let of_second = (quota * SECOND / period).div_ceil(SYSTEMD_STEP) * SYSTEMD_STEP;
    actual == of_second * period / SECOND
}

fn word(text: &str, number: usize) -> &str {
    text.split_whitespace().nth(number).unwrap_or_default()
}

fn oom_kill_disable(text: &str) -> &str {
    text.lines().find_map(|line| line.strip_prefix("oom_kill_disable ")).unwrap_or_default()
}

/// Whether the kernel shows `actual` after `expected` was written; `None` if this cannot be decided.
fn is_same(file: &str, expected: &str, actual: &str) -> Option<bool> {
    if expected == actual {
        return Some(true);
    }
    match file {
        "cpuset.cpus" | "cpuset.mems" | "cpuset.cpus.exclusive" => {
            return Some(members(expected)? == members(actual)?);
        }
        "cpu.max" => {
            let [expected, actual] = [expected, actual].map(str::split_whitespace);
            let amounts = |words: SplitWhitespace<'_>| words.map(Amount::of).collect();
            let (expected, actual): (Option<Vec<_>>, Option<Vec<_>>) =
                (amounts(expected), amounts(actual));
            return Some(expected? == actual?);
        }
        _ => {}
    }
    let (unit, amounts) = (unit(file)?, (Amount::of(expected)?, Amount::of(actual)?));
    Some(match amounts {
        (Amount::Number(expected), Amount::Number(actual)) => match unit {
            Unit::Number => expected == actual,
            Unit::Bytes => is_within_a_page(actual, expected),
            Unit::Pages(page) => actual <= expected && expected - actual < page,
        },
        (expected, actual) => expected == actual,
    })
}

/// The unit of a file's number.
enum Unit {
    Number,
    /// A memory limit, which the kernel keeps in whole pages.
    Bytes,
    /// Huge pages of this many bytes.
    Pages(u64),
}

/// Returns the unit of a file that the kernel shows as one number; `None` for all others.
fn unit(file: &str) -> Option<Unit> {
    match file {
        "cpu.weight" | "cpu.idle" | "cpu.max.burst" | "cpu.shares" | "cpu.cfs_quota_us"
        | "cpu.cfs_period_us" | "cpu.cfs_burst_us" | "cpu.rt_runtime_us" | "cpu.rt_period_us"
        | "pids.max" | "memory.swappiness" | "memory.oom_control" | "memory.oom.group"
        | "blkio.weight" => return Some(Unit::Number),
        "memory.max" | "memory.high" | "memory.low" | "memory.min" | "memory.swap.max"
        | "memory.swap.high" | "memory.zswap.max" => return Some(Unit::Bytes),
        _ => {}
    }
    if file.starts_with("memory.") && file.ends_with("_in_bytes") {
        return Some(Unit::Bytes);
    }
    huge_page(file).map(Unit::Pages)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Amount {
    /// "max", a number below zero, or the largest numbers of v1.
    Unlimited,
    Number(u64),
}

impl Amount {
    fn of(text: &str) -> Option<Self> {
        if text == "max" || text.parse::<i64>().is_ok_and(|number| number < 0) {
            return Some(Self::Unlimited);
        }
        // The kernel would parse such a text as octal.
        if text.len() > 1 && text.starts_with('0') {
            return None;
        }
        let (digits, unit) = match text.char_indices().last()? {
            (at, 'k' | 'K') => (text.get(..at)?, 1 << 10),
            (at, 'm' | 'M') => (text.get(..at)?, 1 << 20),
            (at, 'g' | 'G') => (text.get(..at)?, 1 << 30),
            (at, 't' | 'T') => (text.get(..at)?, 1 << 40),
            _ => (text, 1),
        };
        let number = digits.parse::<u64>().ok()?.saturating_mul(unit);
        Some(if number > u64::MAX / 4 { Self::Unlimited } else { Self::Number(number) })
    }
}

/// Returns the page size of a huge page file: `hugetlb.2MB.max`.
fn huge_page(file: &str) -> Option<u64> {
    let size = file.strip_prefix("hugetlb.")?.split('.').next()?;
    match Amount::of(size.strip_suffix('B')?)? {
        Amount::Number(bytes) => Some(bytes),
        Amount::Unlimited => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{CgroupTree, map};
    use super::super::{Around, plan};
    use super::*;

    /// Returns `file: expected -> actual` for each differing value, and the reasons why others
    /// cannot be compared.
    fn compared(tree: &CgroupTree, wanted: Value) -> Result<Vec<String>, String> {
        let (cgroups, wanted) = (tree.cgroups(), map(wanted));
        let around = Around { before: &wanted, tried: None, after: &wanted };
        let writes = plan(cgroups.layout(), &wanted, around, &cgroups).unwrap();
        let found: Result<Vec<_>, _> = writes.iter().map(|w| difference(&cgroups, w)).collect();
        let line = |found: Difference| {
            let file = found.file.file_name().unwrap_or_default().display().to_string();
            format!("{file}: {} -> {}", found.expected, found.actual)
        };
        Ok(found?.into_iter().flatten().map(line).collect())
    }

    const NONE: &[&str] = &[];

    #[test]
    fn v1_values_in_the_kernels_form_do_not_differ() {
        let tree = CgroupTree::v1();
        for (file, text) in [
            ("memory/k/c/memory.limit_in_bytes", "8192"),
            ("memory/k/c/memory.memsw.limit_in_bytes", "9223372036854771712"),
            ("memory/k/c/memory.oom_control", "oom_kill_disable 1\nunder_oom 0"),
        ] {
            tree.file(&format!("/sys/fs/cgroup/{file}"), &format!("{text}\n"));
        }
        for same in [
            json!({"memory": {"limit": 8200, "swap": -1}}),
            json!({"memory": {"disableOOMKiller": true}}),
            json!({"cpu": {"cpus": "0,1-3"}}),
            json!({"cpu": {"shares": 1024, "quota": 50_000, "period": 100_000}}),
            json!({"hugepageLimits": [{"pageSize": "2MB", "limit": 2_000_000}]}),
        ] {
            assert_eq!(compared(&tree, same.clone()).unwrap(), NONE, "{same}");
        }
    }

    #[test]
    fn changed_v1_values_are_reported() {
        let tree = CgroupTree::v1();
        tree.file("/sys/fs/cgroup/memory/k/c/memory.swappiness", "7\n");
        for (wanted, line) in [
            (json!({"cpu": {"cpus": "0-1"}}), "cpuset.cpus: 0-1 -> 0-3"),
            (json!({"cpu": {"shares": 512}}), "cpu.shares: 512 -> 1024"),
            (json!({"cpu": {"quota": -1}}), "cpu.cfs_quota_us: -1 -> 50000"),
            (json!({"memory": {"limit": 70_000}}), "memory.limit_in_bytes: 70000 -> 1000"),
            (json!({"memory": {"disableOOMKiller": true}}), "memory.oom_control: 1 -> 0"),
            (json!({"memory": {"swappiness": 60}}), "memory.swappiness: 60 -> 7"),
            (
                json!({"hugepageLimits": [{"pageSize": "2MB", "limit": 2_097_152}]}),
                "hugetlb.2MB.limit_in_bytes: 2097152 -> 0",
            ),
        ] {
            assert_eq!(compared(&tree, wanted).unwrap(), [line]);
        }
    }

    #[test]
    fn v2_values_in_the_kernels_form_do_not_differ() {
        let tree = CgroupTree::v2();
        for (file, text) in [
            ("cpu.max", "5000 20000"),
            ("memory.max", "8192"),
            ("memory.high", "1048576"),
            ("cpuset.cpus", "0-2"),
            ("cpuset.cpus.exclusive", "0-2"),
            ("memory.zswap.max", "8192"),
        ] {
            tree.file(&format!("/sys/fs/cgroup/k/c/{file}"), &format!("{text}\n"));
        }
        for same in [
            // Runtimes use one of two formulas; the older one gives 39 for 1024 shares.
            json!({"cpu": {"shares": 1024}}),
            json!({"cpu": {"quota": 5000}}),
            json!({"cpu": {"period": 20_000}}),
            json!({"cpu": {"cpus": "0,1,2"}, "pids": {"limit": -1}}),
            json!({"memory": {"limit": 8193}}),
            json!({"unified": {"memory.high": "1M", "cpu.max": "5000"}}),
            json!({"unified": {"cpuset.cpus.exclusive": "0,1,2", "memory.zswap.max": "8200"}}),
            json!({"unified": {"cpu.max": "5000  20000"}}),
            json!({"hugepageLimits": [{"pageSize": "2MB", "limit": 9_223_372_036_854_771_712_u64}]}),
        ] {
            assert_eq!(compared(&tree, same.clone()).unwrap(), NONE, "{same}");
        }
    }

    #[test]
    fn changed_v2_values_are_reported_with_their_half_of_the_file() {
        let tree = CgroupTree::v2();
        tree.file("/sys/fs/cgroup/k/c/cpu.weight", "77\n");
        for (wanted, line) in [
            (json!({"cpu": {"shares": 1024}}), "cpu.weight: 100 or 39 -> 77"),
            (json!({"cpu": {"quota": 5000}}), "cpu.max: 5000 -> max"),
            (json!({"cpu": {"period": 20_000}}), "cpu.max: 20000 -> 100000"),
            (json!({"cpu": {"cpus": "1"}}), "cpuset.cpus: 1 -> "),
            (json!({"pids": {"limit": 9}}), "pids.max: 9 -> max"),
            (json!({"unified": {"cpu.max": "5000 100000"}}), "cpu.max: 5000 100000 -> max 100000"),
            (json!({"unified": {"memory.high": "1M"}}), "memory.high: 1M -> max"),
        ] {
            assert_eq!(compared(&tree, wanted).unwrap(), [line]);
        }
    }

    #[test]
    fn an_incomparable_value_is_reported_but_is_not_drift() {
        let tree = CgroupTree::v2();
        tree.file("/sys/fs/cgroup/k/c/io.max", "8:0 rbps=1000 wbps=max\n");
        let why = compared(&tree, json!({"unified": {"io.max": "8:0 rbps=1000"}})).unwrap_err();
        assert_eq!(why, "io.max has a form that is not compared");
        for (file, text, value) in [
            ("cpu.uclamp.min", "20.00", "20"),
            ("cpu.uclamp.max", "max", "100"),
            ("memory.high", "1048576", "0x100000"),
            ("memory.low", "32768", "0100000"),
            ("cpuset.cpus.partition", "root invalid (no CPUs)", "root"),
        ] {
            tree.file(&format!("/sys/fs/cgroup/k/c/{file}"), &format!("{text}\n"));
            let why = compared(&tree, json!({"unified": {file: value}})).unwrap_err();
            assert_eq!(why, format!("{file} has a form that is not compared"));
        }
        let tree = CgroupTree::v1();
        tree.file("/sys/fs/cgroup/memory/k/c/memory.kmem.limit_in_bytes", "7\n");
        let why = compared(&tree, json!({"memory": {"kernel": 9}})).unwrap_err();
        assert_eq!(why, "memory.kmem.limit_in_bytes is not applied by kernels and runtimes");
        let cgroups = tree.cgroups();
        let gone = super::super::write("pids", "pids.max", "7", "pids.limit");
        assert_eq!(difference(&cgroups, &gone).unwrap_err(), "there is no pids.max");
    }

    #[test]
    fn a_weight_by_either_formula_is_not_drift_after_a_change() {
        let tree = CgroupTree::v2();
        for text in ["100", "39"] {
            tree.file("/sys/fs/cgroup/k/c/cpu.weight", &format!("{text}\n"));
            assert_eq!(compared(&tree, json!({"cpu": {"shares": 1024}})).unwrap(), NONE, "{text}");
        }
        tree.file("/sys/fs/cgroup/k/c/cpu.weight", "40\n");
        let wanted = map(json!({"cpu": {"shares": 1024}}));
        let (cgroups, around) =
            (tree.cgroups(), Around { before: &wanted, tried: None, after: &wanted });
        let writes = plan(cgroups.layout(), &wanted, around, &cgroups).unwrap();
        let found = difference(&cgroups, &writes[0]).unwrap().unwrap();
        assert!(!found.is_certain, "{found:?}");
    }

    #[test]
    fn a_quota_that_systemd_rounded_up_is_not_drift_in_a_scope() {
        for (tree, scope, file, text) in [
            (CgroupTree::v2(), "", "cpu.max", "51000 100000"),
            (CgroupTree::v1(), "cpu,cpuacct/", "cpu.cfs_quota_us", "51000"),
        ] {
            let wanted = json!({"cpu": {"quota": 50_500}});
            tree.file(&format!("/sys/fs/cgroup/{scope}k/c/{file}"), &format!("{text}\n"));
            assert_eq!(compared(&tree, wanted.clone()).unwrap().len(), 1, "{file}");
            tree.file("/proc/42/cgroup", "4:cpu,cpuacct:/k/c.scope\n0::/k/c.scope\n");
            tree.file(&format!("/sys/fs/cgroup/{scope}k/c.scope/cpu.cfs_period_us"), "100000\n");
            for (text, differ) in [(text, 0), ("52000 100000", 1), ("50000 100000", 1)] {
                let text = if scope.is_empty() { text } else { text.split(' ').next().unwrap() };
                let path = format!("/sys/fs/cgroup/{scope}k/c.scope/{file}");
                tree.file(&path, &format!("{text}\n"));
                let found = compared(&tree, wanted.clone()).unwrap();
                assert_eq!(found.len(), differ, "{file} {text}: {found:?}");
            }
        }
    }

    #[test]
    fn optional_files_missing_in_a_kernel_are_skipped() {
        let tree = CgroupTree::v2();
        for file in ["memory.swap.max", "hugetlb.2MB.rsvd.max"] {
            let path = tree.host().path(format!("/sys/fs/cgroup/k/c/{file}"));
            std::fs::remove_file(path).unwrap();
        }
        for same in [
            json!({"memory": {"swap": -1}}),
            json!({"memory": {"limit": -1, "swap": -1}}),
            json!({"hugepageLimits": [{"pageSize": "2MB", "limit": 9_223_372_036_854_771_712_u64}]}),
        ] {
            assert_eq!(compared(&tree, same.clone()).unwrap(), NONE, "{same}");
        }
    }
}
