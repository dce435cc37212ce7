// SPDX-License-Identifier: Apache-2.0
//! Answers as builders: the adjustment of a container that is being created, and updates of existing ones. Each
//! converts with `into()` to the messages that may contain it, and to no other. Values are not checked.

use nri_api as api;

use crate::resources::{Resources, Update};

/// An adjustment of the container that is being created, the answer to CreateContainer.
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use = "it changes nothing until a handler returns it"]
pub struct Adjustment(api::CreateContainerResponse);

impl Adjustment {
    /// Creates an adjustment without changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Edits the protocol's message, for fields without a method of this type.
    pub fn edit(mut self, edit: impl FnOnce(&mut api::ContainerAdjustment)) -> Self {
        edit(self.0.adjust.mut_or_insert_default());
        self
    }

    fn edit_linux(self, edit: impl FnOnce(&mut api::LinuxContainerAdjustment)) -> Self {
        self.edit(|adjust| edit(adjust.linux.mut_or_insert_default()))
    }

    /// Sets an environment variable.
    pub fn env(self, name: &str, value: &str) -> Self {
        self.edit(|adjust| {
            adjust.env.retain(|variable| variable.key != name);
            let (key, value) = (name.to_owned(), value.to_owned());
            adjust.env.push(api::KeyValue { key, value, ..Default::default() });
        })
    }

    /// Removes an environment variable.
    pub fn remove_env(self, name: &str) -> Self {
        self.env(&removed(name), "")
    }

    /// Sets an annotation.
    pub fn annotation(self, key: &str, value: &str) -> Self {
        self.edit(|adjust| {
            adjust.annotations.insert(key.to_owned(), value.to_owned());
        })
    }

    /// Removes an annotation.
    pub fn remove_annotation(self, key: &str) -> Self {
        self.annotation(&removed(key), "")
    }

    /// Replaces the command line.
    pub fn args<S: Into<String>>(self, args: impl IntoIterator<Item = S>) -> Self {
        self.edit(|adjust| adjust.args = args.into_iter().map(Into::into).collect())
    }

    /// Adds a mount.
    pub fn mount(self, mount: Mount) -> Self {
        self.edit(|adjust| adjust.mounts.push(mount.0))
    }

    /// Removes the mount at `destination`.
    pub fn remove_mount(self, destination: &str) -> Self {
        let destination = removed(destination);
        self.edit(|adjust| adjust.mounts.push(api::Mount { destination, ..Default::default() }))
    }

    /// Adds a device node, and the permission to use it.
    pub fn device(self, device: Device) -> Self {
        self.edit_linux(|linux| linux.devices.push(device.0))
    }

    /// Removes the device node at `path`.
    pub fn remove_device(self, path: &str) -> Self {
        let path = removed(path);
        self.edit_linux(|linux| linux.devices.push(api::LinuxDevice { path, ..Default::default() }))
    }

    /// Adds a device of the Container Device Interface, such as `vendor.com/gpu=0`.
    pub fn cdi_device(self, name: &str) -> Self {
        let name = name.to_owned();
        self.edit(|adjust| adjust.CDI_devices.push(api::CDIDevice { name, ..Default::default() }))
    }

    /// Sets a resource limit of the container's processes, such as `RLIMIT_NOFILE`.
    pub fn rlimit(self, name: &str, soft: u64, hard: u64) -> Self {
        let type_ = name.to_owned();
        let limit = api::POSIXRlimit { type_, soft, hard, ..Default::default() };
        self.edit(|adjust| adjust.rlimits.push(limit))
    }

    /// Sets a kernel parameter of the container's namespaces, such as `net.core.somaxconn`.
    pub fn sysctl(self, name: &str, value: &str) -> Self {
        self.edit_linux(|linux| {
            linux.sysctl.insert(name.to_owned(), value.to_owned());
        })
    }

    /// Moves a network interface of the node into the container.
    pub fn net_device(self, on_node: &str, in_container: &str) -> Self {
        let name = in_container.to_owned();
        let device = api::LinuxNetDevice { name, ..Default::default() };
        self.edit_linux(|linux| {
            linux.net_devices.insert(on_node.to_owned(), device);
        })
    }

    /// Sets how likely the kernel kills the container when memory runs out, from -1000 to 1000.
    pub fn oom_score_adj(self, value: i64) -> Self {
        self.edit_linux(|linux| linux.oom_score_adj = Some(value.into()).into())
    }

    /// Sets the container's cgroup.
    pub fn cgroups_path(self, path: &str) -> Self {
        self.edit_linux(|linux| path.clone_into(&mut linux.cgroups_path))
    }

    /// Sets the container's resources. Replaces the resources of an earlier call.
    pub fn resources(self, resources: impl Into<Resources>) -> Self {
        self.edit_linux(|linux| linux.resources = Some(resources.into().into()).into())
    }

    /// Sets the OCI hooks to add to the container's hooks. Replaces the hooks of an earlier call.
    pub fn hooks(self, hooks: api::Hooks) -> Self {
        self.edit(|adjust| adjust.hooks = Some(hooks).into())
    }

    /// Updates another container together with this one's creation.
    pub fn update_other(mut self, update: Update) -> Self {
        self.0.update.push(update.into());
        self
    }

    /// Evicts another container.
    pub fn evict_other(mut self, container_id: &str, reason: &str) -> Self {
        self.0.evict.push(eviction(container_id, reason));
        self
    }
}

impl From<Adjustment> for api::CreateContainerResponse {
    fn from(adjustment: Adjustment) -> Self {
        adjustment.0
    }
}

/// Returns the protocol's mark for the removal of a key.
fn removed(key: &str) -> String {
    format!("-{key}")
}

fn eviction(container_id: &str, reason: &str) -> api::ContainerEviction {
    let (container_id, reason) = (container_id.to_owned(), reason.to_owned());
    api::ContainerEviction { container_id, reason, ..Default::default() }
}

/// A mount of an adjustment.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "it changes nothing until it is part of an adjustment"]
pub struct Mount(api::Mount);

impl Mount {
    /// Mounts a file or folder of the node at `destination`, writable.
    pub fn bind(source: &str, destination: &str) -> Self {
        Self::of("bind", source, destination).option("rbind")
    }

    /// Mounts an empty folder in memory (tmpfs) at `destination`.
    pub fn tmpfs(destination: &str) -> Self {
        Self::of("tmpfs", "tmpfs", destination)
    }

    /// Mounts `source`, a filesystem of the type `kind`, at `destination`.
    pub fn of(kind: &str, source: &str, destination: &str) -> Self {
        Self(api::Mount {
            destination: destination.to_owned(),
            type_: kind.to_owned(),
            source: source.to_owned(),
            ..Default::default()
        })
    }

    /// Makes the mount read-only.
    pub fn read_only(self) -> Self {
        self.option("ro")
    }

    /// Adds an option, such as `nosuid`.
    pub fn option(mut self, option: &str) -> Self {
        self.0.options.push(option.to_owned());
        self
    }
}

/// A device node of an adjustment.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "it changes nothing until it is part of an adjustment"]
pub struct Device(api::LinuxDevice);

impl Device {
    /// Creates a character device at this path in the container.
    pub fn character(path: &str, major: i64, minor: i64) -> Self {
        Self::of("c", path, major, minor)
    }

    /// Creates a block device at this path in the container.
    pub fn block(path: &str, major: i64, minor: i64) -> Self {
        Self::of("b", path, major, minor)
    }

    fn of(kind: &str, path: &str, major: i64, minor: i64) -> Self {
        let (path, type_) = (path.to_owned(), kind.to_owned());
        Self(api::LinuxDevice { path, type_, major, minor, ..Default::default() })
    }

    /// Sets the permissions of the device node, such as `0o660`.
    pub fn mode(mut self, mode: u32) -> Self {
        self.0.file_mode = Some(mode.into()).into();
        self
    }

    /// Sets the owner of the device node.
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.0.uid = Some(uid.into()).into();
        self.0.gid = Some(gid.into()).into();
        self
    }
}

/// Updates of containers, for the answer to Synchronize, UpdateContainer or StopContainer, or to
/// send unprompted.
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use = "it changes nothing until it is sent"]
pub struct Updates(Vec<api::ContainerUpdate>);

impl Updates {
    /// Creates an answer without updates.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an update.
    pub fn update(mut self, update: Update) -> Self {
        self.0.push(update.into());
        self
    }

    /// Adds an eviction; the result cannot answer Synchronize or StopContainer.
    pub fn evict(self, container_id: &str, reason: &str) -> UpdatesWithEvictions {
        UpdatesWithEvictions::from(self).evict(container_id, reason)
    }
}

impl From<Update> for Updates {
    fn from(update: Update) -> Self {
        Self::new().update(update)
    }
}

impl FromIterator<Update> for Updates {
    fn from_iter<I: IntoIterator<Item = Update>>(updates: I) -> Self {
        Self(updates.into_iter().map(Into::into).collect())
    }
}

impl From<Updates> for Vec<api::ContainerUpdate> {
    fn from(updates: Updates) -> Self {
        updates.0
    }
}

impl From<Updates> for api::StopContainerResponse {
    fn from(updates: Updates) -> Self {
        Self { update: updates.0, ..Default::default() }
    }
}

impl From<Updates> for api::UpdateContainerResponse {
    fn from(updates: Updates) -> Self {
        UpdatesWithEvictions::from(updates).into()
    }
}

/// Updates and evictions, for the answer to UpdateContainer, or to send unprompted.
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use = "it changes nothing until it is sent"]
pub struct UpdatesWithEvictions {
    updates: Updates,
    evictions: Vec<api::ContainerEviction>,
}

impl UpdatesWithEvictions {
    /// Adds an update.
    pub fn update(mut self, update: Update) -> Self {
        self.updates = self.updates.update(update);
        self
    }

    /// Adds an eviction.
    pub fn evict(mut self, container_id: &str, reason: &str) -> Self {
        self.evictions.push(eviction(container_id, reason));
        self
    }
}

impl From<Updates> for UpdatesWithEvictions {
    fn from(updates: Updates) -> Self {
        Self { updates, evictions: Vec::new() }
    }
}

impl From<Update> for UpdatesWithEvictions {
    fn from(update: Update) -> Self {
        Updates::from(update).into()
    }
}

impl From<UpdatesWithEvictions> for api::UpdateContainerResponse {
    fn from(answer: UpdatesWithEvictions) -> Self {
        Self { update: answer.updates.0, evict: answer.evictions, ..Default::default() }
    }
}

impl From<UpdatesWithEvictions> for api::UpdateContainersRequest {
    fn from(answer: UpdatesWithEvictions) -> Self {
        Self { update: answer.updates.0, evict: answer.evictions, ..Default::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adjust(adjustment: Adjustment) -> api::ContainerAdjustment {
        api::CreateContainerResponse::from(adjustment).adjust.unwrap()
    }

    #[test]
    fn each_setter_fills_its_field() {
        let made = adjust(
            Adjustment::new()
                .env("A", "1")
                .annotation("k", "v")
                .args(["/bin/true", "x"])
                .mount(Mount::bind("/src", "/dst").read_only())
                .device(Device::character("/dev/fuse", 10, 229).mode(0o666).owner(1, 2))
                .cdi_device("vendor.com/gpu=0")
                .rlimit("RLIMIT_NOFILE", 1, 2)
                .sysctl("net.core.somaxconn", "9")
                .net_device("eth1", "net0")
                .oom_score_adj(-5)
                .cgroups_path("/x")
                .resources(Resources::new().cpu_quota(50_000, 100_000)),
        );
        assert_eq!((made.env[0].key.as_str(), made.env[0].value.as_str()), ("A", "1"));
        assert_eq!((made.annotations["k"].as_str(), made.args.len()), ("v", 2));
        assert_eq!(made.mounts[0].options, ["rbind", "ro"]);
        let device = &made.linux.devices[0];
        assert_eq!((device.type_.as_str(), device.major, device.minor), ("c", 10, 229));
        assert_eq!((device.file_mode.value, device.uid.value, device.gid.value), (0o666, 1, 2));
        assert_eq!(made.CDI_devices[0].name, "vendor.com/gpu=0");
        assert_eq!((made.rlimits[0].soft, made.rlimits[0].hard), (1, 2));
        assert_eq!(made.linux.sysctl["net.core.somaxconn"], "9");
        assert_eq!(made.linux.net_devices["eth1"].name, "net0");
        assert_eq!((made.linux.oom_score_adj.value, made.linux.cgroups_path.as_str()), (-5, "/x"));
        assert_eq!(made.linux.resources.cpu.period.value, 100_000);
    }

    #[test]
    fn removals_carry_the_mark_of_the_protocol() {
        let removals = Adjustment::new().remove_env("A").remove_annotation("k").remove_mount("/m");
        let made = adjust(removals.remove_device("/dev/x"));
        assert_eq!((made.env[0].key.as_str(), made.mounts[0].destination.as_str()), ("-A", "-/m"));
        assert!(made.annotations.contains_key("-k"));
        assert_eq!(made.linux.devices[0].path, "-/dev/x");
    }

    #[test]
    fn a_variable_that_is_set_twice_has_the_last_value() {
        let made = adjust(Adjustment::new().env("A", "1").env("B", "2").env("A", "3"));
        let pairs: Vec<_> =
            made.env.iter().map(|it| (it.key.as_str(), it.value.as_str())).collect();
        assert_eq!(pairs, [("B", "2"), ("A", "3")]);
    }

    #[test]
    fn no_change_is_an_empty_answer() {
        let empty = api::CreateContainerResponse::default();
        assert_eq!(api::CreateContainerResponse::from(Adjustment::new()), empty);
        assert!(Vec::<api::ContainerUpdate>::from(Updates::new()).is_empty());
    }

    #[test]
    fn updates_and_evictions_convert_to_each_response_type() {
        let updates = Updates::from(Update::of("a").cpu_shares(2));
        assert_eq!(api::StopContainerResponse::from(updates.clone()).update.len(), 1);
        assert_eq!(api::UpdateContainerResponse::from(updates.clone()).update.len(), 1);
        let both = updates.evict("b", "too large").update(Update::of("c").pids_limit(5));
        let request = api::UpdateContainersRequest::from(both);
        assert_eq!((request.update.len(), request.evict[0].reason.as_str()), (2, "too large"));
        let other = Adjustment::new().update_other(Update::of("d").cpus("0")).evict_other("e", "");
        let response = api::CreateContainerResponse::from(other);
        assert_eq!((response.update.len(), response.evict.len()), (1, 1));
    }
}
