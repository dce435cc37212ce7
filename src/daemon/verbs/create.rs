// SPDX-License-Identifier: Apache-2.0
//! `create`, `run` and `restore`, as the daemon lives them: describe the container, let the
//! plugins answer in order, judge, then write. Nothing in the bundle changes before everybody
//! has agreed; a refusal leaves it as the engine wrote it.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::adaptation::{Creation, DefaultValidator, Merged, Updated};
use crate::chain::{self, ChainError, ChainObserver, Participants, Told};
use crate::engine::Role;
use crate::error::{Context, Error, Result, quoted};
use crate::files::{self, Original};
use crate::host::Point;
use crate::link::{Attached, Proceed};
use crate::plugin::{Event, api};
use crate::spec::patch::{PatchError, Resolved};
use crate::spec::{self, overlay};
use crate::state::{Change, Container, InFlight, Key, Lifecycle, Patched, SCHEMA, Skipped};

use crate::daemon::lifecycle::carry_over;
use crate::daemon::lifecycle::rollback;
use crate::daemon::lifecycle::settle;
use crate::daemon::node::messages;
use crate::daemon::node::{Node, now};
use crate::daemon::pods::life;
use crate::daemon::request::call::Call;
use crate::daemon::resources::updates;
use crate::daemon::runtime::state_dir;
use crate::daemon::verbs::host_facts;
use crate::daemon::verbs::require;

/// The engine's document, as the plugins are told and as it is patched.
pub(crate) struct Bundle {
    dir: OwnedFd,
    pub(crate) original: Original,
    /// What lies there was patched for another container: it must not be run as it is.
    is_patched: bool,
}

/// Decides a `create`, `run` or `restore`. `None`: the id is taken, so that the runtime refuses it
/// in its own words; the container that has it stays as it is, whatever comes of this call.
pub(crate) async fn create(node: &Rc<Node>, call: &mut Call) -> Result<Option<Proceed>> {
    if is_taken(node, call).await {
        return Ok(None);
    }
    let mut record = blank_record(node, call);
    let admitted = admit(node, call, &mut record).await;
    let (bundle, seen) = admitted.inspect_err(|error| keep_refused(node, record, error))?;
    if seen.role == Role::Sandbox {
        let document = write_engines(node, call, &bundle)?;
        return Ok(Some(Proceed { document, ..Proceed::default() }));
    }
    let decided = decide(node, call, &seen, &bundle).await;
    let started = match decided {
        Ok(document) if call.call.verb.creates_and_starts() => {
            before_start(node, call).await.map(|()| document)
        }
        decided => decided,
    };
    match started {
        Ok(document) => Ok(Some(Proceed { document, ..Proceed::default() })),
        Err(error) => {
            node.change(&call.key, |record| record.refuse(error.to_string(), now()));
            rollback::creation(node, &call.key).await;
            Err(error)
        }
    }
}

/// Everything before the plugins are asked: understands the call, requires the plugins that must
/// be there, announces the pod and puts the container on record. `record` says as much as is known
/// by then, for `explain`.
async fn admit(
    node: &Rc<Node>,
    call: &mut Call,
    record: &mut Container,
) -> Result<(Bundle, life::Seen)> {
    let bundle = open_bundle(node, call)?;
    let seen = life::describe(node, call, &bundle.original.bytes).await?;
    fill_in(node, record, &seen);
    if seen.role == Role::Sandbox {
        life::sandbox_appears(node, &seen, record)?;
        put_on_record(node, &seen, record.clone()).await?;
        return Ok((bundle, seen));
    }
    node.plugins_are_back().await;
    require::require_plugins(node, &seen)?;
    life::announce(node, &seen, record).await?;
    put_on_record(node, &seen, record.clone()).await?;
    Ok((bundle, seen))
}

/// A container that was refused before it was put on record is explained like any other.
pub(crate) fn keep_refused(node: &Node, mut record: Container, error: &Error) {
    record.refuse(error.to_string(), now());
    node.store.borrow_mut().remember(record);
}

/// Without a record nobody would ever watch the container, nor its pod.
async fn put_on_record(node: &Rc<Node>, seen: &life::Seen, record: Container) -> Result<()> {
    let point = node.host.point(Point::DaemonRecord);
    let written = point.and_then(|()| node.store.borrow_mut().put(record));
    if written.is_err() {
        life::end_if_empty(node, &seen.pod.id).await;
    }
    written.map_err(|error| error.hint("nothing was changed or started"))
}

/// Whether a container of this id lives or is just being made. An old incarnation that is gone is
/// stopped and removed for the plugins first (Docker and Podman restart with the same id).
async fn is_taken(node: &Rc<Node>, call: &Call) -> bool {
    let Some(old) = node.container(&call.key) else { return false };
    let is_taken = match old.state {
        Lifecycle::Creating => settle::is_being_made(node, &call.key),
        Lifecycle::Created | Lifecycle::Running | Lifecycle::Stopped | Lifecycle::Removed => {
            state_dir::exists(&node.host, &call.key)
        }
    };
    if is_taken {
        return true;
    }
    crate::daemon::lifecycle::exit::stopped(node, &call.key).await;
    crate::daemon::verbs::delete::removed(node, &call.key).await;
    false
}

/// Reads the document; a document that we patched before is taken from its pristine copy, so
/// that nothing is applied twice (D16).
pub(crate) fn open_bundle(node: &Node, call: &mut Call) -> Result<Bundle> {
    let name = call.question().document.clone();
    let dir =
        call.asked.take(Attached::Bundle).ok_or_else(|| Error::new("no bundle came along"))?;
    let mut original = files::read_through_link_at(&dir, &name)
        .doing(|| format!("{}", call.bundle.display()))
        .map_err(|error| error.hint("nothing was changed or started"))?;
    let store = node.store.borrow();
    let (folder, bundle) = (files::path_of(&dir), call.bundle.to_string_lossy());
    let of_folder = folder.iter().flat_map(|folder| store.of_folder(folder));
    let ours = of_folder.chain(store.of_folder(&bundle)).find_map(|known| {
        let patched = known.patched.as_ref().filter(|patched| patched.document == name)?;
        (!original.is_link && known.is_patched_document(&original)).then_some(patched)
    });
    let mut is_patched = false;
    if let Some(patched) = ours
        && let Ok(pristine) = store.pristine(&patched.pristine)
    {
        original.bytes = pristine;
        is_patched = true;
    }
    Ok(Bundle { dir, original, is_patched })
}

/// A new record of what the call, the bundle and the engine say.
pub(crate) fn new_record(node: &Node, call: &Call, seen: &life::Seen) -> Container {
    let mut record = blank_record(node, call);
    fill_in(node, &mut record, seen);
    record
}

/// Adds what the bundle and the engine say.
pub(crate) fn fill_in(node: &Node, record: &mut Container, seen: &life::Seen) {
    let pod = known_pod(node, seen);
    record.is_sandbox = seen.role == Role::Sandbox;
    (record.pod, record.pod_name, record.pod_namespace) = (pod.id, pod.name, pod.namespace);
    record.name = seen.container.name.clone();
    record.engine = seen.engine.name().to_owned();
    record.evidence = seen.engine.evidence().to_vec();
    record.message = messages::to_wire(&seen.container);
    record.engine_resources = seen.resources.clone();
    record.skipped = seen.contradictions.iter().map(|what| not_believed(what)).collect();
}

/// A new record of what the call alone says.
pub(crate) fn blank_record(node: &Node, call: &Call) -> Container {
    let mut store = node.store.borrow_mut();
    let variables = call.question().variables.iter();
    Container {
        schema: SCHEMA,
        boot_id: store.boot_id().to_owned(),
        key: call.key.clone(),
        incarnation: store.next_incarnation(),
        runtime: call.question().runtime.to_string_lossy().into_owned(),
        global_flags: call.global_flags(),
        bundle: call.bundle.to_string_lossy().into_owned(),
        is_sandbox: false,
        pod: String::new(),
        pod_name: String::new(),
        pod_namespace: String::new(),
        name: String::new(),
        state: Lifecycle::Creating,
        pid_file: call.pid_file.as_ref().map(|path| path.to_string_lossy().into_owned()),
        by_hook: call.question().hook.is_some(),
        init_pid: None,
        init_start: None,
        created_at: 0,
        started_at: 0,
        finished_at: 0,
        exit_code: None,
        status_reason: String::new(),
        status_message: String::new(),
        engine: String::new(),
        evidence: Vec::new(),
        variables: variables.map(|(k, v)| (k.clone(), v.to_string_lossy().into_owned())).collect(),
        message: Default::default(),
        engine_resources: Default::default(),
        overlay: Default::default(),
        at_creation: Default::default(),
        owners: Default::default(),
        patched: None,
        changes: Vec::new(),
        refused: Vec::new(),
        refused_at: 0,
        skipped: Vec::new(),
        deferred: Vec::new(),
        in_flight: Some(InFlight {
            verb: call.verb().to_owned(),
            pid: call.question().pid,
            executed: false,
        }),
        updating: None,
        deleting: None,
        made_by: call.question().pid,
        is_found: false,
        unknown: Default::default(),
    }
}

/// A claim about the container's identity that does not count, for `explain`.
fn not_believed(what: &str) -> Skipped {
    Skipped { plugin: String::new(), reason: format!("identity: {}", quoted(what)) }
}

/// The pod as plugins were told of it, else as this call shows it.
pub(crate) fn known_pod(node: &Node, seen: &life::Seen) -> api::PodSandbox {
    let told = node.told_pod(Event::CreateContainer, &seen.pod.id);
    told.map_or_else(|| seen.pod.clone(), |told| told.pod)
}

/// Asks the plugins, merges, patches. Returns the name of the patched file, if there is one.
async fn decide(
    node: &Rc<Node>,
    call: &Call,
    seen: &life::Seen,
    bundle: &Bundle,
) -> Result<Option<String>> {
    node.host.point(Point::DaemonPlugins)?;
    let merged = ask(node, call, seen).await?;
    let names = host_facts::resolve_for_runtime(node, call, &merged)
        .await
        .map_err(|error| blame(&merged, &error))?;
    let facts = host_facts::host_facts(node, &merged.adjust, names).await?;
    let patched = host_facts::patch(&bundle.original.bytes, &merged.adjust, &facts)
        .await
        .map_err(|error| blame(&merged, &error))?;
    refuse_link(call, &merged, bundle, &patched)?;
    host_facts::check_node(node, &merged, &facts.names).map_err(|error| blame(&merged, &error))?;
    node.host.point(Point::DaemonDecided)?;
    note_verdict(node, call, &merged, &patched, &facts.names);
    node.host.point(Point::DaemonOthers)?;
    let others = Updated {
        updates: merged.updates,
        evictions: merged.evictions,
        evicted_by: merged.evicted_by,
        owners: merged.owners,
        unknown: Vec::new(),
    };
    updates::carry_out(node, others, Event::CreateContainer.name(), &call.key).await;
    let Some(bytes) = patched.bytes else {
        if has_news(node, &call.key) {
            node.store.borrow_mut().change(&call.key, |_| ())?;
        }
        return write_engines(node, call, bundle);
    };
    node.host.point(Point::DaemonDocument)?;
    let written = write_beside(node, call, bundle, &bytes);
    written.map(Some).map_err(|error| error.hint("the bundle is unchanged"))
}

/// Whether the plugins left anything to write down of a container whose document stays.
fn has_news(node: &Node, key: &Key) -> bool {
    let store = node.store.borrow();
    store.container(key).is_some_and(|record| {
        !(record.owners.is_empty() && record.overlay.is_empty() && record.skipped.is_empty())
    })
}

/// The failure of an adjustment, with the plugin that is behind it.
pub(crate) fn blame(merged: &Merged, error: &PatchError) -> Error {
    let plugin = error.field().and_then(|field| merged.plugin_behind(field));
    let what = quoted(&match &plugin {
        Some(plugin) => format!("{plugin}: {error}"),
        None => error.to_string(),
    });
    Error::new(what).hint("the bundle is unchanged").by(plugin.unwrap_or_default())
}

/// CreateContainer through the chain.
pub(crate) async fn ask(node: &Rc<Node>, call: &Call, seen: &life::Seen) -> Result<Merged> {
    let pod = known_pod(node, seen);
    let creation = Creation::new(pod.clone(), seen.container.clone());
    let told = Told::new(Event::CreateContainer, pod, Some(seen.container.clone()));
    let told = told.below(&call.key.root);
    let everybody = node.relay.seats();
    let audience = node.relay.audience(&told);
    let lenient = DefaultValidator::default();
    let builtin = if node.is_bystander() { &lenient } else { &node.builtin };
    let table = Participants { subscribers: &audience, registered: &everybody, builtin };
    let record = Record { node, key: &call.key, silent: RefCell::default() };
    let asked = chain::create(&table, creation, &record).await;
    node.relay.forget_busy(&audience, &told);
    let asked = asked.and_then(|merged| {
        require::require_answers(node, seen, &record.silent.borrow())
            .map(|()| merged)
            .map_err(|failure| ChainError { failure, asked: audience.len() })
    });
    let ChainError { failure, asked } = match asked {
        Ok(merged) => return Ok(merged),
        Err(stopped) => stopped,
    };
    node.relay.never_heard(&audience[asked.min(audience.len())..], &told);
    let why = quoted(&failure.text);
    let hint = format!("the bundle is unchanged; see: nri-runc nri explain {}", call.key.id);
    Err(Error::new(why).hint(hint).by(failure.plugin))
}

/// Keeps in the container's record what happens while its plugins are asked.
struct Record<'a> {
    node: &'a Node,
    key: &'a Key,
    /// Who was left out, and why.
    silent: RefCell<Vec<(String, String)>>,
}

impl ChainObserver for Record<'_> {
    /// A newcomer's snapshot shows the container as the plugins so far left it (D15). A crash
    /// loses the request anyway, so this is not written to disk.
    fn container_changed(&self, container: &api::Container) {
        let view = messages::merged(container);
        self.node.store.borrow_mut().change_in_memory(self.key, |record| record.message = view);
    }

    fn skipped(&self, plugin: &str, why: &str) {
        self.silent.borrow_mut().push((plugin.to_owned(), why.to_owned()));
        let skipped = Skipped { plugin: plugin.to_owned(), reason: why.to_owned() };
        let note = |record: &mut Container| record.skipped.push(skipped);
        self.node.store.borrow_mut().change_in_memory(self.key, note);
    }
}

/// Keeps what was decided: the container as merged, owners, changes, what was left out.
fn note_verdict(
    node: &Node,
    call: &Call,
    merged: &Merged,
    patched: &spec::patch::PatchedSpec,
    names: &Resolved,
) {
    let owners = merged.owners.to_flat(&call.key.id);
    let at = now();
    let changes: Vec<Change> = patched
        .changes
        .iter()
        .map(|change| Change {
            at,
            event: "CreateContainer".to_owned(),
            plugin: owners.get(&change.nri_field).cloned().unwrap_or_default(),
            field: change.field.clone(),
            before: change.before.clone().unwrap_or_default(),
            after: change.after.clone().unwrap_or_default(),
        })
        .collect();
    let (changes, unlisted) = updates::listed(changes);
    note_unknown(node, call, merged);
    let resources = merged.adjust.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let owned = resources.and_then(|resources| overlay::overlay_of(resources, names).ok());
    let owned = owned.unwrap_or_default();
    let kept = carry_over::wish(node, &call.key, &owned);
    // Written together with what is put in the bundle; where nothing is, nothing was decided.
    node.store.borrow_mut().change_in_memory(&call.key, |record| {
        record.message = messages::merged(&merged.container);
        record.owners = owners;
        record.changes = changes;
        record.skipped.extend(unlisted);
        record.at_creation = owned.clone();
        record.overlay = owned;
    });
    if let Some(kept) = kept {
        node.change(&call.key, |record| record.deferred.push(kept));
    }
}

/// What plugins set that this version does not know (D23).
pub(crate) fn note_unknown(node: &Node, call: &Call, merged: &Merged) {
    let skipped = merged.unknown.iter().cloned().map(updates::unknown_field);
    node.store.borrow_mut().change_in_memory(&call.key, |record| record.skipped.extend(skipped));
}

/// How the name of a container's temporary file ends.
pub(crate) fn temporary_suffix(incarnation: u64) -> String {
    format!(".nri-runc.{incarnation}")
}

/// A link stays what it is: nothing can be put in its place and be restored without losing it.
fn refuse_link(
    call: &Call,
    merged: &Merged,
    bundle: &Bundle,
    patched: &spec::patch::PatchedSpec,
) -> Result<()> {
    let Some(change) = patched.changes.first().filter(|_| bundle.original.is_link) else {
        return Ok(());
    };
    let document = &call.question().document;
    let problem = format!("{document} is a symbolic link, and is not replaced for a plugin");
    let field = change.nri_field.clone();
    Err(blame(merged, &PatchError::Invalid { field, problem }))
}

/// What is to be put in place where no plugin changed anything: nothing, unless the document of
/// another container lies there.
fn write_engines(node: &Node, call: &Call, bundle: &Bundle) -> Result<Option<String>> {
    if !bundle.is_patched {
        return Ok(None);
    }
    let written = write_beside(node, call, bundle, &bundle.original.bytes);
    written.map(Some).map_err(|error| error.hint("the bundle is unchanged"))
}

/// Writes the patched document beside the engine's, which is kept (D1, D16).
fn write_beside(node: &Node, call: &Call, bundle: &Bundle, bytes: &[u8]) -> Result<String> {
    let incarnation = node.store.borrow().container(&call.key).map(|record| record.incarnation);
    let Some(incarnation) = incarnation else {
        return Err(Error::new("the container was removed while its plugins were asked"));
    };
    let document = call.question().document.clone();
    let temporary = format!(".{document}{}", temporary_suffix(incarnation));
    files::remove_at(&bundle.dir, &temporary);
    let pristine = node.store.borrow().keep_pristine(incarnation, &bundle.original.bytes)?;
    node.host.point(Point::DaemonKept)?;
    let kept = pristine.clone();
    let written = files::create_at(&bundle.dir, &temporary, bytes, &bundle.original);
    let written = written.and_then(|inode| {
        node.host.point(Point::DaemonWritten)?;
        let patched = Patched {
            document,
            temporary: temporary.clone(),
            inode,
            pristine,
            folder: files::path_of(&bundle.dir).unwrap_or_default(),
            fingerprint: files::fingerprint(bytes),
        };
        node.store.borrow_mut().change(&call.key, |record| record.patched = Some(patched))
    });
    if written.is_err() {
        node.store.borrow().drop_pristine(&kept);
    }
    written.map(|()| temporary)
}

/// `run` and `restore` start the container as well: everything that may refuse comes before exec
/// (D5).
pub(crate) async fn before_start(node: &Rc<Node>, call: &Call) -> Result<()> {
    node.tell(Event::PostCreateContainer, &call.key).await;
    let Some(told) = node.told(Event::StartContainer, &call.key) else { return Ok(()) };
    let (skipped, allowed) = node.relay.notify_until_refused(&told).await;
    if !skipped.is_empty() {
        node.change(&call.key, |record| record.skipped.extend(skipped));
    }
    allowed.map_err(|refusal| {
        let why = quoted(&refusal.to_string());
        Error::new(why).hint("nothing was started").by(refusal.plugin)
    })
}
