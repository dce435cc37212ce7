// SPDX-License-Identifier: Apache-2.0
//! The plugin's side of the protocol, for sample plugins and tests: connect, register, serve.
//! It is small on purpose and promises nothing; production plugins have their own stubs.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use ttrpc::r#async::transport::{Listener, Socket};
use ttrpc::r#async::{Client, Server};
use ttrpc::context;

use super::api;
use super::mux::{self, Trunk};

/// A connected plugin.
pub struct Stub {
    trunk: Trunk,
    runtime: api::RuntimeClient,
    _server: Server,
}

impl std::fmt::Debug for Stub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stub").field("trunk", &self.trunk).finish_non_exhaustive()
    }
}

impl Stub {
    /// Serves `handler` over `stream` and registers.
    ///
    /// # Errors
    /// Fails when the runtime refuses the registration.
    pub async fn register(
        stream: UnixStream,
        index: &str,
        name: &str,
        handler: Arc<dyn api::Plugin + Send + Sync>,
    ) -> ttrpc::Result<Self> {
        let (trunk, plugin, runtime) = mux::split(stream);
        let once = futures_util::stream::once(std::future::ready(Ok(plugin)));
        let mut server = Server::new()
            .register_service(api::create_plugin(handler))
            .add_listener(Listener::new(once));
        server.start().await?;
        let runtime = api::RuntimeClient::new(Client::new(Socket::new(runtime)));
        let request = api::RegisterPluginRequest {
            plugin_name: name.to_owned(),
            plugin_idx: index.to_owned(),
            NRI_version: "v0.12.5".to_owned(),
            ..api::RegisterPluginRequest::default()
        };
        let context = context::with_duration(Duration::from_secs(5));
        runtime.register_plugin(context, &request).await?;
        Ok(Self { trunk, runtime, _server: server })
    }

    /// Asks for updates of containers, unasked.
    ///
    /// # Errors
    /// Fails when the runtime does not take them.
    pub async fn update_containers(
        &self,
        request: &api::UpdateContainersRequest,
    ) -> ttrpc::Result<api::UpdateContainersResponse> {
        let context = context::with_duration(Duration::from_secs(5));
        self.runtime.update_containers(context, request).await
    }

    /// Waits until the connection is gone; says why.
    pub async fn closed(&self) -> String {
        self.trunk.closed().await
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.trunk.close("the plugin closed it");
    }
}
