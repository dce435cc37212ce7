// SPDX-License-Identifier: Apache-2.0
//! A plugin in a container of Podman, with a `from` that names its pod: another container is
//! refused, and the named one connects.

use test_support::example::example;
use test_support::is_synchronized;
use test_support::podman::PodmanHost;

use super::{installed, run};

/// Runs the plugin `10-ear` in a container, with the host's libraries.
fn plugin_in(host: &PodmanHost, name: &str) {
    let program = example("event_logger").display().to_string();
    let folder = program.rsplit_once('/').unwrap().0;
    let same = |path: &str| format!("{path}:{path}:ro");
    let volumes = ["/usr", "/lib", "/lib64", folder].map(same);
    let dir = host.path("").display().to_string();
    let dir = dir.trim_end_matches('/');
    let (here, socket) = (format!("{dir}:{dir}"), format!("{dir}/nri.sock"));
    let mut options = vec!["--volume", here.as_str()];
    for volume in &volumes {
        options.extend(["--volume", volume]);
    }
    run(host, name, &options, &[&program, "--id", "10-ear", "--socket", &socket]);
}

#[test]
fn a_container_that_is_not_the_named_pod_cannot_be_that_plugin() {
    let Some(host) = installed("[plugin.ear]\nfrom = [\"pod:podman/ear\"]\n") else { return };
    plugin_in(&host, "other");
    host.wait_until("another container is refused", || {
        let status = host.admin(&["status"])["failures"].to_string();
        status.contains("10-ear was refused") && status.contains("in pod podman/other")
    });
    plugin_in(&host, "ear");
    host.wait_until("the named pod is the plugin", || {
        is_synchronized(&host.admin(&["plugins"]), "10-ear")
    });
    host.good(&["rm", "--force", "--time", "0", "other", "ear"]);
}
