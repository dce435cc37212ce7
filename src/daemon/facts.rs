// SPDX-License-Identifier: Apache-2.0
//! What an adjustment needs to know of the host before the pure patch: what its names stand for,
//! whether the runtime honours it, which mounts propagate. Each is looked at only where the
//! adjustment asks for it, and what may take time is done on another thread. It changes nothing.

use std::path::PathBuf;
use std::sync::Arc;

use tracing::warn;

use crate::adaptation::Merged;
use crate::error::{Error, Result};
use crate::plugin::api;
use crate::resolve;
use crate::runtime::features::Features;
use crate::spec::patch::{HostFacts, PatchError, Resolved, propagating_sources};

use super::call::Call;
use super::node::Node;

/// What the adjustment's names stand for here, once it is known that the runtime honours them.
pub(super) async fn resolve_for_runtime(
    node: &Node,
    call: &Call,
    merged: &Merged,
) -> std::result::Result<Resolved, PatchError> {
    let resolved = resolve::resolve(&merged.adjust, &node.config, &node.host)?;
    for note in &resolved.notes {
        warn!("{}: {note}", call.key.id);
    }
    if resolve::needs_runtime(&merged.adjust, &resolved) {
        let runtimes = Arc::clone(&node.runtimes);
        let runtime = PathBuf::from(&call.question().runtime);
        let name = runtime.display().to_string();
        // A thread of its own: the runtime may take its time, and others must not wait for it.
        let asked = tokio::task::spawn_blocking(move || runtimes.features(&runtime)).await;
        let features = asked.unwrap_or_default();
        if *features == Features::default() {
            warn!("{}: {name} does not say what it can do and is trusted", call.key.id);
        }
        resolve::check_runtime(&merged.adjust, &resolved, &features)?;
    }
    Ok(resolved)
}

/// What the host is like; looked at only where the adjustment asks for mounts that propagate.
pub(super) async fn host_facts(
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
