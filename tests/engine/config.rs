// SPDX-License-Identifier: Apache-2.0
//! Configurations of containerd 2.x in its own versions, 3 and 4, with a network that is nothing
//! but an address (a CNI plugin of three lines) and devices of CDI.

use std::path::Path;

/// What a containerd is to be.
pub(super) struct Wanted<'a> {
    pub(super) version: u8,
    /// What its shims call: each runtime by its handler, the first is the default.
    pub(super) handlers: &'a [(&'a str, Passes)],
    pub(super) runtime: &'a Path,
    /// Whether its own NRI is on, on `own.sock`.
    pub(super) has_nri: bool,
}

/// Which annotations reach the runtime.
#[derive(Clone, Copy)]
pub(super) enum Passes {
    All,
    None,
}

/// The text of `containerd.toml`; what it names is written beside it.
pub(super) fn containerd(dir: &Path, wanted: &Wanted<'_>) -> String {
    write_network(dir);
    write_devices(dir);
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
        "    [{entry}]\n      runtime_type = \"io.containerd.runc.v2\"\n{annotations}      [{entry}.options]\n        BinaryName = \"{}\"\n        Root = \"{}/runc\"\n",
        binary.display(),
        dir.display()
    )
}

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    nri_runc::testing::files::replace(path, text.as_bytes()).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, mode).unwrap();
}

/// A network that only says that there is an address.
fn write_network(dir: &Path) {
    let plugin = r#"#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
ADD) echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "'"$CNI_IFNAME"'", "sandbox": "'"$CNI_NETNS"'"}], "ips": [{"address": "10.88.0.7/16", "interface": 0}]}' ;;
esac
"#;
    write(&dir.join("cni-bin/addressed"), plugin, 0o755);
    let list =
        r#"{"cniVersion": "1.0.0", "name": "addressed", "plugins": [{"type": "addressed"}]}"#;
    write(&dir.join("cni/10-addressed.conflist"), list, 0o644);
}

/// One CDI device: a device node and a variable.
fn write_devices(dir: &Path) {
    let spec = r#"{"cdiVersion": "0.6.0", "kind": "example.org/card", "devices": [{"name": "one",
"containerEdits": {"env": ["CARD=one"], "deviceNodes": [{"path": "/dev/card", "hostPath": "/dev/zero"}]}}]}"#;
    write(&dir.join("cdi/card.json"), spec, 0o644);
}
