// SPDX-License-Identifier: Apache-2.0
//! Which runtime handlers a running CRI engine knows: `runtime.v1.RuntimeService/Status` on its
//! socket. Engines list them since CRI v0.30; containerd before that (1.x) shows its configuration
//! when asked at length. For the doctor only: nothing on a container's path waits for it.

use std::path::Path;

use serde_json::Value;

use super::{FETCH_LIMIT, unary};
use crate::error::Result;
use crate::formats::protobuf::{fields, map_entry, member, text};

const PATH: &str = "/runtime.v1.RuntimeService/Status";

/// `StatusRequest`: verbose, field 1.
const AT_LENGTH: [u8; 2] = [0x08, 0x01];

/// Their names; `None` where nobody answers in time, or does not say.
pub(crate) fn handlers(socket: &Path) -> Option<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let messages = [AT_LENGTH.to_vec()];
    let answers = runtime.block_on(async {
        let question = unary::call(socket, PATH, &[], &messages);
        tokio::time::timeout(FETCH_LIMIT, question).await
    });
    let answer = answers.ok()?.ok()?.into_iter().next()?.ok()?;
    names(&answer).ok().filter(|names| !names.is_empty())
}

/// `StatusResponse`: info 2, runtime_handlers 3; a handler's name is its field 1.
fn names(answer: &[u8]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for field in fields(answer) {
        let field = field?;
        match field.number {
            2 => {
                let (key, value) = map_entry(field.value)?;
                let config: Value = serde_json::from_slice(value).unwrap_or_default();
                let runtimes = config.pointer("/containerd/runtimes").and_then(Value::as_object);
                if key == "config" {
                    names.extend(runtimes.into_iter().flatten().map(|(name, _)| name.clone()));
                }
            }
            3 => names.push(text(member(field.value, 1)?)),
            _ => {}
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::protobuf::field;

    #[test]
    fn handlers_are_listed_or_in_the_configuration() {
        let config = br#"{"containerd":{"runtimes":{"runc":{},"nri-runc":{}}}}"#;
        let info = field(2, &[field(1, b"config"), field(2, config)].concat());
        let other = field(2, &[field(1, b"golang"), field(2, b"go1")].concat());
        let listed = field(3, &field(1, b"kata"));
        let answer = [field(1, b""), info, other, listed].concat();
        let mut told = names(&answer).unwrap();
        told.sort();
        assert_eq!(told, ["kata", "nri-runc", "runc"]);
    }

    #[test]
    fn an_answer_without_any_or_cut_short_says_nothing() {
        assert_eq!(names(&field(1, b"")).unwrap(), Vec::<String>::new());
        assert!(names(b"\x1a\x05ab").is_err());
    }

    #[test]
    fn an_engine_that_is_not_there_or_hangs_says_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("s");
        assert_eq!(handlers(&socket), None);
        let _accepts_and_says_nothing = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let began = std::time::Instant::now();
        assert_eq!(handlers(&socket), None);
        assert!(began.elapsed() >= FETCH_LIMIT);
    }
}
