// SPDX-License-Identifier: Apache-2.0
//! Objects of an engine's node: a network that is only an address (a CNI plugin of three lines),
//! and CDI devices.

use std::path::Path;

use crate::program::put_with;

/// Writes a network that only reports an address.
pub fn write_network(configurations: &Path, plugins: &Path) {
    let plugin = r#"#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
ADD) echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "'"$CNI_IFNAME"'", "sandbox": "'"$CNI_NETNS"'"}], "ips": [{"address": "10.88.0.7/16", "interface": 0}]}' ;;
esac
"#;
    put_with(&plugins.join("addressed"), plugin, 0o755);
    let list =
        r#"{"cniVersion": "1.0.0", "name": "addressed", "plugins": [{"type": "addressed"}]}"#;
    put_with(&configurations.join("10-addressed.conflist"), list, 0o644);
}

/// Writes one CDI device: a device node and a variable.
pub fn write_devices(specs: &Path) {
    let spec = r#"{"cdiVersion": "0.6.0", "kind": "example.org/card", "devices": [{"name": "one",
"containerEdits": {"env": ["CARD=one"], "deviceNodes": [{"path": "/dev/card", "hostPath": "/dev/zero"}]}}]}"#;
    put_with(&specs.join("card.json"), spec, 0o644);
}
