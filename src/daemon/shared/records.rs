// SPDX-License-Identifier: Apache-2.0
//! Keeps the records of pods and containers. Other modules read the store; only these functions change it,
//! except engines' documents (`keep_pristine`, `drop_pristine`).

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tracing::info;

use crate::daemon::shared::events;
use crate::error::Result;
use crate::mark::ExecSubject;
use crate::state::{Container, ContainerKey, Pod, Store};

/// Interval of attempts to write after the disk failed.
const DISK_RETRY: Duration = Duration::from_secs(1);

/// The records of pods and containers, in memory and on disk.
#[derive(Debug)]
pub(crate) struct Records {
    store: RefCell<Store>,
    /// The number of requests that failed because a record could not be written, and the last
    /// reason; cleared when a later request's write, or a retry, succeeds.
    refusals: RefCell<Option<(usize, String)>>,
    /// Notified when a record could not be written, or a file not removed.
    refused: Notify,
    /// Whether the mark of each container has what `exec` needs (D51).
    marks_execs: Cell<bool>,
}

impl Records {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store: RefCell::new(store),
            refusals: RefCell::default(),
            refused: Notify::new(),
            marks_execs: Cell::default(),
        }
    }

    /// Sets whether each mark written from now on has the facts that `exec` needs.
    pub(crate) fn mark_execs(&self, is_wanted: bool) {
        self.marks_execs.set(is_wanted);
    }

    /// Returns the facts about a container that a wrapper needs for `exec`; `None` if marks omit them.
    fn exec_subject(&self, container: Option<&Container>) -> Option<ExecSubject> {
        let container = container.filter(|_| self.marks_execs.get())?;
        Some(events::exec_subject(&self.read(), container))
    }

    /// Wraps a change of a record so that it also updates the facts that `exec` needs.
    fn and_mark<F: FnOnce(&mut Container)>(
        &self,
        key: &ContainerKey,
        change: F,
    ) -> impl FnOnce(&mut Container) + use<F> {
        let subject = self.exec_subject(self.container(key).as_deref());
        |record| {
            change(record);
            let bundle = record.folder().to_owned();
            record.outcome.exec_subject =
                subject.map(|subject| Box::new(ExecSubject { bundle, ..subject }));
        }
    }

    /// Returns all records, to read. Do not hold this across an await.
    pub(crate) fn read(&self) -> Ref<'_, Store> {
        self.store.borrow()
    }

    pub(crate) fn container(&self, key: &ContainerKey) -> Option<Rc<Container>> {
        self.read().shared(key)
    }

    /// Returns a container's key, shared with its record if it has one.
    pub(crate) fn shared_key(&self, key: &ContainerKey) -> Rc<ContainerKey> {
        self.read().shared_key(key).unwrap_or_else(|| Rc::new(key.clone()))
    }

    pub(crate) fn boot_id(&self) -> String {
        self.read().boot_id().to_owned()
    }

    /// Returns an incarnation that no container has had.
    pub(crate) fn next_incarnation(&self) -> u64 {
        self.store.borrow_mut().next_incarnation()
    }

    /// Writes a new record to disk, then adds it.
    ///
    /// # Errors
    /// Fails when the write fails; then nothing has changed.
    pub(crate) fn put(&self, mut container: Container) -> Result<()> {
        container.outcome.exec_subject = self.exec_subject(Some(&container)).map(Box::new);
        let written = self.store.borrow_mut().put(container);
        self.note_if_refused(written)
    }

    /// Changes a record, on disk first.
    ///
    /// # Errors
    /// Fails when the write fails; then nothing has changed.
    pub(crate) fn change(
        &self,
        key: &ContainerKey,
        change: impl FnOnce(&mut Container),
    ) -> Result<()> {
        let change = self.and_mark(key, change);
        let written = self.store.borrow_mut().change(key, change);
        self.note_if_refused(written)
    }

    /// Changes a record without writing it to disk: for values that a crash may lose.
    pub(crate) fn change_in_memory(&self, key: &ContainerKey, change: impl FnOnce(&mut Container)) {
        self.store.borrow_mut().change_in_memory(key, change);
    }

    /// Changes a container's record after an event; the change stays in memory even if the write fails.
    ///
    /// # Errors
    /// Fails when the write fails; it is retried.
    pub(crate) fn note(
        &self,
        key: &ContainerKey,
        change: impl FnOnce(&mut Container),
    ) -> Result<()> {
        let change = self.and_mark(key, change);
        let written = self.store.borrow_mut().note(key, change);
        self.retry_if_left();
        self.retry_if_refused(written)
    }

    /// Removes a container's record; `explain` shows it for a while.
    pub(crate) fn forget(&self, key: &ContainerKey) {
        self.store.borrow_mut().forget(key);
        self.retry_if_left();
    }

    /// Adds a container that was never recorded, or is removed; `explain` shows it for a while.
    pub(crate) fn remember(&self, container: Container) {
        self.store.borrow_mut().remember(container);
    }

    /// Keeps the record of a container that is about to be removed, because a container may be
    /// re-created under its ID.
    ///
    /// # Errors
    /// Fails when the write fails.
    pub(crate) fn keep_for_successor(&self, container: &Container) -> Result<()> {
        self.store.borrow_mut().keep(container)
    }

    /// Drops the kept record of an earlier container of this ID.
    pub(crate) fn drop_kept(&self, key: &ContainerKey) {
        self.store.borrow_mut().drop_kept(key);
    }

    /// Writes a pod to disk, then adds it.
    ///
    /// # Errors
    /// Fails when the write fails; then nothing has changed.
    pub(crate) fn put_pod(&self, pod: Pod) -> Result<()> {
        let written = self.store.borrow_mut().put_pod(pod);
        self.note_if_refused(written)
    }

    /// Changes a pod's record after an event; the change stays in memory even if the write fails.
    ///
    /// # Errors
    /// Fails when the write fails; it is retried.
    pub(crate) fn note_pod(&self, id: &str, change: impl FnOnce(&mut Pod)) -> Result<()> {
        let Some(mut pod) = self.read().pod(id).cloned() else { return Ok(()) };
        change(&mut pod);
        let written = self.store.borrow_mut().note_pod(pod);
        self.retry_if_refused(written)
    }

    /// Changes a pod's record without writing it to disk: for values that a crash may lose.
    pub(crate) fn change_pod_in_memory(&self, id: &str, change: impl FnOnce(&mut Pod)) {
        self.store.borrow_mut().change_pod_in_memory(id, change);
    }

    /// Removes a pod's record; `explain` shows it for a while.
    pub(crate) fn forget_pod(&self, id: &str) {
        self.store.borrow_mut().forget_pod(id);
        self.retry_if_left();
    }

    /// Writes to disk that the run directory has the records of the current boot.
    ///
    /// # Errors
    /// Fails when the write fails.
    pub(crate) fn stamp(&self) -> Result<()> {
        self.store.borrow_mut().stamp()
    }

    /// Writes every record again, after the folders were wiped.
    ///
    /// # Errors
    /// Fails when a write fails.
    pub(crate) fn rebuild(&self) -> Result<()> {
        self.store.borrow_mut().rebuild()
    }

    /// Retries the removal of files that could not be removed.
    fn retry_if_left(&self) {
        if self.read().has_leftovers() {
            self.refused.notify_one();
        }
    }

    /// Returns the number of requests whose records could not be written, and the last reason.
    pub(crate) fn refusals(&self) -> Option<(usize, String)> {
        self.refusals.borrow().clone()
    }

    /// Records a failed write, until a later one succeeds; returns the result unchanged.
    fn note_if_refused(&self, written: Result<()>) -> Result<()> {
        let mut refusals = self.refusals.borrow_mut();
        match &written {
            Ok(()) => *refusals = None,
            Err(error) => {
                let count = refusals.take().map_or(0, |(count, _)| count);
                *refusals = Some((count.saturating_add(1), error.why()));
                self.refused.notify_one();
            }
        }
        written
    }

    fn retry_if_refused(&self, written: Result<()>) -> Result<()> {
        if written.is_err() {
            self.refused.notify_one();
        }
        written
    }

    fn write_again(&self) -> Result<()> {
        let mut store = self.store.borrow_mut();
        store.write_what_is_not()?;
        // Failed requests left no record to write, so a trial shows whether the disk works again.
        let has_refused = self.refusals.borrow().is_some();
        if has_refused { store.try_disk() } else { Ok(()) }
    }

    /// Writes the failed records as soon as the disk permits, even if no event follows.
    pub(crate) async fn write_when_there_is_room(&self) {
        loop {
            self.refused.notified().await;
            while self.write_again().is_err() {
                tokio::time::sleep(DISK_RETRY).await;
            }
            *self.refusals.borrow_mut() = None;
            info!("all pending records have been written");
        }
    }
}
