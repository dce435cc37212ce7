// SPDX-License-Identifier: Apache-2.0
//! Converts records to NRI messages and back. The record keeps the message's protobuf bytes; values
//! that change (state, PID, times) are filled in when the message is sent.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use protobuf::{Message, MessageField};
use serde_json::{Map, Value};

use crate::describe;
use crate::plugin::{Encoded, Event, api};
use crate::state::{Container, Lifecycle, Pod, PodState, Wire};

/// Names of classes that a plugin set; an empty name means no class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Classes {
    pub(crate) blockio: Option<String>,
    pub(crate) rdt: Option<String>,
}

impl Classes {
    /// Returns the classes in a plugin's resources.
    pub(crate) fn of(resources: &api::LinuxResources) -> Self {
        let name = |class: &MessageField<api::OptionalString>| {
            class.as_ref().map(|class| class.value.clone())
        };
        Self { blockio: name(&resources.blockio_class), rdt: name(&resources.rdt_class) }
    }
}

/// Field numbers of a container's and of a pod's message that are not stored, because the record has their values.
const OF_RECORD: [u64; 10] = [ID, 2, 4, 12, 14, 15, 16, 17, 18, 19];
const OF_POD_RECORD: [u64; 2] = [ID, 9];

/// Field number of a pod's labels.
const LABELS: u64 = 5;

/// Field numbers of a pod's linux part, and of the resources in it.
const LINUX: u64 = 8;
const RESOURCES: u64 = 6;

/// Field number of a container's linux part.
const CONTAINERS_LINUX: u64 = 11;

/// Field number of the ID: a stored message that begins with it is from an earlier version, which
/// stored whole messages.
const ID: u64 = 1;

/// Returns the part of a container's message that its record stores.
pub(crate) fn to_wire(message: &api::Container) -> Wire {
    encoded(&message.write_to_bytes().unwrap_or_default())
}

/// Returns the part of a pod's message that its record stores.
pub(crate) fn pod_to_wire(message: &api::PodSandbox) -> Wire {
    Wire::without(&message.write_to_bytes().unwrap_or_default(), &OF_POD_RECORD)
}

/// Whether a pod's addresses, field 10 of its message, are known.
pub(crate) fn has_addresses(pod: &Pod) -> bool {
    !pod.message.only(10).is_empty()
}

/// Returns the stored part of a message, without the fields that only an earlier version stored.
fn kept(wire: &Wire, of_record: &[u64]) -> Arc<[u8]> {
    if wire.begins_with(ID) { Wire::without(&wire.0, of_record).0 } else { Arc::clone(&wire.0) }
}

fn from_wire<M: Message>(wire: &Wire) -> M {
    // A record that was manipulated results in an empty message, not in a crash of the daemon.
    M::parse_from_bytes(&wire.0).unwrap_or_default()
}

/// Returns the part of an encoded container that its record stores.
pub(crate) fn encoded(container: &[u8]) -> Wire {
    Wire::without(container, &OF_RECORD)
}

/// Returns the container as plugins receive it now.
pub(crate) fn container(record: &Container) -> api::Container {
    let mut message: api::Container = from_wire(&record.message);
    // Merging may leave empty hooks, which are omitted.
    message.hooks = message.hooks.take().filter(|hooks| *hooks != api::Hooks::default()).into();
    fill_in(&mut message, record);
    message
}

/// Like [`container`], but also shows whether the container is paused, which is not on record.
pub(crate) fn container_as_it_is(record: &Container, is_paused: bool) -> api::Container {
    let mut message = container(record);
    set_paused(&mut message, is_paused);
    message
}

fn set_paused(message: &mut api::Container, is_paused: bool) {
    if is_paused {
        message.state = api::ContainerState::CONTAINER_PAUSED.into();
    }
}

/// Returns the container as plugins receive it now, as bytes.
pub(crate) fn container_encoded(record: &Container, is_paused: bool) -> Encoded {
    let mut now = api::Container::default();
    fill_in(&mut now, record);
    set_paused(&mut now, is_paused);
    let now = now.write_to_bytes().unwrap_or_default();
    Encoded { kept: kept(&record.message, &OF_RECORD), now }
}

fn fill_in(message: &mut api::Container, record: &Container) {
    message.id.clone_from(&record.key.id);
    message.pod_sandbox_id.clone_from(&record.pod);
    message.pid = record.process.init_pid.unwrap_or(0);
    message.created_at = record.process.created_at.unwrap_or_default();
    message.started_at = record.process.started_at.unwrap_or_default();
    message.finished_at = record.process.finished_at.unwrap_or_default();
    message.exit_code = record.process.exit_code.unwrap_or(0);
    message.status_reason.clone_from(&record.process.status_reason);
    message.status_message.clone_from(&record.process.status_message);
    message.state = match record.state {
        Lifecycle::Creating => api::ContainerState::CONTAINER_UNKNOWN,
        Lifecycle::Created => api::ContainerState::CONTAINER_CREATED,
        Lifecycle::Running => api::ContainerState::CONTAINER_RUNNING,
        Lifecycle::Stopped | Lifecycle::Removed => api::ContainerState::CONTAINER_STOPPED,
    }
    .into();
}

/// Returns the resources in the container's message.
pub(crate) fn resources(record: &Container) -> api::LinuxResources {
    let part: api::Container = from_wire(&Wire(record.message.only(CONTAINERS_LINUX).into()));
    let linux = part.linux.into_option().unwrap_or_default();
    linux.resources.into_option().unwrap_or_default()
}

/// Returns a recorded message with other resources. A class stays unless `classes` sets it, because no document has
/// classes. The recorded device rules stay too, because no update removes one; those of `overlay` are added.
pub(crate) fn with_resources(
    wire: &Wire,
    overlay: &Map<String, Value>,
    resources: &Map<String, Value>,
    classes: &Classes,
) -> Wire {
    // The rest of the message, which is most of it, is not decoded.
    let mut part: api::Container = from_wire(&Wire(wire.only(CONTAINERS_LINUX).into()));
    let recorded = part.linux.mut_or_insert_default().resources.mut_or_insert_default();
    let mut devices = std::mem::take(&mut recorded.devices);
    let text = |rule: &api::LinuxDeviceCgroup| rule.write_to_bytes().unwrap_or_default();
    let mut known: HashSet<Vec<u8>> = devices.iter().map(text).collect();
    let owned = describe::resources_from_json(overlay).devices.into_iter();
    devices.extend(owned.filter(|rule| known.insert(text(rule))));
    let new = describe::resources_from_json(resources);
    *recorded = api::LinuxResources {
        blockio_class: named(classes.blockio.as_ref(), recorded.blockio_class.take()),
        rdt_class: named(classes.rdt.as_ref(), recorded.rdt_class.take()),
        devices,
        ..new
    };
    let rest = Wire::without(&wire.0, &[CONTAINERS_LINUX]).0;
    Wire([&*rest, &part.write_to_bytes().unwrap_or_default()].concat().into())
}

fn named(
    new: Option<&String>,
    old: Option<api::OptionalString>,
) -> MessageField<api::OptionalString> {
    new.cloned().map(Into::into).or(old).into()
}

/// Returns the pod as plugins receive it now.
pub(crate) fn pod(record: &Pod) -> api::PodSandbox {
    let mut message: api::PodSandbox = from_wire(&record.message);
    message.id.clone_from(&record.id);
    message.pid = record.pid;
    add_linux(&mut message);
    message
}

/// Returns the pod's labels. The rest of the message is not decoded, because annotations may be long.
pub(crate) fn pod_labels(record: &Pod) -> BTreeMap<String, String> {
    let labels = api::PodSandbox::parse_from_bytes(&record.message.only(LABELS));
    labels.unwrap_or_default().labels.into_iter().collect()
}

/// Adds the linux part, which engines always send and plugins rely on, if it is missing because an earlier
/// version recorded the pod or its record is lost.
fn add_linux(message: &mut api::PodSandbox) {
    message.linux.mut_or_insert_default().resources.mut_or_insert_default();
}

/// Returns the pod as plugins receive it now, as bytes.
pub(crate) fn pod_encoded(record: &Pod) -> Encoded {
    let (id, pid) = (record.id.clone(), record.pid);
    if !record.message.has_inside(LINUX, RESOURCES) {
        let now = pod(record).write_to_bytes().unwrap_or_default();
        return Encoded { kept: Arc::default(), now };
    }
    let now = api::PodSandbox { id, pid, ..api::PodSandbox::default() };
    let now = now.write_to_bytes().unwrap_or_default();
    Encoded { kept: kept(&record.message, &OF_POD_RECORD), now }
}

/// Returns the recorded message of a pod with other resources of its containers.
pub(crate) fn with_pod_resources(record: &Pod, resources: api::LinuxResources) -> Wire {
    let mut message = pod(record);
    message.linux.mut_or_insert_default().pod_resources = Some(resources).into();
    pod_to_wire(&message)
}

/// Removes values that containerd does not send about a removed container, because its task is gone.
pub(crate) fn as_sent_at(event: Event, record: &Container, message: &mut api::Container) {
    if event == Event::RemoveContainer && record.engine.behaviour().forgets_at_removal {
        message.state = api::ContainerState::CONTAINER_UNKNOWN.into();
        message.pid = 0;
    }
}

/// Returns the pod of a container's event. When a container is removed, containerd sends no PID of a stopped pod.
pub(crate) fn pod_as_sent_at(event: Event, record: &Pod) -> api::PodSandbox {
    let mut message = pod(record);
    let is_containerds = record.engine.behaviour().forgets_at_removal;
    if event == Event::RemoveContainer && is_containerds && record.state == PodState::Stopped {
        message.pid = 0;
    }
    message
}

/// Removes values that engines do not send about an ending pod: containerd omits the PID and the network namespace when
/// the pod is removed, and CRI-O omits the PID from the pod's stop on.
pub(crate) fn as_sent_at_the_end(event: Event, record: &Pod, message: &mut api::PodSandbox) {
    let is_removed = event == Event::RemovePodSandbox;
    let engine = record.engine.behaviour();
    if engine.forgets_at_removal && is_removed {
        message.pid = 0;
        if let Some(linux) = message.linux.as_mut() {
            linux.namespaces.retain(|space| space.type_ != "network" || space.path.is_empty());
        }
    } else if engine.forgets_at_stop && (is_removed || event == Event::StopPodSandbox) {
        message.pid = 0;
    }
}

/// Returns a pod of which only the ID is known.
pub(crate) fn only_pod_id(id: &str) -> api::PodSandbox {
    let mut pod = api::PodSandbox { id: id.to_owned(), ..api::PodSandbox::default() };
    add_linux(&mut pod);
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::CompactObject;

    fn record() -> Container {
        let json = serde_json::json!({
            "schema": 1, "boot_id": "boot", "key": {"root": "/run/runc", "id": "c"},
            "incarnation": 7, "runtime": "/usr/bin/runc", "global_flags": [], "bundle": "/b",
            "is_sandbox": false, "pod": "p", "name": "c", "state": "running", "pid_file": null,
            "init_pid": 5, "init_start": 2, "engine": "plain", "evidence": [], "variables": [],
            "message": "", "engine_resources": {}, "overlay": {}, "owners": {}, "patched": null,
            "changes": [], "refused": [], "skipped": [], "in_flight": null, "exit_code": 3,
            "created_at": 11, "started_at": 12, "finished_at": 13, "status_reason": "r",
            "status_message": "m"
        });
        serde_json::from_value(json).unwrap()
    }

    fn read<M: Message>(encoded: &Encoded) -> M {
        M::parse_from_bytes(&[&encoded.kept, &encoded.now[..]].concat()).unwrap()
    }

    /// Returns a message whose ID and state differ from the record's.
    fn stale() -> api::Container {
        let mut stale = api::Container { name: "web".to_owned(), ..Default::default() };
        let mut other = record();
        other.key.id = "other".to_owned();
        other.state = Lifecycle::Stopped;
        fill_in(&mut stale, &other);
        stale
    }

    #[test]
    fn a_message_is_rebuilt_from_its_record_and_its_kept_bytes() {
        let mut record = record();
        let kept = to_wire(&stale());
        assert_eq!(
            from_wire::<api::Container>(&kept),
            api::Container { name: "web".to_owned(), ..Default::default() }
        );
        // Earlier versions stored whole messages.
        let whole = Wire(stale().write_to_bytes().unwrap().into());
        for message in [kept, whole] {
            record.message = message;
            for pid in [Some(5), None] {
                record.process.init_pid = pid;
                let message = container(&record);
                assert_eq!((message.id.as_str(), message.pid), ("c", pid.unwrap_or(0)));
                assert_eq!((message.name.as_str(), message.exit_code), ("web", 3));
                assert_eq!(read::<api::Container>(&container_encoded(&record, false)), message);
                let paused = read::<api::Container>(&container_encoded(&record, true));
                assert_eq!(paused.state, api::ContainerState::CONTAINER_PAUSED.into());
            }
        }
    }

    #[test]
    fn device_rules_come_from_the_creation_and_plugin_updates() {
        let rule = |minor: i64| {
            let json = serde_json::json!({"devices": [{"allow": true, "minor": minor}]});
            json.as_object().unwrap().clone()
        };
        let mut record = record();
        let mut sent = api::Container::default();
        let created = sent.linux.mut_or_insert_default().resources.mut_or_insert_default();
        created.devices = describe::resources_from_json(&rule(1)).devices;
        record.message = to_wire(&sent);
        // Device rules of the engine's later updates have no effect.
        let mut in_force = rule(7);
        record.resources.of_engine = CompactObject::from(&in_force);
        in_force.insert("cpu".to_owned(), serde_json::json!({"shares": 5}));
        let minors = |record: &Container| -> Vec<i64> {
            resources(record).devices.iter().map(|rule| rule.minor.value).collect()
        };
        record.message = with_resources(
            &record.message,
            &record.resources.overlay,
            &in_force,
            &Classes::default(),
        );
        assert_eq!((minors(&record), resources(&record).cpu.shares.value), (vec![1], 5));
        record.resources.overlay = rule(2);
        for _twice in 0..2 {
            record.message = with_resources(
                &record.message,
                &record.resources.overlay,
                &in_force,
                &Classes::default(),
            );
            assert_eq!(minors(&record), [1, 2]);
        }
    }

    #[test]
    fn the_pods_message_and_its_encoded_bytes_agree() {
        let json = serde_json::json!({
            "schema": 1, "boot_id": "boot", "id": "p", "name": "", "namespace": "", "uid": "",
            "engine": "plain", "state": "ready", "sandbox": null, "message": ""
        });
        let mut record: Pod = serde_json::from_value(json).unwrap();
        let sent = api::PodSandbox {
            id: "q".to_owned(),
            name: "wéb".to_owned(),
            pid: 77,
            ..Default::default()
        };
        let whole = Wire(sent.write_to_bytes().unwrap().into());
        for message in [pod_to_wire(&sent), whole] {
            record.message = message;
            let mut now = api::PodSandbox { id: "p".to_owned(), pid: 0, ..sent.clone() };
            add_linux(&mut now);
            assert_eq!(pod(&record), now);
            assert_eq!(read::<api::PodSandbox>(&pod_encoded(&record)), now);
        }
    }

    #[test]
    fn the_linux_part_of_a_pod_is_never_absent_and_keeps_its_values() {
        let json = serde_json::json!({
            "schema": 1, "boot_id": "boot", "id": "p", "name": "", "namespace": "", "uid": "",
            "engine": "plain", "state": "ready", "sandbox": null, "message": ""
        });
        let mut record: Pod = serde_json::from_value(json).unwrap();
        let mut sent = api::PodSandbox::default();
        for cgroup_parent in ["", "/kubepods/pod1"] {
            if !cgroup_parent.is_empty() {
                let linux = sent.linux.mut_or_insert_default();
                cgroup_parent.clone_into(&mut linux.cgroup_parent);
                let resources = linux.resources.mut_or_insert_default();
                resources.cpu.mut_or_insert_default().cpus = "0-1".to_owned();
            }
            record.message = pod_to_wire(&sent);
            for message in [pod(&record), read(&pod_encoded(&record))] {
                let linux = message.linux.as_ref().unwrap();
                assert_eq!(linux.cgroup_parent, cgroup_parent);
                let cpus = &linux.resources.as_ref().unwrap().cpu.cpus;
                assert_eq!(cpus, if cgroup_parent.is_empty() { "" } else { "0-1" });
            }
        }
        assert!(only_pod_id("p").linux.resources.is_some());
    }

    #[test]
    fn a_corrupt_record_yields_an_empty_message() {
        let spoiled = Wire(vec![0xff; 4].into());
        assert_eq!(from_wire::<api::PodSandbox>(&spoiled), api::PodSandbox::default());
    }
}
