// SPDX-License-Identifier: Apache-2.0
//! An engine that does not respond: containerd, from which the daemon requests a container's data.

use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use test_support::{BUNDLE, TestHost};

use super::{Place, Row};

pub(super) const CASES: &[Row] = &[
    ("an engine that accepts no connection", |strace| with_engine(&strace, None)),
    ("an engine that says nothing", |strace| with_engine(&strace, Some(silent))),
    ("an engine that says a byte a second", |strace| with_engine(&strace, Some(drip))),
    ("an engine that sends as much as is taken", |strace| with_engine(&strace, Some(largest))),
];

const TASKS: &str = "host/run/containerd/io.containerd.runtime.v2.task/k8s.io";

type Engine = fn(UnixStream);

fn with_engine(strace: &Path, engine: Option<Engine>) -> Option<Place> {
    let mut host = TestHost::default();
    let root = host.path("host").display().to_string();
    host.configure(&host.path("fake/runc"), &format!("[debug]\nhost_root = \"{root}\"\n"));
    std::fs::create_dir_all(host.path("host/run/containerd")).unwrap();
    for kernels in ["proc", "sys"] {
        symlink(format!("/{kernels}"), host.path("host").join(kernels)).unwrap();
    }
    let socket = host.path("host/run/containerd/containerd.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let mut queued = Vec::new();
    match engine {
        Some(engine) => {
            let asked = Arc::clone(&asked);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    asked.fetch_add(1, Ordering::Relaxed);
                    std::thread::spawn(move || engine(stream));
                }
            });
        }
        None => {
            // The socket's queue is full, so a blocking connect would wait.
            nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap())
                .unwrap();
            queued.push(UnixStream::connect(&socket).unwrap());
            std::mem::forget(listener);
        }
    }
    host.start_daemon();
    let mut place = Place::new(host, strace);
    place.kept.push(Box::new(queued));
    for id in ["c1", "c2"] {
        let annotations = "\"annotations\": {\"io.kubernetes.cri.container-type\": \"container\", \
            \"io.kubernetes.cri.sandbox-id\": \"p1\"}, \"root\"";
        place.put(&format!("{TASKS}/{id}/config.json"), &BUNDLE.replace("\"root\"", annotations));
        let output = place.host.create_from(&format!("{TASKS}/{id}"), id);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        place.beat();
        for words in [["start", id], ["delete", id]] {
            place.host.verb(&words);
            place.beat();
        }
    }
    assert!(engine.is_none() || asked.load(Ordering::Relaxed) > 0, "the engine was not asked");
    Some(place)
}

fn silent(mut stream: UnixStream) {
    let _until_it_is_closed = stream.read_to_end(&mut Vec::new());
}

/// Sends the settings of HTTP/2, slowly.
fn drip(mut stream: UnixStream) {
    for byte in [0, 0, 0, 4, 0, 0, 0, 0, 0].into_iter().cycle() {
        if stream.write_all(&[byte]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Sends frames of an unknown kind, of HTTP/2's largest default size, without end.
fn largest(mut stream: UnixStream) {
    let mut frame = vec![0, 0x40, 0, 0xff, 0, 0, 0, 0, 0];
    frame.resize(9 + (16 << 10), 0);
    while stream.write_all(&frame).is_ok() {}
}
