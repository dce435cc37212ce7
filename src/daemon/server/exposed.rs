// SPDX-License-Identifier: Apache-2.0
//! Finds containers that have the plugin socket mounted, for `check`: a process in them can act as a plugin, and a
//! plugin can change every container. A link to the socket inside a mounted folder is not detected.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::answers::{SocketMount, SocketMounts};
use crate::config::Config;
use crate::daemon::shared::{Daemon, messages};
use crate::limits;
use crate::plugin::api;
use crate::presence::IfThere;
use crate::state::{Container, Lifecycle};

/// Returns the containers with the socket, except those of pods that have a connected plugin.
pub(super) fn socket_mounts(daemon: &Daemon) -> SocketMounts {
    let (config, store) = (daemon.config(), daemon.records.read());
    // Without connections, or if every plugin must have an origin, the socket alone makes no process a plugin.
    if config.disable_connections || !config.plugin("", "").from.is_empty() {
        return SocketMounts::default();
    }
    let places = places(&config);
    let connected = daemon.registry.connected();
    let is_plugin = |pod: &(String, String)| {
        let peers = connected.iter().filter_map(|plugin| plugin.peer.as_ref());
        peers.into_iter().any(|peer| peer.facts.pod.as_ref() == Some(pod))
    };
    let lives = |container: &&Container| {
        !matches!(container.state, Lifecycle::Stopped | Lifecycle::Removed)
    };
    let mut rows = Vec::new();
    for container in store.containers().filter(lives) {
        let Some(source) = exposing(&messages::container(container), &config, &places) else {
            continue;
        };
        let pod = store.pod(&container.pod);
        let names = pod.map(|pod| (pod.namespace.clone(), pod.name.clone())).unwrap_or_default();
        if !is_plugin(&names) {
            let (id, container) = (container.key.id.clone(), container.name.clone());
            let (namespace, pod) = names;
            rows.push(SocketMount { id, namespace, pod, container, source });
        }
    }
    let count = rows.len();
    rows.truncate(limits::EXPOSED);
    SocketMounts { count, containers: rows }
}

/// Returns the paths by which a mount may name the socket or a folder above it.
fn places(config: &Config) -> BTreeSet<PathBuf> {
    let path = &config.socket_path;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let host = config.host();
    // For example, /var/run may be a link to /run.
    let real = host.path(folder).canonicalize().or_absent();
    let real = real.and_then(|real| Some(real.join(path.file_name()?)));
    let both = [Some(path.clone()), real].into_iter().flatten();
    both.flat_map(|path| path.ancestors().map(Path::to_owned).collect::<Vec<_>>()).collect()
}

/// Returns the source of the mount by which a container's process, as a permitted user, reaches the socket.
fn exposing(
    container: &api::Container,
    config: &Config,
    places: &BTreeSet<PathBuf>,
) -> Option<String> {
    let has_users = container.linux.namespaces.iter().any(|namespace| namespace.type_ == "user");
    if has_users || !config.allowed_uids.contains(&container.user.uid) {
        return None;
    }
    let is_bind = |mount: &&api::Mount| {
        mount.type_ == "bind" || mount.options.iter().any(|option| option.ends_with("bind"))
    };
    // `.` and empty parts are removed: "/a/./b" and "/a//b" are "/a/b".
    let cleaned = |source: &str| Path::new(source).components().collect::<PathBuf>();
    let mut mounts = container.mounts.iter().filter(is_bind);
    mounts.find(|mount| places.contains(&cleaned(&mount.source))).map(|mount| mount.source.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(source: &str, uid: u32) -> api::Container {
        let mount = api::Mount {
            source: source.to_owned(),
            type_: "bind".to_owned(),
            ..api::Mount::default()
        };
        let user = api::User { uid, ..api::User::default() };
        api::Container { mounts: vec![mount], user: Some(user).into(), ..api::Container::default() }
    }

    #[test]
    fn a_mount_of_the_socket_or_of_a_folder_above_it_exposes_it() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(dir.join("run/nri")).unwrap();
        std::os::unix::fs::symlink(dir.join("run"), dir.join("link")).unwrap();
        let config = Config { socket_path: dir.join("link/nri/nri.sock"), ..Config::default() };
        let places = places(&config);
        let is_exposed = |name: &str| {
            let source = dir.join(name).display().to_string();
            exposing(&mounts(&source, 0), &config, &places).is_some()
        };
        for source in ["link/nri/nri.sock", "run/nri", "run//nri/.", "run", "link", "", "/"] {
            assert!(is_exposed(source), "{source}");
        }
        for source in ["run/nri2", "run/nri/other", "elsewhere", "run/nri/nri.sock/x"] {
            assert!(!is_exposed(source), "{source}");
        }
    }

    #[test]
    fn a_mounted_socket_is_not_exposed_if_its_user_may_not_connect() {
        let config = Config { socket_path: "/run/nri/nri.sock".into(), ..Config::default() };
        let places = places(&config);
        let source = |container: &api::Container| exposing(container, &config, &places);
        assert_eq!(source(&mounts("/run/nri", 0)), Some("/run/nri".to_owned()));
        assert_eq!(source(&mounts("/run/nri", 65534)), None);
        let mut own_users = mounts("/run/nri", 0);
        let users = api::LinuxNamespace { type_: "user".to_owned(), ..Default::default() };
        own_users.linux.mut_or_insert_default().namespaces.push(users);
        assert_eq!(source(&own_users), None);
        let mut volume = mounts("/run/nri", 0);
        volume.mounts[0].type_ = "tmpfs".to_owned();
        assert_eq!(source(&volume), None);
    }
}
