// SPDX-License-Identifier: Apache-2.0
//! A promise by a device that Docker gives to a container under another name.

use test_support::Script;

use super::engine::{Docker, IMAGE, reason};

#[test]
fn a_container_of_docker_with_the_device_needs_the_plugin() {
    let Some(docker) = Docker::new() else { return };
    let promise = "[[require]]\nname = \"full\"\nplugin = \"full\"\ndevices = [\"/dev/full\"]\n";
    docker.host.configure(&docker.tools().join("runc"), promise);
    docker.host.admin(&["reload"]);
    let run = |name: &str, more: &[&str]| {
        let name = format!("--name={name}");
        let words = ["run", "--detach", "--runtime=nri-runc", &name];
        docker.call(&[&words[..], more, &[IMAGE, "/bin/sleep", "1000"]].concat())
    };
    let device = ["--device=/dev/full:/dev/mine"];
    let refused = run("web", &device);
    let line = reason(&refused);
    assert!(!refused.status.success(), "{line}");
    for word in
        ["the promise \"full\" refuses container web (devices: \"/dev/full\")", "full, which"]
    {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
    assert!(run("other", &[]).status.success(), "it has no such device");
    docker.output_of(&["rm", "--force", "web"]);
    let _plugin = docker.host.plugin("10", "full", Script::default());
    let started = run("web", &device);
    assert!(started.status.success(), "{}", reason(&started));
    docker.output_of(&["rm", "--force", "web", "other"]);
    docker.no_container_is_left();
}
