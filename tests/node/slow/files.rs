// SPDX-License-Identifier: Apache-2.0
//! Irregular files: everything that the daemon reads or writes by name is replaced by a FIFO, a socket,
//! a device, a folder or an endless file.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use nri_plugin::{Adjustment, Resources};
use nri_runc::plugin::api;
use test_support::{Script, TestHost, wait_until};

use super::{Place, Row, ask, put};

pub(super) const CASES: &[Row] = &[
    ("FIFOs in the place of files", |strace| with_files(&strace, fifo)),
    ("sockets in the place of files", |strace| with_files(&strace, socket)),
    ("devices in the place of files", |strace| with_files(&strace, device)),
    ("links to a FIFO in the place of files", |strace| with_files(&strace, link)),
    ("folders in the place of files", |strace| with_files(&strace, folder)),
    ("files without end", |strace| with_files(&strace, endless)),
];

fn fifo(path: &Path) {
    mkfifo(path, Mode::S_IRWXU).unwrap();
}

fn socket(path: &Path) {
    // The path of a socket must be short, and its folders' paths are not.
    let short = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(short.path().join("s")).unwrap());
    std::fs::rename(short.path().join("s"), path).unwrap();
}

/// Creates the zero device.
fn device(path: &Path) {
    if mknod(path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).is_err() {
        symlink("/dev/zero", path).unwrap();
    }
}

fn link(path: &Path) {
    let target = path.with_extension("target");
    let _another_names_it = mkfifo(&target, Mode::S_IRWXU);
    symlink(target, path).unwrap();
}

fn folder(path: &Path) {
    std::fs::create_dir(path).unwrap();
}

fn endless(path: &Path) {
    let file = std::fs::File::options().write(true).create_new(true).open(path).unwrap();
    file.set_len(1 << 40).unwrap();
}

/// Files of the run directory that another daemon, or a wrapper, may have left.
const LEFT: [&str; 14] = [
    "state/containers/c9-0.json",
    "state/pods/p9.json",
    "state/kept/c9.json",
    "state/pristine/c9",
    "state/marks/c9",
    "state/plugins.json",
    "state/boot_id",
    "protecting-plugins",
    "config.good.toml",
    "reexec",
    "bypassed/1-a.json",
    "bypassed/dropped",
    "refused/1-a.json",
    "daemon.err.old",
];

/// Files that the daemon writes.
const WRITTEN: [&str; 3] = ["run/daemon.log", "audit.log", "run/state/.plugins.json.new"];

/// Files that describe the objects of an adjustment.
const NAMED: [&str; 4] = ["cdi/a.json", "cdi/b.yaml", "blockio.yaml", "rdt.yaml"];

fn replace(path: &Path, other: fn(&Path)) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _none_was_there = std::fs::remove_file(path);
    other(path);
}

fn give_back(host: &TestHost, name: &str, text: &str) {
    let _no_folder = std::fs::remove_dir(host.path(name));
    host.write(name, text);
}

/// A host whose daemon finds them in place of all its files at its start, and some more while it runs.
fn with_files(strace: &Path, other: fn(&Path)) -> Option<Place> {
    let mut host = TestHost::default();
    let at = |name: &str| host.path(name).display().to_string();
    let settings = format!(
        "[nri]\nplugin_registration_timeout = \"1s\"\n[cdi]\nspec_dirs = [\"{}\"]\n[blockio]\nconfig_file = \"{}\"\n\
         [rdt]\nconfig_file = \"{}\"\n[audit]\ntarget = \"file\"\npath = \"{}\"\n[log]\ntarget = \"file\"\n\
         [debug]\nhost_root = \"{}\"\n",
        at("cdi"),
        at("blockio.yaml"),
        at("rdt.yaml"),
        at("audit.log"),
        at("host"),
    );
    host.configure(&host.path("fake/runc"), &settings);
    std::fs::create_dir_all(host.path("host")).unwrap();
    for kernels in ["proc", "sys"] {
        symlink(format!("/{kernels}"), host.path("host").join(kernels)).unwrap();
    }
    put(&host, "host/var/lib/nri-runc/engines/docker.json", "{}");
    host.start_daemon();
    host.kill_daemon();
    LEFT.iter().for_each(|name| replace(&host.path("run").join(name), other));
    WRITTEN.iter().chain(&NAMED).for_each(|name| replace(&host.path(name), other));
    replace(&host.path("host/var/lib/nri-runc/engines/docker.json"), other);
    std::fs::create_dir(host.path("plugins")).unwrap();
    host.put_program("plugins/20-file", "#!/bin/sh\nexec sleep 1000\n");
    replace(&host.path("20-file.conf"), other);
    host.start_daemon();
    let mut place = Place::new(host, strace);
    names_what_is_not_there(&mut place);
    files_of_a_container(&mut place, other);
    reload(&mut place, other);
    place.lives("c2");
    only_a_lock(&mut place, other);
    Some(place)
}

/// Checks that a container is refused whose plugin names devices and classes, and that the next one
/// is not.
fn names_what_is_not_there(place: &mut Place) {
    let next: Arc<Mutex<api::ContainerAdjustment>> = Arc::default();
    let script = Script { next: Some(Arc::clone(&next)), ..Script::default() };
    let _plugin = place.host.plugin("10", "names", script);
    for wanted in [
        Adjustment::new().cdi_device("v.com/d=x"),
        Adjustment::new().resources(Resources::new().blockio_class("slow")),
        Adjustment::new().resources(Resources::new().rdt_class("slow")),
    ] {
        *next.lock().unwrap() = Script::from(wanted).adjust;
        let output = place.host.create("c1");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && printed.contains("nri-runc: "), "{printed}");
        place.beat();
        let _undone = place.host.verb(&["delete", "--force", "c1"]);
    }
    *next.lock().unwrap() = api::ContainerAdjustment::default();
    place.lives("c1");
}

/// Replaces the runtime's state file of a container, and puts it back.
fn files_of_a_container(place: &mut Place, other: fn(&Path)) {
    assert!(place.host.create("c3").status.success());
    let state = place.host.path("root/c3/state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    replace(&state, other);
    place.host.verb(&["start", "c3"]);
    place.beat();
    give_back(&place.host, "root/c3/state.json", &text);
    place.host.verb(&["kill", "c3", "9"]);
    place.host.verb(&["delete", "--force", "c3"]);
    place.beat();
}

/// Replaces the configuration file and reloads it.
fn reload(place: &mut Place, other: fn(&Path)) {
    let path = place.host.path("config.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    replace(&path, other);
    let why = ask(&place.host, "{\"verb\":\"reload\"}").unwrap().unwrap_err();
    assert!(why.contains("config.toml: it "), "{why}");
    place.beat();
    give_back(&place.host, "config.toml", &text);
    place.host.call(&["nri", "reload"]);
    place.beat();
}

/// Checks that a daemon whose lock is no regular file reports this and exits: it serves no request
/// yet.
fn only_a_lock(place: &mut Place, other: fn(&Path)) {
    let second = TestHost::default();
    std::fs::create_dir(second.path("run")).unwrap();
    std::fs::set_permissions(
        second.path("run"),
        std::os::unix::fs::PermissionsExt::from_mode(0o700),
    )
    .unwrap();
    replace(&second.path("run/daemon.lock"), other);
    if second.path("run/daemon.lock").metadata().is_ok_and(|meta| meta.is_file()) {
        return;
    }
    let mut daemon = second.spawn_kept(&["nri", "daemon"], None, "second.err");
    wait_until("it has exited", || daemon.try_wait().unwrap().is_some());
    let printed = second.read("second.err");
    let reasons = ["it is not a regular file", "it is a symbolic link", "it is a folder"];
    assert!(
        reasons.iter().any(|why| printed.contains(&format!("daemon.lock: {why}"))),
        "{printed}"
    );
    place.beat();
}
