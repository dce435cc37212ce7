// SPDX-License-Identifier: Apache-2.0
//! `adjust`: the changes that plugins, or adjustments in a file, would make to a bundle.
//!
//! Plugins receive the events of a container's creation and of its end, so that a stateful plugin
//! returns to its former state. Nothing is written unless requested, and then in one step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::{Args, ValueEnum};
use nri_adaptation::{Creation, Merged, Rights};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::chain::{self, ChainError, ChainedPlugin, Notification, Participants};
use crate::config::Config;
use crate::engine::Role;
use crate::error::{Context, Error, Result, quoted};
use crate::host::Host;
use crate::plugin::{Event, Settings, api};
use crate::resolve::{self, ResourceWriter};
use crate::runtime;
use crate::spec::patch::{
    HostFacts, PatchError, PatchedSpec, Resolved, patch_anyway, propagating_sources,
};
use crate::text::printable_page;

use super::bundle::{DescribedBundle, DryRunBundle};
use super::dry_run::{DryRun, DryRunObserver, Later, now};
use super::line::ScriptState;
use crate::plugin::json::{read, show};

/// The form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A unified diff.
    Diff,
    /// The complete config.json.
    Spec,
    /// Adjustment, owners, updates and evictions.
    Json,
}

/// The options of the command line.
#[derive(Debug, Args)]
pub(crate) struct AdjustOptions {
    /// Bundle directory.
    #[arg(long, value_name = "DIR")]
    bundle: PathBuf,
    /// Container ID (default: bundle directory name).
    #[arg(long)]
    id: Option<String>,
    /// Apply adjustments from a file ("-": standard input) instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket", "wait"])]
    apply: Option<PathBuf>,
    /// Output format (default: diff; with --json: json).
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Output>,
    /// Write the result to the bundle.
    #[arg(long)]
    write: bool,
    /// Wait until this plugin has connected (repeatable).
    #[arg(long, value_name = "NAME", requires = "socket")]
    wait: Vec<String>,
}

/// Runs the adjustment; returns the output.
///
/// # Errors
/// Fails when plugins refuse, conflict or do not connect, when the result cannot be applied or
/// written, when the bundle or the adjustments are unreadable, and without `--apply` for a pod's
/// infrastructure container. The bundle is then unchanged.
pub(crate) fn run(config: Config, options: &AdjustOptions, output: Output) -> Result<Vec<u8>> {
    let bundle = DryRunBundle::open(&options.bundle)?;
    let host = Host::new(&config.debug_host_root, "");
    let id = options.id.clone().unwrap_or_else(|| bundle.id());
    let described = bundle.describe(&id, &host, &config)?;
    let DescribedBundle { role, pod, container, origin } = described;
    let creation = Creation::new(pod.clone(), container.clone());
    let merged = match &options.apply {
        Some(file) => merge(&documents(file)?, creation)?,
        None if role == Role::Sandbox => {
            let what = "this is the infrastructure container of a pod";
            return Err(Error::new(what).hint("plugins adjust the pod's other containers"));
        }
        None => ask(config.clone(), options, origin, &pod, &container)?,
    };
    let patched = apply(&config, &host, bundle.document(), &merged)?;
    let new = patched.bytes.as_deref().unwrap_or(bundle.document());
    if options.write && patched.bytes.is_some() {
        bundle.write(new)?;
    }
    Ok(match output {
        Output::Spec => new.to_vec(),
        Output::Diff => printable_page(&bundle.diff(new)).into_bytes(),
        Output::Json => format!("{}\n", json!(Adjusted::new(&merged, &id))).into_bytes(),
    })
}

/// The result for `--output json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Adjusted {
    /// NRI's ContainerAdjustment in protobuf's JSON mapping, after the merge.
    adjust: Option<Map<String, Value>>,
    /// The plugin or injection (`inject:NAME`) that owns each field, by NRI's name of the field.
    owners: BTreeMap<String, String>,
    /// Updates of other containers (NRI's ContainerUpdate).
    update: Vec<Value>,
    /// Evictions of containers (NRI's ContainerEviction).
    evict: Vec<Value>,
}

impl Adjusted {
    fn new(merged: &Merged, id: &str) -> Self {
        Self {
            adjust: show(&merged.adjust).as_object().cloned(),
            owners: merged.owners.to_flat(id),
            update: merged.updates.iter().map(|update| show(update)).collect(),
            evict: merged.evictions.iter().map(|eviction| show(eviction)).collect(),
        }
    }
}

/// Applies the adjustment to the document, with this host's devices and classes. Warns about doubts
/// for which a container would be refused.
fn apply(config: &Config, host: &Host, document: &[u8], merged: &Merged) -> Result<PatchedSpec> {
    let adjust = &merged.adjust;
    let blamed = |error: PatchError| blame(merged, &error);
    let (names, lacking) = resolve::resolve(adjust, config, host).map_err(blamed)?;
    for note in &names.notes {
        tracing::warn!("{note}");
    }
    doubt(config, adjust, &names);
    let sources: Vec<String> =
        propagating_sources(adjust, &names).into_iter().map(str::to_owned).collect();
    let facts = resolve::host_facts(&sources, names, host)?;
    let runtime_annotations = resolve::runtime_annotations(config, merged);
    let facts = HostFacts { runtime_annotations, ..facts };
    let (patched, doubts) = patch_anyway(document, adjust, &facts).map_err(blamed)?;
    for doubt in lacking.into_iter().chain(doubts) {
        tracing::warn!("a container would be refused: {}", named(merged, &doubt));
    }
    let new = patched.bytes.as_deref().unwrap_or(document);
    let lack = resolve::check_node(adjust, &facts.names, &config.resctrl_path, new, &config.node());
    if let Err(lack) = lack {
        tracing::warn!("a container would be refused here: {}", named(merged, &lack));
    }
    Ok(patched)
}

/// Warns about values that this machine's runtime would not honour. A dry run does not refuse them,
/// because the bundle may be meant for another runtime.
fn doubt(config: &Config, adjust: &api::ContainerAdjustment, names: &Resolved) {
    if !resolve::needs_runtime(adjust, names) {
        return;
    }
    let features = runtime::resolve(config, None)
        .map(|runtime| runtime::features::KnownRuntimes::default().features(&runtime))
        .unwrap_or_default();
    if *features == runtime::features::Features::default() {
        tracing::warn!(
            "no runtime here reports its features: every field is assumed to be supported"
        );
    }
    if let Err(error) = resolve::check_runtime(adjust, names, &features, ResourceWriter::Runtime) {
        tracing::warn!("a container would be refused here: {error}");
    }
}

fn blame(merged: &Merged, error: &PatchError) -> Error {
    Error::new(named(merged, error)).hint("the bundle is unchanged")
}

fn named(merged: &Merged, error: &PatchError) -> String {
    quoted(&match error.field().and_then(|field| merged.plugin_behind(field)) {
        Some(plugin) => format!("{plugin}: {error}"),
        None => error.to_string(),
    })
}

/// Reads the adjustments in a file: one document, or several one after the other.
fn documents(file: &Path) -> Result<Vec<(String, api::ContainerAdjustment)>> {
    let text = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.doing(|| format!("reading {}", file.display()))?;
    let documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let numbered = documents.zip(1_usize..);
    numbered
        .map(|(document, number)| {
            let read = document.map_err(|error| error.to_string());
            read.and_then(|document| adjustment(document, number)).map_err(|why| {
                Error::new(format!("{}: adjustment {number}: {why}", file.display()))
            })
        })
        .collect()
}

/// Returns an adjustment and its plugin's name: the `plugin` key, else the adjustment's number.
fn adjustment(
    mut document: Value,
    number: usize,
) -> std::result::Result<(String, api::ContainerAdjustment), String> {
    let members = document.as_object_mut().ok_or("it is not a JSON object")?;
    let plugin = match members.remove("plugin") {
        None => number.to_string(),
        Some(Value::String(plugin)) => plugin,
        Some(_) => return Err("plugin must be a string".to_owned()),
    };
    Ok((plugin, read(&document)?))
}

/// Merges these adjustments like plugins' replies, in the order of the file.
fn merge(
    documents: &[(String, api::ContainerAdjustment)],
    mut creation: Creation,
) -> Result<Merged> {
    for (plugin, adjust) in documents {
        let answer = api::CreateContainerResponse {
            adjust: Some(adjust.clone()).into(),
            ..api::CreateContainerResponse::default()
        };
        creation = creation
            .answer(plugin, &Rights::default(), answer)
            .map_err(|error| Error::new(quoted(&error.to_string())))?;
    }
    Ok(creation.finish())
}

fn ask(
    config: Config,
    options: &AdjustOptions,
    origin: (String, bool),
    pod: &api::PodSandbox,
    container: &api::Container,
) -> Result<Merged> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.doing(|| "starting the event loop")?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let wait_timeout = config.registration_timeout;
        let settings = Settings::of(&config);
        let dry_run = DryRun::new(config, settings, origin, Rc::new(SilentObserver));
        dry_run.open().await?;
        let waited = dry_run.wait(&options.wait, &[], wait_timeout).await;
        let merged = match waited {
            Ok(()) => create_and_remove(&dry_run, pod, container).await,
            Err(why) => Err(Error::new(why).hint("the bundle is unchanged")),
        };
        dry_run.close().await;
        merged
    })
}

/// Sends the events of a container that is created and removed.
async fn create_and_remove(
    dry_run: &DryRun,
    pod: &api::PodSandbox,
    container: &api::Container,
) -> Result<Merged> {
    let ruled = dry_run.ruled_pod(Some(pod));
    let registered = dry_run.registered_for(&ruled);
    if dry_run.registered().is_empty() {
        tracing::warn!("no plugin takes part: see nri.plugin_path, and --wait with --socket");
    }
    let told = |event, container: Option<&api::Container>| {
        Notification::new(event, pod.clone(), container.cloned().map(Into::into))
    };
    let runs = told(Event::RunPodSandbox, None);
    let allowed =
        chain::notify_until_refused(&dry_run.subscribers(Event::RunPodSandbox, &ruled), &runs, &())
            .await;
    let merged = match allowed {
        Ok(()) => create(dry_run, &registered, pod, container).await,
        Err(stopped) => Err(refused(stopped)),
    };
    for (event, container) in [
        (Event::RemoveContainer, Some(container)),
        (Event::StopPodSandbox, None),
        (Event::RemovePodSandbox, None),
    ] {
        chain::notify_all(&dry_run.subscribers(event, &ruled), &told(event, container)).await;
    }
    merged
}

async fn create(
    dry_run: &DryRun,
    registered: &[Rc<ChainedPlugin>],
    pod: &api::PodSandbox,
    container: &api::Container,
) -> Result<Merged> {
    let ruled = dry_run.ruled_pod(Some(pod));
    let subscribers = dry_run.subscribers(Event::CreateContainer, &ruled);
    let (builtin, scope) = (dry_run.builtin(), dry_run.scope(&container.id, &ruled));
    let injections = dry_run
        .require_promised(&ruled, pod, container)
        .and_then(|()| dry_run.injections(&ruled, container))
        .map_err(|failure| failure.into_error().hint("the bundle is unchanged"))?;
    let injections = &injections;
    let table = Participants { subscribers: &subscribers, registered, builtin, scope, injections };
    let creation = Creation::new(pod.clone(), container.clone());
    let created = chain::create(&table, creation, &()).await.map_err(refused);
    for note in created.iter().flat_map(|merged| &merged.noted) {
        tracing::warn!("a rule in audit mode would refuse it: {note}");
    }
    let stop = api::StopContainerRequest {
        pod: Some(pod.clone()).into(),
        container: Some(container.clone()).into(),
        ..api::StopContainerRequest::default()
    };
    let _nothing_to_update =
        chain::stop(&dry_run.subscribers(Event::StopContainer, &ruled), &stop, scope).await;
    created
}

fn refused(stopped: ChainError) -> Error {
    let ChainError { failure, asked: _ } = stopped;
    failure.into_error().hint("the bundle is unchanged")
}

/// Observes nothing, and carries out no update, because a dry run has no containers.
struct SilentObserver;

impl DryRunObserver for SilentObserver {
    fn snapshot(&self, _plugin: &str) -> Later<ScriptState> {
        now(ScriptState::default())
    }

    fn update(
        &self,
        _plugin: &str,
        request: api::UpdateContainersRequest,
    ) -> Later<api::UpdateContainersResponse> {
        let failed = request.update;
        now(api::UpdateContainersResponse { failed, ..api::UpdateContainersResponse::default() })
    }
}
