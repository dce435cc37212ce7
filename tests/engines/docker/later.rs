// SPDX-License-Identifier: Apache-2.0
//! `docker exec` and health checks in a container whose process a plugin changed.

use nri_plugin::Adjustment;
use test_support::adjustments::just_so_many_files;
use test_support::wait_until;

use super::engine::{Docker, IMAGE};

/// Prints every value that a plugin can set, in one line.
const LOOK: &str = "echo hello=$HELLO own=$OWN from=$FROM files=$(ulimit -Sn)/$(ulimit -Hn)";

fn changing() -> Adjustment {
    let adjustment = Adjustment::new().env("HELLO", "there").env("OWN", "changed");
    just_so_many_files(adjustment.remove_env("FROM"))
}

#[test]
fn docker_exec_has_the_plugins_values_unless_it_sets_its_own() {
    let Some(docker) = Docker::new() else { return };
    let _plugin = docker.host.plugin("10", "later", changing());
    let run = ["run", "--detach", "--runtime=nri-runc", "--name=web", "--env=OWN=kept"];
    let health = ["--health-cmd", "env >/dev/shm/health", "--health-interval=1s"];
    let limits = ["--ulimit=nofile=1000:1000"];
    let words = [&run[..], &health, &limits, &[IMAGE, "/bin/sleep", "1000"]].concat();
    docker.output_of(&words);
    let exec = |more: &[&str]| {
        docker.output_of(&[&["exec"], more, &["web", "/bin/sh", "-c", LOOK]].concat())
    };
    assert_eq!(exec(&[]), "hello=there own=changed from= files=321/321");
    let asked = ["--env=HELLO=mine", "--env=OWN=mine", "--env=FROM=mine"];
    assert_eq!(exec(&asked), "hello=mine own=mine from=mine files=321/321");
    assert_eq!(exec(&["--user=7:8"]), "hello=there own=changed from= files=321/321");
    let healthy =
        || docker.output_of(&["exec", "web", "/bin/sh", "-c", "cat /dev/shm/health || true"]);
    wait_until("a health check ran", || healthy().contains("PATH="));
    assert!(healthy().lines().any(|line| line == "HELLO=there"), "{}", healthy());
    let calls = docker.host.admin(&["status"])["requests"].get("exec").cloned();
    assert_eq!(calls, None, "the daemon is not asked");
    docker.output_of(&["rm", "--force", "web"]);
    docker.nothing_is_left();
}

#[test]
fn docker_exec_after_a_restart_without_the_plugin_is_unchanged() {
    let Some(mut docker) = Docker::new() else { return };
    let _plugin = docker.host.plugin("10", "later", changing());
    let run = ["run", "--detach", "--runtime=nri-runc", "--name=web", "--env=OWN=kept"];
    docker.output_of(
        &[&run[..], &["--ulimit=nofile=1000:1000", IMAGE, "/bin/sleep", "1000"]].concat(),
    );
    let look = || docker.output_of(&["exec", "web", "/bin/sh", "-c", LOOK]);
    assert_eq!(look(), "hello=there own=changed from= files=321/321");
    docker.output_of(&["stop", "--time=0", "web"]);
    // The next daemon starts without the plugin.
    docker.host.kill_daemon();
    docker.output_of(&["start", "web"]);
    let look = || docker.output_of(&["exec", "web", "/bin/sh", "-c", LOOK]);
    assert_eq!(look(), "hello= own=kept from=image files=1000/1000");
    docker.output_of(&["rm", "--force", "web"]);
}
