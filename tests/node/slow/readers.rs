// SPDX-License-Identifier: Apache-2.0
//! Readers of the daemon's output that do not read: a terminal, the journal, syslog, the service manager.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use test_support::{Script, Started, TestHost, skip, wait_until};

use super::{Place, Row, status};

pub(super) const CASES: &[Row] = &[
    ("a terminal and a service manager that are not read", |strace| terminal(&strace)),
    ("a journal and its audit log that are not read", |strace| {
        in_a_namespace(&strace, journal, "journal\"\n[audit]\ntarget = \"journal")
    }),
    ("a restart beside a journal that is not read", |strace| restart(&strace)),
    ("a syslog that is not read", |strace| in_a_namespace(&strace, syslog, "syslog")),
];

/// Makes the daemon write more lines than any reader's buffer holds.
fn many_lines(place: &mut Place) {
    for number in 0..40 {
        let _plugin = place.host.plugin("10", &format!("plugin{number}"), Script::default());
        place.beat();
    }
}

fn terminal(strace: &Path) -> Option<Place> {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let host = TestHost::new("[log]\nlevel = \"debug\"\n");
    let reader = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&reader).unwrap();
    unlockpt(&reader).unwrap();
    let name = ptsname(&reader, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
    let terminal = rustix::fs::open(&*name, flags, rustix::fs::Mode::empty()).unwrap();
    // Stops the terminal's output as Ctrl-S does.
    rustix::termios::tcflow(&terminal, rustix::termios::Action::OOff).unwrap();
    let manager = UnixDatagram::bind(host.path("notify")).unwrap();
    let notify = host.path("notify").display().to_string();
    let variables = [("NOTIFY_SOCKET", notify.as_str()), ("WATCHDOG_USEC", "20000")];
    let daemon = Started(host.spawn_at(&["nri", "daemon"], &terminal, &variables));
    wait_until("the daemon answers", || status(&host).is_some());
    let mut place = Place::new(host, strace);
    place.kept.push(Box::new((daemon, manager, reader)));
    many_lines(&mut place);
    place.lives("c1");
    let answer = place.beat();
    assert!(answer["log_failure"].as_str().is_some_and(|why| why.contains("wait for")), "{answer}");
    Some(place)
}

/// Mounts an empty folder over this one.
fn hide(path: &str) {
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
}

fn journal() -> Option<UnixDatagram> {
    hide("/run");
    std::fs::create_dir_all("/run/systemd/journal").unwrap();
    Some(UnixDatagram::bind("/run/systemd/journal/socket").unwrap())
}

/// The exiting daemon has lines to write, and so has the next one.
fn restart(strace: &Path) -> Option<Place> {
    let mut place = in_a_namespace(strace, journal, "journal\"\n[audit]\ntarget = \"journal")?;
    let restarted = place.host.call(&["nri", "restart"]);
    assert!(restarted.status.success(), "{}", String::from_utf8_lossy(&restarted.stderr));
    let (blocking, _calls) = place.end();
    assert!(blocking.is_empty(), "of the daemon that ended: {blocking:#?}");
    let Place { host, kept, pid: before, .. } = place;
    let mut place = Place::new(host, strace);
    assert_ne!(place.pid, before);
    place.kept = kept;
    many_lines(&mut place);
    place.lives("c2");
    Some(place)
}

/// Creates `/dev/log` in a separate `/dev` with the devices that every program needs.
fn syslog() -> Option<UnixDatagram> {
    hide("/dev");
    for (name, minor) in [("null", 3), ("zero", 5), ("random", 8), ("urandom", 9)] {
        let (path, mode) = (format!("/dev/{name}"), Mode::from_bits_truncate(0o666));
        if let Err(errno) = mknod(path.as_str(), SFlag::S_IFCHR, mode, makedev(1, minor)) {
            skip::machine_lacks(&format!("{path} cannot be made here: {errno}"));
            return None;
        }
    }
    Some(UnixDatagram::bind("/dev/log").unwrap())
}

/// Runs the work in a thread with a mount namespace that ends with the thread.
fn in_a_namespace(
    strace: &Path,
    bind: fn() -> Option<UnixDatagram>,
    target: &str,
) -> Option<Place> {
    if let Err(errno) = unshare(CloneFlags::CLONE_NEWNS) {
        skip::setup_lacks(&format!("a mount namespace is refused: {errno}"));
        return None;
    }
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
    let reader = bind()?;
    let host = TestHost::new(&format!("[log]\nlevel = \"debug\"\ntarget = \"{target}\"\n"));
    let daemon = Started(host.spawn_on(&["nri", "daemon"], Stdio::null(), Stdio::null()));
    wait_until("the daemon answers", || status(&host).is_some());
    let mut place = Place::new(host, strace);
    place.kept.push(Box::new((daemon, reader)));
    many_lines(&mut place);
    place.lives("c1");
    let answer = place.beat();
    assert!(answer["log_failure"].as_str().is_some_and(|why| why.contains("wait for")), "{answer}");
    Some(place)
}
