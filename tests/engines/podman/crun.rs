// SPDX-License-Identifier: Apache-2.0
//! crun behind nri-runc, the default of newer Podman and CRI-O versions.

use std::path::PathBuf;

use nri_plugin::Adjustment;
use serde_json::json;
use test_support::podman::PodmanHost;
use test_support::{adjustments, cgroup, life, tools};

use super::{events_of, limit, resources, run};

/// A host where nri-runc is registered, with this crun behind it.
fn on(crun: PathBuf) -> Option<PodmanHost> {
    let mut host = PodmanHost::new("")?;
    if let Some(beside) = cgroup::v2_beside_v1() {
        assert!(host.call("umount".as_ref(), &[beside]).status.success());
    }
    assert!(host.nri(&["install", "podman"]).status.success());
    let file = "etc/nri-runc/config.toml";
    let runc = host.tool("runc");
    let settings = host.read(file);
    host.write(file, &settings.replace(runc.to_str().unwrap(), crun.to_str().unwrap()));
    host.start_daemon();
    Some(host)
}

/// The crun that the engine's tools have.
fn usual() -> Option<PathBuf> {
    Some(tools::find(&["crun"])?.join("crun"))
}

#[test]
fn a_container_on_crun_is_adjusted_updated_and_removed() {
    if let Some(crun) = usual() {
        has_all_of_its_life(crun);
    }
}

#[test]
fn a_container_on_crun_1_28_is_adjusted_updated_and_removed() {
    if let Some(crun) = tools::later_crun("crun-1.28") {
        has_all_of_its_life(crun);
    }
}

fn has_all_of_its_life(crun: PathBuf) {
    let Some(host) = on(crun.clone()) else { return };
    let adjustment = Adjustment::new().env("HELLO", "there").resources(resources(32, 300, 77));
    let received = host.plugin("10", "changes", adjustment);
    let id = run(&host, "web", &["--memory", "64m"], &["/bin/sleep", "1000"]);
    let environ = host.good(&["exec", "web", "/bin/cat", "/proc/1/environ"]);
    assert!(environ.split('\0').any(|pair| pair == "HELLO=there"), "{environ}");
    let limits = || ["memory", "shares", "pids"].map(|what| limit(&host, &id, what));
    assert_eq!(limits(), [(32 << 20).to_string(), "300".to_owned(), "77".to_owned()]);
    // crun keeps the state of this container: no other runtime was called.
    assert!(host.call(&crun, &["state", &id]).status.success());
    host.good(&["update", "--cpu-shares", "600", "web"]);
    assert!(events_of(&received, "web").contains(&"UpdateContainer".to_owned()), "{received:?}");
    host.good(&["rm", "--force", "--time", "0", "web"]);
    host.wait_until_no_pods();
    let received: Vec<String> = received.lock().unwrap().clone();
    let without_updates = received.into_iter().filter(|event| !event.contains("UpdateContainer"));
    assert_eq!(without_updates.collect::<Vec<_>>(), life("web"));
    assert_eq!(host.admin(&["status"])["failures"], json!([]));
}

#[test]
fn a_field_that_this_crun_lacks_refuses_the_container() {
    let Some(host) = usual().and_then(on) else { return };
    let device = json!({"linux": {"net_devices": {"eth0": {"name": "eth9"}}}});
    let _plugin = host.plugin("10", "devices", adjustments::adjusts(&device));
    let cgroup = host.cgroup();
    let words = super::run_words(&cgroup, "web", &["--detach"]);
    host.bad(&words, &["10-devices", "LinuxNetDevices"]);
}
