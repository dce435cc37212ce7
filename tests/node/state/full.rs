// SPDX-License-Identifier: Apache-2.0
//! A completely full disk, as run directory or as bundle, at any moment: a create fails with one
//! line or succeeds, nothing is half written or lost, and when there is space again all records are
//! right. The disks are real and small, in a separate mount namespace.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use protobuf::MessageDyn;
use serde_json::json;
use test_support::adjustments::sets;
use test_support::{BUNDLE, TestHost, skip, wait_until};

use super::{Script, fails, files, run, state, succeeds};

/// A small disk; it is removed before the folder in which it is mounted.
struct Disk(PathBuf);

impl Disk {
    /// Mounts it at `path`, for this thread and its children; `None` after printing why not.
    fn at(path: PathBuf) -> Option<Self> {
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWNS) {
            skip::setup_lacks(&format!("a mount namespace is refused: {errno}"));
            return None;
        }
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
        std::fs::create_dir_all(&path).unwrap();
        let options = Some("size=256k,mode=0700");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), options).unwrap();
        Some(Self(path))
    }

    fn fill(&self) {
        fill(&self.0);
    }

    fn make_room(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _or_with_its_namespace = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Fills it to the last byte.
fn fill(disk: &Path) {
    let mut options = std::fs::OpenOptions::new();
    let mut filler = options.append(true).create(true).open(disk.join("filler")).unwrap();
    let mut chunk = vec![b'x'; 64 << 10];
    while !chunk.is_empty() {
        if filler.write_all(&chunk).is_err() {
            chunk.truncate(chunk.len() / 2);
        }
    }
}

/// A plugin that fills the disk when it receives this event.
fn fills(disk: &Disk, at: &'static str) -> Script {
    let disk = disk.0.clone();
    let on_request = move |event: &str, _: &dyn MessageDyn| {
        if event == at {
            fill(&disk);
        }
    };
    Script { on_request: Some(Arc::new(on_request)), ..sets("HELLO", "there") }
}

/// A host whose run directory is a small disk.
fn small() -> Option<(TestHost, Disk)> {
    let mut host = TestHost::new("autostart = false");
    let disk = Disk::at(host.path("run"))?;
    host.start_daemon();
    Some((host, disk))
}

/// Checks that the bundle is as its engine wrote it, without further files.
#[track_caller]
fn untouched(host: &TestHost, id: &str) {
    assert_eq!(host.read(&format!("{id}/config.json")), BUNDLE);
    let names = std::fs::read_dir(host.path(id)).unwrap().flatten();
    let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    let left = names.iter().filter(|name| *name != "filler").count();
    assert_eq!(left, 2, "{names:?}");
    assert!(!host.path("root").join(id).exists());
}

#[test]
fn a_create_on_a_full_run_directory_fails_until_there_is_room() {
    let Some((mut host, disk)) = small() else { return };
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    super::bundle(&host, "c1");
    let pid = host.daemon_pid();
    disk.fill();
    for _again in 0..3 {
        fails(
            &host.create_from("c1", "c1"),
            &["cannot create c1", "run/state", "nothing was changed"],
        );
        untouched(&host, "c1");
    }
    assert_eq!(host.admin(&["pods"]), json!([]));
    assert!(received.lock().unwrap().is_empty(), "no plugin was asked");
    disk.make_room();
    run(&host, "c1");
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
    assert_eq!(host.admin(&["status"])["pid"], pid, "it has survived");
    wait_until("it runs", || state(&host, "c1") == "running");
    host.kill_daemon();
    host.start_daemon();
    assert_eq!(state(&host, "c1"), "running");
    assert_eq!(host.admin(&["status"])["set_aside"], json!([]));
}

#[test]
fn a_create_that_fails_on_a_full_disk_is_undone_for_plugins() {
    let Some((host, disk)) = small() else { return };
    let received = host.plugin("10", "env", fills(&disk, "CreateContainer"));
    super::bundle(&host, "c1");
    for round in 1..=2 {
        fails(&host.create_from("c1", "c1"), &["cannot create c1", "run/state", "unchanged"]);
        untouched(&host, "c1");
        wait_until("its end is reported", || {
            let received = received.lock().unwrap();
            received.iter().filter(|line| *line == "RemovePodSandbox c1").count() == round
        });
        let order = [
            "RunPodSandbox",
            "CreateContainer",
            "StopContainer",
            "RemoveContainer",
            "StopPodSandbox",
            "RemovePodSandbox",
        ];
        let wanted: Vec<String> = order.iter().map(|event| format!("{event} c1")).collect();
        assert_eq!(received.lock().unwrap()[(round - 1) * 6..], wanted);
        disk.make_room();
        for kind in ["containers", "pods", "pristine"] {
            assert_eq!(files(&host, kind), Vec::<PathBuf>::new(), "{kind}");
        }
    }
}

#[test]
fn events_on_a_full_disk_are_sent_once_and_recorded_later() {
    let Some((mut host, disk)) = small() else { return };
    // The plugin changes no process, because removing a mark would free space.
    let received = host.plugin("10", "env", Script::default());
    for id in ["ends", "starts", "updated", "goes"] {
        super::bundle(&host, id);
        succeeds(&host.create_from(id, id));
        wait_until("it is made", || state(&host, id) == "created");
    }
    for id in ["ends", "updated", "goes"] {
        succeeds(&host.verb(&["start", id]));
        wait_until("it runs", || state(&host, id) == "running");
    }
    disk.fill();
    succeeds(&host.verb(&["start", "starts"]));
    let root = host.path("root").display().to_string();
    let update = ["--root", &root, "update", "--resources", "-", "updated"];
    succeeds(&host.call_with(&update, "{\"cpu\": {\"shares\": 77}}"));
    succeeds(&host.verb(&["kill", "ends", "9"]));
    wait_until("its end is known", || state(&host, "ends") == "stopped");
    wait_until("its start is known", || state(&host, "starts") == "running");
    wait_until("the update is reported", || {
        received.lock().unwrap().contains(&"PostUpdateContainer updated".to_owned())
    });
    let unwritten = || host.admin(&["status"])["unwritten"].as_array().unwrap().len();
    wait_until("it is said", || unwritten() == 3);
    let findings = host.admin(&["check"]).to_string();
    assert!(findings.contains("3 could not be written"), "{findings}");
    // The last operation, because it frees the space of a record.
    succeeds(&host.verb(&["delete", "--force", "goes"]));
    wait_until("it is gone", || state(&host, "goes").is_empty());
    disk.make_room();
    wait_until("all is written, though nothing happens", || unwritten() == 0);
    host.kill_daemon();
    host.start_daemon();
    let states = ["ends", "starts", "updated", "goes"].map(|id| state(&host, id));
    assert_eq!(states, ["stopped", "running", "running", ""]);
    let records = files(&host, "containers").into_iter();
    let updated = records.filter(|path| path.display().to_string().contains("/updated-"));
    let text: String = updated.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    assert!(text.contains("\"shares\":77"), "{text}");
    let stops =
        received.lock().unwrap().iter().filter(|line| *line == "StopContainer ends").count();
    assert_eq!(stops, 1);
    let again = host.plugin("10", "env", sets("HELLO", "there"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(again.lock().unwrap().iter().all(|line| line.starts_with("Synchronize")));
}

#[test]
fn a_bundle_on_a_full_disk_is_refused_only_if_written_to() {
    let mut host = TestHost::new("autostart = false");
    let Some(disk) = Disk::at(host.path("c1")) else { return };
    host.start_daemon();
    super::bundle(&host, "c1");
    disk.fill();
    // Without a plugin that changes it, the disk does not matter.
    succeeds(&host.create_from("c1", "c1"));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until("it is gone", || host.admin(&["pods"]) == json!([]));
    let _plugin = host.plugin("10", "env", fills(&disk, "CreateContainer"));
    for _again in 0..2 {
        fails(&host.create_from("c1", "c1"), &["cannot create c1", "config.json", "unchanged"]);
        untouched(&host, "c1");
        assert_eq!(files(&host, "pristine"), Vec::<PathBuf>::new());
        disk.make_room();
    }
    host.kill_daemon();
    host.start_daemon();
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    run(&host, "c1");
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
    // Restoring the engine's document must not need more space than there is; otherwise it stays
    // patched.
    wait_until("it runs", || state(&host, "c1") == "running");
    disk.fill();
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until("it is gone", || host.admin(&["pods"]) == json!([]));
    let document = host.read("c1/config.json");
    let patched = BUNDLE.replace("\"A=1\"]", "\"A=1\",\"HELLO=there\"]");
    assert!(document == BUNDLE || document == patched, "{document}");
}

#[test]
fn a_daemon_on_a_full_disk_starts_with_the_written_records() {
    let Some((mut host, disk)) = small() else { return };
    run(&host, "c1");
    wait_until("it runs", || state(&host, "c1") == "running");
    disk.fill();
    host.kill_daemon();
    host.start_daemon();
    assert_eq!(state(&host, "c1"), "running");
    fails(&host.create_from("bundle", "c2"), &["cannot create c2"]);
    succeeds(&host.verb(&["kill", "c1", "9"]));
    wait_until("its end is known", || state(&host, "c1") == "stopped");
    disk.make_room();
    succeeds(&host.create_from("bundle", "c2"));
    wait_until("all is written", || host.admin(&["status"])["unwritten"] == json!([]));
    host.kill_daemon();
    host.start_daemon();
    assert_eq!((state(&host, "c1"), state(&host, "c2")), ("stopped".into(), "created".into()));
}
