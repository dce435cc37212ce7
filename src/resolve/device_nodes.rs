// SPDX-License-Identifier: Apache-2.0
//! Completes a device node that a CDI file describes only in part, from the node on the host, as
//! CDI's reference library does (`fillMissingInfo`): type and numbers if the file omits them, and a
//! missing mode even if it has type and numbers. Without a mode, a runtime makes a node that every
//! user may open.
//!
//! The owner is not taken from the host: a node without an owner belongs to the container's user
//! (`spec/patch/resolved.rs`). This module only reads.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use nix::sys::stat::{major, minor};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::host::Host;

/// Permissions of a file mode; the rest is the type.
const PERMISSIONS: u32 = 0o7777;

/// The type of a FIFO, which needs no numbers.
const FIFO: &str = "p";

struct HostNode {
    kind: &'static str,
    major: u64,
    minor: u64,
    mode: u32,
}

impl HostNode {
    /// Reads the node; follows links, so that a link does not bypass its target's permissions.
    fn at(host: &Host, path: &str) -> Result<Self, String> {
        let found = std::fs::metadata(host.path(path))
            .map_err(|error| format!("it cannot be inspected ({:?})", error.kind()))?;
        let kind = match found.file_type() {
            kind if kind.is_block_device() => "b",
            kind if kind.is_char_device() => "c",
            kind if kind.is_fifo() => FIFO,
            _ => return Err("it is not a device node".to_owned()),
        };
        let device = found.rdev();
        let mode = found.mode() & PERMISSIONS;
        Ok(Self { kind, major: major(device), minor: minor(device), mode })
    }
}

/// Completes a node of a CDI file. If the host has no such node, the file alone is enough if it has
/// type and numbers (a FIFO needs no numbers).
pub(super) fn fill_in<N: Serialize + DeserializeOwned>(
    node: &mut N,
    host: &Host,
) -> Result<(), String> {
    let unread = |error: serde_json::Error| error.to_string();
    let mut members = serde_json::to_value(&*node).map_err(unread)?;
    let text = |name: &str| members[name].as_str().filter(|text| !text.is_empty());
    let (path, kind) = (text("path").unwrap_or_default(), text("type"));
    let is_numbered = members["major"].as_i64().is_some_and(|major| major != 0);
    let is_complete = kind.is_some_and(|kind| kind == FIFO || is_numbered);
    let path = text("hostPath").unwrap_or(path);
    let found = match HostNode::at(host, path) {
        Ok(found) => found,
        Err(_missing) if is_complete => return Ok(()),
        Err(problem) => return Err(format!("device node {path} of this host: {problem}")),
    };
    if let Some(kind) = kind.filter(|kind| !is_complete && *kind != found.kind) {
        let there = found.kind;
        return Err(format!("device node {path} of this host has type {there}, not {kind}"));
    }
    if members["fileMode"].is_null() {
        members["fileMode"] = json!(found.mode);
    }
    if !is_complete {
        members["type"] = json!(found.kind);
        if found.kind != FIFO && !is_numbered {
            members["major"] = json!(found.major);
            members["minor"] = json!(found.minor);
        }
    }
    *node = serde_json::from_value::<N>(members).map_err(unread)?;
    Ok(())
}
