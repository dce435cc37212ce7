// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: network interfaces of the node for containers, by annotation of the pod.
//!
//! ```text
//! cargo run -p network-device-injector                         # by hand, or installed:
//! cp target/debug/network-device-injector /opt/nri/plugins/10-network-device-injector
//! ```
//!
//! The annotation is a list in JSON, for one container
//! (`netdevices.noderesource.dev/container.NAME`) or all of the pod (`…/pod`, or no suffix). `name`
//! is the interface's name inside the container; by default its name on the node:
//!
//! ```yaml
//! netdevices.noderesource.dev/container.router: '[{"device": "ens4", "name": "uplink"}]'
//! ```
//!
//! The runtime moves each interface into the network namespace of the container (OCI runtime
//! specification 1.3, runc 1.4 and later), and the kernel returns a physical interface to the node
//! when that namespace ends. An invalid name, and a name that is requested twice, refuse the
//! container.

use std::collections::HashMap;

use nri_plugin::{Context, Event, Handler, api, async_trait};
use serde::Deserialize;

const KEY: &str = "netdevices.noderesource.dev";

/// The longest name of an interface, without the byte that ends it (IFNAMSIZ).
const LONGEST_NAME: usize = 15;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkDevice {
    device: String,
    name: Option<String>,
}

/// Whether an interface can have this name (dev_valid_name of the kernel).
fn is_interface_name(name: &str) -> bool {
    let is_usual = |c: char| !c.is_whitespace() && c != '/' && c != ':';
    !["", ".", ".."].contains(&name) && name.len() <= LONGEST_NAME && name.chars().all(is_usual)
}

fn devices(text: &str) -> nri_plugin::Result<HashMap<String, api::LinuxNetDevice>> {
    let mut devices = HashMap::new();
    for NetworkDevice { device, name } in serde_json::from_str::<Vec<NetworkDevice>>(text)? {
        let name = name.unwrap_or_else(|| device.clone());
        for name in [&device, &name] {
            if !is_interface_name(name) {
                return Err(format!("{name:?} is not a name of a network interface").into());
            }
        }
        if devices.values().any(|other: &api::LinuxNetDevice| other.name == name) {
            return Err(format!("two interfaces would be called {name}").into());
        }
        let message = api::LinuxNetDevice { name, ..Default::default() };
        if devices.insert(device.clone(), message).is_some() {
            return Err(format!("{device} is asked for twice").into());
        }
    }
    Ok(devices)
}

struct NetworkDeviceInjector;

#[async_trait]
impl Handler for NetworkDeviceInjector {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        let found = nri_plugin::annotation(&request.pod, &request.container.name, KEY);
        let Some((key, text)) = found else { return Ok(api::CreateContainerResponse::default()) };
        let net_devices = devices(text).map_err(|error| format!("{key}: {error}"))?;
        let linux = api::LinuxContainerAdjustment { net_devices, ..Default::default() };
        Ok(api::ContainerAdjustment { linux: Some(linux).into(), ..Default::default() }.into())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("10-network-device-injector", NetworkDeviceInjector)
}
