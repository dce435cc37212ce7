// SPDX-License-Identifier: Apache-2.0
//! Registration, and the service of each side on its connection. A connection registers once, under
//! an identity that is checked here unless the runtime launched the plugin; the runtime checks
//! whether another plugin has the same one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nri_api as api;
use nri_api::extension::{
    PluginExtension, RuntimeExtension, RuntimeExtensionClient, SubscribeRequest, SubscribeResponse,
    create_plugin_extension, create_runtime_extension, event_bits, events_in,
};
use nri_api::identity::PluginIdentity;
use tokio::sync::{OnceCell, mpsc};
use ttrpc::Code;
use ttrpc::r#async::transport::{Listener, Socket};
use ttrpc::r#async::{Client, Server, TtrpcContext};

use crate::frame::Trunk;
use crate::mux::Connection;

/// The NRI version that a plugin of this crate states when it registers.
pub const NRI_VERSION: &str = "v0.12.5";

/// Requests that a plugin makes to the runtime.
#[async_trait]
pub trait Upcalls: Send + Sync {
    /// Called when the plugin has registered, before Configure, and when its connection is resumed.
    fn registered(&self, _plugin: &PluginIdentity) {}

    /// Handles the plugin's UpdateContainers request.
    async fn update_containers(
        &self,
        plugin: &PluginIdentity,
        request: api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse, String>;

    /// Returns the events of the extension that this runtime delivers, as bits; 0 without the
    /// extension.
    fn extension_events(&self) -> u32 {
        0
    }

    /// Called when the plugin has subscribed to these events of the extension, replacing earlier
    /// subscriptions.
    fn subscribed(&self, _plugin: &PluginIdentity, _events: u32) {}
}

/// A runtime that refuses updates and does not have the extension.
#[derive(Debug)]
pub struct NoUpcalls;

#[async_trait]
impl Upcalls for NoUpcalls {
    async fn update_containers(
        &self,
        _: &PluginIdentity,
        _: api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse, String> {
        Err("updates are not supported here".to_owned())
    }
}

/// The reason why a connection did not become a plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotRegistered {
    /// The plugin did not register in time.
    #[error("it did not register in time")]
    TimedOut,
    /// The connection ended, for this reason.
    #[error("{0}")]
    Gone(String),
}

struct RuntimeService {
    trunk: Trunk,
    registered: mpsc::Sender<PluginIdentity>,
    identity: OnceCell<PluginIdentity>,
    /// Index and name of a launched plugin, from its file name; those in its registration are
    /// ignored.
    launched_as: Option<(String, String)>,
    is_synchronized: Arc<AtomicBool>,
    /// The events of the extension to which the plugin is subscribed, as bits.
    extension: Arc<AtomicU32>,
    upcalls: Arc<dyn Upcalls>,
}

fn status_error(code: Code, text: impl Into<String>) -> ttrpc::Error {
    ttrpc::Error::RpcStatus(ttrpc::get_status(code, text.into()))
}

#[async_trait]
impl api::Runtime for RuntimeService {
    async fn register_plugin(
        &self,
        _context: &TtrpcContext,
        request: api::RegisterPluginRequest,
    ) -> ttrpc::Result<api::Empty> {
        let identity = match &self.launched_as {
            Some((index, name)) => Ok(PluginIdentity::launched(index, name, &request.NRI_version)),
            None => PluginIdentity::checked(
                &request.plugin_idx,
                &request.plugin_name,
                &request.NRI_version,
            ),
        };
        let identity = identity.map_err(|why| status_error(Code::INVALID_ARGUMENT, why))?;
        if self.identity.set(identity.clone()).is_err() {
            return Err(status_error(
                Code::ALREADY_EXISTS,
                "this connection has registered already",
            ));
        }
        // Noted before the plugin receives the response, after which it may send more.
        self.trunk.note_registered();
        self.upcalls.registered(&identity);
        let _the_handshake_was_given_up = self.registered.try_send(identity);
        Ok(api::Empty::new())
    }

    async fn update_containers(
        &self,
        _context: &TtrpcContext,
        request: api::UpdateContainersRequest,
    ) -> ttrpc::Result<api::UpdateContainersResponse> {
        let is_synchronized = self.is_synchronized.load(Ordering::Acquire);
        let Some(identity) = self.identity.get().filter(|_| is_synchronized) else {
            return Err(status_error(Code::FAILED_PRECONDITION, "not synchronized yet"));
        };
        let answer = self.upcalls.update_containers(identity, request).await;
        answer.map_err(|why| status_error(Code::INTERNAL, why))
    }
}

#[async_trait]
impl RuntimeExtension for RuntimeService {
    async fn subscribe(
        &self,
        _context: &TtrpcContext,
        request: SubscribeRequest,
    ) -> ttrpc::Result<SubscribeResponse> {
        let offered = self.upcalls.extension_events();
        if offered == 0 {
            return Err(status_error(Code::UNIMPLEMENTED, "the extension is not supported here"));
        }
        let Some(identity) = self.identity.get() else {
            return Err(status_error(Code::FAILED_PRECONDITION, "not registered yet"));
        };
        let granted = event_bits(&request.events) & offered;
        self.extension.store(granted, Ordering::Release);
        self.upcalls.subscribed(identity, granted);
        let events = events_in(granted).map(Into::into).collect();
        Ok(SubscribeResponse { events, ..SubscribeResponse::default() })
    }
}

/// Serves the requests of one plugin until this server is dropped.
pub struct RuntimeServer {
    registration: mpsc::Receiver<PluginIdentity>,
    is_synchronized: Arc<AtomicBool>,
    extension: Arc<AtomicU32>,
    _server: Server,
}

impl fmt::Debug for RuntimeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeServer").finish_non_exhaustive()
    }
}

impl RuntimeServer {
    /// Waits until the plugin has registered.
    ///
    /// # Errors
    /// Fails if the plugin does not register within `timeout`, or the connection ends first.
    pub async fn registered(
        &mut self,
        trunk: &Trunk,
        timeout: Duration,
    ) -> Result<PluginIdentity, NotRegistered> {
        tokio::select! {
            identity = self.registration.recv() => identity.ok_or(NotRegistered::TimedOut),
            reason = trunk.closed() => Err(NotRegistered::Gone(reason)),
            () = tokio::time::sleep(timeout) => Err(NotRegistered::TimedOut),
        }
    }

    /// Returns the events of the extension to which the plugin is subscribed, as bits.
    pub fn extension_events(&self) -> u32 {
        self.extension.load(Ordering::Acquire)
    }

    /// Restores a subscription to events of the extension.
    pub fn resume_extension(&self, events: u32) {
        self.extension.store(events, Ordering::Release);
    }

    /// Permits the plugin to update containers from now on.
    pub fn mark_synchronized(&self) {
        self.is_synchronized.store(true, Ordering::Release);
    }
}

/// Serves a plugin that has not registered. `launched_as` is the index and the name of a plugin
/// that the runtime launched.
///
/// # Errors
/// Fails when ttRPC cannot serve the connection.
pub async fn serve_runtime(
    trunk: &Trunk,
    connection: Connection,
    launched_as: Option<(String, String)>,
    upcalls: Arc<dyn Upcalls>,
) -> ttrpc::Result<RuntimeServer> {
    start(trunk, connection, OnceCell::new(), launched_as, upcalls).await
}

/// Serves a plugin that was registered and synchronized before this process executed the current program.
///
/// # Errors
/// Fails when ttRPC cannot serve the connection.
pub async fn resume_runtime(
    trunk: &Trunk,
    connection: Connection,
    identity: PluginIdentity,
    upcalls: Arc<dyn Upcalls>,
) -> ttrpc::Result<RuntimeServer> {
    upcalls.registered(&identity);
    let identity = OnceCell::new_with(Some(identity));
    let server = start(trunk, connection, identity, None, upcalls).await?;
    server.mark_synchronized();
    Ok(server)
}

async fn start(
    trunk: &Trunk,
    connection: Connection,
    identity: OnceCell<PluginIdentity>,
    launched_as: Option<(String, String)>,
    upcalls: Arc<dyn Upcalls>,
) -> ttrpc::Result<RuntimeServer> {
    let (registered, registration) = mpsc::channel(1);
    let is_synchronized = Arc::new(AtomicBool::new(false));
    let extension = Arc::new(AtomicU32::new(0));
    let service = Arc::new(RuntimeService {
        trunk: trunk.clone(),
        registered,
        identity,
        launched_as,
        is_synchronized: Arc::clone(&is_synchronized),
        extension: Arc::clone(&extension),
        upcalls,
    });
    let beside = Arc::clone(&service);
    let server = serve(connection, |server| {
        let server = server.register_service(api::create_runtime(service));
        server.register_service(create_runtime_extension(beside))
    });
    Ok(RuntimeServer { registration, is_synchronized, extension, _server: server.await? })
}

/// Serves the plugin's side, with the extension if the plugin has it. The runtime may call before
/// it has answered the registration, so a plugin serves before it registers.
///
/// # Errors
/// Fails when ttRPC cannot serve the connection.
pub async fn serve_plugin(
    connection: Connection,
    service: Arc<dyn api::Plugin + Send + Sync>,
    extension: Option<Arc<dyn PluginExtension + Send + Sync>>,
) -> ttrpc::Result<Server> {
    serve(connection, |server| {
        let server = server.register_service(api::create_plugin(service));
        match extension {
            Some(extension) => server.register_service(create_plugin_extension(extension)),
            None => server,
        }
    })
    .await
}

/// Starts ttRPC's server, with a listener that yields only this connection.
async fn serve(
    connection: Connection,
    register: impl FnOnce(Server) -> Server,
) -> ttrpc::Result<Server> {
    let once = futures_util::stream::once(std::future::ready(Ok(connection)));
    let mut server = register(Server::new()).add_listener(Listener::new(once));
    server.start().await?;
    Ok(server)
}

/// Creates a client of the runtime, on the plugin's side.
pub fn client(connection: Connection) -> api::RuntimeClient {
    clients(connection).0
}

/// Creates clients of both services of the runtime, over one connection.
pub fn clients(connection: Connection) -> (api::RuntimeClient, RuntimeExtensionClient) {
    let client = Client::new(Socket::new(connection));
    (api::RuntimeClient::new(client.clone()), RuntimeExtensionClient::new(client))
}

/// Registers a plugin with the runtime.
///
/// # Errors
/// Fails when the runtime refuses the identity, does not answer within `timeout`, or is gone.
pub async fn register(
    runtime: &api::RuntimeClient,
    index: &str,
    name: &str,
    timeout: Duration,
) -> ttrpc::Result<()> {
    let request = api::RegisterPluginRequest {
        plugin_name: name.to_owned(),
        plugin_idx: index.to_owned(),
        NRI_version: NRI_VERSION.to_owned(),
        ..api::RegisterPluginRequest::default()
    };
    let context = ttrpc::context::with_duration(timeout);
    runtime.register_plugin(context, &request).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use nri_api::extension::ExtensionEvent;

    use super::*;
    use crate::{PluginCaller, split, split_to_call};

    const SOON: Duration = Duration::from_secs(10);

    struct Sides {
        trunk: Trunk,
        server: RuntimeServer,
        plugin: api::RuntimeClient,
        _caller: PluginCaller,
        _connection: Connection,
    }

    async fn sides(launched_as: Option<(&str, &str)>) -> Sides {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (trunk, caller, runtime) = split_to_call(ours).unwrap();
        let launched_as = launched_as.map(|(index, name)| (index.to_owned(), name.to_owned()));
        let server = serve_runtime(&trunk, runtime, launched_as, Arc::new(NoUpcalls)).await;
        let (_, connection, to_runtime) = split(theirs).unwrap();
        let (server, plugin) = (server.unwrap(), client(to_runtime));
        Sides { trunk, server, plugin, _caller: caller, _connection: connection }
    }

    async fn refusal_of_update(plugin: &api::RuntimeClient) -> String {
        let context = ttrpc::context::with_duration(SOON);
        let answer = plugin.update_containers(context, &Default::default()).await;
        answer.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_connection_registers_once() {
        let mut sides = sides(None).await;
        register(&sides.plugin, "10", "foo", SOON).await.unwrap();
        let identity = sides.server.registered(&sides.trunk, SOON).await.unwrap();
        assert_eq!(
            (identity.to_string(), &*identity.nri_version),
            ("10-foo".to_owned(), NRI_VERSION)
        );
        let again = register(&sides.plugin, "10", "foo", SOON).await.unwrap_err().to_string();
        assert!(again.contains("registered already"), "{again}");
    }

    #[tokio::test]
    async fn an_invalid_identity_may_be_corrected() {
        let mut sides = sides(None).await;
        let why = register(&sides.plugin, "1", "foo", SOON).await.unwrap_err().to_string();
        assert!(why.contains("invalid plugin index"), "{why}");
        register(&sides.plugin, "01", "foo", SOON).await.unwrap();
        let identity = sides.server.registered(&sides.trunk, SOON).await.unwrap();
        assert_eq!(identity.to_string(), "01-foo");
    }

    #[tokio::test]
    async fn a_launched_plugin_has_the_identity_of_its_file() {
        let mut sides = sides(Some(("05", "file"))).await;
        register(&sides.plugin, "99", "other", SOON).await.unwrap();
        let identity = sides.server.registered(&sides.trunk, SOON).await.unwrap();
        assert_eq!(identity.to_string(), "05-file");
    }

    #[tokio::test]
    async fn updates_are_refused_until_synchronized() {
        let sides = sides(None).await;
        register(&sides.plugin, "10", "foo", SOON).await.unwrap();
        assert!(refusal_of_update(&sides.plugin).await.contains("not synchronized yet"));
        sides.server.mark_synchronized();
        assert!(refusal_of_update(&sides.plugin).await.contains("not supported here"));
    }

    /// A runtime that delivers only ExecContainer.
    struct OnlyExecs;

    #[async_trait]
    impl Upcalls for OnlyExecs {
        async fn update_containers(
            &self,
            _: &PluginIdentity,
            _: api::UpdateContainersRequest,
        ) -> Result<api::UpdateContainersResponse, String> {
            Err("none".to_owned())
        }

        fn extension_events(&self) -> u32 {
            ExtensionEvent::EXEC_CONTAINER.bit()
        }
    }

    async fn subscribe(
        upcalls: Arc<dyn Upcalls>,
        is_registered: bool,
    ) -> (u32, Result<u32, String>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (trunk, _caller, runtime) = split_to_call(ours).unwrap();
        let server = serve_runtime(&trunk, runtime, None, upcalls).await.unwrap();
        let (_trunk, _connection, to_runtime) = split(theirs).unwrap();
        let (runtime, extension) = clients(to_runtime);
        if is_registered {
            register(&runtime, "10", "foo", SOON).await.unwrap();
        }
        let events = vec![ExtensionEvent::EXEC_CONTAINER.into(), ExtensionEvent::POST_EXEC.into()];
        let request = SubscribeRequest { events, ..Default::default() };
        let answer = extension.subscribe(ttrpc::context::with_duration(SOON), &request).await;
        let granted = answer.map(|granted| event_bits(&granted.events));
        (server.extension_events(), granted.map_err(|error| error.to_string()))
    }

    #[tokio::test]
    async fn a_plugin_is_granted_the_events_that_the_runtime_delivers() {
        let only = ExtensionEvent::EXEC_CONTAINER.bit();
        assert_eq!(subscribe(Arc::new(OnlyExecs), true).await, (only, Ok(only)));
    }

    #[tokio::test]
    async fn without_the_extension_or_a_registration_nothing_is_granted() {
        for (upcalls, is_registered, why) in [
            (Arc::new(NoUpcalls) as Arc<dyn Upcalls>, true, "not supported here"),
            (Arc::new(OnlyExecs), false, "not registered yet"),
        ] {
            let (bits, granted) = subscribe(upcalls, is_registered).await;
            let error = granted.unwrap_err();
            assert!(bits == 0 && error.contains(why), "{error}");
        }
    }

    #[tokio::test]
    async fn a_connection_without_registration_is_not_a_plugin() {
        let mut sides = sides(None).await;
        let late = sides.server.registered(&sides.trunk, Duration::from_millis(10)).await;
        assert_eq!(late, Err(NotRegistered::TimedOut));
        sides.trunk.close("it broke");
        let gone = sides.server.registered(&sides.trunk, SOON).await;
        assert_eq!(gone, Err(NotRegistered::Gone("it broke".to_owned())));
    }
}
