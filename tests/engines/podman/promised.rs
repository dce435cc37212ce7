// SPDX-License-Identifier: Apache-2.0
//! A promise by a CDI device that Podman gives to a container, which its database names.

use test_support::Script;

use super::{installed, run, run_words};

const PROMISE: &str =
    "[[require]]\nname = \"card\"\nplugin = \"card\"\ncdi = [\"example.org/card=*\"]\n";

#[test]
fn a_container_of_podman_with_the_cdi_device_needs_the_plugin() {
    let Some(host) = installed(PROMISE) else { return };
    let spec = r#"{"cdiVersion": "0.3.0", "kind": "example.org/card", "devices": [{"name": "one",
"containerEdits": {"env": ["CARD=one"], "deviceNodes": [{"path": "/dev/full"}]}}]}"#;
    std::fs::create_dir_all(host.path("etc/cdi")).unwrap();
    host.write("etc/cdi/card.json", spec);
    let cgroup = host.cgroup();
    let device = ["--device", "example.org/card=one"];
    let wanted = ["the promise \"card\" refuses container web (cdi: \"example.org/card=one\")"];
    host.bad(&run_words(&cgroup, "web", &[&["--detach"][..], &device].concat()), &wanted);
    run(&host, "other", &[], &[]);
    host.good(&["rm", "--force", "--time", "0", "web"]);
    let _plugin = host.plugin("10", "card", Script::default());
    run(&host, "web", &device, &[]);
    assert!(host.good(&["exec", "web", "cat", "/proc/1/environ"]).contains("CARD=one"));
    for name in ["web", "other"] {
        host.good(&["rm", "--force", "--time", "0", name]);
    }
    host.wait_until_no_pods();
}
