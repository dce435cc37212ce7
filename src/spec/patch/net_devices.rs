// SPDX-License-Identifier: Apache-2.0
//! Adds and removes network devices that move from the host into the container.
//!
//! Only names are checked, because the runtime reports a missing device or network namespace.
//! Reference: NRI `AdjustLinuxNetDevices`, except for BUG-G1 and BUG-G12; OCI `config-linux.md`.

use std::collections::HashMap;

use serde_json::Value;

use super::{Patch, PatchError, Result, object_of, patch_map, wanted_by_key};
use crate::error::quoted;
use crate::plugin::api;

/// Maximum length of a network device's name in bytes, without the final NUL.
const LONGEST: usize = 15;

/// Applies the adjustment's network devices: a `-name` removes, anything else sets.
pub(super) fn patch(
    patch: &mut Patch<'_, '_>,
    devices: &HashMap<String, api::LinuxNetDevice>,
) -> Result<()> {
    if devices.is_empty() {
        return Ok(());
    }
    let wanted = wanted_by_key(devices, device_value);
    for (host_name, device) in &wanted {
        let name = device.as_ref().and_then(|device| device.get("name")).and_then(Value::as_str);
        let odd = [Some(*host_name), name].into_iter().flatten().find(|name| !is_name(name));
        if let Some(odd) = odd {
            let field = format!("LinuxNetDevices[{host_name}]");
            let problem = format!("\"{}\" is not the name of a network device", quoted(odd));
            return Err(PatchError::invalid(field, problem));
        }
    }
    let mut taken: HashMap<&str, &str> = HashMap::new();
    for (host_name, device) in &wanted {
        let Some(device) = device else { continue };
        let name = device.get("name").and_then(Value::as_str).unwrap_or(host_name);
        if let Some(other) = taken.insert(name, host_name) {
            let field = format!("LinuxNetDevices[{host_name}]");
            let problem =
                format!("{} is already \"{}\" in the container", quoted(other), quoted(name));
            return Err(PatchError::invalid(field, problem));
        }
    }
    let object = patch.root.object("linux")?.map("netDevices")?;
    patch_map(object, &wanted, ("linux.netDevices", "LinuxNetDevices"), &mut patch.changes)
}

/// Builds the device's entry; without a name the device keeps its name on the host.
fn device_value(device: &api::LinuxNetDevice) -> Value {
    let api::LinuxNetDevice { name, special_fields: _ } = device;
    object_of([("name", name.as_str().into())])
}

/// Whether the kernel accepts the name. `%` is refused too, because the kernel would replace it
/// with a number.
fn is_name(name: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '%');
    !matches!(name, "" | "." | "..") && name.len() <= LONGEST && !name.chars().any(is_odd)
}
