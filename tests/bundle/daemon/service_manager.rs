// SPDX-License-Identifier: Apache-2.0
//! The daemon beside others: a service manager that holds its socket, and an engine that holds the
//! plugin socket.

use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::{BUNDLE, TestHost, wait_until};

use crate::succeeds;

/// Starts the daemon as systemd does: the socket is descriptor 3, and the variables name this
/// process.
#[expect(unsafe_code, reason = "a descriptor passed by number")]
fn activated(host: &TestHost, listener: &UnixListener) -> Child {
    let script = "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" nri daemon";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_nri-runc")]);
    command.env("NRI_RUNC_CONFIG", host.path("config.toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let number = listener.as_raw_fd();
    // SAFETY: the closure runs in the forked child and makes one system call.
    unsafe { command.pre_exec(move || give_as_three(number)) };
    command.spawn().unwrap()
}

#[expect(unsafe_code, reason = "dup2 onto a fixed number")]
fn give_as_three(number: i32) -> std::io::Result<()> {
    // SAFETY: a plain system call on numbers.
    nix::errno::Errno::result(unsafe { nix::libc::dup2(number, 3) })?;
    // If the descriptor was 3 already, dup2 does not clear its close-on-exec flag. SAFETY: as
    // above.
    let result = unsafe { nix::libc::fcntl(3, nix::libc::F_SETFD, 0) };
    nix::errno::Errno::result(result).map(|_| ()).map_err(Into::into)
}

#[test]
fn a_socket_of_the_service_manager_outlives_the_daemon() {
    let host = TestHost::new("autostart = false");
    std::fs::DirBuilder::new().mode(0o700).create(host.path("run")).unwrap();
    let listener = UnixListener::bind(host.path("run/daemon.sock")).unwrap();
    for _ in 0..2 {
        let mut daemon = activated(&host, &listener);
        // The socket accepts connections before the daemon serves them: this waits as a wrapper
        // does.
        wait_until("it answers", || host.admin(&["status"])["pid"] == daemon.id());
        let inherited = format!("/proc/{}/fdinfo/3", daemon.id());
        let flags = std::fs::read_to_string(inherited).unwrap();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
        assert_ne!(flags & nix::libc::O_CLOEXEC, 0, "what it starts must not listen too");
        kill(Pid::from_raw(i32::try_from(daemon.id()).unwrap()), Signal::SIGTERM).unwrap();
        assert!(daemon.wait().unwrap().success());
        assert!(host.path("run/daemon.sock").exists(), "the next one could not be reached");
    }
}

#[test]
fn no_plugin_is_started_or_awaited_while_an_engine_listens() {
    let mut host =
        TestHost::new("[nri]\nwait_for = [\"10-absent\"]\nplugin_registration_timeout = \"80s\"\n");
    std::fs::create_dir(host.path("plugins")).unwrap();
    host.put_program("plugins/20-file", "#!/bin/sh\ntouch \"$0.was-started\"\n");
    let engine = UnixListener::bind(host.path("nri.sock")).unwrap();
    engine.set_nonblocking(true).unwrap();
    host.start_daemon();

    let begun = Instant::now();
    succeeds(&host.create("c1"));
    assert!(begun.elapsed() < Duration::from_secs(75), "it waited for plugins of the engine");
    assert!(!host.path("plugins/20-file.was-started").exists());
    let printed = host.admin(&["status"])["plugin_socket"].to_string();
    assert!(printed.contains("listens on nri.socket_path"), "{printed}");
    let _the_daemons_look = engine.accept().unwrap();
    std::os::unix::net::UnixStream::connect(host.path("nri.sock")).unwrap();
    assert!(engine.accept().is_ok(), "the engine's socket was replaced");
}

#[test]
fn required_plugins_are_not_enforced_while_an_engine_listens() {
    let mut host = TestHost::new(
        "[plugin.policy]\nrequired = true\n\
         [nri.default_validator]\nenable = true\nrequired_plugins = [\"other\"]\n",
    );
    let _engine = UnixListener::bind(host.path("nri.sock")).unwrap();
    host.start_daemon();
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
    host.logs(&["required plugins are not enforced"], 1);
    assert_eq!(host.admin(&["status"])["pass_through"], true);
    let found = host.admin(&["check"]);
    let mut found = found.as_array().unwrap().iter();
    let socket = found.find(|finding| finding["check"] == "plugin socket").unwrap();
    assert_eq!(socket["ok"], false, "{socket}");
    assert!(
        socket["detail"].as_str().unwrap().contains("containers are created without plugins"),
        "{socket}"
    );
}

#[test]
fn a_daemon_that_ends_leaves_a_later_listeners_socket() {
    let mut host = TestHost::default();
    host.start_daemon();
    std::fs::remove_file(host.path("nri.sock")).unwrap();
    let _engine = UnixListener::bind(host.path("nri.sock")).unwrap();
    kill(Pid::from_raw(host.daemon_pid()), Signal::SIGTERM).unwrap();
    wait_until("its own socket is gone", || !host.path("run/daemon.sock").exists());
    host.kill_daemon();
    assert!(host.path("nri.sock").exists(), "the engine's socket was removed");
}

#[test]
fn a_daemon_trusts_no_run_directory_that_others_can_write() {
    let host = TestHost::new("autostart = false");
    std::fs::create_dir(host.path("run")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(host.path("run"), mode).unwrap();
    let output = host.call(&["nri", "daemon"]);
    assert!(!output.status.success());
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("is writable by others"), "{printed}");
}

#[test]
fn a_document_name_that_is_not_utf8_bypasses_no_policy() {
    use std::os::unix::ffi::OsStringExt;
    let host = TestHost::new("on_daemon_failure = \"fail\"");
    let name = std::ffi::OsString::from_vec(b"c\xff.json".to_vec());
    let file = host.path("bundle").join(&name);
    test_support::program::copy(&host.path("bundle/config.json"), &file);
    test_support::program::copy(&host.path("fake/runc"), &host.path("fake/crun"));
    let create = || {
        let mut words = vec!["create".into(), "--bundle".into(), host.path("bundle").into()];
        words.extend(["--config".into(), file.clone().into_os_string(), "c1".into()]);
        host.call_with_bytes(&words)
    };
    host.configure(&host.path("fake/crun"), "on_daemon_failure = \"fail\"");
    let output = create();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && printed.contains("--config is not UTF-8"), "{printed}");
    assert_eq!(host.read("fake/argv"), "");
    host.configure(&host.path("fake/crun"), "");
    succeeds(&create());
    assert_eq!(std::fs::read_dir(host.path("run/bypassed")).unwrap().count(), 1, "on record");
}
