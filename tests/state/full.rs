// SPDX-License-Identifier: Apache-2.0
//! A disk that is full to the last byte, as run directory or as bundle, at any moment: a create
//! fails in one line or not at all, nothing is half written, nothing is forgotten, and when there
//! is room again all records are right. The disks are real and small, in a mount namespace of the
//! test's own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use protobuf::MessageDyn;
use serde_json::json;

use super::rig::{BUNDLE, Rig, wait_until};
use super::{Manner, fails, files, run, sets, state, succeeds};

/// A small disk; goes before the folder that it is mounted in.
struct Disk(PathBuf);

impl Disk {
    /// Mounts it at `path`, for this thread and what it starts; `None` after saying why not.
    fn at(path: PathBuf) -> Option<Self> {
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWNS) {
            assert!(std::env::var_os("CI").is_none(), "required under CI: {errno}");
            skip(&format!("a mount namespace is refused: {errno}"));
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

#[expect(clippy::print_stderr, reason = "a skip says why")]
fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

/// To the last byte.
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

/// A plugin that fills the disk when it hears of this event.
fn fills(disk: &Disk, at: &'static str) -> Manner {
    let disk = disk.0.clone();
    let hears = move |event: &str, _: &dyn MessageDyn| {
        if event == at {
            fill(&disk);
        }
    };
    Manner { hears: Some(Arc::new(hears)), ..sets() }
}

/// A world whose run directory is a small disk.
fn small() -> Option<(Rig, Disk)> {
    let mut rig = Rig::new("autostart = false");
    let disk = Disk::at(rig.path("run"))?;
    rig.start_daemon();
    Some((rig, disk))
}

/// The bundle is as its engine wrote it, and nothing lies beside it.
#[track_caller]
fn untouched(rig: &Rig, id: &str) {
    assert_eq!(rig.read(&format!("{id}/config.json")), BUNDLE);
    let names = std::fs::read_dir(rig.path(id)).unwrap().flatten();
    let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    let left = names.iter().filter(|name| *name != "filler").count();
    assert_eq!(left, 2, "{names:?}");
    assert!(!rig.path("root").join(id).exists());
}

#[test]
fn a_create_on_a_full_run_directory_fails_in_one_line_and_works_when_there_is_room() {
    let Some((mut rig, disk)) = small() else { return };
    let told = rig.plugin("10", "env", sets());
    super::bundle(&rig, "c1");
    let pid = rig.daemon_pid();
    disk.fill();
    for _again in 0..3 {
        fails(
            &rig.create_from("c1", "c1"),
            &["cannot create c1", "run/state", "nothing was changed"],
        );
        untouched(&rig, "c1");
    }
    assert_eq!(rig.admin(&["pods"]), json!([]));
    assert!(told.lock().unwrap().is_empty(), "no plugin was asked");
    disk.make_room();
    run(&rig, "c1");
    assert!(rig.read("fake/seen.json").contains("HELLO=there"));
    assert_eq!(rig.admin(&["status"])["pid"], pid, "it has survived");
    wait_until("it runs", || state(&rig, "c1") == "running");
    rig.kill_daemon();
    rig.start_daemon();
    assert_eq!(state(&rig, "c1"), "running");
    assert_eq!(rig.admin(&["status"])["set_aside"], json!([]));
}

#[test]
fn a_disk_that_is_full_by_the_time_plugins_agree_refuses_and_is_told_to_them() {
    let Some((rig, disk)) = small() else { return };
    let told = rig.plugin("10", "env", fills(&disk, "CreateContainer"));
    super::bundle(&rig, "c1");
    for round in 1..=2 {
        fails(&rig.create_from("c1", "c1"), &["cannot create c1", "run/state", "unchanged"]);
        untouched(&rig, "c1");
        wait_until("its end is told", || {
            let told = told.lock().unwrap();
            told.iter().filter(|line| *line == "RemovePodSandbox c1").count() == round
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
        assert_eq!(told.lock().unwrap()[(round - 1) * 6..], wanted);
        disk.make_room();
        for kind in ["containers", "pods", "pristine"] {
            assert_eq!(files(&rig, kind), Vec::<PathBuf>::new(), "{kind}");
        }
    }
}

#[test]
fn what_happens_while_the_disk_is_full_is_told_once_and_on_record_when_there_is_room() {
    let Some((mut rig, disk)) = small() else { return };
    let told = rig.plugin("10", "env", sets());
    for id in ["ends", "starts", "updated", "goes"] {
        super::bundle(&rig, id);
        succeeds(&rig.create_from(id, id));
        wait_until("it is made", || state(&rig, id) == "created");
    }
    for id in ["ends", "updated", "goes"] {
        succeeds(&rig.verb(&["start", id]));
        wait_until("it runs", || state(&rig, id) == "running");
    }
    disk.fill();
    succeeds(&rig.verb(&["start", "starts"]));
    let root = rig.path("root").display().to_string();
    let update = ["--root", &root, "update", "--resources", "-", "updated"];
    succeeds(&rig.call_with(&update, "{\"cpu\": {\"shares\": 77}}"));
    succeeds(&rig.verb(&["kill", "ends", "9"]));
    wait_until("its end is known", || state(&rig, "ends") == "stopped");
    wait_until("its start is known", || state(&rig, "starts") == "running");
    wait_until("the update is told", || {
        told.lock().unwrap().contains(&"PostUpdateContainer updated".to_owned())
    });
    let unwritten = || rig.admin(&["status"])["unwritten"].as_array().unwrap().len();
    wait_until("it is said", || unwritten() == 3);
    let findings = rig.admin(&["check"]).to_string();
    assert!(findings.contains("3 could not be written"), "{findings}");
    // The last, for its record makes room.
    succeeds(&rig.verb(&["delete", "--force", "goes"]));
    wait_until("it is gone", || state(&rig, "goes").is_empty());
    disk.make_room();
    wait_until("all is written, though nothing happens", || unwritten() == 0);
    rig.kill_daemon();
    rig.start_daemon();
    let states = ["ends", "starts", "updated", "goes"].map(|id| state(&rig, id));
    assert_eq!(states, ["stopped", "running", "running", ""]);
    let records = files(&rig, "containers").into_iter();
    let updated = records.filter(|path| path.display().to_string().contains("/updated-"));
    let text: String = updated.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    assert!(text.contains("\"shares\":77"), "{text}");
    let stops = told.lock().unwrap().iter().filter(|line| *line == "StopContainer ends").count();
    assert_eq!(stops, 1);
    let again = rig.plugin("10", "env", sets());
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(again.lock().unwrap().iter().all(|line| line.starts_with("Synchronize")));
}

#[test]
fn a_bundle_on_a_full_disk_is_refused_only_where_something_is_to_be_written() {
    let mut rig = Rig::new("autostart = false");
    let Some(disk) = Disk::at(rig.path("c1")) else { return };
    rig.start_daemon();
    super::bundle(&rig, "c1");
    disk.fill();
    // Nobody wants anything: the disk is none of our business.
    succeeds(&rig.create_from("c1", "c1"));
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    wait_until("it is gone", || rig.admin(&["pods"]) == json!([]));
    let _told = rig.plugin("10", "env", fills(&disk, "CreateContainer"));
    for _again in 0..2 {
        fails(&rig.create_from("c1", "c1"), &["cannot create c1", "config.json", "unchanged"]);
        untouched(&rig, "c1");
        assert_eq!(files(&rig, "pristine"), Vec::<PathBuf>::new());
        disk.make_room();
    }
    rig.kill_daemon();
    rig.start_daemon();
    let _told = rig.plugin("10", "env", sets());
    run(&rig, "c1");
    assert!(rig.read("fake/seen.json").contains("HELLO=there"));
    // Putting the engine's document back takes no more room than there is: else it stays patched.
    wait_until("it runs", || state(&rig, "c1") == "running");
    disk.fill();
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    wait_until("it is gone", || rig.admin(&["pods"]) == json!([]));
    let document = rig.read("c1/config.json");
    let patched = BUNDLE.replace("\"A=1\"]", "\"A=1\",\"HELLO=there\"]");
    assert!(document == BUNDLE || document == patched, "{document}");
}

#[test]
fn a_daemon_starts_on_a_full_disk_and_goes_on_from_what_is_there() {
    let Some((mut rig, disk)) = small() else { return };
    run(&rig, "c1");
    wait_until("it runs", || state(&rig, "c1") == "running");
    disk.fill();
    rig.kill_daemon();
    rig.start_daemon();
    assert_eq!(state(&rig, "c1"), "running");
    fails(&rig.create_from("bundle", "c2"), &["cannot create c2"]);
    succeeds(&rig.verb(&["kill", "c1", "9"]));
    wait_until("its end is known", || state(&rig, "c1") == "stopped");
    disk.make_room();
    succeeds(&rig.create_from("bundle", "c2"));
    wait_until("all is written", || rig.admin(&["status"])["unwritten"] == json!([]));
    rig.kill_daemon();
    rig.start_daemon();
    assert_eq!((state(&rig, "c1"), state(&rig, "c2")), ("stopped".into(), "created".into()));
}
