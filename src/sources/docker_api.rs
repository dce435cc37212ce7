// SPDX-License-Identifier: Apache-2.0
//! The runtimes of a running Docker: `GET /info` of its API on its socket (Docker Engine API), in
//! HTTP/1.0, so that the response ends with the connection. No container waits for it.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::LoadedHandlers;

use crate::limits;

/// Time limit for Docker, which counts its containers before it answers.
const API_WAIT: Duration = Duration::from_secs(2);

const REQUEST: &[u8] = b"GET /info HTTP/1.0\r\nHost: docker\r\nAccept: application/json\r\n\r\n";

/// Returns Docker's runtimes; `None` if Docker does not answer in time, or does not list them.
pub(crate) fn docker_runtimes(socket: &Path) -> Option<LoadedHandlers> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let answer = runtime.block_on(async { tokio::time::timeout(API_WAIT, ask(socket)).await });
    runtimes_of_docker(&answer.ok()?.ok()?)
}

async fn ask(socket: &Path) -> std::io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(REQUEST).await?;
    let mut answer = Vec::new();
    stream.take(limits::DOCKER_ANSWER).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// Returns the runtimes in a response; `None` if the response is not Docker's.
pub fn runtimes_of_docker(answer: &[u8]) -> Option<LoadedHandlers> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, body) = (answer.get(..end)?, answer.get(end + 4..)?);
    let status = head.split(|byte| *byte == b' ').nth(1)?;
    if !head.starts_with(b"HTTP/1.") || status != b"200" {
        return None;
    }
    let info: Value = serde_json::from_slice(body).ok()?;
    let programs = info["Runtimes"].as_object()?.iter().map(|(name, entry)| {
        let path = entry["path"].as_str().or_else(|| entry["runtimeType"].as_str());
        (name.clone(), path.map(str::to_owned))
    });
    let default = info["DefaultRuntime"].as_str().map(str::to_owned);
    Some(LoadedHandlers { programs: programs.collect(), default })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_listed_with_their_programs() {
        let answer = b"HTTP/1.0 200 OK\r\nApi-Version: 1.41\r\n\r\n{\"DefaultRuntime\":\"runc\",\
            \"Runtimes\":{\"nri-runc\":{\"path\":\"/usr/local/bin/nri-runc\"},\
            \"io.containerd.runc.v2\":{}}}";
        let found = runtimes_of_docker(answer).unwrap();
        let program = Some("/usr/local/bin/nri-runc".to_owned());
        assert_eq!(found.programs.get("nri-runc"), Some(&program));
        assert_eq!(found.programs.get("io.containerd.runc.v2"), Some(&None));
        assert_eq!(found.default.as_deref(), Some("runc"));
    }

    #[test]
    fn an_invalid_docker_response_yields_no_runtimes() {
        for answer in [
            &b""[..],
            b"HTTP/1.0 200 OK",
            b"HTTP/1.0 403 Forbidden\r\n\r\n{\"Runtimes\":{}}",
            b"HTTP/1.0 200 OK\r\n\r\n{",
            b"HTTP/1.0 200 OK\r\n\r\n[]",
            b"SSH-2.0 200 x\r\n\r\n{\"Runtimes\":{}}",
        ] {
            assert_eq!(runtimes_of_docker(answer), None, "{answer:?}");
        }
    }

    #[test]
    fn a_missing_or_hanging_docker_yields_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("s");
        assert_eq!(docker_runtimes(&socket), None);
        let _accepts_and_says_nothing = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let began = std::time::Instant::now();
        assert_eq!(docker_runtimes(&socket), None);
        assert!(began.elapsed() >= API_WAIT);
    }
}
