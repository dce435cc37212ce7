// SPDX-License-Identifier: Apache-2.0
//! Injections and an exec rule, in containers of Docker and without a plugin.

use test_support::injected::{FILE, SETTINGS, WANTED};

use super::engine::{Docker, IMAGE, text};

#[test]
fn a_docker_container_has_injections_and_exec_rules() {
    let Some(docker) = Docker::new() else { return };
    docker.host.write(FILE, "from the node");
    let settings = SETTINGS.replace("SOURCE", &docker.host.path(FILE).display().to_string());
    docker.host.configure(&docker.tools().join("runc"), &settings);
    docker.host.admin(&["reload"]);
    let run = ["run", "--detach", "--runtime=nri-runc", "--name=web", "--env=OWN=kept"];
    docker.output_of(&[&run[..], &[IMAGE, "/bin/sleep", "1000"]].concat());
    let exec = |words: &[&str]| docker.call(&[&["exec", "web"], words].concat());
    let output = exec(&["/bin/cat", "/proc/1/environ", "/corp.pem"]);
    let inside = text(&output);
    for wanted in WANTED {
        assert!(inside.contains(wanted), "{wanted} is not in {inside}");
    }
    for words in [&["/bin/sh", "-c", "true"][..], &["/bin/../bin/cat", "/corp.pem"]] {
        let output = exec(words);
        assert!(!output.status.success(), "{words:?}");
        let line = text(&output); // The runtime's message is in the stream of the process.
        assert!(line.contains("cat alone") && !line.contains("from the node"), "{line}");
    }
    docker.output_of(&["rm", "--force", "web"]);
    docker.no_container_is_left();
}
