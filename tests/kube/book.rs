// SPDX-License-Identifier: Apache-2.0
//! The quick start for one node of a cluster, followed as a new user follows it: each command of the page
//! runs, in order, and what the page shows is compared with what is printed.

use std::process::Stdio;
use std::time::Instant;

use super::Cluster;
use super::control::KUBECONFIG;
use super::machine::{PROGRAMS, command, wait_for, write};
use super::node::Node;
use super::node_files::{self, differences};

const PAGE: &str = "docs/quickstart/kubernetes.md";
/// The steps; the table of problems and the default runtime are not among them.
const STEPS: [&str; 4] = ["1. ", "2. ", "3. ", "5. "];

/// No service manager runs here.
const SYSTEMCTL: &str = "#!/bin/sh\n[ \"$*\" = 'restart containerd' ] && exec containerd-unit restart\n\
    echo \"systemctl $*: no such unit here\" >&2\nexit 1\n";

pub(super) fn the_quick_start_holds(cluster: &Cluster) -> String {
    let machine = &cluster.machine;
    write(&format!("{PROGRAMS}/systemctl"), SYSTEMCTL, 0o755);
    let names = ["localhost/busybox:1", "docker.io/library/debian:latest"];
    machine.run("ctr", &[&["--namespace", "k8s.io", "images", "tag"][..], &names].concat());
    let before = node_files::all();
    let project = test_support::program::project();
    let script = project.join("install.sh").display().to_string();
    let begun = Instant::now();
    let binary = env!("CARGO_BIN_EXE_nri-runc");
    machine.run("sh", &[&script, "--binary", binary, "--no-units"]);
    let mut follow = command("python3");
    follow.env("KUBECONFIG", KUBECONFIG).current_dir(project).stdin(Stdio::null());
    follow.arg("scripts/docs_blocks.py").arg(PAGE).args(STEPS);
    let output = follow.output().expect("python3 follows the page");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{PAGE} does not hold: {said}{error}");
    machine.run("sh", &[&script, "--uninstall"]);
    // docs/howto/remove.md: it has the log and the records until the next reboot.
    machine.run("rm", &["-r", "/run/nri-runc"]);
    let took = begun.elapsed();
    let changed = differences(&before, &node_files::all());
    assert!(changed.is_empty(), "the node still has {changed:?}: {said}");
    wait_for("kubelet no longer sees the handler", || {
        (!Node::handlers().contains(&"nri-runc".to_owned())).then_some(())
    });
    let commands = said.lines().filter(|line| line.starts_with("$ ")).count();
    format!(
        "{commands} lines of commands in {} s, from the installation to the removal; the node's files are as before",
        took.as_secs()
    )
}
