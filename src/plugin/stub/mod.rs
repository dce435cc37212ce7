// SPDX-License-Identifier: Apache-2.0
//! The plugin's side of the protocol: what a plugin in Rust is written with (docs/plugins.md).
//!
//! Implement [`PluginHandler`], list the events to receive in `events`, and end `main` with [`main`]:
//!
//! ```no_run
//! use nri_runc::plugin::stub::{self, PluginHandler, RuntimeHandle, async_trait};
//! use nri_runc::plugin::{Event, api};
//!
//! struct Greeter;
//!
//! #[async_trait]
//! impl PluginHandler for Greeter {
//!     fn events(&self) -> &[Event] {
//!         &[Event::CreateContainer]
//!     }
//!
//!     async fn create_container(
//!         &self,
//!         _: &RuntimeHandle,
//!         request: api::CreateContainerRequest,
//!     ) -> stub::Result<api::CreateContainerResponse> {
//!         let env = stub::env("GREETING", &format!("hello {}", request.container.name));
//!         let adjust = api::ContainerAdjustment { env: vec![env], ..Default::default() };
//!         Ok(adjust.into())
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     stub::main("10-greeter", Greeter)
//! }
//! ```
//!
//! The same program runs launched by the runtime (its socket is an inherited descriptor) and by
//! hand (it connects to a socket). It knows nothing of bundles, and of no particular runtime.

mod handler;
mod messages;
mod program;
mod service;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::UnixStream;
use ttrpc::r#async::Server;
use ttrpc::context;

pub use async_trait::async_trait;
pub use handler::PluginHandler;
pub use messages::{annotation, env, resources};
pub use program::{ProgramOptions, main, run};

use super::api;
use nri_transport::{Connection, Trunk};

/// Any error of a plugin's own; its text is what the operator reads.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;
/// What a plugin's handlers return.
pub type Result<T> = std::result::Result<T, HandlerError>;

/// How long the daemon may take to answer the plugin: an update may go through the real runtime, for
/// which the daemon waits half a minute.
const UPCALL_TIMEOUT: Duration = Duration::from_secs(40);

/// The runtime as a plugin reaches it; cheap to clone and to keep.
#[derive(Clone)]
pub struct RuntimeHandle {
    trunk: Trunk,
    client: api::RuntimeClient,
}

impl std::fmt::Debug for RuntimeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeHandle").field("trunk", &self.trunk).finish_non_exhaustive()
    }
}

impl RuntimeHandle {
    /// Asks for updates of containers, unasked: at any time once synchronized, also from inside
    /// a handler. The answer lists the updates that were not carried out.
    ///
    /// # Errors
    /// Fails when the runtime refuses all of them or is gone.
    pub async fn update_containers(
        &self,
        request: &api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse> {
        let context = context::with_duration(UPCALL_TIMEOUT);
        Ok(self.client.update_containers(context, request).await.map_err(status_message)?)
    }

    async fn introduce(&self, index: &str, name: &str) -> ttrpc::Result<()> {
        nri_transport::register(&self.client, index, name, UPCALL_TIMEOUT).await
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

/// A connected plugin.
pub struct Stub {
    runtime: RuntimeHandle,
    /// Why the plugin itself refused to start; empty for a plugin of the generated service.
    refused: Arc<OnceLock<String>>,
    _server: Server,
}

impl std::fmt::Debug for Stub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stub").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

impl Stub {
    /// Serves `handler` over `stream` and registers as `id` (`NN-name`). `config` stands in for
    /// the configuration that a runtime does not have for a plugin it has not launched.
    ///
    /// # Errors
    /// Fails when the runtime refuses the registration.
    pub async fn serve(
        stream: UnixStream,
        id: &str,
        config: &str,
        handler: Arc<dyn PluginHandler>,
    ) -> Result<Self> {
        let (index, name) = id.split_once('-').unwrap_or((id, ""));
        let (runtime, plugin) = split(stream)?;
        let service = service::Service::new(handler, runtime.clone(), config.to_owned());
        let refused = service.refused();
        let stub = Self::start(runtime.clone(), plugin, Arc::new(service), refused).await;
        let stub = stub.map_err(status_message)?;
        runtime.introduce(index, name).await.map_err(status_message)?;
        Ok(stub)
    }

    /// The same for the generated service itself, for tests that misbehave.
    ///
    /// # Errors
    /// Fails when the runtime refuses the registration.
    pub async fn register(
        stream: UnixStream,
        index: &str,
        name: &str,
        service: Arc<dyn api::Plugin + Send + Sync>,
    ) -> ttrpc::Result<Self> {
        let split = split(stream).map_err(|error| ttrpc::Error::Socket(error.to_string()));
        let (runtime, plugin) = split?;
        let stub = Self::start(runtime.clone(), plugin, service, Arc::default()).await?;
        runtime.introduce(index, name).await?;
        Ok(stub)
    }

    /// Answers from here on; the runtime may call before it has answered the registration.
    async fn start(
        runtime: RuntimeHandle,
        plugin: Connection,
        service: Arc<dyn api::Plugin + Send + Sync>,
        refused: Arc<OnceLock<String>>,
    ) -> ttrpc::Result<Self> {
        let server = nri_transport::serve_plugin(plugin, service).await?;
        Ok(Self { runtime, refused, _server: server })
    }

    /// The runtime, to call it at any time.
    pub fn runtime(&self) -> RuntimeHandle {
        self.runtime.clone()
    }

    /// Asks for updates of containers, see [`RuntimeHandle::update_containers`].
    ///
    /// # Errors
    /// Fails when the runtime does not take them.
    pub async fn update_containers(
        &self,
        request: &api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse> {
        self.runtime.update_containers(request).await
    }

    /// Waits until the connection is gone; returns the reason.
    pub fn closed(&self) -> impl Future<Output = String> + Send + use<> {
        // ttRPC's server cannot be looked at by two threads, so a waiting task must not hold it.
        let runtime = self.runtime();
        async move { runtime.closed().await }
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.runtime.close();
    }
}

fn split(stream: UnixStream) -> std::io::Result<(RuntimeHandle, Connection)> {
    let (trunk, plugin, runtime) = nri_transport::split(stream)?;
    Ok((RuntimeHandle { trunk, client: nri_transport::client(runtime) }, plugin))
}

/// The peer's error message, without ttRPC's envelope.
fn status_message(error: ttrpc::Error) -> String {
    if let ttrpc::Error::RpcStatus(status) = error {
        return status.message().to_owned();
    }
    error.to_string()
}
