// SPDX-License-Identifier: Apache-2.0
//! Peers that send garbage, flood, stop responding or have no permission, on both sockets of the
//! daemon: each loses only its own connection and disturbs no other peer.

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nri_runc::testing::link::{Attached, DaemonResponse, PROTOCOL, WrapperRequest, read_frame};
use serde_json::Value;
use test_support::{BUNDLE, Script, TestHost, wait_until};

use crate::load::connections::ten_a_minute;
use crate::{refused, sets, started, succeeds};

const NOBODY: u32 = 65_534;

/// The time-out of a connection that does not register: longer than any test.
const PATIENT: &str = "[nri]\nplugin_registration_timeout = \"10m\"\n";

/// Runs `work` as another user: the kernel keeps credentials for each thread.
#[expect(unsafe_code, reason = "setresuid of one thread, which no library offers")]
fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: a plain system call on numbers; the thread ends with this closure.
            let done = unsafe { nix::libc::syscall(nix::libc::SYS_setresuid, uid, uid, uid) };
            assert_eq!(done, 0);
            work()
        });
        thread.join().unwrap()
    })
}

fn open_to_all(host: &TestHost, names: &[&str]) {
    for name in names {
        std::fs::set_permissions(host.path(name), PermissionsExt::from_mode(0o777)).unwrap();
    }
}

fn dial(host: &TestHost, name: &str) -> UnixStream {
    let stream = UnixStream::connect(host.path(name)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Whether the peer has closed the connection.
fn is_closed(stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = (&mut &*stream).read(&mut [0_u8; 1]);
    stream.set_nonblocking(false).unwrap();
    match read {
        Ok(length) => length == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

fn open_descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn question(protocol: u32) -> WrapperRequest {
    WrapperRequest {
        protocol,
        version: "9.9.9".to_owned(),
        argv: ["nri-runc", "create", "--bundle", "/nowhere", "odd"].map(Into::into).to_vec(),
        cwd: "/".into(),
        ..WrapperRequest::default()
    }
}

#[test]
fn unregistered_connections_make_room_for_a_plugin() {
    let (host, since) = (started(PATIENT), Instant::now());
    let silent: Vec<UnixStream> = (0..80).map(|_| dial(&host, "nri.sock")).collect();
    let lines = || host.logged(&["64 connections have not registered", "closed one that"]);
    wait_until("those beyond the limit are closed", || {
        silent.iter().filter(|stream| is_closed(stream)).count() == 16
    });
    let lines = lines();
    let is_bounded = (10..=ten_a_minute(since)).contains(&lines);
    assert!(is_bounded, "one line for each of the first, and one a minute later: {lines}");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
    assert_eq!(silent.iter().filter(|stream| is_closed(stream)).count(), 17);
}

#[test]
fn unregistered_and_disconnected_plugins_are_shown() {
    let host = started(PATIENT);
    let silent = dial(&host, "nri.sock");
    wait_until("it is shown", || host.admin(&["plugins"])[0]["state"] == "registering");
    let shown = host.admin(&["plugins"]);
    assert_eq!((&shown[0]["pid"], &shown[0]["name"]), (&std::process::id().into(), &"".into()));
    drop(silent);
    wait_until("no plugin is connected", || host.admin(&["plugins"]) == Value::Array(vec![]));
    let _plugin = host.plugin("10", "short", Script { leaves: true, ..Script::default() });
    succeeds(&host.create("c1"));
    wait_until("it is gone", || host.admin(&["plugins"])[0]["state"] == "gone");
    assert_eq!(host.admin(&["plugins"])[0]["name"], "short");
    let _plugin = host.plugin("10", "short", Script::default());
    assert_eq!(host.admin(&["plugins"]).as_array().map(Vec::len), Some(1), "it is back");
}

#[test]
fn a_flood_of_connections_leaves_no_open_descriptor() {
    let host = started("[nri]\nplugin_registration_timeout = \"300ms\"\n");
    // The daemon waits on a second descriptor of the same file, which it closes and reopens: a
    // single check may find one too few.
    let looks = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        open_descriptors(host.daemon_pid())
    });
    let before = looks.max().unwrap();
    for _round in 0..200 {
        drop(dial(&host, "nri.sock"));
    }
    let silent: Vec<UnixStream> = (0..100).map(|_| dial(&host, "nri.sock")).collect();
    wait_until("all were closed", || silent.iter().all(is_closed));
    wait_until("their descriptors are", || open_descriptors(host.daemon_pid()) <= before);
}

#[test]
fn garbage_on_the_plugin_socket_is_harmless() {
    let host = started("");
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0xff; 4096],
        &[0, 0, 0, 2, 0, 0, 0, 20, 0, 0, 0, 10, 0, 0, 0, 1, 1, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9],
        &[0, 0, 0],
    ] {
        let mut stream = dial(&host, "nri.sock");
        let _may_be_closed_already = stream.write_all(garbage);
    }
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
}

#[test]
fn a_wrapper_continues_after_three_seconds_of_daemon_silence() {
    let host = started("[debug]\nfault = \"daemon.asked:stall\"\n");
    let begun = Instant::now();
    succeeds(&host.create("c1"));
    let waited = begun.elapsed().as_secs_f32();
    // The daemon stays silent for ten minutes.
    assert!((2.9..120.0).contains(&waited), "{waited}");
    assert_eq!(host.read("fake/seen.json"), BUNDLE, "the bundle was pristine");
    assert_eq!(std::fs::read_dir(host.path("run/bypassed")).unwrap().count(), 1);
}

#[test]
fn a_silent_daemon_fails_creates_by_policy_but_never_a_delete() {
    let fail = "on_daemon_failure = \"fail\"\n[debug]\nfault = \"daemon.asked:stall\"\n";
    let host = started(fail);
    refused(&host, &host.create("c1"), &["cannot create c1", "the daemon stopped responding"]);
    succeeds(&host.verb(&["delete", "--force", "c1"]));
}

#[test]
fn a_wrapper_gives_up_on_a_daemon_with_a_full_queue() {
    let host = TestHost::new("on_daemon_failure = \"fail\"");
    std::fs::create_dir(host.path("run")).unwrap();
    let listener = UnixListener::bind(host.path("run/daemon.sock")).unwrap();
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    // The only place in the queue is taken, and is never freed.
    let _waiting = dial(&host, "run/daemon.sock");
    refused(&host, &host.create("c1"), &["reaching the daemon", "does not accept connections"]);
}

#[test]
fn a_daemon_of_another_version_is_bypassed_or_refuses() {
    let host = TestHost::new("on_daemon_failure = \"fail\"");
    std::fs::create_dir(host.path("run")).unwrap();
    let listener = UnixListener::bind(host.path("run/daemon.sock")).unwrap();
    let daemon = std::thread::spawn(move || {
        for _call in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            read_frame(&mut stream).unwrap();
            let version = "9.9.9".to_owned();
            let answer = DaemonResponse::Incompatible { protocol: PROTOCOL + 1, version };
            stream.write_all(&answer.encode()).unwrap();
        }
    });
    let protocol = format!("protocol {}", PROTOCOL + 1);
    refused(&host, &host.create("c1"), &["version 9.9.9", &protocol, "but this nri-runc speaks"]);
    host.configure(&host.path("fake/runc"), "");
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
    daemon.join().unwrap();
}

/// Sends a request with `count` descriptors of `/dev/null`.
fn ask_with(stream: &UnixStream, question: &WrapperRequest, count: usize) {
    let null = std::fs::File::open("/dev/null").unwrap();
    let fds: Vec<RawFd> = vec![null.as_raw_fd(); count];
    let frame = question.encode();
    let rights = [ControlMessage::ScmRights(&fds)];
    let slices = [IoSlice::new(&frame)];
    let flags = MsgFlags::MSG_NOSIGNAL;
    let sent = sendmsg::<()>(stream.as_raw_fd(), &slices, &rights, flags, None).unwrap();
    assert_eq!(sent, frame.len());
}

/// Leaves a process `free` descriptors; returns its previous limit.
fn leave_descriptors(pid: u32, free: u64) -> rustix::process::Rlimit {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let open: Vec<u64> =
        open.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).collect();
    let is_free = |number: &u64| !open.contains(number);
    let last = (0..).filter(is_free).nth(usize::try_from(free).unwrap()).unwrap();
    limit_descriptors(pid, last)
}

fn limit_descriptors(pid: u32, limit: u64) -> rustix::process::Rlimit {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(limit), maximum }).unwrap()
}

#[test]
fn a_create_fails_while_the_daemon_has_no_free_descriptor() {
    let host = started("on_daemon_failure = \"fail\"");
    let pid = u32::try_from(host.admin(&["status"])["pid"].as_u64().unwrap()).unwrap();
    let count = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let pause = || std::thread::sleep(Duration::from_millis(20));
    let idle = (0..20).map(|_| (pause(), count()).1).min().unwrap();
    // One for the connection, and one of the two that the request carries.
    let before = leave_descriptors(pid, 2);
    for _try in 0..3 {
        let output = host.create("c1");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{printed}");
        for wanted in ["cannot create c1", "the daemon could not read the request", "EMFILE"] {
            assert!(printed.contains(wanted), "{printed}");
        }
        wait_until("nothing of it is open", || count() <= idle);
    }
    limit_descriptors(pid, before.current.unwrap());
    succeeds(&host.create("c1"));
}

#[test]
fn a_wrapper_of_another_version_gets_an_incompatible_error() {
    let host = started("");
    let mut stream = dial(&host, "run/daemon.sock");
    ask_with(&stream, &question(PROTOCOL + 1), 5);
    let answer = DaemonResponse::decode(&read_frame(&mut stream).unwrap()).unwrap();
    assert!(
        matches!(answer, DaemonResponse::Incompatible { protocol: PROTOCOL, .. }),
        "{answer:?}"
    );
    let failures = host.admin(&["status"])["failures"].clone();
    assert!(failures[0]["what"].as_str().unwrap().contains("speaks protocol"), "{failures}");
    succeeds(&host.create("c1"));
}

#[test]
fn another_user_may_not_query_the_daemon() {
    let host = started("");
    open_to_all(&host, &["", "run", "run/daemon.sock"]);
    let ask = || {
        let mut stream = dial(&host, "run/daemon.sock");
        let status =
            WrapperRequest { admin: "{\"verb\":\"status\"}".to_owned(), ..question(PROTOCOL) };
        let _may_be_closed_already = stream.write_all(&status.encode());
        read_frame(&mut stream).is_ok()
    };
    assert!(!as_user(NOBODY, ask));
    host.logs(&["user 65534 may not use"], 1);
    assert!(ask(), "its own user may");
}

#[test]
fn a_daemon_of_another_user_is_not_trusted() {
    let host = TestHost::new("on_daemon_failure = \"fail\"\nautostart = false");
    std::fs::create_dir(host.path("run")).unwrap();
    open_to_all(&host, &["", "run"]);
    let _listener = as_user(NOBODY, || UnixListener::bind(host.path("run/daemon.sock")).unwrap());
    refused(&host, &host.create("c1"), &["belongs to user 65534"]);
}

#[test]
fn another_user_may_connect_a_plugin_only_if_configured() {
    let connect = |host: &TestHost| {
        open_to_all(host, &["", "nri.sock"]);
        as_user(NOBODY, || dial(host, "nri.sock"))
    };
    let host = started(PATIENT);
    let stream = connect(&host);
    wait_until("it is closed", || is_closed(&stream));
    host.logs(&["user 65534 may not connect a plugin"], 1);
    let host = started(&format!("{PATIENT}allowed_uids = [0, 65534]\n"));
    let stream = connect(&host);
    wait_until("it may register", || host.admin(&["plugins"])[0]["state"] == "registering");
    assert!(!is_closed(&stream));
}

#[test]
fn garbage_on_the_daemon_socket_is_harmless() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    // Descriptors that the daemon opens once, for its first container, are not a leak.
    succeeds(&host.create("c0"));
    succeeds(&host.verb(&["delete", "--force", "c0"]));
    let looks = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        open_descriptors(host.daemon_pid())
    });
    let before = looks.min().unwrap();
    let whole = question(PROTOCOL).encode();
    let oversized = [&u32::MAX.to_le_bytes()[..], &whole[4..]].concat();
    let twice = [&whole[..], &whole[..]].concat();
    let empty = 0_u32.to_le_bytes();
    let cut_field =
        [&10_u32.to_le_bytes()[..], &[1, 1, 0xff, 0xff, 0xff, 0x7f, 1, 2, 3, 4]].concat();
    let no_question = [&3_u32.to_le_bytes()[..], &[99, 1, 2]].concat();
    let mut streams = Vec::new();
    for bytes in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &oversized, &twice, &empty, &cut_field, &no_question]
    {
        let mut stream = dial(&host, "run/daemon.sock");
        stream.write_all(bytes).unwrap();
        streams.push((bytes.len(), stream));
    }
    for (length, stream) in &mut streams {
        let closed = stream.read(&mut [0_u8; 1]);
        let is_end = closed.as_ref().map_or(true, |read| *read == 0);
        assert!(is_end, "{length} bytes were answered: {closed:?}");
    }
    // Half a request delays only its own connection, and only for a while.
    let mut half = dial(&host, "run/daemon.sock");
    half.write_all(&whole[..whole.len() / 2]).unwrap();
    for count in [1, 10, 200] {
        let stream = dial(&host, "run/daemon.sock");
        ask_with(&stream, &question(PROTOCOL), count);
        wait_until("unannounced descriptors close it", || is_closed(&stream));
    }
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until("half a question is given up", || is_closed(&half));
    wait_until("no descriptor stays", || open_descriptors(host.daemon_pid()) <= before);
}

#[test]
fn an_invalid_request_does_not_end_the_daemon() {
    let host = started("");
    for words in [
        &[][..],
        &["nri-runc"],
        &["nri-runc", "create"],
        &["nri-runc", "create", "--bundle", "", ""],
        &["nri-runc", "--root", "", "delete", "../../.."],
        &["nri-runc", "update", "--resources"],
        &["\u{0}", "start", "\u{0}\n"],
    ] {
        let argv = words.iter().map(|word| (*word).into()).collect();
        let descriptors = vec![Attached::Bundle, Attached::Process];
        let odd = WrapperRequest {
            argv,
            descriptors,
            document: "../..".to_owned(),
            ..question(PROTOCOL)
        };
        let mut stream = dial(&host, "run/daemon.sock");
        ask_with(&stream, &odd, 2);
        let answer = read_frame(&mut stream).map(|frame| DaemonResponse::decode(&frame).unwrap());
        let is_sane = matches!(answer, Ok(DaemonResponse::Proceed(_) | DaemonResponse::Refuse(_)));
        assert!(is_sane, "{words:?}: {answer:?}");
    }
    assert_eq!(host.admin(&["pods"]), Value::Array(vec![]));
    let _plugin = host.plugin("10", "env", Script::default());
    succeeds(&host.create("c1"));
}
