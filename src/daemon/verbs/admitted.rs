// SPDX-License-Identifier: Apache-2.0
//! What `create` and the hooks of a creation have in common: the container is understood, announced
//! and put on record, then the plugins are asked.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::rc::Rc;

use crate::adaptation::{Creation, DefaultValidator, Merged};
use crate::chain::{self, ChainError, ChainObserver, Notification, Participants};
use crate::clock::now;
use crate::daemon::bundle::Bundle;
use crate::daemon::lifecycle::notify;
use crate::daemon::node::{Node, messages};
use crate::daemon::pods::life;
use crate::daemon::request::VerbRequest;
use crate::daemon::request::describe::{self, Description};
use crate::daemon::request::record;
use crate::daemon::resources::updates;
use crate::daemon::verbs::require;
use crate::engine::Role;
use crate::error::{Error, Result, quoted};
use crate::host::Point;
use crate::link::Attached;
use crate::plugin::{Event, api};
use crate::spec::patch::PatchError;
use crate::state::{Container, ContainerKey, Skipped};

/// A container that is being created: understood, announced and on record.
pub(super) struct Admitted {
    pub(super) node: Rc<Node>,
    pub(super) key: ContainerKey,
    pub(super) runtime: String,
    pub(super) description: Description,
    pub(super) bundle: Bundle,
}

/// Everything before the plugins are asked: understands the call, requires the plugins that must
/// be there, announces the pod and puts the container on record. Where that fails, `record` is
/// kept with as much as is known by then, for `explain`.
pub(super) async fn admit(
    node: &Rc<Node>,
    call: &mut VerbRequest,
    mut record: Container,
) -> Result<Admitted> {
    let admitted = understand(node, call, &mut record).await;
    let (bundle, description) = admitted.inspect_err(|error| {
        record.refuse(error.to_string(), now());
        node.records.remember(record.clone());
    })?;
    let (key, runtime) = (record.key, record.runtime);
    Ok(Admitted { node: Rc::clone(node), key, runtime, description, bundle })
}

async fn understand(
    node: &Rc<Node>,
    call: &mut VerbRequest,
    record: &mut Container,
) -> Result<(Bundle, Description)> {
    let dir = call.received.take(Attached::Bundle);
    let dir = dir.ok_or_else(|| Error::new("no bundle came along"))?;
    let bundle = Bundle::open(node, dir, &call.bundle, &call.question().document)?;
    let description = describe::describe(node, call, &bundle.original.bytes).await?;
    record::fill_in(node, record, &description);
    if description.role == Role::Sandbox {
        life::sandbox_appears(node, &description, record)?;
    } else {
        node.registry.wait_for_returning().await;
        require::require_plugins(node, &description)?;
        life::announce(node, &description, record).await?;
    }
    put_on_record(node, &description, record.clone()).await?;
    Ok((bundle, description))
}

/// Without a record the daemon would never watch the container, nor its pod.
async fn put_on_record(
    node: &Rc<Node>,
    description: &Description,
    record: Container,
) -> Result<()> {
    let point = node.host.point(Point::DaemonRecord);
    let written = point.and_then(|()| node.records.put(record));
    if written.is_err() {
        life::end_if_empty(node, &description.pod.id).await;
    }
    written.map_err(|error| error.hint("nothing was changed or started"))
}

impl Admitted {
    /// Whether it is its pod's infrastructure container, of which plugins hear nothing.
    pub(super) fn is_sandbox(&self) -> bool {
        self.description.role == Role::Sandbox
    }

    /// The file name of the runtime as the wrapper resolved it.
    pub(super) fn runtime(&self) -> &OsStr {
        OsStr::new(&self.runtime)
    }

    /// CreateContainer through the chain.
    ///
    /// # Errors
    /// Fails with the plugin that refused, or the conflict between two.
    pub(super) async fn ask(&self) -> Result<Merged> {
        let Self { node, key, description, .. } = self;
        let pod = record::known_pod(node, description);
        let creation = Creation::new(pod.clone(), description.container.clone());
        let notification =
            Notification::new(Event::CreateContainer, pod, Some(description.container.clone()));
        let notification = notification.below(&key.root);
        let everybody = node.registry.synchronized();
        let audience = node.registry.subscribers(&notification);
        let lenient = DefaultValidator::default();
        let builtin = if node.is_bystander() { &lenient } else { &node.registry.builtin };
        let table = Participants { subscribers: &audience, registered: &everybody, builtin };
        let notes = RecordNotes { node, key, silent: RefCell::default() };
        let asked = chain::create(&table, creation, &notes).await;
        node.registry.forget_busy(&audience, &notification);
        let asked = asked.and_then(|merged| {
            require::require_answers(node, description, &notes.silent.borrow())
                .map(|()| merged)
                .map_err(|failure| ChainError { failure, asked: audience.len() })
        });
        let ChainError { failure, asked } = match asked {
            Ok(merged) => return Ok(merged),
            Err(stopped) => stopped,
        };
        node.registry.forget_unasked(&audience[asked.min(audience.len())..], &notification);
        let hint = format!("the bundle is unchanged; see: nri-runc nri explain {}", key.id);
        Err(Error::new(quoted(&failure.text)).hint(hint).by(failure.plugin))
    }

    /// Keeps which fields plugins set that this version does not know (D23).
    pub(super) fn note_unknown(&self, merged: &Merged) {
        let skipped = merged.unknown.iter().cloned().map(updates::unknown_field);
        self.node.records.change_in_memory(&self.key, |record| record.skipped.extend(skipped));
    }

    /// `run` and `restore` start the container as well: everything that may refuse comes before
    /// exec (D5).
    ///
    /// # Errors
    /// Fails with the plugin that refused the start.
    pub(super) async fn before_start(&self) -> Result<()> {
        notify::notify(&self.node, Event::PostCreateContainer, &self.key).await;
        notify::ask_to_start(&self.node, &self.key, "nothing was started").await
    }
}

/// The failure of an adjustment, with the plugin that is behind it.
pub(super) fn blame(merged: &Merged, error: &PatchError) -> Error {
    let plugin = error.field().and_then(|field| merged.plugin_behind(field));
    let what = quoted(&match &plugin {
        Some(plugin) => format!("{plugin}: {error}"),
        None => error.to_string(),
    });
    Error::new(what).hint("the bundle is unchanged").by(plugin.unwrap_or_default())
}

/// Keeps in the container's record what happens while its plugins are asked.
struct RecordNotes<'a> {
    node: &'a Node,
    key: &'a ContainerKey,
    /// Which plugins were skipped, and why.
    silent: RefCell<Vec<(String, String)>>,
}

impl ChainObserver for RecordNotes<'_> {
    /// A newcomer's snapshot shows the container as the plugins so far left it (D15). A crash
    /// loses the request anyway, so this is not written to disk.
    fn container_changed(&self, container: &api::Container) {
        let view = messages::merged(container);
        self.node.records.change_in_memory(self.key, |record| record.message = view);
    }

    fn skipped(&self, plugin: &str, why: &str) {
        self.silent.borrow_mut().push((plugin.to_owned(), why.to_owned()));
        let skipped = Skipped { plugin: plugin.to_owned(), reason: why.to_owned() };
        self.node.records.change_in_memory(self.key, |record| record.skipped.push(skipped));
    }
}
