// SPDX-License-Identifier: Apache-2.0
//! One connection of a plugin to a runtime: it serves the runtime's requests and registers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nri_api as api;
use nri_api::extension::PluginExtension;
use nri_transport::{Connection, OpenRequests};
use tokio::net::UnixStream;
use ttrpc::r#async::Server;

use crate::context::{RuntimeHandle, UPCALL_TIMEOUT};
use crate::handler::Handler;
use crate::progress::{Phase, Progress};
use crate::service::Service;
use crate::{HandlerError, Result, status_message};

/// Interval at which a plugin that shuts down checks whether requests are still open.
const IDLE_POLL: Duration = Duration::from_millis(10);

/// A connected plugin, for callers that provide each stream. [`Plugin`](crate::Plugin) reconnects
/// by itself.
pub struct Stub {
    runtime: RuntimeHandle,
    /// The reason why the plugin refused to start; never set by [`Stub::register`].
    refused: Arc<OnceLock<String>>,
    open: OpenRequests,
    _server: Server,
}

impl std::fmt::Debug for Stub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stub").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

impl Stub {
    /// Serves `handler` over `stream`, and registers as `id` (`NN-name`). `config` is used if the
    /// runtime sends no configuration; runtimes send one only to plugins that they launch.
    ///
    /// # Errors
    /// Fails when the runtime refuses the registration or does not answer it in time.
    pub async fn serve(
        stream: UnixStream,
        id: &str,
        config: &str,
        handler: Arc<dyn Handler>,
    ) -> Result<Self> {
        Self::serve_with(stream, id, config, handler, Arc::default()).await
    }

    pub(crate) async fn serve_with(
        stream: UnixStream,
        id: &str,
        config: &str,
        handler: Arc<dyn Handler>,
        progress: Arc<Progress>,
    ) -> Result<Self> {
        let (index, name) = id.split_once('-').unwrap_or((id, ""));
        let (runtime, plugin) = RuntimeHandle::split(stream)?;
        // The phase is set before the plugin registers, because the runtime may synchronize the
        // plugin before it answers the registration.
        progress.phase.send_replace(Phase::Registered);
        let service = Service::new(handler, runtime.clone(), config.to_owned(), progress);
        let (refused, service) = (service.refused(), Arc::new(service));
        let extension = service.extension();
        let stub = Self::start(runtime.clone(), plugin, service, extension, refused).await;
        let stub = stub.map_err(status_message)?;
        let registered = nri_transport::register(&runtime.client, index, name, UPCALL_TIMEOUT);
        registered.await.map_err(status_message)?;
        Ok(stub)
    }

    /// Like [`serve`](Self::serve), for an implementation of the generated service, which answers
    /// each request itself.
    ///
    /// # Errors
    /// Fails when the runtime refuses the registration or does not answer it in time.
    pub async fn register(
        stream: UnixStream,
        index: &str,
        name: &str,
        service: Arc<dyn api::Plugin + Send + Sync>,
    ) -> ttrpc::Result<Self> {
        let split = RuntimeHandle::split(stream);
        let (runtime, plugin) = split.map_err(|error| ttrpc::Error::Socket(error.to_string()))?;
        let stub = Self::start(runtime.clone(), plugin, service, None, Arc::default()).await?;
        nri_transport::register(&runtime.client, index, name, UPCALL_TIMEOUT).await?;
        Ok(stub)
    }

    /// Starts to serve requests. The plugin registers afterwards, because the runtime may send
    /// requests before it answers the registration.
    async fn start(
        runtime: RuntimeHandle,
        plugin: Connection,
        service: Arc<dyn api::Plugin + Send + Sync>,
        extension: Option<Arc<dyn PluginExtension + Send + Sync>>,
        refused: Arc<OnceLock<String>>,
    ) -> ttrpc::Result<Self> {
        let open = plugin.open_requests();
        let server = nri_transport::serve_plugin(plugin, service, extension).await?;
        Ok(Self { runtime, refused, open, _server: server })
    }

    /// Returns the runtime, which may be called at any time.
    #[must_use]
    pub fn runtime(&self) -> RuntimeHandle {
        self.runtime.clone()
    }

    /// Updates containers unprompted, see [`RuntimeHandle::update_containers`].
    ///
    /// # Errors
    /// Fails when the runtime does not accept the updates.
    pub async fn update_containers(
        &self,
        request: &api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse> {
        self.runtime.update_containers(request).await
    }

    /// Waits until the connection is gone; returns the reason.
    pub fn closed(&self) -> impl Future<Output = String> + Send + use<> {
        // Two threads cannot share ttRPC's server, so a waiting task must not hold it.
        let runtime = self.runtime();
        async move { runtime.closed().await }
    }

    /// Returns why the plugin refused to be configured or synchronized, if it did.
    pub(crate) fn refusal(&self) -> Option<HandlerError> {
        self.refused.get().map(|why| why.as_str().into())
    }

    /// Waits until the answer to every request is written to the stream.
    pub(crate) fn idle(&self) -> impl Future<Output = ()> + Send + use<> {
        let open = self.open.clone();
        async move {
            while open.count() > 0 {
                tokio::time::sleep(IDLE_POLL).await;
            }
        }
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.runtime.close();
    }
}
