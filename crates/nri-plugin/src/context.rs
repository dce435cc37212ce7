// SPDX-License-Identifier: Apache-2.0
//! The context of a request: how long the runtime waits for the answer, and the runtime itself.
//! Once synchronized, a plugin may call the runtime at any time, even from inside a handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nri_api as api;
use nri_api::extension::{ExtensionEvent, RuntimeExtensionClient, SubscribeRequest, event_bits};
use nri_transport::{Connection, Trunk};
use tokio::net::UnixStream;

use crate::answers::UpdatesWithEvictions;
use crate::{Result, status_message};

/// Time limit for the runtime to answer the plugin: nri-runc allows half a minute for an update
/// through the real runtime.
pub(crate) const UPCALL_TIMEOUT: Duration = Duration::from_secs(40);

/// Time limit for the runtime to answer a subscription: less than a plugin has for Synchronize.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The context with which a handler receives a message.
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) runtime: RuntimeHandle,
    pub(crate) deadline: Option<Instant>,
}

impl Context {
    /// Returns the runtime, to call it now or later.
    #[must_use]
    pub fn runtime(&self) -> &RuntimeHandle {
        &self.runtime
    }

    /// Returns when the runtime stops waiting for the answer; `None` if it stated no time-out.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns how much longer the runtime waits for the answer, zero after the deadline; `None` if
    /// it stated no time-out.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

/// The runtime at the other end of a connection; cheap to clone and to keep.
#[derive(Clone)]
pub struct RuntimeHandle {
    pub(crate) trunk: Trunk,
    pub(crate) client: api::RuntimeClient,
    extension: RuntimeExtensionClient,
    /// The events of the extension that the runtime delivers, as bits.
    delivered: Arc<AtomicU32>,
}

impl std::fmt::Debug for RuntimeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeHandle").field("trunk", &self.trunk).finish_non_exhaustive()
    }
}

impl RuntimeHandle {
    /// Splits the plugin's stream into a handle of the runtime and the connection for the runtime's
    /// calls.
    pub(crate) fn split(stream: UnixStream) -> std::io::Result<(Self, Connection)> {
        let (trunk, plugin, runtime) = nri_transport::split(stream)?;
        let (client, extension) = nri_transport::clients(runtime);
        Ok((Self { trunk, client, extension, delivered: Arc::default() }, plugin))
    }

    /// Subscribes to events of the extension; a runtime without it delivers none.
    pub(crate) async fn subscribe(&self, events: &[ExtensionEvent]) {
        if events.is_empty() {
            return;
        }
        let events = events.iter().copied().map(Into::into).collect();
        let request = SubscribeRequest { events, ..SubscribeRequest::default() };
        let context = ttrpc::context::with_duration(SUBSCRIBE_TIMEOUT);
        match self.extension.subscribe(context, &request).await {
            Ok(granted) => self.delivered.store(event_bits(&granted.events), Ordering::Relaxed),
            Err(why) => tracing::warn!("no events of the extension: {}", status_message(why)),
        }
    }

    /// Whether the runtime delivers this event of the extension. The result is valid once
    /// `synchronize` is called, and false before.
    #[must_use]
    pub fn delivers(&self, event: ExtensionEvent) -> bool {
        self.delivered.load(Ordering::Relaxed) & event.bit() != 0
    }

    /// Updates containers unprompted, and returns the updates that the runtime did not carry out.
    ///
    /// # Errors
    /// Fails when the runtime refuses all updates, has not synchronized the plugin, is gone, or
    /// does not answer in time.
    pub async fn update(
        &self,
        updates: impl Into<UpdatesWithEvictions>,
    ) -> Result<Vec<api::ContainerUpdate>> {
        Ok(self.update_containers(&updates.into().into()).await?.failed)
    }

    /// Like [`update`](Self::update), for a [`BlockingHandler`](crate::BlockingHandler).
    ///
    /// # Errors
    /// Fails as [`update`](Self::update) does.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime, and on the thread of its event loop.
    pub fn update_blocking(
        &self,
        updates: impl Into<UpdatesWithEvictions>,
    ) -> Result<Vec<api::ContainerUpdate>> {
        tokio::runtime::Handle::current().block_on(self.update(updates))
    }

    /// Sends an UpdateContainers request. The response lists the updates that were not carried out.
    ///
    /// # Errors
    /// Fails as [`update`](Self::update) does.
    pub async fn update_containers(
        &self,
        request: &api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse> {
        let context = ttrpc::context::with_duration(UPCALL_TIMEOUT);
        Ok(self.client.update_containers(context, request).await.map_err(status_message)?)
    }

    /// Waits until the connection is gone; returns the reason.
    pub async fn closed(&self) -> String {
        self.trunk.closed().await
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.trunk.close("the plugin closed it");
    }
}
