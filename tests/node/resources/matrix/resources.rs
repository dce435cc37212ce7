// SPDX-License-Identifier: Apache-2.0
//! The resources of an adjustment, and the files of cgroups that have their values.

use serde_json::{Value, json};

use super::cases::{FieldCase, case, value};
use super::look::{Layout, Running, has, is};

/// All resources; `disk` has the device number of a disk.
pub(super) fn all(disk: &str) -> Vec<FieldCase> {
    let mut cases = memory();
    cases.extend(idle());
    cases.extend(cpu());
    cases.extend(other_resources());
    cases.extend(block_io(disk));
    cases
}

fn memory() -> Vec<FieldCase> {
    let memory = |key: &str, value: Value| json!({"memory": {key: {"value": value}}});
    let with_swap =
        json!({"memory": {"limit": {"value": "67108864"}, "swap": {"value": "100663296"}}});
    let limit = "memory.limit_in_bytes";
    vec![
        value(
            "MemLimit",
            memory("limit", json!("67108864")),
            ("memory", limit),
            "memory.max",
            ["67108864"; 2],
        ),
        value(
            "MemReservation",
            memory("reservation", json!("33554432")),
            ("memory", "memory.soft_limit_in_bytes"),
            "memory.low",
            ["33554432"; 2],
        ),
        value(
            "MemSwapLimit",
            with_swap,
            ("memory", "memory.memsw.limit_in_bytes"),
            "memory.swap.max",
            ["100663296", "33554432"],
        ),
        value(
            "MemKernelLimit",
            memory("kernel", json!("16777216")),
            ("memory", "memory.kmem.limit_in_bytes"),
            "memory.kmem",
            ["16777216"; 2],
        ),
        value(
            "MemTCPLimit",
            memory("kernelTcp", json!("8388608")),
            ("memory", "memory.kmem.tcp.limit_in_bytes"),
            "memory.tcp",
            ["8388608"; 2],
        ),
        value(
            "MemSwappiness",
            memory("swappiness", json!("40")),
            ("memory", "memory.swappiness"),
            "memory.swappiness",
            ["40"; 2],
        ),
        case(
            "MemDisableOomKiller",
            json!({"linux": {"resources": memory("disableOomKiller", json!(true))}}),
            |running, _| has(running.file("memory", "memory.oom_control"), &["oom_kill_disable 1"]),
        ),
        value(
            "MemUseHierarchy",
            memory("useHierarchy", json!(false)),
            ("memory", "memory.use_hierarchy"),
            "memory.use_hierarchy",
            ["0"; 2],
        ),
    ]
}

/// Values without effect, which any runtime may drop.
fn idle() -> Vec<FieldCase> {
    let idle = |row: &'static str, key: &str, value: Value| {
        let adjust = json!({"linux": {"resources": {"memory": {key: {"value": value}}}}});
        case(row, adjust, |_, _| Ok(())).alone(1)
    };
    vec![
        idle("MemKernelLimit of -1", "kernel", json!("-1")),
        idle("MemTCPLimit of -1", "kernelTcp", json!("-1")),
        idle("MemDisableOomKiller false", "disableOomKiller", json!(false)),
        idle("MemUseHierarchy true", "useHierarchy", json!(true)),
    ]
}

fn cpu() -> Vec<FieldCase> {
    let cpu = |key: &str, value: Value| json!({"cpu": {key: value}});
    let number = |key: &str, number: &str| cpu(key, json!({"value": number}));
    let max = |v1: &'static str, place: usize| {
        move |running: &Running, layout: Layout| match layout {
            Layout::V1 => Ok(running.file("cpu", v1)),
            Layout::V2 => {
                let max = running.file("", "cpu.max");
                max.split(' ').nth(place).map(str::to_owned).ok_or(max)
            }
        }
    };
    let (quota, period) = (max("cpu.cfs_quota_us", 0), max("cpu.cfs_period_us", 1));
    let resources = |resources: Value| json!({"linux": {"resources": resources}});
    vec![
        case("CPUShares", resources(number("shares", "512")), |running, layout| match layout {
            Layout::V1 => is(running.file("cpu", "cpu.shares"), "512"),
            // Runtimes have changed their conversion.
            Layout::V2 => {
                let weight = running.file("", "cpu.weight");
                if ["20", "58", "59"].contains(&&*weight) { Ok(()) } else { is(weight, "20") }
            }
        }),
        case("CPUQuota", resources(number("quota", "50000")), move |running, layout| {
            is(quota(running, layout)?, "50000")
        }),
        case("CPUPeriod", resources(number("period", "80000")), move |running, layout| {
            is(period(running, layout)?, "80000")
        }),
        value(
            "CPURealtimeRuntime",
            number("realtimeRuntime", "1000"),
            ("cpu", "cpu.rt_runtime_us"),
            "cpu.rt_runtime_us",
            ["1000"; 2],
        ),
        value(
            "CPURealtimePeriod",
            number("realtimePeriod", "500000"),
            ("cpu", "cpu.rt_period_us"),
            "cpu.rt_period_us",
            ["500000"; 2],
        ),
        value(
            "CPUSetCPUs",
            cpu("cpus", json!("0")),
            ("cpuset", "cpuset.cpus"),
            "cpuset.cpus",
            ["0"; 2],
        ),
        value(
            "CPUSetMems",
            cpu("mems", json!("0")),
            ("cpuset", "cpuset.mems"),
            "cpuset.mems",
            ["0"; 2],
        ),
    ]
}

fn other_resources() -> Vec<FieldCase> {
    let pages = json!([{"pageSize": "2MB", "limit": "4194304"}]);
    let pages_file = ("hugetlb", "hugetlb.2MB.limit_in_bytes");
    let unified = |key: &str, value: &str| json!({"unified": {key: value}});
    vec![
        value(
            "PidsLimit",
            json!({"pids": {"limit": "77"}}),
            ("pids", "pids.max"),
            "pids.max",
            ["77"; 2],
        ),
        value(
            "HugepageLimits[2MB]",
            json!({"hugepageLimits": pages}),
            pages_file,
            "hugetlb.2MB.max",
            ["4194304"; 2],
        ),
        value(
            "CgroupsUnified[memory.high]",
            unified("memory.high", "50331648"),
            ("memory", "memory.high"),
            "memory.high",
            ["50331648"; 2],
        ),
        value(
            "CgroupsUnified[cpu.idle]",
            unified("cpu.idle", "1"),
            ("cpu", "cpu.idle"),
            "cpu.idle",
            ["1"; 2],
        )
        .alone(1),
    ]
}

fn block_io(disk: &str) -> Vec<FieldCase> {
    let class = |name: &str| json!({"linux": {"resources": {"blockioClass": {"value": name}}}});
    let (of, one) = (disk.to_owned(), disk.to_owned());
    // With BFQ, or without it.
    let weights = |running: &Running, layout: Layout| match layout {
        Layout::V1 => ["blkio.weight", "blkio.bfq.weight", "blkio.bfq.weight_device"]
            .map(|file| running.file("blkio", file)),
        Layout::V2 => ["io.weight", "io.bfq.weight", "io.bfq.weight"].map(|f| running.file("", f)),
    };
    vec![
        case("BlockioClass limits", class("limits"), move |running, layout| match layout {
            Layout::V1 => {
                let file = running.file("blkio", "blkio.throttle.read_bps_device");
                is(file, &format!("{of} 1048576"))
            }
            Layout::V2 => has(running.file("", "io.max"), &[&of, "rbps=1048576"]),
        }),
        case("BlockioClass weight", class("weight"), move |running, layout| {
            let seen = weights(running, layout);
            let is_so = |text: &String| ["300", "2930"].iter().any(|weight| text.ends_with(weight));
            if seen.iter().any(is_so) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .alone(1),
        case("BlockioClass weights of disks", class("weights"), move |running, layout| {
            has(weights(running, layout).join("\n"), &[&format!("{one} 300")])
        })
        .alone(5),
    ]
}
