// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: a writable `/sys/fs/cgroup`, by annotation of the pod, for containers that divide their own
//! cgroup, such as systemd or a nested runtime.
//!
//! ```text
//! cp target/debug/writable-cgroups /opt/nri/plugins/20-writable-cgroups
//! echo '{"namespaces": ["build"]}' >/etc/nri/conf.d/20-writable-cgroups.conf
//! ```
//!
//! The annotation is for one container, or for all of the pod:
//!
//! ```yaml
//! cgroups.noderesource.dev/writable.container.web: "true"
//! cgroups.noderesource.dev/writable: "true"
//! ```
//!
//! A tenant may write it, so the configuration lists the namespaces that may use it; `*` is every namespace. A
//! container that requests a writable cgroup and may not have it is refused. That is also so:
//!
//! * if the node has cgroup v1, alone or beside v2, or cgroup v2 without the mount option `nsdelegate`: the container
//!   could raise its own limits,
//! * if the container has no cgroup namespace of its own: it would see the cgroups of the node.
//!
//! `nsdelegate` is an option of the whole node, so each mount of cgroup v2 shows it, in a container too. `"mountinfo":
//! FILE` names another table of mounts than the plugin's own.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use nri_plugin::{Adjustment, Context, Event, Handler, Mount, api, async_trait};
use serde::Deserialize;

const KEY: &str = "cgroups.noderesource.dev/writable";
const MOUNT: &str = "/sys/fs/cgroup";

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    namespaces: Vec<String>,
    #[serde(default = "own_mounts")]
    mountinfo: PathBuf,
}

fn own_mounts() -> PathBuf {
    "/proc/self/mountinfo".into()
}

/// Whether the pod requests it for this container; the narrower annotation takes precedence.
fn is_asked(pod: &api::PodSandbox, container: &str) -> nri_plugin::Result<bool> {
    let narrow = format!("{KEY}.container.{container}");
    for key in [narrow.as_str(), KEY] {
        if let Some(text) = pod.annotations.get(key) {
            let parsed = text.parse();
            return parsed
                .map_err(|_invalid| format!("{key}: {text:?} is neither true nor false").into());
        }
    }
    Ok(false)
}

/// Whether this table of mounts (proc_pid_mountinfo(5)) has only cgroup v2, with `nsdelegate`. With v1 beside it, v2 is
/// mounted elsewhere.
fn is_delegated(table: &str) -> bool {
    table.lines().any(|line| {
        let Some((of_mount, of_filesystem)) = line.split_once(" - ") else { return false };
        let mut rest = of_filesystem.split(' ');
        of_mount.split(' ').nth(4).is_some_and(|point| point == MOUNT)
            && rest.next() == Some("cgroup2")
            && rest.nth(1).is_some_and(|options| options.split(',').any(|o| o == "nsdelegate"))
    })
}

/// A namespace of another container or the node has a path.
fn has_own_cgroup_namespace(container: &api::Container) -> bool {
    let mut namespaces = container.linux.namespaces.iter();
    namespaces.any(|one| one.type_ == "cgroup" && one.path.is_empty())
}

impl Config {
    /// Why the container cannot have it.
    fn refusal(&self, pod: &api::PodSandbox, container: &api::Container) -> Option<String> {
        if !self.namespaces.iter().any(|one| one == "*" || *one == pod.namespace) {
            return Some(format!("the namespace {:?} may not use it", pod.namespace));
        }
        if !has_own_cgroup_namespace(container) {
            return Some("the container has no cgroup namespace of its own".to_owned());
        }
        why_undelegated(&self.mountinfo)
    }
}

/// Returns why cgroups are not delegated. The mounts are read for each container, because they may change.
fn why_undelegated(mountinfo: &Path) -> Option<String> {
    match std::fs::read_to_string(mountinfo) {
        Ok(table) if is_delegated(&table) => None,
        Ok(_) => Some("this node has no cgroup v2 with nsdelegate".to_owned()),
        Err(error) => Some(format!("reading {}: {error}", mountinfo.display())),
    }
}

/// The mount, writable; `None` if it is writable already.
fn writable(mount: &api::Mount) -> Option<Mount> {
    let is_read_only = mount.options.iter().any(|option| option == "ro");
    let kept = mount.options.iter().filter(|option| !["ro", "rw"].contains(&option.as_str()));
    let new = Mount::of(&mount.type_, &mount.source, &mount.destination);
    is_read_only.then(|| kept.fold(new, |new, option| new.option(option)).option("rw"))
}

#[derive(Default)]
struct WritableCgroups(RwLock<Config>);

#[async_trait]
impl Handler for WritableCgroups {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    async fn configure(
        &self,
        _: &Context,
        request: api::ConfigureRequest,
    ) -> nri_plugin::Result<()> {
        let config = serde_json::from_str(&request.config)
            .map_err(|error| format!("its configuration: {error}"))?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        let (pod, container) = (&request.pod, &request.container);
        if !is_asked(pod, &container.name)? {
            return Ok(api::CreateContainerResponse::default());
        }
        let config = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = config.refusal(pod, container) {
            return Err(format!("{KEY}: {why}").into());
        }
        let mount = container.mounts.iter().find(|mount| mount.destination == MOUNT);
        let mount = mount.ok_or_else(|| format!("{KEY}: the container has no {MOUNT}"))?;
        let adjustment =
            writable(mount).map(|new| Adjustment::new().remove_mount(MOUNT).mount(new));
        Ok(adjustment.unwrap_or_default().into())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("20-writable-cgroups", WritableCgroups::default())
}

#[cfg(test)]
mod tests;
