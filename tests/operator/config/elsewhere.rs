// SPDX-License-Identifier: Apache-2.0
//! The run directory of the configuration differs from the daemon's: it was changed, or another
//! file system was mounted over it. No second daemon is started, and `check` reports the first.

use std::path::PathBuf;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::adjustments::sets;
use test_support::{TestHost, is_synchronized, skip, started, wait_until};

use super::{fails, finding, succeeds};

/// Makes the configuration name another run directory.
fn change_run_dir(host: &TestHost) {
    let text = host.read("config.toml");
    let old = format!("run_dir = \"{}\"", host.path("run").display());
    let new = format!("run_dir = \"{}\"", host.path("run2").display());
    assert!(text.contains(&old));
    host.write("config.toml", &text.replace(&old, &new));
}

#[test]
fn a_changed_run_directory_starts_no_second_daemon() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    change_run_dir(&host);
    // Without a protection the container is created without plugins, and recorded.
    succeeds(&host.create("c1"));
    assert!(!host.read("fake/seen.json").contains("HELLO"));
    assert!(!host.path("run2/daemon.sock").exists(), "no second daemon");
    let note = std::fs::read_dir(host.path("run2/bypassed")).unwrap().next().unwrap().unwrap();
    let note = std::fs::read_to_string(note.path()).unwrap();
    let pid = host.daemon_pid();
    let other = format!(
        "the daemon that serves the plugins (process {pid}) has the run directory {}",
        host.path("run").display()
    );
    assert!(note.contains(&other), "{note}");
    let found = finding(&host, "daemon");
    let detail = found["detail"].as_str().unwrap();
    assert!(found["ok"] == false && detail.starts_with(&other), "{found}");
    assert!(detail.contains(&host.path("run2").display().to_string()), "{found}");
    assert_eq!(found["hint"], "use: nri-runc nri restart");
    // The daemon would not read this configuration, so a reload that reports "not running" would
    // mislead.
    for words in [&["nri", "reload"][..], &["nri", "reload", "--dry-run"]] {
        fails(&host.call(words), &[&other, "use: nri-runc nri restart", "[NR301]"]);
    }
    // The suggested next step.
    succeeds(&host.call(&["nri", "restart"]));
    let status = host.admin(&["status"]);
    assert_eq!(status["run_dir"], host.path("run2").display().to_string());
    assert_ne!(status["pid"], pid);
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c2"));
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
    assert_eq!(finding(&host, "daemon")["ok"], true);
}

#[test]
fn a_required_plugin_refuses_while_the_run_directory_differs() {
    let host = started("[plugin.env]\nrequired = true\n");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    change_run_dir(&host);
    let pid = format!("process {}", host.daemon_pid());
    fails(&host.create("c2"), &["plugin env is required", &pid, "nri-runc nri restart"]);
    succeeds(&host.call(&["nri", "stop"]));
    wait_until("it has ended", || !host.path("nri.sock").exists());
    fails(&host.create("c3"), &["the required plugin env is not connected"]);
}

#[test]
fn a_second_installation_cannot_control_the_first_ones_daemon() {
    let (host, second) = (started(""), TestHost::default());
    let text = second.read("config.toml");
    let own = format!("socket_path = \"{}\"", second.path("nri.sock").display());
    let theirs = format!("socket_path = \"{}\"", host.path("nri.sock").display());
    second.write("config.toml", &text.replace(&own, &theirs));
    succeeds(&second.create("c1"));
    assert!(!second.path("run/daemon.sock").exists(), "no second daemon");
    for verb in ["restart", "stop", "reload"] {
        fails(&second.call(&["nri", verb]), &["it has another configuration"]);
    }
    assert_eq!(host.admin(&["status"])["pid"], host.daemon_pid());
}

/// A mount over the run directory; it is removed before the folder.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _or_with_its_namespace = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn the_daemon_survives_a_mount_over_its_run_directory() {
    if let Err(errno) = unshare(CloneFlags::CLONE_NEWNS) {
        return skip::setup_lacks(&format!("a mount namespace is refused: {errno}"));
    }
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    let pid = host.daemon_pid();
    let over = |path: PathBuf| {
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some("mode=0700")).unwrap();
        Mounted(path)
    };
    // A create that comes first finds no daemon there, and waits for it.
    let _mounted = over(host.path("run"));
    succeeds(&host.create("c2"));
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
    assert_eq!(host.admin(&["status"])["pid"], pid);
    assert!(is_synchronized(&host.admin(&["plugins"]), "10-env"), "it never noticed");
    assert_eq!(host.admin(&["status"])["containers"], 2);
    // A hanging daemon is not replaced by another one without plugins.
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    let _again = over(host.path("run"));
    succeeds(&host.create("c3"));
    assert!(!host.path("run/daemon.sock").exists(), "no second daemon");
    assert_eq!(finding(&host, "daemon")["ok"], false);
    kill(Pid::from_raw(pid), Signal::SIGCONT).unwrap();
    wait_until("it restores the directory", || host.admin(&["status"])["pid"] == pid);
}
