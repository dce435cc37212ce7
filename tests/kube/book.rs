// SPDX-License-Identifier: Apache-2.0
//! Pages of the book for one node of a cluster, followed literally: each command is run, in order, and the
//! output is compared with the page. Afterwards the node is as before.

use std::process::Stdio;
use std::time::Instant;

use super::Cluster;
use super::control::KUBECONFIG;
use super::inside::known_pods;
use super::kubectl::Namespace;
use super::machine::{PROGRAMS, command, wait_for, write};
use super::manifests::{SHOWS_CARD, card, container, pod, spec};
use super::node::{Node, copy_program, remove_program};
use super::node_files::{self, differences};

const QUICK_START: &str = "docs/quickstart/kubernetes.md";
const MIGRATION: &str = "docs/howto/migrate.md";

/// No service manager runs here.
const SYSTEMCTL: &str = "#!/bin/sh\n[ \"$*\" = 'restart containerd' ] && exec containerd-unit restart\n\
    echo \"systemctl $*: no such unit here\" >&2\nexit 1\n";

/// Follows the page's quick start, without the table of problems and the default runtime.
pub(super) fn the_quick_start_holds(cluster: &Cluster) -> String {
    let names = ["localhost/busybox:1", "docker.io/library/debian:latest"];
    cluster.machine.run("ctr", &[&["--namespace", "k8s.io", "images", "tag"][..], &names].concat());
    let begun = Instant::now();
    let commands =
        installed_meanwhile(cluster, || follow(QUICK_START, &["1. ", "2. ", "3. ", "5. "]));
    format!(
        "{commands} lines of commands in {} s, from the installation to the removal; the node's files are as before",
        begun.elapsed().as_secs()
    )
}

/// The plugins are in /opt/nri/plugins all the time: containerd's own NRI launches them, then nri-runc, then
/// containerd's again.
pub(super) fn the_page_on_migration_holds(cluster: &Cluster) -> String {
    let commands = installed_meanwhile(cluster, || {
        let space = Namespace::new("migration");
        let mut commands = follow(MIGRATION, &["1. ", "2. "]);
        is_adjusted(&space, "by-containerd");
        assert_eq!(known_pods("migration").len(), 0, "containerd's own NRI serves the plugins");
        commands += follow(MIGRATION, &["3. "]);
        is_adjusted(&space, "by-nri-runc");
        let known = known_pods("migration").len();
        assert_eq!(known, 2, "and now nri-runc, which shows them the pod from before too");
        space.empties();
        commands += follow(MIGRATION, &["Migrate back"]);
        is_adjusted(&space, "again");
        space.empties();
        commands
    });
    format!(
        "{commands} lines of commands; the same plugin adjusts a pod before, while and after; the node's files are as before"
    )
}

/// Checks that a pod without a runtime class has the plugin's values.
fn is_adjusted(space: &Namespace, name: &str) {
    let mut plain = spec(&[container("app", SHOWS_CARD)]);
    plain.as_object_mut().unwrap().remove("runtimeClassName");
    space.apply(pod(name, &card(), &plain));
    space.waits(name, "condition=Ready", 60);
    assert_eq!(space.logs(name, "app"), "card=one\n", "{name}");
}

/// Installs nri-runc by its script, and removes it; then nothing of the node may differ.
fn installed_meanwhile(cluster: &Cluster, follows: impl FnOnce() -> usize) -> usize {
    let machine = &cluster.machine;
    write(&format!("{PROGRAMS}/systemctl"), SYSTEMCTL, 0o755);
    let before = node_files::all();
    copy_program(machine);
    let commands = follows();
    remove_program(machine);
    // docs/howto/remove.md: it has the log and the records until the next reboot.
    machine.run("rm", &["-r", "/run/nri-runc"]);
    let changed = differences(&before, &node_files::all());
    assert!(changed.is_empty(), "the node still has {changed:?}");
    wait_for("kubelet no longer sees the handler", || {
        (!Node::handlers().contains(&"nri-runc".to_owned())).then_some(())
    });
    commands
}

/// The number of command lines in the sections that begin so.
fn follow(page: &str, sections: &[&str]) -> usize {
    let mut follow = command("python3");
    follow.env("KUBECONFIG", KUBECONFIG).stdin(Stdio::null());
    follow.current_dir(test_support::program::project());
    follow.arg("scripts/docs_blocks.py").arg(page).args(sections);
    let output = follow.output().expect("python3 follows the page");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{page} does not hold: {printed}{error}");
    printed.lines().filter(|line| line.starts_with("$ ")).count()
}
