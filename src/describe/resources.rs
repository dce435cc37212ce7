// SPDX-License-Identifier: Apache-2.0
//! OCI resources to NRI resources, for containers and for `update` requests. Absent stays absent
//! (the reference turns an absent pids limit into 0, which runc takes for 1). blockio and rdt
//! classes are not OCI resources: their names come from elsewhere, if at all.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::plugin::api;

/// The resources of a document.
pub(crate) fn resources(spec: &super::Spec) -> api::LinuxResources {
    from_json(&spec.linux.resources)
}

/// OCI LinuxResources as NRI shows them; what has an odd type is left out.
pub fn from_json(block: &Map<String, Value>) -> api::LinuxResources {
    let section = |name: &str| block.get(name).and_then(Value::as_object);
    api::LinuxResources {
        memory: section("memory").map(memory).into(),
        cpu: section("cpu").map(cpu).into(),
        hugepage_limits: list(block, "hugepageLimits").filter_map(hugepages).collect(),
        blockio_class: None.into(),
        rdt_class: None.into(),
        unified: section("unified").map(texts).unwrap_or_default(),
        devices: list(block, "devices").filter_map(rule).collect(),
        pids: section("pids").and_then(pids).into(),
        special_fields: Default::default(),
    }
}

fn list<'b>(block: &'b Map<String, Value>, name: &str) -> impl Iterator<Item = &'b Value> {
    block.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn texts(map: &Map<String, Value>) -> std::collections::HashMap<String, String> {
    let pair = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    map.iter().filter_map(pair).collect()
}

macro_rules! optional {
    ($kind:ident, $value:expr) => {
        $value.map(|value| api::$kind { value, ..api::$kind::default() }).into()
    };
}

fn memory(section: &Map<String, Value>) -> api::LinuxMemory {
    let signed = |name: &str| section.get(name).and_then(Value::as_i64);
    let truth = |name: &str| section.get(name).and_then(Value::as_bool);
    api::LinuxMemory {
        limit: optional!(OptionalInt64, signed("limit")),
        reservation: optional!(OptionalInt64, signed("reservation")),
        swap: optional!(OptionalInt64, signed("swap")),
        kernel: optional!(OptionalInt64, signed("kernel")),
        kernel_tcp: optional!(OptionalInt64, signed("kernelTCP")),
        swappiness: optional!(OptionalUInt64, section.get("swappiness").and_then(Value::as_u64)),
        disable_oom_killer: optional!(OptionalBool, truth("disableOOMKiller")),
        use_hierarchy: optional!(OptionalBool, truth("useHierarchy")),
        special_fields: Default::default(),
    }
}

fn cpu(section: &Map<String, Value>) -> api::LinuxCPU {
    let signed = |name: &str| section.get(name).and_then(Value::as_i64);
    let unsigned = |name: &str| section.get(name).and_then(Value::as_u64);
    let text =
        |name: &str| section.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    api::LinuxCPU {
        shares: optional!(OptionalUInt64, unsigned("shares")),
        quota: optional!(OptionalInt64, signed("quota")),
        period: optional!(OptionalUInt64, unsigned("period")),
        realtime_runtime: optional!(OptionalInt64, signed("realtimeRuntime")),
        realtime_period: optional!(OptionalUInt64, unsigned("realtimePeriod")),
        cpus: text("cpus"),
        mems: text("mems"),
        special_fields: Default::default(),
    }
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
    #[serde(default)]
    major: Option<i64>,
    #[serde(default)]
    minor: Option<i64>,
    #[serde(default)]
    access: Option<String>,
}

fn rule(value: &Value) -> Option<api::LinuxDeviceCgroup> {
    let DeviceRuleEntry { allow, kind, major, minor, access } =
        DeviceRuleEntry::deserialize(value).ok()?;
    Some(api::LinuxDeviceCgroup {
        allow,
        type_: kind.unwrap_or_default(),
        major: optional!(OptionalInt64, major),
        minor: optional!(OptionalInt64, minor),
        access: access.unwrap_or_default(),
        special_fields: Default::default(),
    })
}

fn pids(section: &Map<String, Value>) -> Option<api::LinuxPids> {
    let limit = section.get("limit").and_then(Value::as_i64)?;
    Some(api::LinuxPids { limit, special_fields: Default::default() })
}

/// The CRI's LinuxContainerResources as engines keep it in JSON: what is 0 there was not set and
/// is not written.
pub(super) fn from_cri(block: &Map<String, Value>) -> api::LinuxResources {
    let signed = |name: &str| block.get(name).and_then(Value::as_i64).filter(|value| *value != 0);
    let unsigned = |name: &str| signed(name).and_then(|value| u64::try_from(value).ok());
    let text = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let cpu = api::LinuxCPU {
        shares: optional!(OptionalUInt64, unsigned("cpu_shares")),
        quota: optional!(OptionalInt64, signed("cpu_quota")),
        period: optional!(OptionalUInt64, unsigned("cpu_period")),
        cpus: text("cpuset_cpus"),
        mems: text("cpuset_mems"),
        ..api::LinuxCPU::default()
    };
    let memory = api::LinuxMemory {
        limit: optional!(OptionalInt64, signed("memory_limit_in_bytes")),
        swap: optional!(OptionalInt64, signed("memory_swap_limit_in_bytes")),
        ..api::LinuxMemory::default()
    };
    let pages = list(block, "hugepage_limits").filter_map(|page| {
        let page_size = page.get("page_size")?.as_str()?.to_owned();
        let limit = page.get("limit").and_then(Value::as_u64).unwrap_or(0);
        Some(api::HugepageLimit { page_size, limit, special_fields: Default::default() })
    });
    api::LinuxResources {
        memory: (memory != api::LinuxMemory::default()).then_some(memory).into(),
        cpu: (cpu != api::LinuxCPU::default()).then_some(cpu).into(),
        hugepage_limits: pages.collect(),
        unified: block.get("unified").and_then(Value::as_object).map(texts).unwrap_or_default(),
        ..api::LinuxResources::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(json: &str) -> api::LinuxResources {
        from_json(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn values_keep_their_sign_and_their_absence() {
        let told =
            told(r#"{"memory":{"limit":-1},"cpu":{"shares":2,"cpus":"0-1"},"pids":{"limit":-1}}"#);
        assert_eq!(told.memory.limit.value, -1);
        assert!(told.memory.swap.is_none());
        assert_eq!((told.cpu.shares.value, told.cpu.cpus.as_str()), (2, "0-1"));
        assert_eq!(told.pids.limit, -1);
    }

    #[test]
    fn what_is_absent_stays_absent() {
        let told = told("{}");
        assert!(told.memory.is_none() && told.cpu.is_none() && told.pids.is_none());
    }

    #[test]
    fn odd_types_are_left_out() {
        let told =
            told(r#"{"memory":5,"cpu":{"shares":"many"},"devices":[1,{"allow":"x"}],"pids":{}}"#);
        assert!(told.memory.is_none() && told.cpu.shares.is_none() && told.pids.is_none());
        assert_eq!(told.devices.len(), 0);
    }

    #[test]
    fn what_the_cri_leaves_out_is_absent_and_a_quota_may_be_unlimited() {
        let block = r#"{"cpu_quota":-1,"cpu_period":0,"cpuset_cpus":"3",
            "hugepage_limits":[{"page_size":"2MB"},{"limit":1}],"unified":{"memory.high":"1"}}"#;
        let told = from_cri(&serde_json::from_str(block).unwrap());
        assert_eq!((told.cpu.quota.value, told.cpu.cpus.as_str()), (-1, "3"));
        assert!(told.cpu.period.is_none() && told.memory.is_none());
        assert_eq!((told.hugepage_limits.len(), told.unified["memory.high"].as_str()), (1, "1"));
    }

    #[test]
    fn odd_types_in_a_cri_message_are_left_out() {
        let told = from_cri(&serde_json::from_str(r#"{"cpu_shares":"x","unified":[]}"#).unwrap());
        assert_eq!(told, api::LinuxResources::default());
    }
}
