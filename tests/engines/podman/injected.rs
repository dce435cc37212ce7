// SPDX-License-Identifier: Apache-2.0
//! Injections and an exec rule, in containers of Podman and without a plugin.

use test_support::injected::{FILE, SETTINGS, WANTED};

use super::{installed, run};

#[test]
fn a_podman_container_has_injections_and_exec_rules() {
    let Some(host) = installed("") else { return };
    host.write(FILE, "from the node");
    let settings = SETTINGS.replace("SOURCE", &host.path(FILE).display().to_string());
    let file = host.path("etc/nri-runc/config.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    host.write("etc/nri-runc/config.toml", &format!("{before}{settings}"));
    host.admin(&["reload"]);
    run(&host, "web", &["--env", "OWN=kept"], &["/bin/sleep", "1000"]);
    let inside = host.good(&["exec", "web", "/bin/cat", "/proc/1/environ", "/corp.pem"]);
    for wanted in WANTED {
        assert!(inside.contains(wanted), "{wanted} is not in {inside}");
    }
    host.bad(&["exec", "web", "/bin/sh", "-c", "true"], &["cat alone"]);
    host.bad(&["exec", "--tty", "web", "/bin/../bin/cat", "/corp.pem"], &["cat alone"]);
    host.good(&["rm", "--force", "--time", "0", "web"]);
    host.wait_until_no_pods();
}
