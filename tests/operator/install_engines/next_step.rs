// SPDX-License-Identifier: Apache-2.0
//! The last row of `check` as the state of the engine changes: missing, present, registered,
//! started, restarted.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

use serde_json::Value;

use super::Place;

/// A host whose other checks succeed.
pub(super) fn host() -> Place {
    let place = Place::new();
    for folder in ["sys/fs/cgroup", "plugins", "run"] {
        std::fs::create_dir_all(place.path(folder)).unwrap();
    }
    place.write("sys/fs/cgroup/cgroup.controllers", "");
    let root = place.root().display();
    let config = format!(
        "runtime = [\"/bin/sh\"]\nrun_dir = \"{root}/run/nri-runc\"\n[nri]\n\
         socket_path = \"{root}/nri.sock\"\nplugin_path = \"{root}/plugins\"\n\
         [debug]\nhost_root = \"{root}\"\n"
    );
    place.write("here.toml", &config);
    place
}

pub(super) fn nri(place: &Place, words: &[&str]) -> Value {
    let mut command = place.command(&place.path("here.toml"));
    let output = command.arg("--json").args(words).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = serde_json::from_slice(&output.stdout);
    assert!(document.is_ok(), "{words:?}: {printed}");
    document.unwrap()
}

#[track_caller]
fn next_is(place: &Place, wanted: &str) {
    let all = nri(place, &["check"]);
    let last = all.as_array().unwrap().last().unwrap();
    assert_eq!(last["check"], "next step");
    assert!(last["detail"].as_str().unwrap().contains(wanted), "{wanted} is not in {all:#}");
}

/// A Docker daemon that answers one request with these runtimes.
fn answers_once(place: &Place, runtimes: &str) -> std::thread::JoinHandle<String> {
    let socket = place.path("run/docker.sock");
    let _none_yet = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let body = format!("{{\"Runtimes\": {runtimes}}}");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut question = [0_u8; 512];
        let length = stream.read(&mut question).unwrap();
        write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{body}").unwrap();
        String::from_utf8_lossy(&question[..length]).into_owned()
    })
}

#[test]
fn the_next_step_follows_the_state_of_the_engine() {
    let place = host();
    next_is(
        &place,
        "install an engine, then: nri-runc nri install containerd|crio|docker|isulad|podman",
    );
    place.write("usr/bin/dockerd", "");
    next_is(&place, "register nri-runc with the engine: nri-runc nri install docker");
    nri(&place, &["install", "docker", "--binary", super::PROGRAM]);
    next_is(&place, "systemctl start docker");
    place.write("proc/7/cmdline", "/usr/bin/dockerd\0-H\0unix:///run/docker.sock\0");
    let docker = answers_once(&place, "{\"runc\": {}}");
    next_is(&place, "systemctl reload docker");
    assert!(docker.join().unwrap().starts_with("GET /info HTTP/1.0\r\n"));
    let docker = answers_once(&place, "{\"runc\": {}, \"nri-runc\": {}}");
    next_is(&place, "docker run --runtime nri-runc IMAGE");
    docker.join().unwrap();
}

#[test]
fn after_uninstall_only_a_manual_entry_needs_no_restart() {
    let place = host();
    place.write("proc/7/cmdline", "/usr/bin/dockerd\0-H\0unix:///run/docker.sock\0");
    nri(&place, &["install", "docker", "--binary", super::PROGRAM]);
    nri(&place, &["uninstall", "docker"]);
    let docker = answers_once(&place, "{\"runc\": {}, \"nri-runc\": {}}");
    next_is(&place, "registered with docker: systemctl restart docker");
    docker.join().unwrap();
    place.write("etc/docker/daemon.json", "{\"runtimes\": {\"nri-runc\": {\"path\": \"/x\"}}}");
    let docker = answers_once(&place, "{\"runc\": {}, \"nri-runc\": {}}");
    next_is(&place, "run a container: docker run --runtime nri-runc IMAGE");
    docker.join().unwrap();
}
