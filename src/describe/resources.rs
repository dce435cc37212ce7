// SPDX-License-Identifier: Apache-2.0
//! Converts OCI resources to NRI resources, for containers and for `update` requests. Absent values
//! stay absent (NRI's Go code converts an absent pids limit to 0, which runc treats as 1). The OCI
//! specification has no field for the name of a block I/O or RDT class.

use nri_adaptation::{NriField, SCALARS};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::plugin::api;

/// Returns the resources of a document.
pub(crate) fn resources(spec: &super::Spec) -> api::LinuxResources {
    from_json(&spec.linux.resources)
}

/// Converts OCI LinuxResources; leaves out values of an unexpected type.
pub fn from_json(block: &Map<String, Value>) -> api::LinuxResources {
    let section = |name: &str| block.get(name).and_then(Value::as_object);
    let mut resources = api::LinuxResources {
        memory: section("memory").map(|_| api::LinuxMemory::default()).into(),
        cpu: section("cpu").map(|_| api::LinuxCPU::default()).into(),
        hugepage_limits: list(block, "hugepageLimits").filter_map(hugepages).collect(),
        blockio_class: None.into(),
        rdt_class: None.into(),
        unified: section("unified").map(texts).unwrap_or_default(),
        devices: list(block, "devices").filter_map(rule).collect(),
        pids: None.into(),
        special_fields: Default::default(),
    };
    for scalar in &SCALARS {
        if let Some(value) = section(scalar.section).and_then(|section| section.get(scalar.key)) {
            scalar.set(&mut resources, value);
        }
    }
    resources
}

fn list<'b>(block: &'b Map<String, Value>, name: &str) -> impl Iterator<Item = &'b Value> {
    block.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn texts(map: &Map<String, Value>) -> std::collections::HashMap<String, String> {
    let pair = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    map.iter().filter_map(pair).collect()
}

#[derive(Deserialize)]
struct HugepageEntry {
    #[serde(rename = "pageSize")]
    page_size: String,
    limit: u64,
}

fn hugepages(value: &Value) -> Option<api::HugepageLimit> {
    let HugepageEntry { page_size, limit } = HugepageEntry::deserialize(value).ok()?;
    Some(api::HugepageLimit { page_size, limit, special_fields: Default::default() })
}

#[derive(Deserialize)]
struct DeviceRuleEntry {
    #[serde(default)]
    allow: bool,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    major: Option<i64>,
    minor: Option<i64>,
    access: Option<String>,
}

fn rule(value: &Value) -> Option<api::LinuxDeviceCgroup> {
    let DeviceRuleEntry { allow, kind, major, minor, access } =
        DeviceRuleEntry::deserialize(value).ok()?;
    Some(api::LinuxDeviceCgroup {
        allow,
        type_: kind.unwrap_or_default(),
        major: major.map(Into::into).into(),
        minor: minor.map(Into::into).into(),
        access: access.unwrap_or_default(),
        special_fields: Default::default(),
    })
}

/// The CRI's name of each scalar that the CRI defines.
const CRI_NAMES: [(&str, NriField); 7] = [
    ("cpu_shares", NriField::CPUShares),
    ("cpu_quota", NriField::CPUQuota),
    ("cpu_period", NriField::CPUPeriod),
    ("cpuset_cpus", NriField::CPUSetCPUs),
    ("cpuset_mems", NriField::CPUSetMems),
    ("memory_limit_in_bytes", NriField::MemLimit),
    ("memory_swap_limit_in_bytes", NriField::MemSwapLimit),
];

/// Converts the CRI's LinuxContainerResources as engines store it in JSON, where zero means absent.
pub(super) fn from_cri(block: &Map<String, Value>) -> api::LinuxResources {
    let pages = list(block, "hugepage_limits").filter_map(|page| {
        let page_size = page.get("page_size")?.as_str()?.to_owned();
        let limit = page.get("limit").and_then(Value::as_u64).unwrap_or(0);
        Some(api::HugepageLimit { page_size, limit, special_fields: Default::default() })
    });
    let mut resources = api::LinuxResources {
        hugepage_limits: pages.collect(),
        unified: block.get("unified").and_then(Value::as_object).map(texts).unwrap_or_default(),
        ..api::LinuxResources::default()
    };
    for (name, field) in CRI_NAMES {
        let value = block.get(name).filter(|value| value.as_i64() != Some(0));
        let scalar = SCALARS.iter().find(|scalar| scalar.field == field);
        if let (Some(value), Some(scalar)) = (value, scalar) {
            scalar.set(&mut resources, value);
        }
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(json: &str) -> api::LinuxResources {
        from_json(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn negative_values_stay_negative_and_absent_ones_absent() {
        let told =
            told(r#"{"memory":{"limit":-1},"cpu":{"shares":2,"cpus":"0-1"},"pids":{"limit":-1}}"#);
        assert_eq!(told.memory.limit.value, -1);
        assert!(told.memory.swap.is_none());
        assert_eq!((told.cpu.shares.value, told.cpu.cpus.as_str()), (2, "0-1"));
        assert_eq!(told.pids.limit, -1);
    }

    #[test]
    fn absent_values_stay_absent() {
        let told = told("{}");
        assert!(told.memory.is_none() && told.cpu.is_none() && told.pids.is_none());
    }

    #[test]
    fn values_of_wrong_types_are_dropped() {
        let told =
            told(r#"{"memory":5,"cpu":{"shares":"many"},"devices":[1,{"allow":"x"}],"pids":{}}"#);
        assert!(told.memory.is_none() && told.cpu.shares.is_none() && told.pids.is_none());
        assert_eq!(told.devices.len(), 0);
    }

    #[test]
    fn values_missing_in_the_cri_stay_absent_and_minus_one_is_kept() {
        let block = r#"{"cpu_quota":-1,"cpu_period":0,"cpuset_cpus":"3",
            "hugepage_limits":[{"page_size":"2MB"},{"limit":1}],"unified":{"memory.high":"1"}}"#;
        let told = from_cri(&serde_json::from_str(block).unwrap());
        assert_eq!((told.cpu.quota.value, told.cpu.cpus.as_str()), (-1, "3"));
        assert!(told.cpu.period.is_none() && told.memory.is_none());
        assert_eq!((told.hugepage_limits.len(), told.unified["memory.high"].as_str()), (1, "1"));
    }

    #[test]
    fn wrong_types_in_a_cri_message_are_dropped() {
        let told = from_cri(&serde_json::from_str(r#"{"cpu_shares":"x","unified":[]}"#).unwrap());
        assert_eq!(told, api::LinuxResources::default());
    }
}
