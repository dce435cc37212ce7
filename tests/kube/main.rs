// SPDX-License-Identifier: Apache-2.0
//! `make kube`: a Kubernetes of one node, in which only a RuntimeClass names nri-runc. The rows act
//! as a user of kubectl, while plugins change the pods. It prints a table.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests start programs and write files in place")]

mod book;
mod chart;
mod chart_pods;
mod chart_rights;
mod claims;
mod control;
mod deployment;
mod driver;
mod examples;
mod helm;
mod inside;
mod kubectl;
mod lives;
mod load;
mod logged_events;
mod machine;
mod manifests;
mod node;
mod node_files;
mod pinning;
mod plugins;
mod probes;
mod rendered;
mod reports;
mod resize;
mod table;
mod upheaval;

use machine::{Machine, Process};
use node::Node;
use table::Table;

/// Tests something; returns its evidence, or panics.
type Scenario = fn(&Cluster) -> String;

/// The tested properties, in this order, and the word that selects each (`KUBE=word,word`).
const ROWS: &[(&str, &str, Scenario)] = &[
    ("manifests", "chart, kustomizations, examples", rendered::every_manifest_is_valid),
    ("manifests", "kustomizations are the chart", rendered::each_kustomization_is_the_chart),
    ("chart", "helm install", chart::the_chart_installs_on_a_clean_node),
    ("chart", "what the chart's pod may do", chart_rights::its_pod_may_do_what_it_needs_alone),
    ("chart", "helm test", chart::helm_test_runs_a_pod_of_the_runtimeclass),
    ("chart", "helm upgrade", chart::an_upgrade_misses_no_pod),
    (
        "examples",
        "a plugin's DaemonSet",
        examples::a_sample_plugin_is_replaced_while_containers_are_created,
    ),
    ("chart", "helm uninstall", chart::an_uninstalled_node_is_as_it_was),
    (
        "reports",
        "a required plugin is missing",
        reports::a_missing_plugin_keeps_pods_off_until_its_own_daemonset_is_there,
    ),
    ("book", "the quick start for one node", book::the_quick_start_holds),
    ("book", "from containerd's own NRI, and back", book::the_page_on_migration_holds),
    ("install", "install on containerd 2.4.2", deployment::the_node_has_our_handler),
    ("deployment", "a Deployment of three", deployment::three_replicas_have_what_plugins_give),
    ("probes", "exec probes need what plugins gave", probes::probes_see_what_plugins_gave),
    ("probes", "a liveness probe fails", probes::probes_that_fail_restart_the_container),
    ("resize", "resize beside a plugin", resize::a_resize_leaves_a_plugin_its_half),
    ("resize", "a plugin refuses a resize", resize::a_resize_that_a_plugin_refuses_changes_nothing),
    ("crash", "a crash loop", lives::a_crash_loop_is_adjusted_at_each_turn),
    ("order", "init and sidecar containers", lives::init_and_sidecar_containers_come_in_order),
    ("eviction", "a plugin evicts", lives::a_plugin_evicts_and_kubelet_starts_anew),
    (
        "pinning",
        "static CPU manager, and a plugin",
        pinning::the_static_cpu_manager_and_a_plugin_both_pin,
    ),
    ("claims", "a claim needs its driver's plugin", claims::a_claim_needs_the_plugin_of_its_driver),
    (
        "daemon",
        "the daemon is killed",
        upheaval::a_daemon_that_is_killed_is_replaced_by_the_next_container,
    ),
    (
        "daemon",
        "the daemon is restarted",
        upheaval::a_daemon_is_restarted_in_the_middle_of_a_rollout,
    ),
    ("drain", "the node is drained", upheaval::a_node_is_drained_and_used_again),
    ("load", "a node under load", load::a_node_under_load_loses_nothing),
];

/// Rows for a node without a manual installation.
const CLEAN: &[&str] = &["manifests", "chart", "reports", "book", "examples"];

/// Rows that run only if they are named: their builds take minutes more.
const NAMED: &[&str] = &["examples"];

/// A running cluster.
struct Cluster {
    machine: Machine,
    node: Node,
    _control: Vec<Process>,
}

impl Cluster {
    fn start(machine: Machine) -> Self {
        let control = control::start(&machine);
        let node = Node::start(&machine);
        Self { machine, node, _control: control }
    }

    /// The ends of the programs' logs.
    fn log_tails(&self) -> String {
        let names = ["kubelet", "containerd", "kube-apiserver", "kube-controller-manager"];
        let tails = names.iter().map(|name| self.machine.log_tail(name));
        tails.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        chart::stop();
        self.node.stop(&self.machine);
        // The daemon's log is kept with the others.
        for (from, to) in [("/run/nri-runc/daemon.log", "nri-runc"), (node::EVENTS, "events")] {
            if let Ok(text) = std::fs::read(from) {
                nri_runc::testing::files::replace(&self.machine.log(to), &text).unwrap();
            }
        }
    }
}

fn is_wanted(word: &str) -> bool {
    let wanted = std::env::var("KUBE").unwrap_or_default();
    (wanted.is_empty() && !NAMED.contains(&word)) || wanted.split(',').any(|one| one == word)
}

#[test]
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the table is what it is for")]
fn kubernetes_workloads_run_while_plugins_adjust_containers() {
    let Some(machine) = Machine::own() else { return };
    let cluster = Cluster::start(machine);
    let mut table = Table::default();
    for (word, what, scenario) in ROWS {
        if is_wanted(word) {
            table.show(what, || {
                if !CLEAN.contains(word) {
                    cluster.node.registered(&cluster.machine);
                }
                scenario(&cluster)
            });
            // A row takes minutes, so each result is printed at once.
            eprint!("{}", table.last());
        }
    }
    println!("\n{}", table.text());
    let failed = table.failed();
    if !failed.is_empty() {
        eprintln!("{}", cluster.log_tails());
    }
    assert!(failed.is_empty(), "not shown: {}", failed.join(", "));
}
