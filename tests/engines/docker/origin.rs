// SPDX-License-Identifier: Apache-2.0
//! A plugin in a container of Docker, with a `from` that names its pod: another container and a
//! process of the host are refused, and the named one connects. If `from` names a program of the
//! host, a container with the same file is refused.

use std::process::Stdio;

use test_support::example::example;
use test_support::{Started, is_synchronized, wait_until};

use super::engine::{Docker, IMAGE};

/// Runs a plugin in a container, with the host's libraries.
fn plugin_in(docker: &Docker, name: &str, id: &str) {
    let (program, dir) = (example("event_logger").display().to_string(), docker.dir());
    let folder = program.rsplit_once('/').unwrap().0;
    let same = |path: &str| format!("{path}:{path}:ro");
    let volumes = ["/usr", "/lib", "/lib64", folder].map(same);
    let here = format!("{dir}:{dir}");
    let socket = format!("{dir}/nri.sock");
    let mut words =
        vec!["run", "--detach", "--runtime", "nri-runc", "--name", name, "--volume", &here];
    for volume in &volumes {
        words.extend(["--volume", volume]);
    }
    words.extend([IMAGE, &program, "--id", id, "--socket", &socket]);
    docker.output_of(&words);
}

/// Runs a plugin as a process of the host, beside the engine.
fn plugin_on_host(docker: &Docker, id: &str) -> Started {
    let mut command = std::process::Command::new(example("event_logger"));
    command.args(["--id", id, "--socket"]).arg(docker.host.path("nri.sock"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Started(command.spawn().unwrap())
}

fn refused(docker: &Docker, words: &[&str]) -> bool {
    let status = docker.host.admin(&["status"]);
    let failures = status["failures"].as_array().cloned().unwrap_or_default();
    let mut whats = failures.iter().filter_map(|failure| failure["what"].as_str());
    whats.any(|what| words.iter().all(|word| what.contains(word)))
}

fn takes_part(docker: &Docker, id: &str) -> bool {
    is_synchronized(&docker.host.admin(&["plugins"]), id)
}

#[test]
fn a_container_that_is_not_the_named_pod_cannot_be_that_plugin() {
    let Some(mut docker) = Docker::before_install() else { return };
    let runc = docker.tools().join("runc");
    let program = example("event_logger").display().to_string();
    let from = format!(
        "[plugin.ear]\nfrom = [\"pod:docker/ear\"]\n[plugin.eye]\nfrom = [\"exe:{program}\"]\n"
    );
    docker.host.configure(&runc, &from);
    docker.host.start_daemon();
    docker.installs(&[]);
    docker.start();
    docker.import_image();
    plugin_in(&docker, "other", "10-ear");
    let line = ["10-ear was refused", "in pod docker/other", "(plugin.ear.from)"];
    wait_until("another container is refused", || refused(&docker, &line));
    plugin_in(&docker, "third", "10-eye");
    let line = ["10-eye was refused", "in pod docker/third", "(plugin.eye.from)"];
    wait_until("a container with the file is refused", || refused(&docker, &line));
    let on_host = plugin_on_host(&docker, "10-ear");
    let line = ["10-ear was refused", "event_logger on the host"];
    wait_until("the host's is refused", || refused(&docker, &line));
    drop(on_host);
    let plugins = docker.host.admin(&["plugins"]);
    let row = plugins.as_array().unwrap().iter().find(|row| row["name"] == "ear").unwrap();
    assert!(row["reason"].as_str().unwrap().contains("may not connect under this name"), "{row}");
    plugin_in(&docker, "ear", "10-ear");
    let _on_host = plugin_on_host(&docker, "10-eye");
    for id in ["10-ear", "10-eye"] {
        wait_until("who may be it is it", || takes_part(&docker, id));
    }
    docker.output_of(&["rm", "--force", "other", "third", "ear"]);
}
