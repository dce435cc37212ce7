// SPDX-License-Identifier: Apache-2.0
//! The chart on a node without any installation: its DaemonSet installs nri-runc and restarts the engine
//! over D-Bus (a fake systemd, whose unit is the node's containerd), is upgraded under load, and removes
//! everything.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::Cluster;
use super::chart_pods::{Stream, adjusted_pod};
use super::helm::{self, NAMESPACE, RELEASE};
use super::inside::{admin, daemon};
use super::kubectl::{Namespace, does, run};
use super::machine::{PROGRAMS, Process, wait_for, write};
use super::node::Node;
use super::node_files::{self, NodeFiles, differences};
use super::plugins::{Greeter, Plugin};

const LABEL: &str = "nri-runc.dev/ready";
const PROGRAM: &str = "/opt/nri-runc/bin/nri-runc";
/// Folders that kubelet creates because the pod mounts them; it never removes them.
const LEFT_EMPTY: [&str; 4] =
    ["/opt/nri-runc", "/etc/nri-runc", "/var/lib/nri-runc", "/run/nri-runc"];
/// The commands of the fake systemd, which has one unit.
const UNITS: &str =
    "#!/bin/sh\n[ \"$2\" = containerd.service ] && exec containerd-unit \"$1\"\nexit 1\n";

/// State that one row leaves for the next.
#[derive(Default)]
pub(super) struct Installed {
    before: NodeFiles,
    _systemd: Option<Process>,
    plugin: Option<Plugin>,
    first_daemon: Option<i32>,
}

static INSTALLED: Mutex<Option<Installed>> = Mutex::new(None);

/// The state that the previous row has left.
pub(super) fn installed() -> MutexGuard<'static, Option<Installed>> {
    let state = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(state.is_some(), "the chart was not installed: see the row `helm install`");
    state
}

/// Stops the processes of these rows.
pub(super) fn stop() {
    *INSTALLED.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

fn import_images(cluster: &Cluster) {
    for image in ["kube.tar", "kube-next.tar"] {
        import_image(cluster, image);
    }
}

/// Imports one of the images in target/image.
pub(super) fn import_image(cluster: &Cluster, image: &str) {
    let tar = test_support::program::project().join("target/image").join(image);
    assert!(tar.exists(), "{} is missing: scripts/kube.sh makes it", tar.display());
    let tar = tar.display().to_string();
    cluster.machine.run("ctr", &["--namespace", "k8s.io", "images", "import", "--local", &tar]);
}

/// A systemd whose only unit is the node's containerd.
pub(super) fn start_systemd(cluster: &Cluster) -> Process {
    let program = helm::node_helper("examples/fake_systemd");
    let link = Path::new(PROGRAMS).join("fake-systemd");
    for left in [link.as_path(), Path::new("/run/systemd/private")] {
        let _of_another_row = std::fs::remove_file(left);
    }
    std::os::unix::fs::symlink(program, link).unwrap();
    std::fs::create_dir_all("/run/systemd").unwrap();
    let units = format!("{PROGRAMS}/units");
    write(&units, UNITS, 0o755);
    let words = ["/run/systemd/private", &units, "containerd=active"];
    let systemd = cluster.machine.start("fake-systemd", &words);
    wait_for("systemd listens", || Path::new(words[0]).exists().then_some(()));
    systemd
}

fn containerd_pid() -> String {
    std::fs::read_to_string("/run/containerd-unit.pid").unwrap_or_default().trim().to_owned()
}

fn label() -> Value {
    Node::state()["metadata"]["labels"][LABEL].clone()
}

/// The log of the DaemonSet's pod.
fn pod_log() -> String {
    let of = format!("daemonset/{RELEASE}");
    run(&["--namespace", NAMESPACE, "logs", &of]).unwrap_or_else(|error| error)
}

pub(super) fn the_chart_installs_on_a_clean_node(cluster: &Cluster) -> String {
    import_images(cluster);
    let _systemd = Some(start_systemd(cluster));
    let before = node_files::all();
    assert!(!Path::new(PROGRAM).exists() && label().is_null(), "the node is not clean");
    let engine = containerd_pid();
    let state = Installed { before, _systemd, ..Installed::default() };
    *INSTALLED.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
    if let Err(why) = helm::release("install", "kube", "first") {
        let events = Namespace::existing(NAMESPACE).warnings();
        panic!("{why}; events: {events}; the pod's log: {}", pod_log());
    }
    assert_eq!(label(), "true");
    assert_ne!(containerd_pid(), engine, "containerd was not restarted");
    wait_for("kubelet sees the handler", || {
        Node::handlers().contains(&"nri-runc".to_owned()).then_some(())
    });
    let log = pod_log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("systemd: restart")).collect();
    assert_eq!(lines, ["nri-runc: systemd: restart containerd"], "{log}");
    let space = Namespace::new("chart");
    adjusted_pod(&space, "first");
    let daemon = daemon().expect("the first container started no daemon");
    let plugin = Plugin::connect("50-witness", Arc::new(Greeter("witnessed")));
    if let Some(state) = installed().as_mut() {
        (state.first_daemon, state.plugin) = (Some(daemon), Some(plugin));
    }
    // The namespace stays for the following rows.
    std::mem::forget(space);
    format!(
        "the DaemonSet wrote the node's files, restarted containerd once over D-Bus and labelled the node; a \
         pod of the RuntimeClass is adjusted (daemon {daemon})"
    )
}

pub(super) fn helm_test_runs_a_pod_of_the_runtimeclass(_: &Cluster) -> String {
    let _installed = installed();
    let printed = helm::does(&["test", RELEASE, "--namespace", NAMESPACE, "--timeout=120s"]);
    let phase = printed.lines().find_map(|line| line.strip_prefix("Phase:")).map(str::trim);
    assert_eq!(phase, Some("Succeeded"), "{printed}");
    "its pod ran through the handler and succeeded".to_owned()
}

pub(super) fn an_upgrade_misses_no_pod(_: &Cluster) -> String {
    let state = installed();
    let first = state.as_ref().and_then(|state| state.first_daemon);
    let engine = containerd_pid();
    let old = std::fs::read(PROGRAM).unwrap();
    let stream = Stream::start("chart");
    helm::release("upgrade", "next", "second").unwrap_or_else(|why| panic!("{why}; {}", pod_log()));
    let pods = stream.end();
    assert!(std::fs::read(PROGRAM).unwrap().len() == old.len() + 1, "it is not the other program");
    let text = std::fs::read_to_string("/etc/nri-runc/config.d/40-node.toml").unwrap();
    assert!(text.starts_with("# second\n"), "{text}");
    assert_eq!((daemon(), containerd_pid()), (first, engine), "daemon or engine was restarted");
    let log = pod_log();
    assert!(log.contains("the daemon runs the new program; plugins stayed connected"), "{log}");
    let plugins = admin(&["plugins"]);
    let mut all = plugins.as_array().into_iter().flatten();
    let witness = all.find(|plugin| plugin["name"] == "witness").cloned().unwrap_or_default();
    assert_eq!(witness["state"], "synchronized", "{plugins}");
    assert_eq!(label(), "true");
    format!(
        "to another image and configuration while pods came: {pods} of {pods} adjusted, the same daemon and \
         containerd, the plugin stayed connected"
    )
}

/// The objects of the release that are left in the cluster.
fn leftovers() -> String {
    let kinds = "daemonsets,serviceaccounts,configmaps,roles,rolebindings,clusterroles,clusterrolebindings,\
                 runtimeclasses,jobs,pods,validatingadmissionpolicies,validatingadmissionpolicybindings";
    let kinds = kinds.replace(' ', "");
    let all = does(&["--namespace", NAMESPACE, "get", &kinds, "-o", "name"]);
    all.lines().filter(|line| line.contains(RELEASE)).collect::<Vec<_>>().join(", ")
}

pub(super) fn an_uninstalled_node_is_as_it_was(_: &Cluster) -> String {
    let state = installed();
    let before = state.as_ref().map(|state| state.before.clone()).unwrap_or_default();
    let first = state.as_ref().and_then(|state| state.first_daemon).unwrap_or_default();
    let uninstall = ["uninstall", RELEASE, "--namespace", NAMESPACE, "--timeout=600s", "--wait"];
    let refused = helm::run(&uninstall).expect_err("it uninstalled what a pod needs");
    assert!(refused.contains("in use by chart/first"), "{refused}");
    assert_eq!(label(), "true", "the node is no longer ready");
    // A user may undo the removal: until then helm calls the release `uninstalling`.
    helm::does(&["rollback", RELEASE, "2", "--namespace", NAMESPACE]);
    let status = helm::does(&["status", RELEASE, "--namespace", NAMESPACE]);
    assert!(status.contains("STATUS: deployed"), "{status}");
    let space = Namespace::existing("chart");
    adjusted_pod(&space, "still");
    space.empties();
    // The plugin's own exit is not tested here.
    drop(state);
    if let Some(state) = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        state.plugin = None;
    }
    helm::run(&uninstall).unwrap_or_else(|why| panic!("{why}; {}", pod_log()));
    assert!(label().is_null(), "the label is still there");
    wait_for("nothing of the release is left", || leftovers().is_empty().then_some(()));
    let changed = differences(&before, &node_files::all());
    assert!(changed.is_empty(), "these files are not as before: {changed:?}");
    for folder in LEFT_EMPTY {
        let left = std::fs::read_dir(folder).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{folder} is not empty");
    }
    let is_registered = |name: &String| name == "nri-runc";
    wait_for("the engine has forgotten the handler", || {
        (!Node::handlers().iter().any(is_registered)).then_some(())
    });
    assert!(!Path::new(&format!("/proc/{first}")).exists(), "the daemon still runs");
    drop(space);
    stop();
    format!(
        "refused while a pod used it, and rolled back; then {} files are byte for byte as before, label, handler, RuntimeClass \
         and permissions are gone",
        before.len()
    )
}
