// SPDX-License-Identifier: Apache-2.0
//! `install`'s record of the engines that call nri-runc. Engines that an operator configured
//! manually are not in it.

use std::path::Path;

use serde_json::Value;

use crate::files;
use crate::host::Host;
use crate::limits;
use crate::presence::{self, IfThere};

/// The folder of the records, one file `ENGINE.json` each.
pub(crate) const FOLDER: &str = "/var/lib/nri-runc/engines";

/// Returns the paths with which the recorded engines call nri-runc.
pub(crate) fn programs(host: &Host) -> Vec<String> {
    let entries = presence::entries(&host.path(FOLDER)).or_absent().into_iter().flatten();
    let records = entries.filter_map(|entry| read(&entry.path()));
    let records = records.filter_map(|text| serde_json::from_slice::<Value>(&text).ok());
    records.filter_map(|record| Some(record["binary"].as_str()?.to_owned())).collect()
}

/// Whether `engine` calls nri-runc for pods of this handler (empty: its default); `None` without a
/// readable record of the engine.
pub(crate) fn is_called_for(host: &Host, engine: &str, handler: &str) -> Option<bool> {
    let text = read(&host.path(format!("{FOLDER}/{engine}.json")))?;
    let record: Value = serde_json::from_slice(&text).ok()?;
    let name = record["name"].as_str()?;
    Some(handler == name || (handler.is_empty() && record["default"] == true))
}

fn read(record: &Path) -> Option<Vec<u8>> {
    files::read_own(record, limits::OWN_FILE).or_absent()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(records: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let temp = tempfile::tempdir().unwrap();
        let host = Host::new(&temp.path().display().to_string(), "");
        std::fs::create_dir_all(host.path(FOLDER)).unwrap();
        for (name, text) in records {
            files::replace(&host.path(FOLDER).join(name), text.as_bytes()).unwrap();
        }
        (temp, host)
    }

    #[test]
    fn handlers_are_recognized_by_name_or_as_the_default() {
        let named = r#"{"name": "nri-runc", "default": false, "binary": "/b"}"#;
        let default = r#"{"name": "nri", "default": true, "binary": "/c"}"#;
        let (_temp, host) = host(&[("crio.json", named), ("docker.json", default)]);
        let is = |engine, handler| is_called_for(&host, engine, handler);
        assert_eq!(
            [is("crio", "nri-runc"), is("crio", "runc"), is("crio", "")].map(Option::unwrap),
            [true, false, false]
        );
        assert_eq!([is("docker", ""), is("docker", "nri")].map(Option::unwrap), [true, true]);
        assert_eq!(is("podman", "nri-runc"), None);
        let mut programs = programs(&host);
        programs.sort();
        assert_eq!(programs, ["/b", "/c"]);
    }

    #[test]
    fn a_damaged_record_yields_nothing() {
        let (_temp, host) = host(&[("crio.json", "{"), ("docker.json", "[]")]);
        assert_eq!(is_called_for(&host, "crio", ""), None);
        assert_eq!(is_called_for(&host, "docker", "runc"), None);
        assert!(programs(&host).is_empty());
    }
}
