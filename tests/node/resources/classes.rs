// SPDX-License-Identifier: Apache-2.0
//! Block I/O and RDT classes of running containers: the first with this kernel's files, the second
//! in a folder in place of resctrl, which is rarely present.

use nri_plugin::{Adjustment, Resources, Update};
use nri_runc::plugin::api;
use serde_json::json;

use super::{Asking, Place, Script, place, request, skip, succeeds};

const READ: &str = "blkio.throttle.read_bps_device";
const WRITE: &str = "blkio.throttle.write_iops_device";

/// A disk of this host and its device number.
fn disk() -> Option<(String, String)> {
    let mut disks: Vec<_> = std::fs::read_dir("/sys/block").ok()?.flatten().collect();
    disks.sort_by_key(std::fs::DirEntry::file_name);
    disks.into_iter().find_map(|disk| {
        let name = disk.file_name().to_str()?.to_owned();
        let numbers = std::fs::read_to_string(disk.path().join("dev")).ok()?;
        let device = format!("/dev/{name}");
        std::path::Path::new(&device).exists().then(|| (device, numbers.trim().to_owned()))
    })
}

fn update(resources: Resources) -> api::ContainerUpdate {
    Update::of("c1").resources(resources).into()
}

fn blockio(class: &str) -> api::ContainerUpdate {
    update(Resources::new().blockio_class(class))
}

fn rdt(class: &str) -> Resources {
    Resources::new().rdt_class(class)
}

fn is_done(asking: &Asking, update: api::ContainerUpdate) -> bool {
    asking.ask(request(vec![update])).unwrap().failed.is_empty()
}

/// A host with the classes `slow`, `slower`, and an empty `gone`; and the disk that they limit.
fn classed() -> Option<(Place, String, tempfile::TempPath)> {
    let Some((device, numbers)) = disk() else {
        skip::machine_lacks("this host has no disk");
        return None;
    };
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    let classes = format!(
        "Classes:\n  slow:\n  - Devices: [{device}]\n    ThrottleReadBps: 60M\n    \
         ThrottleWriteIOPS: 10k\n  slower:\n  - Devices: [{device}]\n    ThrottleReadBps: 30M\n"
    );
    let file = file.into_temp_path();
    nri_runc::testing::files::replace(&file, classes.as_bytes()).unwrap();
    let place = place(&format!("[blockio]\nconfig_file = \"{}\"\n", file.display()))?;
    Some((place, numbers, file))
}

#[test]
fn a_block_io_class_sets_all_limits_and_survives_an_update() {
    let Some((place, disk, _classes)) = classed() else { return };
    place.run("c1", &json!({}));
    let asking = place.asker();
    let limits = || (place.file("c1", "blkio", READ), place.file("c1", "blkio", WRITE));
    assert!(is_done(&asking, blockio("slow")), "{}", place.host.read("daemon.err"));
    assert_eq!(limits(), (format!("{disk} 60000000"), format!("{disk} 10000")));
    succeeds(&place.update("c1", &json!({"pids": {"limit": 77}})));
    assert_eq!(limits(), (format!("{disk} 60000000"), format!("{disk} 10000")));
    assert!(is_done(&asking, blockio("slower")));
    assert_eq!(limits(), (format!("{disk} 30000000"), String::new()), "nothing of the old one");
    assert!(!is_done(&asking, blockio("gone")));
    assert_eq!(limits(), (format!("{disk} 30000000"), String::new()));
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"]["BlockioClass"], "10-asker", "{explained}");
    let reason = explained["skipped"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("gone"), "{explained}");
    assert!(is_done(&asking, blockio("")));
    assert_eq!(limits(), (String::new(), String::new()), "the empty class lifts them");
}

#[test]
fn a_limit_of_the_creation_does_not_return_with_an_update() {
    let Some((place, disk, _classes)) = classed() else { return };
    let adjust = Adjustment::new().resources(Resources::new().blockio_class("slow"));
    let _plugin = place.host.plugin("20", "classes", adjust);
    place.run("c1", &json!({}));
    assert_eq!(place.file("c1", "blkio", READ), format!("{disk} 60000000"));
    let asking = place.asker();
    assert!(is_done(&asking, blockio("slower")));
    succeeds(&place.update("c1", &json!({"pids": {"limit": 77}})));
    super::wait_until("runc's idea of the limits is put right", || {
        place.file("c1", "blkio", WRITE).is_empty()
            && place.file("c1", "blkio", READ) == format!("{disk} 30000000")
    });
}

#[test]
fn the_answer_to_an_update_may_name_a_class() {
    let Some((place, disk, _classes)) = classed() else { return };
    place.run("c1", &json!({}));
    let updates = vec![blockio("slow")];
    let _plugin = place.host.plugin("20", "classes", Script { updates, ..Script::default() });
    succeeds(&place.update("c1", &json!({"pids": {"limit": 77}})));
    super::wait_until("what runc does not apply is applied", || {
        place.file("c1", "blkio", READ) == format!("{disk} 60000000")
    });
    assert_eq!(place.file("c1", "pids", "pids.max"), "77");
}

#[test]
fn an_rdt_class_moves_every_thread_into_its_group() {
    let resctrl = tempfile::tempdir().unwrap();
    for dir in ["info", "gold", "silver"] {
        std::fs::create_dir(resctrl.path().join(dir)).unwrap();
    }
    for tasks in ["tasks", "gold/tasks"] {
        nri_runc::testing::files::replace(&resctrl.path().join(tasks), b"").unwrap();
    }
    let tasks = |group: &str| {
        std::fs::read_to_string(resctrl.path().join(group).join("tasks")).unwrap_or_default()
    };
    let config = format!("[rdt]\nresctrl_path = \"{}\"\n", resctrl.path().display());
    let Some(place) = place(&config) else { return };
    place.run("c1", &json!({}));
    let asking = place.asker();
    assert!(is_done(&asking, update(rdt("gold"))), "{}", place.host.read("daemon.err"));
    let pid = place.file("c1", "pids", "cgroup.procs");
    assert_eq!(tasks("gold").trim(), pid);
    // The group has no file to write to, so nothing of the update is applied.
    assert!(!is_done(&asking, update(rdt("silver").cpu_shares(300))));
    assert_ne!(place.file("c1", "cpu", "cpu.shares"), "300");
    for unknown in ["lead", "../gold", "info"] {
        assert!(!is_done(&asking, update(rdt(unknown))), "{unknown}");
    }
    // The kernel refuses the quota, and the container is back in its earlier group.
    assert!(!is_done(&asking, update(rdt("").cpu_quota(9_000_000_000_000_000_000, 100_000))));
    assert_eq!(tasks("").trim(), pid);
    assert!(tasks("gold").lines().count() >= 2, "{}", tasks("gold"));
    assert!(is_done(&asking, update(rdt(""))));
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({"RdtClass": "10-asker"}), "{explained}");
    let changes = explained["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 1, "{explained}");
    assert_eq!(
        (&changes[0]["field"], &changes[0]["after"]),
        (&json!("linux.intelRdt.closID"), &json!(""))
    );
}

#[test]
fn only_rdt_classes_of_the_engines_file_are_entered() {
    let resctrl = tempfile::tempdir().unwrap();
    for dir in ["info", "gold", "foreign"] {
        std::fs::create_dir(resctrl.path().join(dir)).unwrap();
    }
    for tasks in ["tasks", "gold/tasks", "foreign/tasks"] {
        nri_runc::testing::files::replace(&resctrl.path().join(tasks), b"").unwrap();
    }
    let tasks = |group: &str| std::fs::read_to_string(resctrl.path().join(group).join("tasks"));
    let file = resctrl.path().join("info/rdt.yaml");
    let classes =
        "partitions:\n  all:\n    l3Allocation: \"100%\"\n    classes:\n      gold:\n      tin:\n";
    nri_runc::testing::files::replace(&file, classes.as_bytes()).unwrap();
    let config = format!(
        "[rdt]\nresctrl_path = \"{}\"\nconfig_file = \"{}\"\n",
        resctrl.path().display(),
        file.display()
    );
    let Some(place) = place(&config) else { return };
    place.run("c1", &json!({}));
    let asking = place.asker();
    assert!(is_done(&asking, update(rdt("gold"))), "{}", place.host.read("daemon.err"));
    let pid = place.file("c1", "pids", "cgroup.procs");
    assert_eq!(tasks("gold").unwrap().trim(), pid);
    for (class, why) in [("foreign", "no such class"), ("tin", "no such group")] {
        assert!(!is_done(&asking, update(rdt(class))), "{class}");
        let explained = place.host.admin(&["explain", "c1"]).to_string();
        assert!(explained.contains(why), "{class}: {explained}");
    }
    assert_eq!(tasks("foreign").unwrap(), "");
    assert!(is_done(&asking, update(rdt("system/default"))), "{}", place.host.read("daemon.err"));
    assert_eq!(tasks("").unwrap().trim(), pid);
}
