// SPDX-License-Identifier: Apache-2.0
//! The contents of an adjustment and the changes of a document, computed without the code under
//! test: leaves of messages, the owners that an adjustment must have, and the places of a bundle
//! that an owner may change.

use std::collections::BTreeSet;

use nri_adaptation::{keys, rule_text};
use nri_runc::plugin::api;
use protobuf::MessageFull;
use serde_json::Value;

/// Fields that are owned as a whole, and their places in an adjustment.
const SIMPLE: [(&str, &str); 30] = [
    ("/hooks", "OciHooks"),
    ("/args", "Args"),
    ("/linux/resources/memory/limit", "MemLimit"),
    ("/linux/resources/memory/reservation", "MemReservation"),
    ("/linux/resources/memory/swap", "MemSwapLimit"),
    ("/linux/resources/memory/kernel", "MemKernelLimit"),
    ("/linux/resources/memory/kernelTcp", "MemTCPLimit"),
    ("/linux/resources/memory/swappiness", "MemSwappiness"),
    ("/linux/resources/memory/disableOomKiller", "MemDisableOomKiller"),
    ("/linux/resources/memory/useHierarchy", "MemUseHierarchy"),
    ("/linux/resources/cpu/shares", "CPUShares"),
    ("/linux/resources/cpu/quota", "CPUQuota"),
    ("/linux/resources/cpu/period", "CPUPeriod"),
    ("/linux/resources/cpu/realtimeRuntime", "CPURealtimeRuntime"),
    ("/linux/resources/cpu/realtimePeriod", "CPURealtimePeriod"),
    ("/linux/resources/cpu/cpus", "CPUSetCPUs"),
    ("/linux/resources/cpu/mems", "CPUSetMems"),
    ("/linux/resources/pids", "PidsLimit"),
    ("/linux/resources/blockioClass", "BlockioClass"),
    ("/linux/resources/rdtClass", "RdtClass"),
    ("/linux/cgroupsPath", "CgroupsPath"),
    ("/linux/oomScoreAdj", "OomScoreAdj"),
    ("/linux/ioPriority", "IoPriority"),
    ("/linux/seccompPolicy", "SeccompPolicy"),
    ("/linux/scheduler", "LinuxSched"),
    ("/linux/rdt/closId", "RdtClosID"),
    ("/linux/rdt/schemata", "RdtSchemata"),
    ("/linux/rdt/enableMonitoring", "RdtEnableMonitoring"),
    ("/linux/memoryPolicy", "MemoryPolicy"),
    // `remove` is not a separate field: it owns all three.
    ("/linux/rdt/remove", ""),
];

/// Fields that are owned by key, and whether a dash before the key is a removal.
const KEYED: [(&str, &str, &str, bool); 11] = [
    ("/annotations", "", "Annotations", true),
    ("/mounts", "destination", "Mounts", true),
    ("/env", "key", "Env", true),
    ("/rlimits", "type", "Rlimits", false),
    ("/CDIDevices", "name", "CdiDevices", false),
    ("/linux/devices", "path", "Devices", true),
    ("/linux/namespaces", "type", "Namespace", true),
    ("/linux/sysctl", "", "Sysctl", true),
    ("/linux/netDevices", "", "LinuxNetDevices", true),
    ("/linux/resources/unified", "", "CgroupsUnified", false),
    ("/linux/resources/hugepageLimits", "pageSize", "HugepageLimits", false),
];

/// A list of messages as JSON.
pub(super) fn show<M: MessageFull>(messages: &[M]) -> Vec<Value> {
    messages.iter().map(json).collect()
}

fn json<M: MessageFull>(message: &M) -> Value {
    serde_json::from_str(&protobuf_json_mapping::print_to_string(message).unwrap()).unwrap()
}

/// Every value of a message with its path, without list positions. A variable has the text of
/// containers, and the value at the marker of a map is left out.
pub(super) fn leaves<M: MessageFull>(message: &M) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(&json(message), String::new(), &mut found);
    found
}

fn walk(value: &Value, path: String, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(variable) if path.ends_with("/env") => {
            let part = |name| variable.get(name).and_then(Value::as_str).unwrap_or_default();
            let entry = Value::String(format!("{}={}", part("key"), part("value")));
            found.insert(format!("{path} {entry}"));
        }
        Value::Object(members) => {
            // Parts that always exist show nothing by being empty.
            let parts = ["adjust", "hooks", "linux", "resources", "memory", "cpu"];
            if members.is_empty() && !parts.iter().any(|part| path.ends_with(part)) {
                found.insert(format!("{path} {{}}"));
            }
            let has_markers = ["/annotations", "/sysctl", "/netDevices"];
            let has_markers = has_markers.iter().any(|end| path.ends_with(end));
            for (key, value) in members {
                if has_markers && key.starts_with('-') {
                    found.insert(format!("{path}/{key}"));
                } else {
                    walk(value, format!("{path}/{key}"), found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| walk(item, path.clone(), found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            found.insert(format!("{path} {value}"));
        }
    }
}

/// The exact owners that an adjustment must have.
pub(super) fn owned(adjust: &api::ContainerAdjustment) -> BTreeSet<String> {
    let value = json(adjust);
    let mut owned = BTreeSet::new();
    for (place, field) in SIMPLE {
        if value.pointer(place).is_some() {
            owned.insert(field.to_owned());
        }
    }
    if owned.remove("") {
        owned.extend(["RdtClosID", "RdtSchemata", "RdtEnableMonitoring"].map(str::to_owned));
    }
    for (place, name, field, has_markers) in KEYED {
        let names: Vec<&str> = match value.pointer(place) {
            None => continue,
            Some(Value::Object(map)) => map.keys().map(String::as_str).collect(),
            Some(list) => {
                let entries = list.as_array().unwrap().iter();
                entries.map(|entry| entry[name].as_str().unwrap_or_default()).collect()
            }
        };
        for name in names {
            let bare = name.strip_prefix('-').filter(|_| has_markers).unwrap_or(name);
            let key = match field {
                "Mounts" => keys::destination(bare),
                "Rlimits" => keys::rlimit(bare),
                "HugepageLimits" => keys::hugepage(bare),
                _ => bare.to_owned(),
            };
            owned.insert(format!("{field}[{key}]"));
        }
    }
    let rules = adjust.linux.resources.devices.iter();
    owned.extend(rules.map(|rule| format!("DeviceRules[{}]", rule_text(rule))));
    owned
}

/// The places of a bundle that an owner may change.
pub(super) fn allowed(owner: &str) -> &'static [&'static str] {
    match owner.split('[').next().unwrap_or_default() {
        "Annotations" => &["/annotations"],
        "Mounts" => &["/mounts"],
        "OciHooks" => &["/hooks"],
        "Devices" => &["/linux/devices", "/linux/resources/devices"],
        "DeviceRules" => &["/linux/resources/devices"],
        "Env" => &["/process/env"],
        "Args" => &["/process/args"],
        // The swap limit follows a memory limit without one.
        "MemLimit" => &["/linux/resources/memory/limit", "/linux/resources/memory/swap"],
        "MemReservation" => &["/linux/resources/memory/reservation"],
        "MemSwapLimit" => &["/linux/resources/memory/swap"],
        "MemKernelLimit" => &["/linux/resources/memory/kernel"],
        "MemTCPLimit" => &["/linux/resources/memory/kernelTCP"],
        "MemSwappiness" => &["/linux/resources/memory/swappiness"],
        "MemDisableOomKiller" => &["/linux/resources/memory/disableOOMKiller"],
        "MemUseHierarchy" => &["/linux/resources/memory/useHierarchy"],
        "CPUShares" => &["/linux/resources/cpu/shares"],
        "CPUQuota" => &["/linux/resources/cpu/quota"],
        "CPUPeriod" => &["/linux/resources/cpu/period"],
        "CPURealtimeRuntime" => &["/linux/resources/cpu/realtimeRuntime"],
        "CPURealtimePeriod" => &["/linux/resources/cpu/realtimePeriod"],
        "CPUSetCPUs" => &["/linux/resources/cpu/cpus"],
        "CPUSetMems" => &["/linux/resources/cpu/mems"],
        "PidsLimit" => &["/linux/resources/pids"],
        "HugepageLimits" => &["/linux/resources/hugepageLimits"],
        "CgroupsUnified" => &["/linux/resources/unified"],
        "CgroupsPath" => &["/linux/cgroupsPath"],
        "OomScoreAdj" => &["/process/oomScoreAdj"],
        "Rlimits" => &["/process/rlimits"],
        "IoPriority" => &["/process/ioPriority"],
        "LinuxSched" => &["/process/scheduler"],
        "SeccompPolicy" => &["/linux/seccomp"],
        "Namespace" => &["/linux/namespaces"],
        "Sysctl" => &["/linux/sysctl"],
        "LinuxNetDevices" => &["/linux/netDevices"],
        "RdtClosID" | "RdtSchemata" | "RdtEnableMonitoring" => &["/linux/intelRdt"],
        "MemoryPolicy" => &["/linux/memoryPolicy"],
        _ => &[],
    }
}

/// The places where two documents differ; a part that only one of them has is searched too.
pub(super) fn changed(old: &Value, new: &Value) -> Vec<String> {
    let mut places = Vec::new();
    differ(Some(old), Some(new), String::new(), &mut places);
    places
}

fn differ(old: Option<&Value>, new: Option<&Value>, place: String, places: &mut Vec<String>) {
    if old == new {
        return;
    }
    let (before, after) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
    let keys: BTreeSet<&String> =
        [before, after].into_iter().flatten().flat_map(|map| map.keys()).collect();
    if keys.is_empty() || old.is_some_and(|old| !old.is_object()) {
        places.push(place);
        return;
    }
    for key in keys {
        let (old, new) = (before.and_then(|map| map.get(key)), after.and_then(|map| map.get(key)));
        differ(old, new, format!("{place}/{key}"), places);
    }
}
