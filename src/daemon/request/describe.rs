// SPDX-License-Identifier: Apache-2.0
//! Rebuilds the pod and container of a call from the document in the bundle, the calling processes and the engine's
//! files. Claims about the container's identity are checked against the configuration and the known pods.

use std::path::Path;
use std::sync::Arc;

use serde_json::Map;
use serde_json::Value;

use crate::daemon::request::VerbRequest;
use crate::daemon::shared::Daemon;
use crate::describe;
use crate::engine::{self, DetectedEngine, Facts, Role};
use crate::error::{Error, Result};
use crate::limits;
use crate::plugin::api;
use crate::state::Promise;

/// The engine, pod and container of a call.
pub(crate) struct Description {
    pub(crate) engine: DetectedEngine,
    pub(crate) role: Role,
    pub(crate) pod: api::PodSandbox,
    pub(crate) container: Arc<api::Container>,
    /// The engine's resources, as in the document.
    pub(crate) resources: Map<String, Value>,
    /// A path that exists as long as the pod does, for a pod that ends without a runtime call.
    pub(crate) lives_with: Option<String>,
    /// Whether a source that the configuration trusts puts the pod in an exempt namespace.
    pub(crate) is_exempt: bool,
    /// Whether the namespace is a default, or an untrusted party may have written it.
    pub(crate) has_unproven_namespace: bool,
    /// Whether a tenant may have written facts that rules examine.
    pub(crate) is_doubtful: bool,
    /// Set if the engine's record of the container was not read: the record's name, or the reason.
    pub(crate) unread: Option<String>,
    /// The promises about the container, once they are known.
    pub(crate) promises: Vec<Promise>,
    /// Claims of a tenant that the engine contradicts.
    pub(crate) contradictions: Vec<String>,
}

impl Description {
    /// Describes the container `id`, and checks and reports the claims in `facts`.
    fn new(daemon: &Daemon, id: &str, spec: &describe::Spec, mut facts: Facts) -> Self {
        let is_exempt = judge(daemon, &mut facts);
        // The pod's author chooses how many claims the engine contradicts, so the first ones are listed and the others
        // are counted.
        limits::list_first(&mut facts.contradictions, limits::CONTRADICTIONS);
        for what in &facts.contradictions {
            daemon.report.note_contradiction(facts.engine.name(), id, what);
        }
        Self {
            is_exempt,
            has_unproven_namespace: facts.has_unproven_namespace(),
            is_doubtful: facts.is_doubtful(),
            role: facts.role,
            pod: describe::pod(&facts, spec),
            container: describe::container(&facts, spec).into(),
            resources: spec.resources(),
            lives_with: facts.pod.lives_with,
            unread: facts.unread,
            promises: Vec::new(),
            contradictions: facts.contradictions,
            engine: facts.engine,
        }
    }
}

/// Drops claims that an untrusted source must not make: an exempt namespace, a pod of another engine, an
/// exempting annotation. If the engine has no pods and no namespace is named, the pod gets the default namespace
/// (D47), which exempts no pod. Returns whether the pod is exempt.
fn judge(daemon: &Daemon, facts: &mut Facts) -> bool {
    let config = &daemon.config();
    let is_exempt = facts.judge(config.exemptions());
    let store = daemon.records.read();
    let known = store.pod(&facts.pod.id).filter(|_| facts.names_pod);
    if let Some(pod) = known.filter(|pod| pod.engine.kind() != Some(facts.engine.kind)) {
        facts.leave_pod(&format!("is a pod of {}", pod.engine));
    }
    facts.name_namespace(&config.default_namespace);
    is_exempt
}

/// Parses a document, on another thread if it is large. Refuses more annotations than the daemon can
/// handle in one turn.
async fn parse(document: &[u8]) -> Result<describe::Spec> {
    let spec = if document.len() > limits::LARGE_DOCUMENT {
        let document = document.to_vec();
        let parse = tokio::task::spawn_blocking(move || describe::Spec::parse(&document));
        parse.await.unwrap_or_else(|panicked| Err(Error::new(panicked.to_string())))
    } else {
        describe::Spec::parse(document)
    }?;
    let (count, most) = (spec.for_engine().annotations.len(), limits::ANNOTATIONS);
    if count > most {
        let why = format!("config.json has {count} annotations, and at most {most} are allowed");
        return Err(Error::new(why).hint("nothing was changed or started"));
    }
    Ok(spec)
}

/// Rebuilds the pod and the container from the call, the document, and the engine's files. If the
/// engine's files are missing or slow to read, the description is less complete.
pub(crate) async fn describe(
    daemon: &Daemon,
    call: &VerbRequest,
    document: &[u8],
) -> Result<Description> {
    let spec = parse(document).await?;
    let bundle = call.bundle.to_string_lossy();
    let [parent, grandparent] = call.callers(&daemon.host)?;
    let engine_call = engine::CallerInfo {
        id: &call.key.id,
        bundle: &bundle,
        parent: &parent,
        grandparent: &grandparent,
        variables: &call.question().variables,
    };
    let engine_spec = spec.for_engine();
    let mut facts = daemon.caches.sources.facts(&daemon.host, &engine_call, &engine_spec).await;
    engine::doubt_sandbox(&mut facts, &engine_spec);
    for missing in &facts.missing {
        daemon.report.note_missing(facts.engine.name(), missing, &call.key.id);
    }
    Ok(Description::new(daemon, &call.key.id, &spec, facts))
}

/// Describes the pod of an infrastructure container that no runtime made, from the container's
/// document; `None` if the folder belongs to another container.
pub(crate) async fn describe_folder(
    daemon: &Daemon,
    folder: &Path,
    id: &str,
    document: &[u8],
) -> Result<Option<Description>> {
    let spec = parse(document).await?;
    let bundle = folder.to_string_lossy();
    let no_caller =
        engine::CallerInfo { id, bundle: &bundle, parent: &[], grandparent: &[], variables: &[] };
    let engine_spec = spec.for_engine();
    if !engine::is_pod_without_runtime(&no_caller, &engine_spec) {
        return Ok(None);
    }
    let facts = daemon.caches.sources.facts(&daemon.host, &no_caller, &engine_spec).await;
    Ok(Some(Description {
        container: Arc::default(),
        resources: Map::new(),
        lives_with: Some(folder.join("config.json").to_string_lossy().into_owned()),
        unread: None,
        ..Description::new(daemon, id, &spec, facts)
    }))
}
