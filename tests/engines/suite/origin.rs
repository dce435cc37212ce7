// SPDX-License-Identifier: Apache-2.0
//! A plugin in a container, with a `from` that names its pod: another container and a process of
//! the host are refused, and the named one connects. If `from` names a program of the host, a
//! container with the same file is refused.

use std::process::{Command, Stdio};

use test_support::{Started, is_synchronized};

use super::{Tested, plugin_paths};

/// Runs a plugin as a process of the host, beside the engine.
fn plugin_on_host(host: &impl Tested, id: &str) -> Started {
    let [program, _, _, socket] = plugin_paths(host);
    let mut command = Command::new(program);
    command.args(["--id", id, "--socket", &socket]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Started(command.spawn().unwrap())
}

fn wait_for_refusal(host: &impl Tested, words: &[&str]) {
    host.wait_until(&format!("a refusal has {words:?}"), || {
        let status = host.admin(&["status"]);
        let failures = status["failures"].as_array().cloned().unwrap_or_default();
        let mut whats = failures.iter().filter_map(|failure| failure["what"].as_str());
        whats.any(|what| words.iter().all(|word| what.contains(word)))
    });
}

pub(super) fn a_container_that_is_not_the_named_pod_cannot_be_that_plugin<E: Tested>() {
    let Some(host) = E::with_nri_runc() else { return };
    let ([program, ..], engine) = (plugin_paths(&host), E::NAME);
    host.configure(&format!(
        "[plugin.ear]\nfrom = [\"pod:{engine}/ear\"]\n[plugin.eye]\nfrom = [\"exe:{program}\"]\n"
    ));
    host.run_plugin("other", "10-ear");
    let other = format!("in pod {engine}/other");
    wait_for_refusal(&host, &["10-ear was refused", &other, "(plugin.ear.from)"]);
    // A container with the host's file.
    host.run_plugin("third", "10-eye");
    let third = format!("in pod {engine}/third");
    wait_for_refusal(&host, &["10-eye was refused", &third, "(plugin.eye.from)"]);
    let on_host = plugin_on_host(&host, "10-ear");
    wait_for_refusal(&host, &["10-ear was refused", "event_logger on the host"]);
    drop(on_host);
    let plugins = host.admin(&["plugins"]);
    let row = plugins.as_array().unwrap().iter().find(|row| row["name"] == "ear").unwrap();
    assert!(row["reason"].as_str().unwrap().contains("may not connect under this name"), "{row}");
    host.run_plugin("ear", "10-ear");
    let _on_host = plugin_on_host(&host, "10-eye");
    for id in ["10-ear", "10-eye"] {
        host.wait_until("the permitted one connects", || {
            is_synchronized(&host.admin(&["plugins"]), id)
        });
    }
    host.remove(&["other", "third", "ear"]);
}
