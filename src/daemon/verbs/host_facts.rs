// SPDX-License-Identifier: Apache-2.0
//! What an adjustment needs to know of the host before the pure patch: what its names stand for,
//! whether the runtime honours it, which mounts propagate. Each is looked at only where the
//! adjustment asks for it, and what may take time is done on another thread. It changes nothing.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use protobuf::Message;
use tracing::warn;

use crate::adaptation::Merged;
use crate::chain::SMALL;
use crate::error::{Error, Result};
use crate::plugin::api;
use crate::resolve;
use crate::runtime::features::Features;
use crate::spec::patch::{
    HostFacts, PatchError, PatchedSpec, Resolved, patch_on, propagating_sources,
};

use crate::daemon::node::Node;

/// A document above so many bytes is edited on another thread.
const LARGE: usize = 256 << 10;

/// With more CDI devices than this the document is edited on another thread.
const FEW: usize = 16;

/// What the adjustment's names stand for here, once it is known that the runtime honours them.
pub(crate) async fn resolve_for_runtime(
    node: &Node,
    id: &str,
    runtime: &OsStr,
    merged: &Merged,
) -> std::result::Result<Resolved, PatchError> {
    let resolved = resolve_names(node, &merged.adjust).await?;
    for note in &resolved.notes {
        warn!("{id}: {note}");
    }
    if resolve::needs_runtime(&merged.adjust, &resolved) {
        let runtimes = Arc::clone(&node.caches.runtimes);
        let runtime = PathBuf::from(runtime);
        let name = runtime.display().to_string();
        // A thread of its own: the runtime may take its time, and others must not wait for it.
        let asked = tokio::task::spawn_blocking(move || runtimes.features(&runtime)).await;
        let features = asked.unwrap_or_default();
        if *features == Features::default() {
            warn!(
                "{id}: {name} does not report its features: every field is assumed to be supported"
            );
        }
        resolve::check_runtime(&merged.adjust, &resolved, &features)?;
    }
    Ok(resolved)
}

/// What the names stand for. CDI's files are read on another thread: there may be many.
async fn resolve_names(
    node: &Node,
    adjust: &api::ContainerAdjustment,
) -> std::result::Result<Resolved, PatchError> {
    if adjust.CDI_devices.is_empty() {
        return resolve::resolve(adjust, &node.config, &node.host);
    }
    let (adjust, config, host) = (adjust.clone(), node.config.clone(), node.host.clone());
    let look = tokio::task::spawn_blocking(move || resolve::resolve(&adjust, &config, &host));
    look.await.unwrap_or_else(|_panicked| {
        let problem = "the files of CDI devices could not be read".to_owned();
        Err(PatchError::Invalid { field: "CdiDevices".to_owned(), problem })
    })
}

/// Edits the document, on another thread where that may take its time.
pub(crate) async fn patch(
    document: &[u8],
    adjust: &api::ContainerAdjustment,
    facts: &HostFacts,
) -> std::result::Result<PatchedSpec, PatchError> {
    let is_small = adjust.compute_size() <= SMALL && document.len() <= LARGE;
    if is_small && facts.names.cdi.len() <= FEW {
        return patch_on(document, adjust, facts);
    }
    let (document, adjust, facts) = (document.to_vec(), adjust.clone(), facts.clone());
    let patch = tokio::task::spawn_blocking(move || patch_on(&document, &adjust, &facts));
    patch.await.unwrap_or_else(|_panicked| {
        let problem = "the document could not be edited".to_owned();
        Err(PatchError::Invalid { field: String::new(), problem })
    })
}

/// Refuses what this node lacks, once it is known that the values are well formed: a runtime would
/// refuse it without the plugin's name, or drop it.
pub(crate) fn check_node(
    node: &Node,
    merged: &Merged,
    names: &Resolved,
) -> std::result::Result<(), PatchError> {
    let (resctrl, host) = (&node.config.resctrl_path, node.config.node());
    resolve::check_node(&merged.adjust, names, resctrl, &host)
}

/// What the host is like; looked at only where the adjustment asks for mounts that propagate.
pub(crate) async fn host_facts(
    node: &Node,
    adjust: &api::ContainerAdjustment,
    names: Resolved,
) -> Result<HostFacts> {
    let sources = propagating_sources(adjust, &names).into_iter().map(str::to_owned);
    let sources: Vec<String> = sources.collect();
    if sources.is_empty() {
        return Ok(HostFacts { names, ..HostFacts::default() });
    }
    let host = node.host.clone();
    // Not on this thread: a plugin may name a file server that does not answer.
    let look = tokio::task::spawn_blocking(move || resolve::host_facts(&sources, names, &host));
    look.await.map_err(|_panicked| Error::new("the host's mounts could not be looked at"))?
}
