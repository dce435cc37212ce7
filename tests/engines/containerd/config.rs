// SPDX-License-Identifier: Apache-2.0
//! Configurations of containerd 2.x in its config versions 3 and 4.

use std::path::Path;

use test_support::cri::node;

/// The properties of a containerd's configuration.
pub(super) struct Wanted<'a> {
    pub(super) version: u8,
    /// The programs that its shims call: each runtime by its handler, the first is the default.
    pub(super) handlers: &'a [(&'a str, Passes)],
    pub(super) runtime: &'a Path,
    /// Whether its own NRI is on, at `own.sock`.
    pub(super) has_nri: bool,
}

/// The annotations that reach the runtime.
#[derive(Clone, Copy)]
pub(super) enum Passes {
    All,
    None,
}

/// The text of `containerd.toml`; the files that it names are written beside it.
pub(super) fn containerd(dir: &Path, wanted: &Wanted<'_>) -> String {
    node::write_network(&dir.join("cni"), &dir.join("cni-bin"));
    node::write_devices(&dir.join("cdi"));
    let (version, has_no_nri) = (wanted.version, !wanted.has_nri);
    let name = wanted.handlers.first().map_or("runc", |(name, _)| name);
    let runtimes: String = wanted
        .handlers
        .iter()
        .map(|(name, passes)| runtime(dir, name, *passes, wanted.runtime))
        .collect();
    let sockets = sockets(dir, version);
    let dir = dir.display();
    format!(
        r#"version = {version}
root = "{dir}/root"
state = "{dir}/state"
imports = ["{dir}/conf.d/*.toml"]
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
{sockets}
[plugins."io.containerd.nri.v1.nri"]
  disable = {has_no_nri}
  socket_path = "{dir}/own.sock"
  plugin_path = "{dir}/none"
  plugin_config_path = "{dir}/none"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  use_local_image_pull = true
  pinned_images = {{ sandbox = "localhost/busybox:1" }}
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_port = "0"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = ["{dir}/cdi"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    conf_dir = "{dir}/cni"
    bin_dirs = ["{dir}/cni-bin"]
    use_internal_loopback = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "{name}"
{runtimes}"#
    )
}

/// From version 4 on sockets are plugins too.
fn sockets(dir: &Path, version: u8) -> String {
    let dir = dir.display();
    let name = |kind: &str| match version {
        4.. => format!("plugins.\"io.containerd.server.v1.{kind}\""),
        _ => kind.to_owned(),
    };
    format!(
        "[{}]\n  address = \"{dir}/containerd.sock\"\n[{}]\n  address = \"{dir}/containerd.sock.ttrpc\"",
        name("grpc"),
        name("ttrpc")
    )
}

fn runtime(dir: &Path, name: &str, passes: Passes, binary: &Path) -> String {
    let entry = format!("plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.{name}");
    let annotations = match passes {
        Passes::All => {
            "      pod_annotations = [\"*\", \"*/*\"]\n      container_annotations = [\"*\", \"*/*\"]\n"
        }
        Passes::None => "",
    };
    format!(
        "    [{entry}]\n      runtime_type = \"io.containerd.runc.v2\"\n{annotations}      [{entry}.options]\n        BinaryName = \"{}\"\n        Root = \"{}/runc\"\n        SystemdCgroup = {}\n",
        binary.display(),
        dir.display(),
        test_support::cgroup::has_systemd()
    )
}
