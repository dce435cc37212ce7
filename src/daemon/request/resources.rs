// SPDX-License-Identifier: Apache-2.0
//! Reads the resources that an engine requests by `update`.

use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;

use oci_document::{DocumentError, odd_document};
use serde_json::{Map, Value};

use crate::daemon::request::VerbRequest;
use crate::error::{Error, Result, quoted};
use crate::files;
use crate::limits;
use crate::runtime::RuntimeKind;
use crate::spec::flags;

/// Returns the requested resources as `runtime` reads them, from standard input, a file (`bytes`), or flags;
/// `None` if they are missing or cannot be parsed, because then the runtime reports the error.
///
/// # Errors
/// Fails if the runtime may interpret a repeated member differently than plugins would receive it.
pub(crate) fn requested(
    call: &VerbRequest,
    bytes: Option<Vec<u8>>,
    runtime: &str,
) -> Result<Option<Map<String, Value>>> {
    let words: Vec<(&str, String)> = call
        .command_line
        .resource_flags
        .iter()
        .map(|flag| (flag.name, flag.value.to_string_lossy().into_owned()))
        .collect();
    let pairs: Vec<(&str, &str)> =
        words.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let Ok(request) = flags::resources_from_flags(&pairs) else { return Ok(None) };
    let Some(bytes) = bytes else {
        return Ok(call.command_line.resources.is_none().then_some(request));
    };
    // runc: a file or standard input replaces all flags except RDT's.
    let block = match RuntimeKind::of_program(runtime) {
        // crun and youki are not written in Go, so member names are case-sensitive.
        RuntimeKind::Crun | RuntimeKind::Youki => None,
        RuntimeKind::Runc | RuntimeKind::Other => match odd_document(&bytes) {
            Ok(block) => block,
            Err(DocumentError::Repeated { path }) => {
                let why =
                    format!("the requested resources contain {} more than once", quoted(&path));
                return Err(Error::new(why).hint("nothing was changed"));
            }
            Err(_not_a_document) => return Ok(None),
        },
    };
    // The runtime reads the first JSON value and ignores the rest.
    let mut values = serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>();
    Ok(match block.or_else(|| values.next()?.ok()) {
        Some(Value::Object(block)) => Some(block),
        _ => None,
    })
}

/// Reads the request that the wrapper passed on.
///
/// # Errors
/// Fails when the file is not regular, is unreadable, or has more bytes than an update may have.
pub(crate) fn read(fd: OwnedFd) -> Result<Vec<u8>> {
    // The wrapper opened the file by a name that the engine gave, or received it open from the engine.
    let mut file = files::regular(fd)?;
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.take(limits::RESOURCES + 1).read_to_end(&mut bytes)?;
    // A truncated request would not parse, so the runtime would get it without plugins being asked.
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limits::RESOURCES {
        return Err(Error::new(format!(
            "the resources have more than {} bytes",
            limits::RESOURCES
        )));
    }
    Ok(bytes)
}
