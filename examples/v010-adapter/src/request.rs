// SPDX-License-Identifier: Apache-2.0
//! The request of NRI v0.1, made from a pod or a container.

use std::collections::HashMap;

use nri_plugin::api;
use serde_json::{Map, Value, json};

/// What happens.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum State {
    Create,
    Delete,
}

/// The pod or container of a request.
pub(crate) struct Of<'a> {
    id: &'a str,
    pid: u32,
    pod: &'a api::PodSandbox,
    annotations: &'a HashMap<String, String>,
    namespaces: &'a [api::LinuxNamespace],
    resources: &'a api::LinuxResources,
    cgroups_path: &'a str,
}

pub(crate) fn of_pod(pod: &api::PodSandbox) -> Of<'_> {
    Of {
        id: &pod.id,
        pid: pod.pid,
        pod,
        annotations: &pod.annotations,
        namespaces: &pod.linux.namespaces,
        resources: &pod.linux.resources,
        cgroups_path: &pod.linux.cgroups_path,
    }
}

pub(crate) fn of_container<'a>(pod: &'a api::PodSandbox, container: &'a api::Container) -> Of<'a> {
    Of {
        id: &container.id,
        pid: container.pid,
        pod,
        annotations: &container.annotations,
        namespaces: &container.linux.namespaces,
        resources: &container.linux.resources,
        cgroups_path: &container.linux.cgroups_path,
    }
}

impl Of<'_> {
    pub(crate) fn request(
        &self,
        version: &str,
        state: State,
        conf: &Value,
        results: &[Value],
    ) -> Value {
        let namespaces: HashMap<_, _> =
            self.namespaces.iter().map(|one| (&one.type_, &one.path)).collect();
        let state = match state {
            State::Create => "create",
            State::Delete => "delete",
        };
        present([
            ("conf", Some(conf.clone()).filter(|conf| !conf.is_null())),
            ("version", Some(json!(version))),
            ("state", Some(json!(state))),
            ("id", Some(json!(self.id))),
            ("sandboxID", Some(json!(self.pod.id))),
            ("pid", Some(json!(self.pid)).filter(|_| self.pid != 0)),
            (
                "spec",
                Some(json!({
                    "resources": resources(self.resources),
                    "namespaces": namespaces,
                    "cgroupsPath": self.cgroups_path,
                    "annotations": self.annotations,
                })),
            ),
            ("labels", Some(json!(self.pod.labels))),
            ("results", Some(json!(results)).filter(|_| !results.is_empty())),
        ])
    }
}

/// An object without the members that have no value.
fn present<const N: usize>(members: [(&str, Option<Value>); N]) -> Value {
    let members = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    members.collect::<Map<_, _>>().into()
}

fn is_filled(object: &Value) -> bool {
    object.as_object().is_some_and(|members| !members.is_empty())
}

/// The value of an optional field.
macro_rules! value {
    ($field:expr) => {
        $field.as_ref().map(|optional| json!(optional.value))
    };
}

/// The resources as the OCI specification names them.
fn resources(resources: &api::LinuxResources) -> Value {
    let text = |text: &str| Some(json!(text)).filter(|_| !text.is_empty());
    let memory = resources.memory.as_ref().map(|memory| {
        present([
            ("limit", value!(memory.limit)),
            ("reservation", value!(memory.reservation)),
            ("swap", value!(memory.swap)),
            ("kernel", value!(memory.kernel)),
            ("kernelTCP", value!(memory.kernel_tcp)),
            ("swappiness", value!(memory.swappiness)),
            ("disableOOMKiller", value!(memory.disable_oom_killer)),
            ("useHierarchy", value!(memory.use_hierarchy)),
        ])
    });
    let cpu = resources.cpu.as_ref().map(|cpu| {
        present([
            ("shares", value!(cpu.shares)),
            ("quota", value!(cpu.quota)),
            ("period", value!(cpu.period)),
            ("realtimeRuntime", value!(cpu.realtime_runtime)),
            ("realtimePeriod", value!(cpu.realtime_period)),
            ("cpus", text(&cpu.cpus)),
            ("mems", text(&cpu.mems)),
        ])
    });
    let devices = resources.devices.iter().map(|device| {
        present([
            ("allow", Some(json!(device.allow))),
            ("type", text(&device.type_)),
            ("major", value!(device.major)),
            ("minor", value!(device.minor)),
            ("access", text(&device.access)),
        ])
    });
    let devices: Vec<_> = devices.collect();
    let huge = resources.hugepage_limits.iter();
    let huge: Vec<_> =
        huge.map(|one| json!({"pageSize": one.page_size, "limit": one.limit})).collect();
    present([
        ("devices", Some(json!(devices)).filter(|_| !devices.is_empty())),
        ("memory", memory.filter(is_filled)),
        ("cpu", cpu.filter(is_filled)),
        ("pids", resources.pids.as_ref().map(|pids| json!({"limit": pids.limit}))),
        ("hugepageLimits", Some(json!(huge)).filter(|_| !huge.is_empty())),
        ("unified", Some(json!(resources.unified)).filter(|_| !resources.unified.is_empty())),
    ])
}
