// SPDX-License-Identifier: Apache-2.0
//! `podman exec` in a container whose process a plugin changed.

use nri_plugin::Adjustment;
use test_support::adjustments::just_so_many_files;

use super::{installed, run};

/// Prints every value that a plugin can set, in one line.
const LOOK: &str = "echo hello=$HELLO own=$OWN from=$FROM_IMAGE files=$(ulimit -Sn)/$(ulimit -Hn)";

fn changing() -> Adjustment {
    let adjustment = Adjustment::new().env("HELLO", "there").env("OWN", "changed");
    just_so_many_files(adjustment.remove_env("FROM_IMAGE"))
}

#[test]
fn podman_exec_has_the_plugins_values_unless_it_sets_its_own() {
    let Some(host) = installed("") else { return };
    let received = host.plugin("10", "later", changing());
    run(&host, "web", &["--env", "OWN=kept"], &[]);
    let exec = |more: &[&str]| host.good(&[&["exec"], more, &["web", "sh", "-c", LOOK]].concat());
    assert_eq!(exec(&[]), "hello=there own=changed from= files=321/321");
    assert_eq!(exec(&["--tty"]), "hello=there own=changed from= files=321/321");
    let asked = ["--env", "HELLO=mine", "--env", "OWN=mine", "--env", "FROM_IMAGE=mine"];
    assert_eq!(exec(&asked), "hello=mine own=mine from=mine files=321/321");
    let output = host.podman(&["exec", "web", "sh", "-c", "exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    host.good(&["rm", "--force", "--time", "0", "web"]);
    host.wait_until_no_pods();
    assert_eq!(*received.lock().unwrap(), test_support::life("web"));
}
