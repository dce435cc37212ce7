// SPDX-License-Identifier: Apache-2.0
//! Resources of a container, as a builder: for one that is being created ([`Resources`], in an
//! adjustment) and for an existing one ([`Update`]). Both have the same setters. Values are not
//! checked.

use nri_api as api;

/// Resources of a container that is being created. A resource that is not set keeps the engine's
/// value.
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use = "it changes nothing until it is part of an adjustment"]
pub struct Resources(api::LinuxResources);

impl Resources {
    /// Creates a value that sets no resource.
    pub fn new() -> Self {
        Self::default()
    }

    fn edit(mut self, edit: impl FnOnce(&mut api::LinuxResources)) -> Self {
        edit(&mut self.0);
        self
    }
}

impl From<api::LinuxResources> for Resources {
    fn from(message: api::LinuxResources) -> Self {
        Self(message)
    }
}

impl From<Resources> for api::LinuxResources {
    fn from(resources: Resources) -> Self {
        resources.0
    }
}

/// An update that names a container but has no values yet; any setter makes it an [`Update`].
#[derive(Debug, Clone)]
#[must_use = "an update needs a value"]
pub struct UpdateTarget(String);

impl UpdateTarget {
    fn edit(self, edit: impl FnOnce(&mut api::LinuxResources)) -> Update {
        self.resources(Resources::new().edit(edit))
    }

    /// Sets these resources, of which there must be at least one: the type does not show it, because a plugin may add
    /// them one by one, or fill in the protocol's message.
    pub fn resources(self, resources: impl Into<Resources>) -> Update {
        let Resources(resources) = resources.into();
        let linux =
            api::LinuxContainerUpdate { resources: Some(resources).into(), ..Default::default() };
        Update(api::ContainerUpdate {
            container_id: self.0,
            linux: Some(linux).into(),
            ..Default::default()
        })
    }
}

/// An update of an existing container: at least one resource. Other properties of a container
/// cannot be updated.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "it changes nothing until it is sent"]
pub struct Update(api::ContainerUpdate);

impl Update {
    /// Starts an update of the container of this ID; the first setter completes it.
    pub fn of(container_id: &str) -> UpdateTarget {
        UpdateTarget(container_id.to_owned())
    }

    fn edit(mut self, edit: impl FnOnce(&mut api::LinuxResources)) -> Self {
        let linux = self.0.linux.mut_or_insert_default();
        edit(linux.resources.mut_or_insert_default());
        self
    }

    /// Lets the answered request succeed even if this update cannot be carried out.
    pub fn ignore_failure(mut self) -> Self {
        self.0.ignore_failure = true;
        self
    }
}

impl From<Update> for api::ContainerUpdate {
    fn from(update: Update) -> Self {
        update.0
    }
}

macro_rules! setters {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($resources:ident, $($argument:ident: $type:ty),*) $body:block
    )*) => {
        impl Resources {
            $($(#[$doc])* pub fn $name(self, $($argument: $type),*) -> Self {
                self.edit(|$resources| $body)
            })*
        }

        impl UpdateTarget {
            $($(#[$doc])* pub fn $name(self, $($argument: $type),*) -> Update {
                self.edit(|$resources| $body)
            })*
        }

        impl Update {
            $($(#[$doc])* pub fn $name(self, $($argument: $type),*) -> Self {
                self.edit(|$resources| $body)
            })*
        }
    };
}

setters! {
    /// Sets the CPU shares of cgroup v1, from which v2's weight is computed.
    fn cpu_shares(resources, shares: u64) {
        resources.cpu.mut_or_insert_default().shares = Some(shares.into()).into();
    }

    /// Limits CPU time to `quota` microseconds in each `period` of microseconds; a negative quota
    /// removes the limit.
    fn cpu_quota(resources, quota: i64, period: u64) {
        let cpu = resources.cpu.mut_or_insert_default();
        cpu.quota = Some(quota.into()).into();
        cpu.period = Some(period.into()).into();
    }

    /// Pins the container to these CPUs, for instance `0-3,8`.
    fn cpus(resources, cpus: &str) {
        cpus.clone_into(&mut resources.cpu.mut_or_insert_default().cpus);
    }

    /// Pins the container's memory to these NUMA nodes, for instance `0`.
    fn mems(resources, mems: &str) {
        mems.clone_into(&mut resources.cpu.mut_or_insert_default().mems);
    }

    /// Limits the container's memory, in bytes; a negative value removes the limit.
    fn memory_limit(resources, bytes: i64) {
        resources.memory.mut_or_insert_default().limit = Some(bytes.into()).into();
    }

    /// Reserves memory, in bytes, for the container when the node runs short.
    fn memory_reservation(resources, bytes: i64) {
        resources.memory.mut_or_insert_default().reservation = Some(bytes.into()).into();
    }

    /// Limits memory and swap together, in bytes.
    fn memory_and_swap(resources, bytes: i64) {
        resources.memory.mut_or_insert_default().swap = Some(bytes.into()).into();
    }

    /// Limits huge pages of a size such as `2MB`, in bytes.
    fn hugepages(resources, page_size: &str, limit: u64) {
        resources.hugepage_limits.push(api::HugepageLimit {
            page_size: page_size.to_owned(),
            limit,
            ..Default::default()
        });
    }

    /// Limits the number of the container's processes and threads.
    fn pids_limit(resources, limit: i64) {
        resources.pids.mut_or_insert_default().limit = limit;
    }

    /// Assigns the container to a class of block I/O that the runtime's configuration defines.
    fn blockio_class(resources, class: &str) {
        resources.blockio_class = Some(class.to_owned().into()).into();
    }

    /// Assigns the container to a class of Intel RDT.
    fn rdt_class(resources, class: &str) {
        resources.rdt_class = Some(class.to_owned().into()).into();
    }

    /// Writes `value` to a file of the container's cgroup v2, such as `memory.high`.
    fn unified(resources, file: &str, value: &str) {
        resources.unified.insert(file.to_owned(), value.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_has_its_container_and_every_value() {
        let update =
            Update::of("c0").cpu_shares(512).memory_limit(1 << 30).unified("pids.max", "9");
        let message = api::ContainerUpdate::from(update.clone().ignore_failure());
        assert!(message.ignore_failure && message.container_id == "c0");
        let resources = &message.linux.resources;
        assert_eq!(resources.cpu.shares.value, 512);
        assert_eq!(resources.memory.limit.value, 1 << 30);
        assert_eq!(resources.unified["pids.max"], "9");
        assert!(!api::ContainerUpdate::from(update).ignore_failure);
    }

    #[test]
    fn unset_resources_stay_absent() {
        let resources = api::LinuxResources::from(Resources::new().cpus("0-1"));
        assert!(resources.memory.is_none() && resources.cpu.shares.is_none());
        assert_eq!((resources.cpu.cpus.as_str(), resources.cpu.mems.as_str()), ("0-1", ""));
        assert_eq!(api::LinuxResources::from(Resources::new()), api::LinuxResources::default());
    }
}
