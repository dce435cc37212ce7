// SPDX-License-Identifier: Apache-2.0
//! Compares cgroup files with the values that are meant to be in them. The kernel writes many values in
//! its own form: lists of CPUs, bytes in whole pages, "max". What cannot be compared is an error and never a
//! difference. It only reads. Reference: kernel `cgroup-v1/`, `cgroup-v2.rst`.

use std::path::PathBuf;

use crate::error::in_our_words;

use super::write::{is_within_a_page, members};
use super::{CgroupFiles, Cgroups, Write};

/// A file that does not have its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) file: PathBuf,
    /// The value as the file would show it.
    pub(crate) expected: String,
    /// The text that the file has.
    pub(crate) actual: String,
}

/// Files that runtimes and kernels accept without applying the value.
const NOT_APPLIED: [&str; 2] = ["memory.kmem.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"];

/// Compares the file of a write with its value; `None` if it has it.
///
/// # Errors
/// One line on why they cannot be compared.
pub(crate) fn difference(cgroups: &Cgroups, write: &Write) -> Result<Option<Difference>, String> {
    let Write { controller, file, value, field, .. } = write;
    if NOT_APPLIED.contains(&file.as_str()) {
        return Err(format!("{file} is not applied by kernels and runtimes"));
    }
    let dir = cgroups.dir(controller).ok_or_else(|| format!("there is no {file}"))?;
    let text = cgroups.text(controller, file);
    let text = text.map_err(|why| format!("{file} cannot be read: {}", in_our_words(&why)))?;
    let text = text.ok_or_else(|| format!("there is no {file}"))?;
    let (expected, actual) = match (file.as_str(), field.as_str()) {
        // The other half is another field's, and perhaps nobody's.
        ("cpu.max", "cpu.quota") => (word(value, 0), word(&text, 0)),
        ("cpu.max", "cpu.period") => (word(value, 1), word(&text, 1)),
        // As a unified value, it may be written without the period.
        ("cpu.max", _) if !value.contains(' ') => (value.as_str(), word(&text, 0)),
        ("memory.oom_control", _) => (value.as_str(), oom_kill_disable(&text)),
        _ => (value.as_str(), text.as_str()),
    };
    match is_same(file, expected, actual) {
        Some(true) => Ok(None),
        Some(false) => Ok(Some(Difference {
            file: dir.join(file),
            expected: expected.to_owned(),
            actual: actual.to_owned(),
        })),
        None => Err(format!("{file} has several values, which are not compared")),
    }
}

fn word(text: &str, number: usize) -> &str {
    text.split_whitespace().nth(number).unwrap_or_default()
}

fn oom_kill_disable(text: &str) -> &str {
    text.lines().find_map(|line| line.strip_prefix("oom_kill_disable ")).unwrap_or_default()
}

/// Whether the kernel shows `actual` for a written `expected`; `None` where only the kernel knows.
fn is_same(file: &str, expected: &str, actual: &str) -> Option<bool> {
    if expected == actual {
        return Some(true);
    }
    if matches!(file, "cpuset.cpus" | "cpuset.mems") {
        return Some(members(expected)? == members(actual)?);
    }
    if let (Some(expected), Some(actual)) = (Amount::of(expected), Amount::of(actual)) {
        let is_rounded = match (expected, actual) {
            (Amount::Number(expected), Amount::Number(actual)) if is_bytes(file) => {
                is_within_a_page(actual, expected)
            }
            (Amount::Number(expected), Amount::Number(actual)) => {
                huge_page(file).is_some_and(|page| actual <= expected && expected - actual < page)
            }
            (Amount::Unlimited, _) | (_, Amount::Unlimited) => false,
        };
        return Some(expected == actual || is_rounded);
    }
    let is_one = |text: &str| !text.contains(char::is_whitespace);
    let is_known_pair = file == "cpu.max";
    (is_known_pair || is_one(expected) && is_one(actual)).then_some(false)
}

/// Whether the file is a limit of memory, which the kernel has in whole pages.
fn is_bytes(file: &str) -> bool {
    let limit =
        |file: &str| matches!(file, "max" | "high" | "low" | "min" | "swap.max" | "swap.high");
    file.strip_prefix("memory.").is_some_and(|file| file.ends_with("_in_bytes") || limit(file))
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

/// The size of the pages that a file of huge pages limits: `hugetlb.2MB.max`.
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

    /// `file: expected -> actual` of each value that its file does not have, and why others cannot be
    /// compared.
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
    fn v1_values_in_the_kernels_own_form_are_no_difference() {
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
    fn v1_values_of_others_are_named() {
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
    fn v2_values_in_the_kernels_own_form_are_no_difference() {
        let tree = CgroupTree::v2();
        for (file, text) in [
            ("cpu.max", "5000 20000"),
            ("memory.max", "8192"),
            ("memory.high", "1048576"),
            ("cpuset.cpus", "0-2"),
        ] {
            tree.file(&format!("/sys/fs/cgroup/k/c/{file}"), &format!("{text}\n"));
        }
        for same in [
            // Both formulas: 39 by the older one, which runtimes used before.
            json!({"cpu": {"shares": 1024}}),
            json!({"cpu": {"quota": 5000}}),
            json!({"cpu": {"period": 20_000}}),
            json!({"cpu": {"cpus": "0,1,2"}, "pids": {"limit": -1}}),
            json!({"memory": {"limit": 8193}}),
            json!({"unified": {"memory.high": "1M", "cpu.max": "5000"}}),
            json!({"hugepageLimits": [{"pageSize": "2MB", "limit": 9_223_372_036_854_771_712_u64}]}),
        ] {
            assert_eq!(compared(&tree, same.clone()).unwrap(), NONE, "{same}");
        }
    }

    #[test]
    fn v2_values_of_others_are_named_each_with_its_half_of_the_file() {
        let tree = CgroupTree::v2();
        tree.file("/sys/fs/cgroup/k/c/cpu.weight", "77\n");
        for (wanted, line) in [
            (json!({"cpu": {"shares": 1024}}), "cpu.weight: 100 -> 77"),
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
    fn what_cannot_be_compared_is_said_and_no_difference() {
        let tree = CgroupTree::v2();
        tree.file("/sys/fs/cgroup/k/c/io.max", "8:0 rbps=1000 wbps=max\n");
        let why = compared(&tree, json!({"unified": {"io.max": "8:0 rbps=1000"}})).unwrap_err();
        assert_eq!(why, "io.max has several values, which are not compared");
        let tree = CgroupTree::v1();
        tree.file("/sys/fs/cgroup/memory/k/c/memory.kmem.limit_in_bytes", "7\n");
        let why = compared(&tree, json!({"memory": {"kernel": 9}})).unwrap_err();
        assert_eq!(why, "memory.kmem.limit_in_bytes is not applied by kernels and runtimes");
        let cgroups = tree.cgroups();
        let gone = super::super::write("pids", "pids.max", "7", "pids.limit");
        assert_eq!(difference(&cgroups, &gone).unwrap_err(), "there is no pids.max");
    }
}
