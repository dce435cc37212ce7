// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: devices, mounts and CDI devices for containers, by annotation of the pod.
//!
//! ```text
//! cargo run -p device-injector -- --socket /var/run/nri/nri.sock     # or installed:
//! cp target/debug/device-injector /opt/nri/plugins/10-device-injector
//! ```
//!
//! Each annotation is a list in JSON, for one container (`KEY/container.NAME`) or, without that,
//! for all of the pod (`KEY/pod` or `KEY`):
//!
//! ```yaml
//! devices.noderesource.dev/container.web: |
//!   [{"path": "/dev/null2", "type": "c", "major": 1, "minor": 3, "file_mode": 438}]
//! mounts.noderesource.dev/pod: |
//!   [{"source": "/srv/data", "destination": "/data", "type": "bind", "options": ["bind", "ro"]}]
//! cdi-devices.noderesource.dev: '["vendor.com/device=one"]'
//! ```
//!
//! A device without `major` and `minor` has the numbers of the node's device at that path; `uid`,
//! `gid` and `file_mode` (decimal, JSON knows no other) may be left out. An invalid value refuses
//! the container.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use nri_plugin::{Context, Event, Handler, api, async_trait};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    path: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    major: Option<i64>,
    minor: Option<i64>,
    file_mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mount {
    source: String,
    destination: String,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    options: Vec<String>,
}

impl Device {
    fn message(self) -> nri_plugin::Result<api::LinuxDevice> {
        let (kind, major, minor) = match (self.major, self.minor) {
            (Some(major), Some(minor)) => (self.kind.unwrap_or_else(|| "c".into()), major, minor),
            (None, None) => on_this_node(&self.path)?,
            _ => return Err(format!("{} has one of major and minor only", self.path).into()),
        };
        Ok(api::LinuxDevice {
            path: self.path,
            type_: kind,
            major,
            minor,
            file_mode: self.file_mode.map(Into::into).into(),
            uid: self.uid.map(Into::into).into(),
            gid: self.gid.map(Into::into).into(),
            ..Default::default()
        })
    }
}

/// Kind, major and minor number of the node's own device.
fn on_this_node(path: &str) -> nri_plugin::Result<(String, i64, i64)> {
    let meta = std::fs::metadata(path).map_err(|error| format!("looking at {path}: {error}"))?;
    let kind = match meta.file_type() {
        kind if kind.is_char_device() => "c",
        kind if kind.is_block_device() => "b",
        _ => return Err(format!("{path} is no device on this node").into()),
    };
    let device = meta.rdev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    Ok((kind.to_owned(), i64::try_from(major)?, i64::try_from(minor)?))
}

impl Mount {
    fn message(self) -> api::Mount {
        let Self { source, destination, kind: type_, options } = self;
        api::Mount { source, destination, type_, options, ..Default::default() }
    }
}

/// The list in the annotation `stem.noderesource.dev` for the container.
fn list<T: DeserializeOwned>(
    request: &api::CreateContainerRequest,
    stem: &str,
) -> nri_plugin::Result<Vec<T>> {
    let key = format!("{stem}.noderesource.dev");
    match nri_plugin::annotation(&request.pod, &request.container.name, &key) {
        Some((_, text)) if text.trim().is_empty() => Ok(Vec::new()),
        Some((key, text)) => serde_json::from_str(text).map_err(|e| format!("{key}: {e}").into()),
        None => Ok(Vec::new()),
    }
}

struct DeviceInjector;

#[async_trait]
impl Handler for DeviceInjector {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        let devices = list::<Device>(&request, "devices")?.into_iter().map(Device::message);
        let linux = api::LinuxContainerAdjustment {
            devices: devices.collect::<nri_plugin::Result<_>>()?,
            ..Default::default()
        };
        let mounts = list::<Mount>(&request, "mounts")?.into_iter().map(Mount::message);
        let cdi = list::<String>(&request, "cdi-devices")?.into_iter();
        let cdi = cdi.map(|name| api::CDIDevice { name, ..Default::default() });
        let adjust = api::ContainerAdjustment {
            linux: Some(linux).into(),
            mounts: mounts.collect(),
            CDI_devices: cdi.collect(),
            ..Default::default()
        };
        Ok(adjust.into())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("10-device-injector", DeviceInjector)
}
