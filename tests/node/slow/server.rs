// SPDX-License-Identifier: Apache-2.0
//! A bundle, or a plugin's program, on a file server that stops answering: a FUSE file system that is
//! mounted and never replies.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use test_support::adjustments::sets;
use test_support::example::example;
use test_support::{BUNDLE, TestHost, skip, wait_until};

use super::{Place, Row};

pub(super) const CASES: &[Row] = &[
    ("a bundle on a file server that never answers", |strace| bundle(&strace)),
    ("a plugin whose program's path leads to a file server that never answers", |strace| {
        program(&strace)
    }),
];

/// Mounts a file system that answers the kernel's greeting and nothing else; until the file is closed.
fn mount_silent(folder: &Path) -> std::io::Result<File> {
    let mut server = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    mount(Some("silent"), folder, Some("fuse"), MsFlags::empty(), Some(options.as_str()))?;
    let mut greeting = [0; 64 << 10];
    let length = server.read(&mut greeting)?;
    let unique = greeting[..length].get(8..16).ok_or(std::io::ErrorKind::UnexpectedEof)?;
    // fuse_out_header and fuse_init_out of version 7.31, whose numbers are small.
    let mut reply = [0; 80];
    for (at, number) in [(0, 80_u32), (16, 7), (20, 31), (36, 4096)] {
        reply[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    reply[8..16].copy_from_slice(unique);
    server.write_all(&reply)?;
    Ok(server)
}

/// Mounts of this case are this thread's alone, and those of what it starts.
fn has_mounts_of_its_own() -> bool {
    if let Err(errno) = unshare(CloneFlags::CLONE_NEWNS) {
        skip::setup_lacks(&format!("a mount namespace is refused: {errno}"));
        return false;
    }
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
    true
}

fn silent(folder: &Path) -> Option<File> {
    let no_fuse = |error| {
        skip::machine_lacks(&format!("no FUSE file system can be mounted here: {error}"));
    };
    mount_silent(folder).map_err(no_fuse).ok()
}

/// The process sees a file of its own where the daemon sees the file server, and connects.
#[expect(clippy::disallowed_methods, reason = "the plugin under test")]
fn program(strace: &Path) -> Option<Place> {
    if !has_mounts_of_its_own() {
        return None;
    }
    let mut host = TestHost::new("");
    let folder = host.path("served");
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.display().to_string();
    host.configure(
        &host.path("fake/runc"),
        &format!("---[plugin.ear]\nfrom = [\"exe:{folder}/*\"]\n"),
    );
    host.start_daemon();
    let mut place = Place::new(host, strace);
    let script = format!(
        "mount -t tmpfs none {folder} && cp {} {folder}/ear && : >{ready} && \
         while [ ! -e {go} ]; do sleep 0.1; done; exec {folder}/ear --id 10-ear --socket {}",
        example("event_logger").display(),
        place.host.path("nri.sock").display(),
        ready = place.host.path("ready").display(),
        go = place.host.path("go").display(),
    );
    let child = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _child = Ended(child.unwrap());
    wait_until("it has its program", || place.host.path("ready").exists());
    let server = silent(Path::new(&folder))?;
    place.put("go", "");
    let words = ["10-ear was refused", "not shown to be the host's file"];
    while place.host.logged(&words) == 0 {
        place.beat();
        std::thread::sleep(Duration::from_millis(100));
    }
    place.lives("c1");
    drop(server);
    Some(place)
}

/// A process that ends with its case.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ended_before = self.0.kill();
        let _status = self.0.wait();
    }
}

fn bundle(strace: &Path) -> Option<Place> {
    if !has_mounts_of_its_own() {
        return None;
    }
    let mut host = TestHost::new("");
    host.start_daemon();
    let mut place = Place::new(host, strace);
    let _told = place.host.plugin("10", "a", sets("HELLO", "there"));
    let created = place.host.create("c1");
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let server = silent(&place.host.path("bundle"))?;
    // The engine's document would be put back there: the daemon gives that up, and the container goes.
    let deleted = place.during(|host| host.verb(&["delete", "--force", "c1"]));
    assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    let words = ["could not be restored", "the file system of", "does not answer"];
    while place.host.logged(&words) == 0 {
        place.beat();
        std::thread::sleep(Duration::from_millis(100));
    }
    // Another bundle is another file system's.
    std::fs::create_dir_all(place.host.path("other/rootfs")).unwrap();
    place.put("other/config.json", BUNDLE);
    let created = place.host.create_from("other", "c2");
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    drop(server);
    Some(place)
}
