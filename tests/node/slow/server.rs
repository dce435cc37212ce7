// SPDX-License-Identifier: Apache-2.0
//! A bundle, the PID file and the log of a call, the runtime's root, or a plugin's program, on a file server
//! that stops responding: a mounted FUSE file system that never replies.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::adjustments::sets;
use test_support::example::example;
use test_support::tracer::Attached;
use test_support::{BUNDLE, Started, TestHost, skip, wait_until};

use super::{Place, Row, put, status};

pub(super) const CASES: &[Row] = &[
    ("a bundle on a file server that never answers", |strace| bundle(&strace)),
    ("a PID file and a log on a file server that never answers", |strace| outcome(&strace)),
    ("engines' own files on a file server that never answers", |strace| engines(&strace)),
    ("a start beside bundles on a file server that never answers", |strace| start(&strace, false)),
    ("a start without records beside bundles on a file server that never answers", |strace| {
        start(&strace, true)
    }),
    ("a runtime's root on a file server that never answers", |strace| root(&strace)),
    ("a plugin whose program's path leads to a file server that never answers", |strace| {
        program(&strace)
    }),
];

/// Mounts a file system that answers only the kernel's initialization, until the file is closed.
fn mount_silent(folder: &Path) -> std::io::Result<File> {
    let mut server = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    mount(Some("silent"), folder, Some("fuse"), MsFlags::empty(), Some(options.as_str()))?;
    let mut greeting = [0; 64 << 10];
    let length = server.read(&mut greeting)?;
    let unique = greeting[..length].get(8..16).ok_or(std::io::ErrorKind::UnexpectedEof)?;
    // fuse_out_header and fuse_init_out of version 7.31, with small numbers.
    let mut reply = [0; 80];
    for (at, number) in [(0, 80_u32), (16, 7), (20, 31), (36, 4096)] {
        reply[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    reply[8..16].copy_from_slice(unique);
    server.write_all(&reply)?;
    Ok(server)
}

/// Whether this thread and its children have a separate mount namespace.
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

/// Two engines may have two roots: calls on a hanging root delay no call on the other.
fn root(strace: &Path) -> Option<Place> {
    if !has_mounts_of_its_own() {
        return None;
    }
    let mut host = TestHost::default();
    host.start_daemon();
    let mut place = Place::new(host, strace);
    let _plugin = place.host.plugin("10", "a", sets("HELLO", "there"));
    let folder = place.host.path("served");
    std::fs::create_dir(&folder).unwrap();
    let server = silent(&folder)?;
    let (root, bundle) = (folder.display().to_string(), place.host.path("bundle"));
    let bundle = bundle.display().to_string();
    let words = ["--root", &root, "create", "--bundle", &bundle, "c9"];
    let refused = place.during(|host| host.call(&words));
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && line.contains("does not answer"), "{line}");
    let other_verbs = [["start", "zz"], ["delete", "zz"], ["kill", "zz"]]
        .map(|[verb, id]| Started(place.host.spawn(&["--root", &root, verb, id])));
    creates_from_another_bundle(&place);
    // The children hang until the server is gone.
    drop(server);
    drop(other_verbs);
    Some(place)
}

/// In its mount namespace the process sees a file at the path at which the daemon sees the file server. It connects.
fn program(strace: &Path) -> Option<Place> {
    if !has_mounts_of_its_own() {
        return None;
    }
    let mut host = TestHost::default();
    let folder = host.path("served");
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.display().to_string();
    host.configure(
        &host.path("fake/runc"),
        &format!("[plugin.ear]\nfrom = [\"exe:{folder}/*\"]\n"),
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
    let _child = Started(child.unwrap());
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

/// Whether the kernel has a request for the server.
fn is_asked(server: &File) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    poll(&mut [PollFd::new(server.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0
}

/// A container of this engine: its bundle, its annotations, and the folder of the engine's files.
type OfEngine = (&'static str, &'static str, &'static str, &'static str);

/// Bundles in memory, whose engines keep further files on a disk.
const OF_ENGINES: [OfEngine; 3] = [
    ("docker", "tasks/io.containerd.runtime.v2.task/moby/c1", "", "served"),
    (
        "podman",
        "in/run/containers/storage/overlay-containers/c2/userdata",
        "\"io.container.manager\": \"libpod\"",
        "in/var/lib/containers/storage",
    ),
    (
        "cri-o",
        "in/run/containers/storage/overlay-containers/c3/userdata",
        "\"io.container.manager\": \"cri-o\", \"io.kubernetes.cri-o.SandboxID\": \"p1\", \
            \"io.kubernetes.cri-o.ContainerType\": \"container\"",
        "in/var/lib/containers/storage",
    ),
];

fn engines(strace: &Path) -> Option<Place> {
    if !has_mounts_of_its_own() {
        return None;
    }
    let mut host = TestHost::default();
    host.start_daemon();
    let mut place = Place::new(host, strace);
    for (engine, bundle, annotations, folder) in OF_ENGINES {
        let id = bundle.trim_end_matches("/userdata").rsplit('/').next().unwrap();
        let root = place.host.path(folder).join("overlay2/x/merged").display().to_string();
        let document = BUNDLE
            .replace("\"rootfs\"", &format!("\"{root}\""))
            .replace("\"root\"", &format!("\"annotations\": {{{annotations}}}, \"root\""));
        place.put(&format!("{bundle}/config.json"), &document);
        let folder = place.host.path(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let server = silent(&folder)?;
        let created = place.during(|host| host.create_from(bundle, id));
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        assert!(is_asked(&server), "no file of {engine} was asked for");
        for words in [&["start", id][..], &["kill", id, "9"], &["delete", "--force", id]] {
            assert!(
                place.during(|host| host.verb(words)).status.success(),
                "{words:?} of {engine}"
            );
        }
        drop(server);
        umount2(&folder, MntFlags::MNT_DETACH).unwrap();
    }
    Some(place)
}

/// Stops itself until its tracer is attached, and then executes the daemon.
const STOPPED: &str = "kill -STOP $$; exec \"$0\" nri daemon";

/// A daemon that starts with containers of an earlier one, one of which is being created; or with a missing
/// run directory.
fn start(strace: &Path, is_wiped: bool) -> Option<Place> {
    if !has_mounts_of_its_own() {
        return None;
    }
    let mut host = TestHost::default();
    let folder = host.path("").display().to_string();
    host.put_program("fake/slow-runc", &FAILS.replace("HOST/", &folder));
    let root = host.path("root").display().to_string();
    let roots = format!("autostart = false\nruntime_roots = [\"{root}\"]\n");
    host.configure(&host.path("fake/runc"), &roots);
    host.start_daemon();
    let _plugin = host.plugin("10", "a", sets("HELLO", "there"));
    for id in ["c1", "known"] {
        std::fs::create_dir_all(host.path("served").join(id).join("rootfs")).unwrap();
        put(&host, &format!("served/{id}/config.json"), BUNDLE);
    }
    assert!(host.create_from("served/known", "known").status.success());
    host.configure(&host.path("fake/slow-runc"), &roots);
    let bundle = host.path("served/c1").display().to_string();
    let mut create = Started(host.spawn(&["create", "--bundle", &bundle, "c1"]));
    wait_until("the runtime has begun", || host.path("begun").exists());
    host.configure(&host.path("fake/runc"), &roots);
    host.kill_daemon();
    if is_wiped {
        std::fs::remove_dir_all(host.path("run")).unwrap();
    }
    let server = silent(&host.path("served"))?;
    let printed = File::options().append(true).create(true).open(host.path("daemon.err")).unwrap();
    let daemon = Command::new("sh")
        .args(["-c", STOPPED, &test_support::program::nri_runc().display().to_string()])
        // From cargo: the linker would search it for libraries.
        .env_remove("LD_LIBRARY_PATH")
        .env("NRI_RUNC_CONFIG", host.path("config.toml"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(printed)
        .spawn();
    let daemon = Started(daemon.unwrap());
    let pid = i32::try_from(daemon.0.id()).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    wait_until("it has stopped", || state().contains(") T "));
    let tracer = Attached::with_descriptors(pid, strace, &host.path("strace"));
    kill(Pid::from_raw(pid), Signal::SIGCONT).unwrap();
    let mut place = Place::traced(host, pid, tracer);
    place.known.looks_for_daemons = true;
    place.kept.push(Box::new(daemon));
    wait_until("the daemon answers", || status(&place.host).is_some());
    assert!(is_asked(&server), "no bundle was looked at");
    let words = ["known in", "cannot be recovered", "does not answer"];
    while is_wiped && place.host.logged(&words) == 0 {
        place.beat();
        std::thread::sleep(Duration::from_millis(100));
    }
    creates_from_another_bundle(&place);
    drop(server);
    place.host.write("go", "");
    create.0.wait().unwrap();
    Some(place)
}

/// Creates a container from a bundle on another file system.
#[track_caller]
fn creates_from_another_bundle(place: &Place) {
    std::fs::create_dir_all(place.host.path("other/rootfs")).unwrap();
    place.put("other/config.json", BUNDLE);
    let created = place.host.create_from("other", "c2");
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
}

/// A runtime that fails once permitted.
const FAILS: &str = "#!/bin/sh
case \"$*\" in *create*)
    : > HOST/begun
    while [ ! -e HOST/go ]; do sleep 0.1; done
    exit 1
esac
";

fn outcome(strace: &Path) -> Option<Place> {
    if !has_mounts_of_its_own() {
        return None;
    }
    let mut host = TestHost::default();
    let folder = host.path("").display().to_string();
    host.put_program("fake/silent-runc", &FAILS.replace("HOST/", &folder));
    host.configure(&host.path("fake/silent-runc"), "");
    host.start_daemon();
    let mut place = Place::new(host, strace);
    let _plugin = place.host.plugin("10", "a", sets("HELLO", "there"));
    let path = |name: &str| place.host.path(name).display().to_string();
    let (folder, log, file) = (place.host.path("engine"), path("engine/log"), path("engine/pid"));
    std::fs::create_dir(&folder).unwrap();
    let words = ["--log", &log, "create", "--bundle", "BUNDLE", "--pid-file", &file, "c1"];
    let mut create = place.host.spawn(&words);
    wait_until("the runtime has begun", || place.host.path("begun").exists());
    let server = silent(&folder);
    place.host.write("go", "");
    assert!(!create.wait().unwrap().success());
    let server = server?;
    let words = ["outcome of create c1 is not known yet", "the file system of", "does not answer"];
    while place.host.logged(&words) == 0 {
        place.beat();
        std::thread::sleep(Duration::from_millis(100));
    }
    place.host.configure(&place.host.path("fake/runc"), "");
    creates_from_another_bundle(&place);
    drop(server);
    umount2(&folder, MntFlags::MNT_DETACH).unwrap();
    wait_until("the outcome is known", || {
        place.host.logged(&["c1: the runtime did not create it"]) > 0
    });
    Some(place)
}

fn bundle(strace: &Path) -> Option<Place> {
    if !has_mounts_of_its_own() {
        return None;
    }
    let mut host = TestHost::default();
    host.start_daemon();
    let mut place = Place::new(host, strace);
    let _plugin = place.host.plugin("10", "a", sets("HELLO", "there"));
    let created = place.host.create("c1");
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let server = silent(&place.host.path("bundle"))?;
    // The engine's document would have to be restored there: the daemon gives that up, and the container is
    // removed.
    let deleted = place.during(|host| host.verb(&["delete", "--force", "c1"]));
    assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    let words = ["could not be restored", "the file system of", "does not answer"];
    while place.host.logged(&words) == 0 {
        place.beat();
        std::thread::sleep(Duration::from_millis(100));
    }
    creates_from_another_bundle(&place);
    drop(server);
    Some(place)
}
