// SPDX-License-Identifier: Apache-2.0
//! The records of pods and containers. Whoever wants to know reads the store; it changes through
//! these verbs alone.

use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tracing::info;

use crate::error::Result;
use crate::state::{Container, ContainerKey, Pod, Store};

/// How often writing is tried again on a disk that refused.
const DISK_RETRY: Duration = Duration::from_secs(1);

/// The records of pods and containers, in memory and on disk.
#[derive(Debug)]
pub(crate) struct Records {
    store: RefCell<Store>,
    /// Notified when the disk refuses a record of what has happened.
    refused: Notify,
}

impl Records {
    pub(crate) fn new(store: Store) -> Self {
        Self { store: RefCell::new(store), refused: Notify::new() }
    }

    /// All that is known, to read. Not to be held across an await.
    pub(crate) fn read(&self) -> Ref<'_, Store> {
        self.store.borrow()
    }

    /// What is known about a container now; it does not change in the caller's hands.
    pub(crate) fn container(&self, key: &ContainerKey) -> Option<Rc<Container>> {
        self.read().shared(key)
    }

    /// A number that no container has had.
    pub(crate) fn next_incarnation(&self) -> u64 {
        self.store.borrow_mut().next_incarnation()
    }

    /// Writes a new record to disk, then takes it over.
    ///
    /// # Errors
    /// Fails when the disk refuses; nothing has changed then.
    pub(crate) fn put(&self, container: Container) -> Result<()> {
        self.store.borrow_mut().put(container)
    }

    /// Changes a record, on disk first.
    ///
    /// # Errors
    /// Fails when the disk refuses; nothing has changed then.
    pub(crate) fn change(
        &self,
        key: &ContainerKey,
        change: impl FnOnce(&mut Container),
    ) -> Result<()> {
        self.store.borrow_mut().change(key, change)
    }

    /// Changes a record without writing it: for what a crash may lose.
    pub(crate) fn change_in_memory(&self, key: &ContainerKey, change: impl FnOnce(&mut Container)) {
        self.store.borrow_mut().change_in_memory(key, change);
    }

    /// Keeps what has happened to a container, in memory whatever the disk says.
    ///
    /// # Errors
    /// Fails when the disk refuses; it is tried again.
    pub(crate) fn note(
        &self,
        key: &ContainerKey,
        change: impl FnOnce(&mut Container),
    ) -> Result<()> {
        let written = self.store.borrow_mut().note(key, change);
        self.retry_if_refused(written)
    }

    /// Forgets a container; it is still explained for a while.
    pub(crate) fn forget(&self, key: &ContainerKey) {
        self.store.borrow_mut().forget(key);
    }

    /// Keeps a container that was never put on record, or is gone, to be explained for a while.
    pub(crate) fn remember(&self, container: Container) {
        self.store.borrow_mut().remember(container);
    }

    /// Keeps the record of a container for the one that may be made anew under its ID.
    ///
    /// # Errors
    /// Fails when the disk refuses.
    pub(crate) fn keep_for_successor(&self, container: &Container) -> Result<()> {
        self.store.borrow_mut().keep(container)
    }

    /// Drops what was kept of an earlier container of this ID.
    pub(crate) fn drop_kept(&self, key: &ContainerKey) {
        self.store.borrow_mut().drop_kept(key);
    }

    /// Writes a pod to disk, then takes it over.
    ///
    /// # Errors
    /// Fails when the disk refuses; nothing has changed then.
    pub(crate) fn put_pod(&self, pod: Pod) -> Result<()> {
        self.store.borrow_mut().put_pod(pod)
    }

    /// Keeps what has happened to a pod, in memory whatever the disk says.
    ///
    /// # Errors
    /// Fails when the disk refuses; it is tried again.
    pub(crate) fn note_pod(&self, id: &str, change: impl FnOnce(&mut Pod)) -> Result<()> {
        let Some(mut pod) = self.read().pod(id).cloned() else { return Ok(()) };
        change(&mut pod);
        let written = self.store.borrow_mut().note_pod(pod);
        self.retry_if_refused(written)
    }

    /// Forgets a pod; it is still explained for a while.
    pub(crate) fn forget_pod(&self, id: &str) {
        self.store.borrow_mut().forget_pod(id);
    }

    /// Says on disk that what is known of this boot is here.
    ///
    /// # Errors
    /// Fails when the disk refuses.
    pub(crate) fn stamp(&self) -> Result<()> {
        self.store.borrow_mut().stamp()
    }

    /// Writes everything anew after the folders were wiped.
    ///
    /// # Errors
    /// Fails when the disk refuses.
    pub(crate) fn rebuild(&self) -> Result<()> {
        self.store.borrow_mut().rebuild()
    }

    fn retry_if_refused(&self, written: Result<()>) -> Result<()> {
        if written.is_err() {
            self.refused.notify_one();
        }
        written
    }

    /// Writes what the disk refused as soon as it takes it, whether anything happens or not.
    pub(crate) async fn write_when_there_is_room(&self) {
        loop {
            self.refused.notified().await;
            let mut written = self.store.borrow_mut().write_what_is_not();
            while written.is_err() {
                tokio::time::sleep(DISK_RETRY).await;
                written = self.store.borrow_mut().write_what_is_not();
            }
            info!("every record is written");
        }
    }
}
