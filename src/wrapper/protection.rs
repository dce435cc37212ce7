// SPDX-License-Identifier: Apache-2.0
//! Handles creates while the daemon is unavailable and containers are protected: a container is
//! created only if its pod is exempt, or the protections are promises that do not apply to it. As in
//! the daemon, `sources` describe the pod and `rules` compare the promises.
//!
//! Only here does the wrapper read the engine's files, and only when it would otherwise refuse a
//! container. All reads are bounded. This module writes only the record of a refusal.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nri_adaptation::{ValidatorExemptions, missing_required};

use crate::argv::{self, CommandLine};
use crate::config::{Config, PromiseSection, Protection};
use crate::describe::{self, Spec};
use crate::engine::{self, Allocations, EngineKind};
use crate::error::{Context, Error, Result};
use crate::files;
use crate::host::Host;
use crate::link::WrapperRequest;
use crate::plugin::api;
use crate::rules::{Fit, PromiseFacts, RuledPod, device_numbers, fit_promise};
use crate::sources::{Sources, callers, device_paths};

use super::invocation::BundleDocument;
use super::refusal::{self, ContainerNames};

/// Time limit for reading the engine's files and records.
const ENGINE_FILES_WAIT: Duration = Duration::from_secs(2);

/// Refuses the container of `question` if a protection may apply to it, unless its pod is exempt, and
/// writes a record of the refusal. `why` names the cause.
pub(super) fn refuse_unless_exempt(
    config: &Config,
    call: &CommandLine,
    question: &WrapperRequest,
    document: Option<&BundleDocument>,
    why: &str,
) -> Result<()> {
    let mut protections = config.protections_without_daemon();
    if protections.is_empty() {
        return Ok(());
    }
    // A pod that cannot be described is not exempt, and every promise may apply to it.
    let described = document.and_then(|document| describe(config, question, document).ok());
    if let Some(described) = &described {
        protections.retain(|protection| {
            protection
                .promise
                .as_ref()
                .is_none_or(|section| may_be_about(section, config, described))
        });
    }
    let Some(first) = protections.first() else { return Ok(()) };
    if let Some(described) = &described
        && may_be_exempt(config)
        && is_exempt(config, described, &protections)
    {
        return Ok(());
    }
    let error = Error::new(format!("{why}, and {}; nothing was changed or started", first.what))
        .hint("without the daemon, only exempt containers are created; see: nri-runc nri check");
    let names = described.map(|Described { pod, container, .. }| ContainerNames {
        namespace: pod.namespace,
        pod: pod.name,
        container: container.name,
    });
    refusal::write_record(config, call, question, names.as_ref(), &error);
    Err(error)
}

/// Whether the configuration can exempt any pod.
fn may_be_exempt(config: &Config) -> bool {
    let toleration = &config.default_validator.tolerate_missing_plugins_annotation;
    !config.exempt_namespaces.is_empty() || !toleration.is_empty()
}

fn is_exempt(config: &Config, described: &Described, protections: &[Protection]) -> bool {
    let Described { is_exempt, pod, container, .. } = described;
    if *is_exempt {
        return true;
    }
    // The annotation exempts only from missing plugins, not from other protections.
    let required: Option<Vec<&str>> = protections.iter().map(|p| p.required.as_deref()).collect();
    let Some(required) = required else { return false };
    let exemptions = ValidatorExemptions {
        is_exempt: *is_exempt,
        tolerate_missing_plugins_annotation: &config
            .default_validator
            .tolerate_missing_plugins_annotation,
    };
    let missing = missing_required(pod, Some(&container.name), exemptions, required, |_| false);
    missing.is_ok_and(|missing| missing.is_empty())
}

/// Whether a promise selects the container, or may select it: the claims and resources of
/// kubelet's pods are unknown here.
fn may_be_about(section: &PromiseSection, config: &Config, described: &Described) -> bool {
    let Described { kind, ruled, unread, pod, container, .. } = described;
    let allocations = match kind.behaviour().has_pods {
        true => Allocations::Unreadable("the daemon is away".to_owned()),
        false => Allocations::None,
    };
    let nodes = device_paths(&config.host(), &device_numbers(container));
    let nodes = nodes.as_deref().map_err(|_unknown| "the host's device nodes");
    let (container, unread) = (Some(container), unread.as_deref());
    let facts = PromiseFacts { ruled, pod, container, unread, nodes, allocations: &allocations };
    fit_promise(section, &facts).0 != Fit::No
}

/// A pod and its container, as the daemon would describe them.
struct Described {
    kind: EngineKind,
    ruled: RuledPod,
    /// Whether the pod is in an exempt namespace.
    is_exempt: bool,
    unread: Option<String>,
    pod: api::PodSandbox,
    container: api::Container,
}

/// Describes the pod and the container as the daemon would.
fn describe(
    config: &Config,
    question: &WrapperRequest,
    document: &BundleDocument,
) -> Result<Described> {
    let host = config.host();
    let bytes = files::read_at(&document.dir, &document.name)?.bytes;
    let spec = Spec::parse(&bytes)?;
    let call = argv::read(&question.argv);
    let cwd = Path::new(&question.cwd);
    let absolute = |path: &OsStr| -> PathBuf { cwd.join(path).components().collect() };
    let bundle = absolute(call.bundle.as_deref().unwrap_or_default());
    let [parent, grandparent] = callers(&host, question.pid, question.parent_pid)?;
    let engine_call = engine::CallerInfo {
        id: &call.id.as_deref().unwrap_or_default().to_string_lossy(),
        bundle: &bundle.to_string_lossy(),
        parent: &parent,
        grandparent: &grandparent,
        variables: &question.variables,
    };
    let mut facts = look_up(&host, &engine_call, &spec)?;
    let is_exempt = facts.judge(config.exemptions());
    facts.name_namespace(&config.default_namespace);
    let pod = describe::pod(&facts, &spec);
    Ok(Described {
        kind: facts.engine.kind,
        ruled: RuledPod::of(&pod, facts.engine.name(), facts.is_doubtful()),
        is_exempt,
        container: describe::container(&facts, &spec),
        pod,
        unread: facts.unread,
    })
}

/// Reads the engine's data about the container; fails at the time limit.
fn look_up(host: &Host, call: &engine::CallerInfo<'_>, spec: &Spec) -> Result<engine::Facts> {
    let doing = || "reading the engine's files";
    let builder = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = builder.doing(doing)?;
    let (sources, engine_spec) = (Sources::default(), spec.for_engine());
    let facts = runtime.block_on(async {
        tokio::time::timeout(ENGINE_FILES_WAIT, sources.facts(host, call, &engine_spec)).await
    });
    // Does not wait for a disk that hangs.
    runtime.shutdown_background();
    facts.map_err(|_elapsed| Error::new("reading the engine's files took too long"))
}
