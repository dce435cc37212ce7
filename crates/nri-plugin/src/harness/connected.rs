// SPDX-License-Identifier: Apache-2.0
//! One connected plugin of the harness's runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nri_api as api;
use nri_api::event::{ALL_BITS, Event};
use nri_api::identity::PluginIdentity;
use nri_transport::{
    NRI_VERSION, PluginCaller, PluginRequest, RuntimeServer, Trunk, Unanswered, Upcalls,
    serve_runtime, split_to_call,
};
use protobuf::Message;
use tokio::net::UnixStream;

use super::refused;
use crate::{Result, async_trait};

/// Pods and containers for Synchronize.
pub(super) type Snapshot = (Vec<api::PodSandbox>, Vec<api::Container>);

/// The state that plugins may change at any time.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) containers: BTreeMap<String, api::Container>,
    /// The unprompted requests of all plugins.
    pub(super) requests: Vec<api::UpdateContainersRequest>,
    /// Containers whose unprompted updates are reported as failed.
    pub(super) failing: BTreeSet<String>,
}

impl Shared {
    /// Applies the fields that updates set to the containers.
    pub(super) fn apply(&mut self, updates: &[api::ContainerUpdate]) {
        for update in updates {
            let Some(container) = self.containers.get_mut(&update.container_id) else { continue };
            let resources =
                container.linux.mut_or_insert_default().resources.mut_or_insert_default();
            // protobuf's merge replaces only fields that are set.
            let set = update.linux.resources.write_to_bytes();
            if let Err(error) = set.and_then(|set| resources.merge_from_bytes(&set)) {
                tracing::warn!("the update of {}: {error}", update.container_id);
            }
        }
    }
}

struct Recorder(Arc<Mutex<Shared>>);

#[async_trait]
impl Upcalls for Recorder {
    async fn update_containers(
        &self,
        _: &PluginIdentity,
        request: api::UpdateContainersRequest,
    ) -> std::result::Result<api::UpdateContainersResponse, String> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_failing =
            |update: &api::ContainerUpdate| shared.failing.contains(&update.container_id);
        let (failed, applied): (Vec<_>, Vec<_>) =
            request.update.iter().cloned().partition(is_failing);
        shared.apply(&applied);
        shared.requests.push(request);
        Ok(api::UpdateContainersResponse { failed, ..Default::default() })
    }
}

#[derive(Debug)]
pub(super) struct Connected {
    id: String,
    identity: PluginIdentity,
    events: i32,
    trunk: Trunk,
    caller: PluginCaller,
    _server: RuntimeServer,
}

impl Connected {
    /// Registers, configures and synchronizes the plugin; also returns the updates in its answer.
    pub(super) async fn new(
        stream: UnixStream,
        launched: Option<[String; 3]>,
        timeout: Duration,
        snapshot: Snapshot,
        shared: Arc<Mutex<Shared>>,
    ) -> Result<(Self, Vec<api::ContainerUpdate>)> {
        let (trunk, caller, connection) = split_to_call(stream)?;
        let (launched_as, config) = match launched {
            Some([index, name, config]) => (Some((index, name)), config),
            None => (None, String::new()),
        };
        let recorder = Arc::new(Recorder(shared));
        let server = serve_runtime(&trunk, connection, launched_as, recorder).await;
        let mut server = server.map_err(|error| error.to_string())?;
        let identity = server.registered(&trunk, super::CONNECT_TIMEOUT).await?;
        let id = identity.to_string();
        let mut plugin = Self { id, identity, events: 0, trunk, caller, _server: server };
        let milliseconds = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        let request = api::ConfigureRequest {
            config,
            runtime_name: "nri-plugin-harness".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            request_timeout: milliseconds,
            registration_timeout: milliseconds,
            NRI_version: NRI_VERSION.to_owned(),
            ..Default::default()
        };
        let events = plugin.call(&request, timeout).await?.events;
        plugin.events = if events == 0 { ALL_BITS } else { events };
        let (pods, containers) = snapshot;
        let request = api::SynchronizeRequest { pods, containers, ..Default::default() };
        let answer = plugin.call(&request, timeout).await?;
        plugin._server.mark_synchronized();
        Ok((plugin, answer.update))
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn instance(&self) -> api::PluginInstance {
        let PluginIdentity { index, name, .. } = self.identity.clone();
        api::PluginInstance { index, name, ..Default::default() }
    }

    pub(super) fn is_subscribed(&self, event: Event) -> bool {
        self.events & event.bit() != 0 && !self.is_gone()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.trunk.is_closed()
    }

    pub(super) fn close(&self, why: &str) {
        self.trunk.close(why);
    }

    /// Sends a request. Disconnects a plugin that does not answer in time.
    pub(super) async fn call<R: PluginRequest>(
        &self,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Answer> {
        let answer = self.caller.call(request, timeout, &[]);
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Unanswered::Status(status))) => Err(refused(&self.id, status.message())),
            Ok(Err(Unanswered::TooLarge(size))) => {
                Err(refused(&self.id, format!("the request has {size} bytes")))
            }
            Ok(Err(Unanswered::Unreadable(why))) => Err(refused(&self.id, why)),
            Ok(Err(Unanswered::Closed)) => {
                Err(refused(&self.id, self.trunk.closed_because().unwrap_or_default()))
            }
            Err(_) => {
                let why = format!("{} was not answered within {timeout:?}", R::METHOD);
                self.close(&why);
                Err(refused(&self.id, why))
            }
        }
    }
}
