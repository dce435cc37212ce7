// SPDX-License-Identifier: Apache-2.0
//! A containerd in which only `containers.Get` works, on a real HTTP/2 server, with the records of
//! a capture.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Response};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize, Clone)]
struct Kept {
    labels: BTreeMap<String, String>,
    image: String,
    runtime: String,
    extensions: BTreeMap<String, Value>,
}

/// Serves the records of a capture until the test's process ends.
pub(super) fn serve(records: &Path, socket: PathBuf) {
    let kept: BTreeMap<String, Kept> =
        serde_json::from_slice(&std::fs::read(records).unwrap()).unwrap();
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            ready.send(()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::spawn(answer(kept.clone(), request, respond));
                }
            }
        });
    });
    is_ready.recv().unwrap();
}

async fn answer(
    kept: BTreeMap<String, Kept>,
    request: http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
) {
    assert_eq!(request.uri().path(), "/containerd.services.containers.v1.Containers/Get");
    assert_eq!(request.headers()["containerd-namespace"], "k8s.io");
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    while let Some(Ok(part)) = body.data().await {
        bytes.extend_from_slice(&part);
        body.flow_control().release_capacity(part.len()).unwrap();
    }
    // Five bytes of gRPC, then field 1 with a short length.
    let id = String::from_utf8(bytes[7..].to_vec()).unwrap();
    let head = Response::builder().header("content-type", "application/grpc");
    let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
    let mut status = HeaderMap::new();
    match kept.get(&id) {
        Some(kept) => {
            let message = field(1, &container(kept));
            let mut framed = BytesMut::new();
            framed.put_u8(0);
            framed.put_u32(u32::try_from(message.len()).unwrap());
            framed.put_slice(&message);
            stream.send_data(framed.freeze(), false).unwrap();
            status.insert("grpc-status", "0".parse().unwrap());
        }
        None => drop(status.insert("grpc-status", "5".parse().unwrap())),
    }
    stream.send_trailers(status).unwrap();
}

fn container(kept: &Kept) -> Vec<u8> {
    let mut bytes = Vec::new();
    let text = |key: &str| field(1, key.as_bytes());
    for (key, value) in &kept.labels {
        bytes.extend(field(2, &[text(key), field(2, value.as_bytes())].concat()));
    }
    bytes.extend(field(3, kept.image.as_bytes()));
    bytes.extend(field(4, &text(&kept.runtime)));
    // A field that is not read, larger than one frame.
    bytes.extend(field(5, &field(2, &vec![b' '; 40_000])));
    for (key, value) in &kept.extensions {
        let any = [text("type"), field(2, value.to_string().as_bytes())].concat();
        bytes.extend(field(10, &[text(key), field(2, &any)].concat()));
    }
    bytes
}

fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = value.len();
    while length >= 0x80 {
        bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    bytes.push(u8::try_from(length).unwrap());
    bytes.extend_from_slice(value);
    bytes
}
