// SPDX-License-Identifier: Apache-2.0
//! The runtime handlers that a running CRI engine has loaded: `runtime.v1.RuntimeService/Status` on
//! its socket. Engines list their names since CRI v0.30; on a verbose request containerd also shows
//! its configuration, with each handler's program and the default one. No container waits for it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{FETCH_LIMIT, unary};
use crate::error::Result;
use crate::formats::protobuf::{fields, map_entry, member, text};

const PATH: &str = "/runtime.v1.RuntimeService/Status";

/// The handlers that a running engine has loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadedHandlers {
    /// The handlers' names, each with its program if the engine shows it.
    pub programs: BTreeMap<String, Option<String>>,
    /// The default handler, if the engine shows it.
    pub default: Option<String>,
}

/// `StatusRequest`: verbose, field 1.
const AT_LENGTH: [u8; 2] = [0x08, 0x01];

/// Returns the engine's handlers; `None` if it does not answer in time, or does not list them.
pub(crate) fn handlers(socket: &Path) -> Option<LoadedHandlers> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let messages = [AT_LENGTH.to_vec()];
    let answers = runtime.block_on(async {
        let question = unary::call(socket, PATH, &[], &messages);
        tokio::time::timeout(FETCH_LIMIT, question).await
    });
    let answer = answers.ok()?.ok()?.into_iter().next()?.ok()?;
    loaded(&answer).ok().filter(|loaded| !loaded.programs.is_empty())
}

/// Parses a `StatusResponse`: info 2, runtime_handlers 3; a handler's name is its field 1.
fn loaded(answer: &[u8]) -> Result<LoadedHandlers> {
    let mut loaded = LoadedHandlers::default();
    for field in fields(answer) {
        let field = field?;
        match field.number {
            2 => {
                let (key, value) = map_entry(field.value)?;
                if key == "config" {
                    let config: Value = serde_json::from_slice(value).unwrap_or_default();
                    loaded.read(&config["containerd"]);
                }
            }
            3 => {
                let name = text(member(field.value, 1)?);
                loaded.programs.entry(name).or_default();
            }
            _ => {}
        }
    }
    Ok(loaded)
}

impl LoadedHandlers {
    /// Reads the handlers from containerd's configuration.
    fn read(&mut self, containerd: &Value) {
        let text =
            |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        self.default = text(&containerd["defaultRuntimeName"]);
        for (name, entry) in containerd["runtimes"].as_object().into_iter().flatten() {
            let program = text(&entry["options"]["BinaryName"]);
            self.programs.insert(name.clone(), program);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::protobuf::field;

    #[test]
    fn handlers_come_from_the_list_and_the_configuration() {
        let config = br#"{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":
            {"BinaryName":""}},"nri-runc":{"options":{"BinaryName":"/usr/bin/nri-runc"}}}}}"#;
        let info = field(2, &[field(1, b"config"), field(2, config)].concat());
        let other = field(2, &[field(1, b"golang"), field(2, b"go1")].concat());
        let listed = ["kata", "nri-runc"].map(|name| field(3, &field(1, name.as_bytes())));
        let answer = [field(1, b""), info, other, listed.concat()].concat();
        let found = loaded(&answer).unwrap();
        let program = |name: &str| found.programs.get(name).cloned();
        assert_eq!(program("nri-runc"), Some(Some("/usr/bin/nri-runc".to_owned())));
        assert_eq!((program("runc"), program("kata")), (Some(None), Some(None)));
        assert_eq!(found.programs.len(), 3);
        assert_eq!(found.default.as_deref(), Some("runc"));
    }

    #[test]
    fn an_empty_response_yields_none_and_a_truncated_one_fails() {
        assert_eq!(loaded(&field(1, b"")).unwrap(), LoadedHandlers::default());
        assert!(loaded(b"\x1a\x05ab").is_err());
    }

    #[test]
    fn a_missing_or_hanging_engine_yields_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("s");
        assert_eq!(handlers(&socket), None);
        let _accepts_and_says_nothing = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let began = std::time::Instant::now();
        assert_eq!(handlers(&socket), None);
        assert!(began.elapsed() >= FETCH_LIMIT);
    }
}
