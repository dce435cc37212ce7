// SPDX-License-Identifier: Apache-2.0
//! Docker's health checks in a container whose process a plugin changed.

use nri_plugin::Adjustment;
use test_support::wait_until;

use super::engine::{Docker, IMAGE};

#[test]
fn a_docker_health_check_has_the_plugins_values() {
    let Some(docker) = Docker::new() else { return };
    let _plugin = docker.host.plugin("10", "later", Adjustment::new().env("HELLO", "there"));
    let run = ["run", "--detach", "--runtime=nri-runc", "--name=web"];
    let health = ["--health-cmd", "env >/dev/shm/health", "--health-interval=1s"];
    docker.output_of(&[&run[..], &health, &[IMAGE, "/bin/sleep", "1000"]].concat());
    let healthy =
        || docker.output_of(&["exec", "web", "/bin/sh", "-c", "cat /dev/shm/health || true"]);
    wait_until("a health check ran", || healthy().contains("PATH="));
    assert!(healthy().lines().any(|line| line == "HELLO=there"), "{}", healthy());
    let calls = docker.host.admin(&["status"])["requests"].get("exec").cloned();
    assert_eq!(calls, None, "the daemon is not asked");
    docker.output_of(&["rm", "--force", "web"]);
    docker.nothing_is_left();
}
