// SPDX-License-Identifier: Apache-2.0
//! Collects facts about the host that an adjustment needs before the pure patch: its resolved
//! names, the features that the runtime supports, the propagation of mounts. Each is read only if
//! the adjustment needs it; slow reads run on another thread. This module changes nothing.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use nri_adaptation::Merged;
use protobuf::Message;
use tracing::warn;

use crate::chain::SMALL;
use crate::config::Config;
use crate::describe::{Spec, in_document};
use crate::error::Result;
use crate::limits;
use crate::plugin::api;
use crate::resolve::{self, ResourceWriter};
use crate::runtime::features::Features;
use crate::spec::patch::{
    HostFacts, PatchError, PatchedSpec, Resolved, patch_on, propagating_sources,
};

use crate::daemon::shared::Daemon;

/// Number of CDI devices above which the document is edited on another thread.
const FEW: usize = 16;

/// Resolves the adjustment's names, and checks that the runtime honours them. The second value lists
/// what this node lacks: `adjust` refuses the container for that after recording its description.
pub(crate) async fn resolve_for_runtime(
    daemon: &Daemon,
    id: &str,
    runtime: &OsStr,
    merged: &Merged,
    writer: ResourceWriter,
) -> std::result::Result<(Resolved, Vec<PatchError>), PatchError> {
    let (resolved, missing) = resolve_names(daemon, &merged.adjust).await?;
    for note in &resolved.notes {
        warn!("{id}: {note}");
    }
    if resolve::needs_runtime(&merged.adjust, &resolved) {
        let runtimes = Arc::clone(&daemon.caches.runtimes);
        let runtime = PathBuf::from(runtime);
        let name = runtime.display().to_string();
        // Queries the runtime on another thread, because it may be slow and other requests must not
        // wait.
        let asked = tokio::task::spawn_blocking(move || runtimes.features(&runtime)).await;
        let features = asked.unwrap_or_default();
        if *features == Features::default() {
            warn!(
                "{id}: {name} does not report its features: every field is assumed to be supported"
            );
        }
        resolve::check_runtime(&merged.adjust, &resolved, &features, writer)?;
    }
    Ok((resolved, missing))
}

/// Resolves the names. CDI's files are read on another thread, because there may be many.
async fn resolve_names(
    daemon: &Daemon,
    adjust: &api::ContainerAdjustment,
) -> std::result::Result<(Resolved, Vec<PatchError>), PatchError> {
    if adjust.CDI_devices.is_empty() {
        return resolve::resolve(adjust, &daemon.config(), &daemon.host);
    }
    let (adjust, host) = (adjust.clone(), daemon.host.clone());
    let config = Config::clone(&daemon.config());
    let folders = config.cdi_spec_dirs.iter().map(|folder| folder.display().to_string());
    let folders = folders.collect::<Vec<_>>().join(", ");
    let look = daemon.off_loop(&folders, move || Ok(resolve::resolve(&adjust, &config, &host)));
    look.await.unwrap_or_else(|error| {
        let problem = error.why();
        Err(PatchError::Invalid { field: "CdiDevices".to_owned(), problem })
    })
}

/// An edited document, and the container as that document describes it.
pub(crate) struct Written {
    pub(crate) patched: PatchedSpec,
    /// The container as the document describes it; `None` if no plugin or injection requested a change,
    /// so that the engine's description applies.
    pub(crate) container: Option<api::Container>,
}

/// Edits the document, on another thread if that may take long.
pub(crate) async fn patch(
    document: &[u8],
    merged: &Merged,
    facts: &HostFacts,
) -> std::result::Result<Written, PatchError> {
    let Merged { adjust, container, .. } = merged;
    let is_small = adjust.compute_size() <= SMALL && document.len() <= limits::LARGE_DOCUMENT;
    if is_small && facts.names.cdi.len() <= FEW {
        return write(document, adjust, container, facts);
    }
    let (document, facts) = (document.to_vec(), facts.clone());
    let (adjust, container) = (adjust.clone(), container.clone());
    let write = move || write(&document, &adjust, &container, &facts);
    tokio::task::spawn_blocking(write).await.unwrap_or_else(|_panicked| {
        let problem = "the document could not be edited".to_owned();
        Err(PatchError::Invalid { field: String::new(), problem })
    })
}

/// Edits the document. Plugins receive the written values, not the requested ones: a name may
/// expand to several values, some values depend on others, and lists are sorted.
fn write(
    document: &[u8],
    adjust: &api::ContainerAdjustment,
    merged: &api::Container,
    facts: &HostFacts,
) -> std::result::Result<Written, PatchError> {
    let patched = patch_on(document, adjust, facts)?;
    if *adjust == api::ContainerAdjustment::default() {
        return Ok(Written { patched, container: None });
    }
    let spec = Spec::parse(patched.bytes.as_deref().unwrap_or(document));
    let spec = spec.map_err(|error| {
        let problem = format!("the edited document cannot be read: {error}");
        PatchError::Invalid { field: String::new(), problem }
    })?;
    let container = in_document(merged.clone(), &spec);
    Ok(Written { patched, container: Some(container) })
}

/// Refuses well-formed values that this node cannot provide: a runtime would refuse them without
/// naming the plugin, or drop them.
pub(crate) fn check_node(
    config: &Config,
    merged: &Merged,
    names: &Resolved,
    document: &[u8],
) -> std::result::Result<(), PatchError> {
    let adjust = &merged.adjust;
    resolve::check_node(adjust, names, &config.resctrl_path, document, &config.node())?;
    match config.is_of_user() {
        true => resolve::check_delegated(adjust, names, document, &config.node()),
        false => Ok(()),
    }
}

/// Returns the facts about the host; its mounts are read only if the adjustment requests mounts that
/// propagate.
pub(crate) async fn host_facts(
    daemon: &Daemon,
    merged: &Merged,
    names: Resolved,
) -> Result<HostFacts> {
    let adjust = &merged.adjust;
    let runtime_annotations = resolve::runtime_annotations(&daemon.config(), merged);
    let has_resources = adjust.linux.as_ref().is_some_and(|linux| linux.resources.is_some());
    let is_cgroup_v2 = has_resources && resolve::is_cgroup_v2(&daemon.config().node());
    let sources = propagating_sources(adjust, &names).into_iter().map(str::to_owned);
    let sources: Vec<String> = sources.collect();
    if sources.is_empty() {
        let facts = HostFacts { names, is_cgroup_v2, ..HostFacts::default() };
        return Ok(HostFacts { runtime_annotations, ..facts });
    }
    let host = daemon.host.clone();
    // Read on another thread, because a plugin may name a path on a file server that does not respond.
    let places = sources.join(", ");
    let look = daemon.off_loop(&places, move || resolve::host_facts(&sources, names, &host));
    let facts = look.await;
    facts.map(|facts| HostFacts { is_cgroup_v2, runtime_annotations, ..facts })
}
