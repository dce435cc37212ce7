// SPDX-License-Identifier: Apache-2.0
//! A real checkpoint and restore (CRIU) through the wrapper: the process continues where it was,
//! with the mount and the limit of a plugin, and a refused restore leaves nothing. `make vm` has a
//! guest with CRIU; elsewhere it runs if `criu check` succeeds.

use std::process::Command;

use nri_plugin::{Adjustment, Mount, Resources};
use serde_json::json;
use test_support::{Script, fails, skip, succeeds, wait_until};

use super::{Place, anywhere, v2};

/// Counts for ever, into the file that a plugin's mount provides.
const COUNTS: &str = "exec </dev/null >/dev/null 2>&1; i=0; \
                      while true; do i=$((i+1)); echo $i >/data/count; sleep 0.1; done";

/// The features that this machine's CRIU lacks.
fn lacks() -> Option<String> {
    let output = match Command::new("criu").arg("check").output() {
        Ok(output) if output.status.success() => return None,
        Ok(output) => output,
        Err(_) => return Some("no CRIU (make vm has a guest with it)".to_owned()),
    };
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    // Programs that CRIU needs only for networks are not required.
    let mut errors = printed.lines().filter(|line| !line.contains("exited, status"));
    let first = errors.find(|line| line.contains("Error")).unwrap_or_default();
    Some(format!("this machine's CRIU does not work with its kernel ({first})"))
}

/// Returns the host if CRIU works; `None` after printing why a test is skipped.
fn place() -> Option<Place> {
    if let Some(why) = lacks() {
        skip::machine_lacks(&why);
        return None;
    }
    anywhere("runc", v2::PATIENT)
}

/// A plugin that adds the mount and a pids limit.
fn bringing(place: &Place) -> Script {
    std::fs::create_dir_all(place.host.path("data")).unwrap();
    let data = place.host.path("data").display().to_string();
    let mount = Mount::of("bind", &data, "/data").option("bind").option("rw");
    Adjustment::new().mount(mount).resources(Resources::new().pids_limit(77)).into()
}

impl Place {
    fn count(&self) -> u64 {
        self.host.read("data/count").trim().parse().unwrap_or(0)
    }

    fn pids_limit(&self, id: &str) -> String {
        let is_v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        self.file(id, if is_v2 { "" } else { "pids" }, "pids.max")
    }

    /// A container that counts up to `most` and is then checkpointed, which ends it.
    fn counted_and_checkpointed(&self, id: &str, most: u64) -> u64 {
        self.prepare(id, &json!({}));
        let mut document: serde_json::Value =
            serde_json::from_str(&self.host.read(&format!("{id}/config.json"))).unwrap();
        document["process"]["args"] = json!(["sh", "-c", COUNTS]);
        self.host.write(&format!("{id}/config.json"), &document.to_string());
        succeeds(&self.host.create_from(id, id));
        succeeds(&self.host.verb(&["start", id]));
        wait_until("it has counted", || self.count() >= most);
        let images = self.host.path("images").display().to_string();
        let output = self.host.verb(&["checkpoint", "--image-path", &images, id]);
        assert!(output.status.success(), "{}{}", explain(&output), self.criu("images/dump.log"));
        self.count()
    }

    fn restore(&self, id: &str) -> std::process::Output {
        let bundle = self.host.path(id).display().to_string();
        let images = self.host.path("images").display().to_string();
        let words = ["restore", "--detach", "--bundle", &bundle, "--image-path", &images];
        self.host.verb(&[&words[..], &["--work-path", &images, id]].concat())
    }

    /// The errors that CRIU reports.
    fn criu(&self, log: &str) -> String {
        let log = self.host.read(log);
        log.lines().filter(|line| line.contains("Error")).collect::<Vec<_>>().join("\n")
    }
}

fn explain(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_restored_container_keeps_its_plugins_values() {
    let Some(place) = place() else { return };
    let received = place.host.plugin("10", "bringer", bringing(&place));
    let before = place.counted_and_checkpointed("c1", 5);
    wait_until("its end is reported", || test_support::has_received(&received, "StopContainer c1"));
    let output = place.restore("c1");
    assert!(output.status.success(), "{}{}", explain(&output), place.criu("images/restore.log"));
    wait_until("it counts on", || place.count() > before + 3);
    assert_eq!(place.pids_limit("c1"), "77");
    wait_until("it is known to run", || place.state("c1").as_deref() == Some("running"));
    succeeds(&place.host.verb(&["kill", "c1", "KILL"]));
    wait_until("it has ended", || place.state("c1").as_deref() == Some("stopped"));
    succeeds(&place.host.verb(&["delete", "c1"]));
    wait_until("its second end is reported", || {
        let received = received.lock().unwrap();
        received.iter().filter(|event| *event == "RemoveContainer c1").count() == 2
    });
    let received = received.lock().unwrap();
    let of = received.iter().filter_map(|event| event.strip_suffix(" c1"));
    let of: Vec<_> = of.filter(|event| !event.contains("PodSandbox")).collect();
    let life = &test_support::LIFE[1..7];
    assert_eq!(of, [life, life].concat(), "the plugin receives two lifecycles");
}

#[test]
fn a_refused_restore_starts_nothing_and_can_be_repeated() {
    let Some(place) = place() else { return };
    let received = place.host.plugin("10", "bringer", bringing(&place));
    let before = place.counted_and_checkpointed("c1", 5);
    wait_until("its end is reported", || test_support::has_received(&received, "StopContainer c1"));
    let guard = Script {
        refuses: Some("not from here"),
        at: Some("StartContainer".to_owned()),
        ..Script::default()
    };
    let _guard = place.host.plugin("90", "guard", guard.clone());
    fails(&place.restore("c1"), &["cannot restore c1", "90-guard", "not from here"]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(place.count(), before, "something counts");
    assert!(place.host.path("images/inventory.img").exists());
}
