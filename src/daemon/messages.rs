// SPDX-License-Identifier: Apache-2.0
//! Records to NRI messages and back: the record keeps the message's protobuf bytes, and what
//! changes in life (state, pid, times) is filled in when it is told.

use protobuf::{Message, MessageField};
use serde_json::{Map, Value};

use crate::describe;
use crate::plugin::{Event, api};
use crate::state::{Container, Lifecycle, Pod, Wire};

use super::classes::Classes;

/// A message's bytes, as records keep them.
pub(super) fn to_wire(message: &impl Message) -> Wire {
    Wire(message.write_to_bytes().unwrap_or_default())
}

fn from_wire<M: Message>(wire: &Wire) -> M {
    // A record that was tampered with gives an empty message, not a dead daemon.
    M::parse_from_bytes(&wire.0).unwrap_or_default()
}

/// A container as plugins left it. What merging has filled in for them to find, and nobody has
/// used, is not part of it.
pub(super) fn merged(container: &api::Container) -> Wire {
    let mut container = container.clone();
    if let Some(told) = container.linux.as_mut().and_then(|linux| linux.resources.as_mut()) {
        told.memory = told.memory.take().filter(|all| *all != api::LinuxMemory::default()).into();
        told.cpu = told.cpu.take().filter(|all| *all != api::LinuxCPU::default()).into();
    }
    to_wire(&container)
}

/// The container as plugins are told now.
pub(super) fn container(record: &Container) -> api::Container {
    let mut message: api::Container = from_wire(&record.message);
    message.id.clone_from(&record.key.id);
    message.pod_sandbox_id.clone_from(&record.pod);
    // Merging leaves an empty list of hooks behind.
    message.hooks = message.hooks.take().filter(|hooks| *hooks != api::Hooks::default()).into();
    message.pid = record.init_pid.unwrap_or(0);
    message.created_at = record.created_at;
    message.started_at = record.started_at;
    message.finished_at = record.finished_at;
    message.exit_code = record.exit_code.unwrap_or(0);
    message.status_reason.clone_from(&record.status_reason);
    message.status_message.clone_from(&record.status_message);
    message.state = match record.state {
        Lifecycle::Creating => api::ContainerState::CONTAINER_UNKNOWN,
        Lifecycle::Created => api::ContainerState::CONTAINER_CREATED,
        Lifecycle::Running => api::ContainerState::CONTAINER_RUNNING,
        Lifecycle::Stopped | Lifecycle::Removed => api::ContainerState::CONTAINER_STOPPED,
    }
    .into();
    message
}

/// The resources in the container's message.
pub(super) fn resources(record: &Container) -> api::LinuxResources {
    let message: api::Container = from_wire(&record.message);
    let linux = message.linux.into_option().unwrap_or_default();
    linux.resources.into_option().unwrap_or_default()
}

/// A recorded message with other resources; classes, which no document has, stay unless they are
/// set anew.
pub(super) fn with_resources(
    wire: &Wire,
    resources: &Map<String, Value>,
    classes: &Classes,
) -> Wire {
    let mut message: api::Container = from_wire(wire);
    let told = message.linux.mut_or_insert_default().resources.mut_or_insert_default();
    let new = describe::resources_from_json(resources);
    *told = api::LinuxResources {
        blockio_class: named(classes.blockio.as_ref(), told.blockio_class.take()),
        rdt_class: named(classes.rdt.as_ref(), told.rdt_class.take()),
        ..new
    };
    to_wire(&message)
}

fn named(
    new: Option<&String>,
    old: Option<api::OptionalString>,
) -> MessageField<api::OptionalString> {
    let new = new.map(|name| api::OptionalString { value: name.clone(), ..Default::default() });
    new.or(old).into()
}

/// The pod as plugins are told now.
pub(super) fn pod(record: &Pod) -> api::PodSandbox {
    let mut message: api::PodSandbox = from_wire(&record.message);
    message.id.clone_from(&record.id);
    message.pid = record.pid;
    message
}

/// What containerd no longer says of a container that is removed: it has no task then.
pub(super) fn as_told_at(event: Event, record: &Container, message: &mut api::Container) {
    if event == Event::RemoveContainer && record.engine == "containerd-cri" {
        message.state = api::ContainerState::CONTAINER_UNKNOWN.into();
        message.pid = 0;
    }
}

/// What engines no longer say of a pod that ends: containerd when it is removed, its network being
/// gone; CRI-O when it is stopped.
pub(super) fn as_told_at_the_end(event: Event, record: &Pod, message: &mut api::PodSandbox) {
    let is_removed = event == Event::RemovePodSandbox;
    match record.engine.as_str() {
        "containerd-cri" if is_removed => {
            message.pid = 0;
            if let Some(linux) = message.linux.as_mut() {
                linux.namespaces.retain(|space| space.type_ != "network" || space.path.is_empty());
            }
        }
        "cri-o" if is_removed || event == Event::StopPodSandbox => message.pid = 0,
        _ => {}
    }
}

/// A pod of which nothing but its id is known.
pub(super) fn only_pod_id(id: &str) -> api::PodSandbox {
    api::PodSandbox { id: id.to_owned(), ..api::PodSandbox::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_its_record() {
        let message = api::PodSandbox { name: "wéb".to_owned(), pid: 77, ..Default::default() };
        let back: api::PodSandbox = from_wire(&to_wire(&message));
        assert_eq!(back, message);
    }

    #[test]
    fn a_spoiled_record_gives_an_empty_message() {
        let spoiled = Wire(vec![0xff; 4]);
        assert_eq!(from_wire::<api::PodSandbox>(&spoiled), api::PodSandbox::default());
    }
}
