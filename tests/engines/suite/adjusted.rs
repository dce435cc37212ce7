// SPDX-License-Identifier: Apache-2.0
//! A container that a plugin changes, checked inside and by the engine.

use nri_plugin::Resources;
use test_support::adjustments::{bind_mount, every_kind};
use test_support::{has_received, life};

use super::client::Client;
use super::{Wanted, exec};

/// Prints the values inside the container.
const LOOK: &str = "/bin/busybox env; cat /plugged/hello; echo soft $(ulimit -Sn) hard $(ulimit -Hn); \
    echo device $(/bin/busybox head -c 3 /dev/nri-zero | /bin/busybox wc -c); \
    echo score $(cat /proc/self/oom_score_adj); echo x >/plugged/x || echo read-only; exec sleep 1000";

pub(super) fn a_container_is_adjusted_and_the_engine_works_as_before<E: Client>() {
    let Some(host) = E::with_nri_runc() else { return };
    std::fs::create_dir_all(host.path("data")).unwrap();
    let hello = host.path("data/hello");
    nri_runc::testing::files::replace(&hello, b"mounted by a plugin\n").unwrap();
    let resources = Resources::new().memory_limit(32 << 20).cpu_shares(300).pids_limit(77);
    let adjustment = every_kind(300, "/dev/nri-zero", 5).remove_env(E::VARIABLE.0);
    let adjustment = adjustment.mount(bind_mount(&host.path("data"), "/plugged"));
    let received = host.plugin("10-adjust", adjustment.resources(resources));
    let options = &["--memory=64m", "--cpu-shares=512"];
    let args = &["/bin/sh", "-c", LOOK];
    let wanted = Wanted { env: &[("OWN", "kept")], options, args, ..Wanted::default() };
    let id = host.run(&wanted).unwrap();
    host.wait_until("it has looked", || host.good(&["logs", "web"]).contains("read-only"));
    let seen = host.good(&["logs", "web"]);
    let kept = ["HELLO=there", "OWN=kept", "mounted by a plugin"];
    for line in kept.into_iter().chain(["soft 123 hard 321", "device 3", "score 950"]) {
        assert!(seen.lines().any(|printed| printed == line), "{line} is not in: {seen}");
    }
    assert!(!seen.contains(E::VARIABLE.0), "the plugin had removed it: {seen}");
    let limits = host.limits(&id);
    let limits = [0, 1, 3].map(|at| limits[at].as_str());
    assert_eq!(limits, [(32 << 20).to_string().as_str(), "300", "77"]);
    assert_eq!(host.annotations(&id)["example.org/seen"], "yes");

    // The engine's operations on a container whose changes it does not know.
    assert_eq!(exec(&host, &["/bin/cat", "/plugged/hello"]).text, "mounted by a plugin\n");
    host.good(&["pause", "web"]);
    assert_eq!(host.admin(&["pods"])[0]["containers"][0]["state"], "paused");
    host.good(&["unpause", "web"]);
    assert!(host.good(&["top", "web"]).contains("sleep 1000"));
    let memory = host.inspect("web")["HostConfig"]["Memory"].take();
    assert!(memory == 64 << 20 || !E::RECORDS_REQUESTS, "{memory}");
    let explained = host.admin(&["explain", "web"]);
    let changes = explained["changes"].as_array().unwrap();
    // A dash precedes the plugin that removed a value.
    let mut plugins = changes.iter().map(|change| change["plugin"].as_str().unwrap());
    assert!(plugins.len() > 8 && plugins.all(|id| id.ends_with("10-adjust")), "{explained}");
    assert!(explained.to_string().contains("HELLO"), "{explained}");
    let pods = host.admin(&["pods"]);
    assert_eq!([&pods[0]["engine"], &pods[0]["name"]], [E::NAME, "web"]);

    host.good(&["stop", "--time=0", "web"]);
    host.wait_until("its end is reported", || has_received(&received, "RemovePodSandbox web"));
    assert_eq!(*received.lock().unwrap(), life("web"));
    host.remove(&["web"]);
    host.nothing_is_left();
}
