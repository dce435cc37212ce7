// SPDX-License-Identifier: Apache-2.0
//! Clients of the sockets on which the daemon listens: for wrappers and operators, for plugins, and
//! for metrics.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use test_support::{TestHost, wait_until};

use super::{Place, Row, request};

pub(super) const CASES: &[Row] = &[
    ("clients of its sockets that send nothing", |strace| with_clients(&strace, silent)),
    ("clients of its sockets that send a byte a second", |strace| with_clients(&strace, drip)),
    ("clients of its sockets that send as much as is allowed", |strace| {
        with_clients(&strace, largest)
    }),
    ("clients of its sockets that read no answer", |strace| with_clients(&strace, unread)),
];

const SOCKETS: [&str; 3] = ["run/daemon.sock", "nri.sock", "metrics.sock"];

/// The largest frame from a wrapper, and from a plugin.
const WRAPPERS_FRAME: usize = 8 << 20;
const PLUGINS_FRAME: u32 = 4 << 20;

/// The beginning of a valid request for each socket.
fn beginning(socket: &str) -> Vec<u8> {
    match socket {
        "run/daemon.sock" => request(r#"{"verb":"top"}"#),
        // The connection of plugins' requests, a ttRPC request of 16 bytes.
        "nri.sock" => [&[0, 0, 0, 2, 0, 0, 0, 26], &[0, 0, 0, 16, 0, 0, 0, 1, 1, 0][..]].concat(),
        _ => b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n".to_vec(),
    }
}

/// A host on which each socket has clients of this kind while containers run.
fn with_clients(strace: &Path, client: fn(&str, UnixStream)) -> Option<Place> {
    let mut host = TestHost::default();
    let listens = format!("[metrics]\nlisten = \"unix:{}\"\n", host.path("metrics.sock").display());
    host.configure(&host.path("fake/runc"), &listens);
    host.start_daemon();
    wait_until("metrics are served", || host.path("metrics.sock").exists());
    let mut place = Place::new(host, strace);
    for socket in SOCKETS {
        for _client in 0..4 {
            let stream = UnixStream::connect(place.host.path(socket)).unwrap();
            place.kept.push(Box::new(stream.try_clone().unwrap()));
            std::thread::spawn(move || client(socket, stream));
            place.beat();
        }
    }
    place.lives("c1");
    // The time limit of a client is over, and the other peers continue.
    std::thread::sleep(Duration::from_secs(6));
    place.lives("c2");
    Some(place)
}

fn silent(_: &str, mut stream: UnixStream) {
    let _until_it_is_closed = stream.read(&mut [0; 16]);
}

fn drip(socket: &str, mut stream: UnixStream) {
    for byte in beginning(socket) {
        if stream.write_all(&[byte]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn largest(socket: &str, mut stream: UnixStream) {
    let bytes = match socket {
        "run/daemon.sock" => {
            let verb = r#"{"verb":"status","more":""#;
            let room = WRAPPERS_FRAME - request(verb).len();
            request(&format!("{verb}{}\"}}", "x".repeat(room - 2)))
        }
        "nri.sock" => {
            let mut frame = vec![0, 0, 0, 2];
            frame.extend((PLUGINS_FRAME + 10).to_be_bytes());
            frame.extend(PLUGINS_FRAME.to_be_bytes());
            frame.extend([0, 0, 0, 1, 1, 0]);
            frame.resize(18 + usize::try_from(PLUGINS_FRAME).unwrap(), 0);
            frame
        }
        _ => [b"GET /metrics HTTP/1.1\r\nHost: ", "x".repeat(1 << 20).as_bytes()].concat(),
    };
    let _until_it_is_closed = stream.write_all(&bytes).and_then(|()| stream.read(&mut [0; 16]));
}

/// Sends requests as long as the buffer has space, and reads nothing.
fn unread(socket: &str, mut stream: UnixStream) {
    let recording = request(r#"{"verb":"record"}"#);
    let bytes = if socket == "run/daemon.sock" { recording } else { beginning(socket) };
    while stream.write_all(&bytes).is_ok() && socket == "nri.sock" {}
    std::thread::sleep(Duration::from_secs(60));
}
