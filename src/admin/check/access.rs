// SPDX-License-Identifier: Apache-2.0
//! The rows of `check` about who can be a plugin: a plugin can run anything as root in any container.
//! They report settings that open the plugin socket to users other than root; a socket directory, plugin
//! directories and plugin programs that others can write; containers that can connect; `exe:` origins;
//! and recently refused connections.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::plugins::RECENT_NANOS;
use super::{Daemon, Finding, finding, warning};
use crate::answers::{RefusedConnections, SocketMount, SocketMounts};
use crate::clock;
use crate::config::{Config, PluginOrigin};
use crate::plugin::discover;
use crate::text::{counted, first_of};

pub(super) const SOCKET: &str = "plugin socket";
const INSTALLED: &str = "pre-installed plugins";

pub(super) fn rows(config: &Config, running: &Daemon) -> Vec<Finding> {
    let mut rows = Vec::new();
    if !config.disable_connections {
        rows.extend(socket_folder(config));
        rows.extend(widened(config));
        rows.extend(mounted(running));
        rows.extend(programs(config));
    }
    rows.extend(refused(running));
    rows.extend(installed(config));
    rows
}

/// Checks the socket's directory: users who can write to it can replace the socket.
fn socket_folder(config: &Config) -> Option<Finding> {
    let folder = config.socket_path.parent()?;
    let there = folder.metadata().ok()?;
    if let Some((what, hint)) = written_by_others(folder, &there, "700") {
        let detail = format!("{what}: they can put another socket in the place of nri-runc's");
        return Some(finding(SOCKET, false, detail, &hint));
    }
    // Only a directory `nri` whose socket is root's must be closed: all users enter /run, and users who may
    // connect must be able to enter the socket's directory.
    let is_own = folder.file_name().is_some_and(|name| name == "nri");
    let is_own = is_own && config.socket_mode & 0o077 == 0;
    let mode = there.mode() & 0o7777;
    (is_own && mode & 0o077 != 0).then(|| {
        let shown = folder.display();
        let detail = format!("{shown} may be entered by others (mode {mode:04o})");
        warning(SOCKET, detail, &format!("chmod 700 {shown}"))
    })
}

/// Returns how other users can write to the file, and the command that prevents it; `None` if no other user can.
fn written_by_others(
    path: &Path,
    there: &std::fs::Metadata,
    mode: &str,
) -> Option<(String, String)> {
    let (shown, own) = (path.display(), nix::unistd::geteuid().as_raw());
    if ![0, own].contains(&there.uid()) {
        let what = format!("{shown} belongs to user {}", there.uid());
        return Some((what, format!("chown {own} {shown}")));
    }
    let bits = there.mode() & 0o7777;
    // Members of group 0 are trusted like root.
    let others = if there.gid() == 0 { 0o002 } else { 0o022 };
    (bits & others != 0).then(|| {
        let what = format!("{shown} is writable by others (mode {bits:04o})");
        (what, format!("chmod {mode} {shown}"))
    })
}

/// Reports settings that let users other than root, and other than this process's user, connect.
fn widened(config: &Config) -> Vec<Finding> {
    let mut rows = Vec::new();
    let mode = config.socket_mode;
    if mode & 0o077 != 0 {
        let who = match config.socket_gid {
            _ if mode & 0o006 != 0 => "every user".to_owned(),
            Some(group) => format!("group {group}"),
            None => "its group".to_owned(),
        };
        let detail = format!("nri.socket_mode {mode:04o} opens the socket to {who}");
        rows.push(warning(
            SOCKET,
            detail,
            "set nri.socket_mode to \"0600\", unless they may be root",
        ));
    }
    if let Some(group) = config.socket_gid.filter(|group| *group != 0) {
        let detail = format!("nri.socket_gid gives the socket to group {group}");
        rows.push(warning(SOCKET, detail, "remove nri.socket_gid, unless its members may be root"));
    }
    // The owner of a rootless daemon gains no rights by connecting as a plugin.
    let own = nix::unistd::geteuid().as_raw();
    let users = config
        .allowed_uids
        .iter()
        .filter(|uid| **uid != 0 && **uid != own)
        .map(ToString::to_string);
    let users: Vec<String> = users.collect();
    if !users.is_empty() {
        let detail = format!(
            "nri.allowed_uids lets user {} be a plugin, which can run anything as root in any container",
            first_of(&users)
        );
        let hint = "set nri.allowed_uids to [0], unless these users may be root";
        rows.push(warning(SOCKET, detail, hint));
    }
    rows
}

/// Reports containers that can connect to the socket, in pods without a connected plugin.
fn mounted(running: &Daemon) -> Option<Finding> {
    let SocketMounts { count, containers } = &running.socket_mounts;
    let named =
        containers.iter().map(|SocketMount { namespace, pod, container, source, .. }| {
            format!("{namespace}/{pod} (container {container}, {source})")
        });
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        return None;
    }
    let detail = format!(
        "{} can connect as a plugin, since the socket is mounted there: {}",
        counted(*count, "container"),
        first_of(&named)
    );
    let hint = "remove the mount from the pod, or set `from` in [plugin.\"*\"]";
    Some(warning(SOCKET, crate::error::quoted(&detail), hint))
}

/// Reports `from` origins that name a program, which another process of the same user can evade.
fn programs(config: &Config) -> Option<Finding> {
    let is_program = |origin: &PluginOrigin| matches!(origin, PluginOrigin::Program(_));
    let named = config.plugins.iter().filter(|(_, section)| {
        section.from.as_ref().is_some_and(|origins| origins.iter().any(is_program))
    });
    let names: Vec<String> = named.map(|(name, _)| format!("plugin.{name}.from")).collect();
    let detail = format!(
        "{}: an exe: origin prevents only mistakes; another process of an allowed user can bypass it (docs/rules.md)",
        first_of(&names)
    );
    (!names.is_empty()).then(|| finding("plugin origins", true, detail, ""))
}

/// Reports recently refused connections, one row per reason.
fn refused(running: &Daemon) -> Vec<Finding> {
    let now = clock::now();
    let is_recent = |row: &&RefusedConnections| now.saturating_sub(row.at) < RECENT_NANOS;
    let all = running.status.iter().flat_map(|status| &status.refused_connections);
    let rows = all.filter(is_recent).filter_map(|row| {
        let hint = match row.why.as_str() {
            "user" => "run it as root; allow its user only if that user may be root on this node (nri.allowed_uids)",
            "from" => "start it where [plugin.NAME] from says, or change from",
            "pre-installed" => "stop that process, or remove the file",
            "full" => "end plugins that are not needed, or give this one a section [plugin.NAME]",
            "crowded" => "stop the process that connects so often, or remove the socket's mount from its pod",
            _ => return None,
        };
        let detail = format!("{} refused; the last: {}", row.count, row.last);
        Some(warning("plugin connections", detail, hint))
    });
    rows.collect()
}

/// Checks directories and files of pre-installed plugins, which run as root.
fn installed(config: &Config) -> Vec<Finding> {
    let (found, _) = discover(&config.plugin_path, &config.plugin_config_path);
    let folders = [&config.plugin_path, &config.plugin_config_path].map(|path| (path, "755"));
    let files = found.iter().map(|file| (&file.path, "go-w"));
    let all = folders.into_iter().chain(files);
    let rows = all.filter_map(|(path, mode)| {
        let (what, hint) = written_by_others(path, &path.metadata().ok()?, mode)?;
        let detail = format!("{what}: what they put there runs as root");
        Some(finding(INSTALLED, false, detail, &hint))
    });
    rows.collect()
}
