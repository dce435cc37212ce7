// SPDX-License-Identifier: Apache-2.0
//! The image of the tests, as `fixtures/images/busybox.sh` builds it, and a registry on loopback
//! that serves it: the part of the distribution API that a pull uses.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;

/// Builds the image `localhost/busybox:1` in this new folder: `layout`, and the same as
/// `image.tar`.
pub fn pack(dir: &Path, busybox: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", include_str!("../../../fixtures/images/busybox.sh"), "sh"]).arg(busybox);
    assert!(shell.current_dir(dir).status().unwrap().success());
}

/// Serves a layout until the test program exits. Returns the name of its image, with the port in
/// it.
pub fn serve(layout: PathBuf) -> String {
    let layout = Arc::new(layout);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let layout = layout.clone();
            std::thread::spawn(move || while answer(&stream, &layout).is_some() {});
        }
    });
    format!("localhost:{port}/busybox:1")
}

/// Answers one request; `None` if no other follows.
fn answer(mut stream: &TcpStream, layout: &Path) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    let Ok(request) = lines.next()? else {
        // TLS, which a client tries first; after this response it continues in plain text.
        let _written = stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n");
        return None;
    };
    while !lines.next()?.ok()?.is_empty() {}
    let mut words = request.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let (status, kind, body) = match path.rsplit_once('/')? {
        ("/v2", "") => ("200 OK", "application/json", b"{}".to_vec()),
        (_, reference) => match blob(layout, reference).and_then(|file| std::fs::read(file).ok()) {
            Some(body) => ("200 OK", kind(path), body),
            None => ("404 Not Found", "application/json", b"{}".to_vec()),
        },
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    if method != "HEAD" {
        stream.write_all(&body).ok()?;
    }
    Some(())
}

/// The file of a digest; a tag stands for the only manifest.
fn blob(layout: &Path, reference: &str) -> Option<PathBuf> {
    let index: Value =
        serde_json::from_slice(&std::fs::read(layout.join("index.json")).ok()?).ok()?;
    let manifest = index["manifests"][0]["digest"].as_str()?;
    let digest = if reference.contains(':') { reference } else { manifest };
    Some(layout.join("blobs/sha256").join(digest.strip_prefix("sha256:")?))
}

fn kind(path: &str) -> &'static str {
    if path.contains("/manifests/") {
        "application/vnd.oci.image.manifest.v1+json"
    } else {
        "application/octet-stream"
    }
}
