// SPDX-License-Identifier: Apache-2.0
//! Tests of merging, and helpers to build replies.
//!
//! Reference: the result collector of `pkg/adaptation` in NRI v0.12, with its defects corrected.

mod each_field;
mod encoding;
mod limits;
mod listings;
mod merging;
mod offering;
mod removals;
mod ruling;
mod schema;
mod updating;
mod validating;

use std::collections::HashMap;

use protobuf::MessageField;

use crate::{Creation, MergeError, NriField, Rights};
use nri_api as api;

/// The container that every test creates.
const SUBJECT: &str = "c0";

fn creation() -> Creation {
    creation_of(api::Container::new())
}

fn creation_of(mut container: api::Container) -> Creation {
    container.id = SUBJECT.to_owned();
    Creation::new(api::PodSandbox { id: "p0".to_owned(), ..Default::default() }, container)
}

fn answered(adjust: api::ContainerAdjustment) -> api::CreateContainerResponse {
    api::CreateContainerResponse { adjust: some(adjust), ..Default::default() }
}

/// Merges this adjustment as the reply of a plugin without restrictions.
fn answer(
    creation: &mut Creation,
    plugin: &str,
    adjust: api::ContainerAdjustment,
) -> Result<(), MergeError> {
    *creation = creation.clone().answer(plugin, &Rights::default(), answered(adjust))?;
    Ok(())
}

fn some<T>(message: T) -> MessageField<T> {
    MessageField::some(message)
}

fn map(entries: &[(&str, &str)]) -> HashMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn int64(value: i64) -> MessageField<api::OptionalInt64> {
    some(api::OptionalInt64 { value, ..Default::default() })
}

fn uint64(value: u64) -> MessageField<api::OptionalUInt64> {
    some(api::OptionalUInt64 { value, ..Default::default() })
}

fn boolean(value: bool) -> MessageField<api::OptionalBool> {
    some(api::OptionalBool { value, ..Default::default() })
}

fn string(value: &str) -> MessageField<api::OptionalString> {
    some(api::OptionalString { value: value.to_owned(), ..Default::default() })
}

fn variable(key: &str, value: &str) -> api::KeyValue {
    api::KeyValue { key: key.to_owned(), value: value.to_owned(), ..Default::default() }
}

fn mount(destination: &str, source: &str) -> api::Mount {
    api::Mount {
        destination: destination.to_owned(),
        source: source.to_owned(),
        type_: "bind".to_owned(),
        ..Default::default()
    }
}

fn device(path: &str, major: i64) -> api::LinuxDevice {
    api::LinuxDevice { path: path.to_owned(), type_: "c".to_owned(), major, ..Default::default() }
}

fn namespace(kind: &str, path: &str) -> api::LinuxNamespace {
    api::LinuxNamespace { type_: kind.to_owned(), path: path.to_owned(), ..Default::default() }
}

fn rlimit(kind: &str, soft: u64) -> api::POSIXRlimit {
    api::POSIXRlimit { type_: kind.to_owned(), hard: 9, soft, ..Default::default() }
}

fn hugepage(page_size: &str, limit: u64) -> api::HugepageLimit {
    api::HugepageLimit { page_size: page_size.to_owned(), limit, ..Default::default() }
}

fn hook(path: &str) -> api::Hook {
    api::Hook { path: path.to_owned(), ..Default::default() }
}

fn net_device(name: &str) -> api::LinuxNetDevice {
    api::LinuxNetDevice { name: name.to_owned(), ..Default::default() }
}

fn of_linux(linux: api::LinuxContainerAdjustment) -> api::ContainerAdjustment {
    api::ContainerAdjustment { linux: some(linux), ..Default::default() }
}

fn of_resources(resources: api::LinuxResources) -> api::ContainerAdjustment {
    of_linux(api::LinuxContainerAdjustment { resources: some(resources), ..Default::default() })
}

fn update(container: &str, resources: api::LinuxResources) -> api::ContainerUpdate {
    let linux = api::LinuxContainerUpdate { resources: some(resources), ..Default::default() };
    let container_id = container.to_owned();
    api::ContainerUpdate { container_id, linux: some(linux), ..Default::default() }
}

fn of_env(entries: &[(&str, &str)]) -> api::ContainerAdjustment {
    let env = entries.iter().map(|(key, value)| variable(key, value)).collect();
    api::ContainerAdjustment { env, ..Default::default() }
}

fn of_memory(memory: api::LinuxMemory) -> api::LinuxResources {
    api::LinuxResources { memory: some(memory), ..Default::default() }
}

fn of_cpu(cpu: api::LinuxCPU) -> api::LinuxResources {
    api::LinuxResources { cpu: some(cpu), ..Default::default() }
}

fn shares(value: u64) -> api::LinuxResources {
    of_cpu(api::LinuxCPU { shares: uint64(value), ..Default::default() })
}

fn quota(value: i64) -> api::LinuxResources {
    of_cpu(api::LinuxCPU { quota: int64(value), ..Default::default() })
}

fn pids(limit: i64) -> api::LinuxResources {
    let pids = some(api::LinuxPids { limit, ..Default::default() });
    api::LinuxResources { pids, ..Default::default() }
}

/// Parses a message from JSON.
fn read<M: protobuf::MessageFull>(json: &str) -> M {
    nri_api::json::read(&serde_json::from_str(json).unwrap()).unwrap()
}

/// Each resource field, with resources that set only this field.
const RESOURCES: [(NriField, &str); 20] = [
    (NriField::MemLimit, r#"{"memory": {"limit": {"value": 1}}}"#),
    (NriField::MemReservation, r#"{"memory": {"reservation": {"value": 1}}}"#),
    (NriField::MemSwapLimit, r#"{"memory": {"swap": {"value": 1}}}"#),
    (NriField::MemKernelLimit, r#"{"memory": {"kernel": {"value": 1}}}"#),
    (NriField::MemTCPLimit, r#"{"memory": {"kernelTcp": {"value": 1}}}"#),
    (NriField::MemSwappiness, r#"{"memory": {"swappiness": {"value": 0}}}"#),
    (NriField::MemDisableOomKiller, r#"{"memory": {"disableOomKiller": {"value": false}}}"#),
    (NriField::MemUseHierarchy, r#"{"memory": {"useHierarchy": {"value": true}}}"#),
    (NriField::CPUShares, r#"{"cpu": {"shares": {"value": 1}}}"#),
    (NriField::CPUQuota, r#"{"cpu": {"quota": {"value": 0}}}"#),
    (NriField::CPUPeriod, r#"{"cpu": {"period": {"value": 1}}}"#),
    (NriField::CPURealtimeRuntime, r#"{"cpu": {"realtimeRuntime": {"value": 1}}}"#),
    (NriField::CPURealtimePeriod, r#"{"cpu": {"realtimePeriod": {"value": 1}}}"#),
    (NriField::CPUSetCPUs, r#"{"cpu": {"cpus": "0-1"}}"#),
    (NriField::CPUSetMems, r#"{"cpu": {"mems": "0"}}"#),
    (NriField::PidsLimit, r#"{"pids": {"limit": 0}}"#),
    (NriField::HugepageLimits, r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 1}]}"#),
    (NriField::BlockioClass, r#"{"blockioClass": {"value": ""}}"#),
    (NriField::RdtClass, r#"{"rdtClass": {"value": "gold"}}"#),
    (NriField::CgroupsUnified, r#"{"unified": {"k": "v"}}"#),
];

/// Returns resources that set exactly this field, if it is a resource.
fn resources_setting(field: NriField) -> Option<api::LinuxResources> {
    RESOURCES.into_iter().find(|(one, _)| *one == field).map(|(_, json)| read(json))
}
