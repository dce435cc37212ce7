// SPDX-License-Identifier: Apache-2.0
//! `update`, as the daemon lives it: the engine's request is laid under what plugins own
//! (decision D21). kubelet's CPU manager repeats every cpuset every ten seconds; without this
//! it would undo a plugin's within seconds. No plugin is asked yet.

use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::argv;
use crate::error::{Context, Error, Result, quoted};
use crate::link::{Attached, Proceed};
use crate::spec::{flags, overlay};
use crate::state::Key;

use super::call::Call;
use super::evidence;
use super::node::{Node, Pending};

/// A block of OCI resources.
pub(super) type Block = Map<String, Value>;

/// The most that is read of a request, in bytes.
const LIMIT: u64 = 16 << 20;

/// Decides an `update`; the second value holds once the runtime took it.
pub(super) async fn update(
    node: &Rc<Node>,
    call: &mut Call,
) -> Result<(Proceed, Option<(Block, Block)>)> {
    let Some(record) = node.container(&call.key) else { return Ok((Proceed::default(), None)) };
    if record.is_sandbox {
        return Ok((Proceed::default(), None));
    }
    let Some(request) = request(call)? else { return Ok((Proceed::default(), None)) };
    let keeps_devices = !record.runtime.contains("crun");
    let merged =
        overlay::merge_update(&record.engine_resources, &record.overlay, &request, !keeps_devices);
    let holds = Some((merged.engine, merged.overlay));
    if record.overlay.is_empty() {
        return Ok((Proceed::default(), holds)); // No plugin owns anything: the engine's words pass as they are.
    }
    let stdin = serde_json::to_vec(&merged.to_runtime)
        .map_err(|error| Error::new(quoted(&error.to_string())))?;
    let by_stdin = call.call.resources.as_ref().is_some_and(|r| r.value == "-")
        && call.call.resource_flags.is_empty();
    let argv = (!by_stdin).then(|| argv::for_update_by_stdin(&call.question().argv, &call.call));
    Ok((Proceed { stdin: Some(stdin), argv, document: None }, holds))
}

/// What the engine asks for, from standard input, a file, or flags; `None` when it cannot be
/// understood, so that the runtime says what is wrong with it.
fn request(call: &mut Call) -> Result<Option<Block>> {
    let words: Vec<(&str, String)> = call
        .call
        .resource_flags
        .iter()
        .map(|flag| (flag.name, flag.value.to_string_lossy().into_owned()))
        .collect();
    let pairs: Vec<(&str, &str)> =
        words.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let Ok(mut request) = flags::resources_from_flags(&pairs) else { return Ok(None) };
    let Some(fd) = call.asked.take(Attached::Resources) else {
        return Ok(call.call.resources.is_none().then_some(request));
    };
    let bytes = read(fd).doing(|| "reading the requested resources")?;
    // The runtime takes the first JSON value and ignores the rest.
    let mut values = serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>();
    let Some(Ok(Value::Object(block))) = values.next() else { return Ok(None) };
    // runc: a file or standard input replaces all flags but those of RDT.
    request = block;
    Ok(Some(request))
}

fn read(fd: OwnedFd) -> Result<Vec<u8>> {
    let mut file = std::fs::File::from(fd);
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// After an `update` ran: a replaced state file says that the runtime took it. crun keeps none;
/// there the container's being alive is all that can be told.
pub(super) async fn settle(node: &Rc<Node>, key: &Key, pending: &Pending) {
    let after = evidence::state_stamp(&node.host, key);
    let is_crun = node.container(key).is_some_and(|record| record.runtime.contains("crun"));
    if after == pending.state_before && !is_crun {
        return;
    }
    if let Some((engine, overlay)) = &pending.resources {
        let (engine, overlay) = (engine.clone(), overlay.clone());
        node.change(key, |record| {
            record.engine_resources = engine;
            record.overlay = overlay;
        });
    }
}
