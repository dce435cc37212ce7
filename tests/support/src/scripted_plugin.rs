// SPDX-License-Identifier: Apache-2.0
//! A plugin in the test's own process: adjusts, refuses, hangs or disconnects as its script says,
//! and records its events.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use nri_api::identity::PluginIdentity;
use nri_plugin::{Adjustment, RuntimeHandle, Stub};
use nri_runc::plugin::api;
use nri_transport::Upcalls;
use protobuf::MessageDyn;
use serde_json::Value;
use ttrpc::r#async::TtrpcContext;

use crate::play::{on_a_thread, reach};

/// Receives an event with its whole request.
pub type OnRequest = Arc<dyn Fn(&str, &dyn MessageDyn) + Send + Sync>;

/// Every event that a plugin received, with its request as JSON.
pub type ReceivedRequests = Arc<Mutex<Vec<(String, Value)>>>;

/// Makes a plugin record every event in full, besides its script.
pub fn listening(script: impl Into<Script>) -> (Script, ReceivedRequests) {
    let requests = ReceivedRequests::default();
    let notes = Arc::clone(&requests);
    let on_request = move |event: &str, request: &dyn MessageDyn| {
        notes.lock().unwrap().push((event.to_owned(), json_of(request)));
    };
    (Script { on_request: Some(Arc::new(on_request)), ..script.into() }, requests)
}

/// A message as JSON.
pub fn json_of(message: &dyn MessageDyn) -> Value {
    serde_json::from_str(&protobuf_json_mapping::print_to_string(message).unwrap()).unwrap()
}

/// Every event up to PostUpdatePodSandbox.
pub const WITH_RESIZES: i32 = 0x1fff;

/// The behaviour of a plugin.
#[derive(Clone, Default)]
pub struct Script {
    pub adjust: api::ContainerAdjustment,
    /// The adjustment of the next container, instead of `adjust`: the test changes it.
    pub next: Option<Arc<Mutex<api::ContainerAdjustment>>>,
    /// The only container that it adjusts.
    pub only: Option<&'static str>,
    pub update: Vec<api::ContainerUpdate>,
    /// Its updates and evictions in a response to UpdateContainer.
    pub updates: Vec<api::ContainerUpdate>,
    pub evicts: Vec<api::ContainerEviction>,
    /// The reason and the status of its refusals; `UNKNOWN` is the status of a handler's own error.
    pub refuses: Option<&'static str>,
    pub status: Option<ttrpc::Code>,
    /// Once the test has set this, it refuses nothing.
    pub recovered: Arc<AtomicBool>,
    pub hangs: bool,
    pub leaves: bool,
    /// The event at which it refuses, hangs or disconnects, instead of CreateContainer.
    pub at: Option<String>,
    /// The reason why it rejects validated adjustments.
    pub rejects: Option<String>,
    /// Its subscription, instead of every event up to RemoveContainer.
    pub events: Option<i32>,
    /// Receives every event in full.
    pub on_request: Option<OnRequest>,
    /// Its response to Synchronize.
    pub wants: Vec<api::ContainerUpdate>,
    /// Whether it refuses Synchronize.
    pub refuses_snapshot: bool,
    /// Its response to StopContainer.
    pub leaves_room: Vec<api::ContainerUpdate>,
    /// Its request from inside the handler of the event `at`.
    pub inside: Option<api::UpdateContainersRequest>,
    /// Its unprompted requests.
    pub asks: Option<Asks>,
}

impl From<Adjustment> for Script {
    fn from(adjustment: Adjustment) -> Self {
        let answer = api::CreateContainerResponse::from(adjustment);
        Self { adjust: answer.adjust.unwrap_or_default(), update: answer.update, ..Self::default() }
    }
}

/// A request that the plugin must send, and the channel for its result.
pub type Ask = (
    api::UpdateContainersRequest,
    std::sync::mpsc::Sender<Result<api::UpdateContainersResponse, String>>,
);

/// The plugin's end of the channel.
pub type Asks = Arc<tokio::sync::Mutex<tokio::sync::mpsc::UnboundedReceiver<Ask>>>;

struct ScriptedPlugin {
    script: Script,
    received: Arc<Mutex<Vec<String>>>,
    leave: tokio::sync::mpsc::Sender<()>,
    runtime: Arc<OnceLock<RuntimeHandle>>,
}

impl ScriptedPlugin {
    fn note(&self, event: &str, subject: &str) {
        self.received.lock().unwrap().push(format!("{event} {subject}"));
    }

    /// Records an event, and acts by the script.
    async fn receive(
        &self,
        event: &str,
        subject: &str,
        request: &dyn MessageDyn,
    ) -> ttrpc::Result<()> {
        self.note(event, subject);
        if let Some(on_request) = &self.script.on_request {
            on_request(event, request);
        }
        if self.script.at.as_deref().unwrap_or("CreateContainer") != event {
            return Ok(());
        }
        if let (Some(request), Some(runtime)) = (&self.script.inside, self.runtime.get()) {
            let printed = match runtime.update_containers(request).await {
                Ok(response) => format!("{} failed", response.failed.len()),
                Err(error) => error.to_string(),
            };
            self.note("inside", &printed);
        }
        if self.script.hangs {
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        if self.script.leaves {
            let _leaving = self.leave.send(()).await;
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        let has_recovered = self.script.recovered.load(Ordering::SeqCst);
        let Some(why) = self.script.refuses.filter(|_| !has_recovered) else { return Ok(()) };
        let code = self.script.status.unwrap_or(ttrpc::Code::UNKNOWN);
        Err(ttrpc::Error::RpcStatus(ttrpc::get_status(code, why.to_owned())))
    }
}

/// The service: events from the table are only recorded, the other methods are as given.
macro_rules! service {
    ({ $($rest:tt)* } $($method:ident $event:literal $request:ident $response:ident $subject:ident;)*) => {
        #[async_trait]
        impl api::Plugin for ScriptedPlugin {
            $($rest)*

            $(async fn $method(
                &self,
                _: &TtrpcContext,
                request: api::$request,
            ) -> ttrpc::Result<api::$response> {
                self.receive($event, &request.$subject.name, &request).await?;
                Ok(Default::default())
            })*
        }
    };
}

service! { {
    async fn configure(
        &self,
        _: &TtrpcContext,
        _: api::ConfigureRequest,
    ) -> ttrpc::Result<api::ConfigureResponse> {
        Ok(api::ConfigureResponse {
            events: self.script.events.unwrap_or(0x7ff),
            ..Default::default()
        })
    }

    async fn synchronize(
        &self,
        _: &TtrpcContext,
        request: api::SynchronizeRequest,
    ) -> ttrpc::Result<api::SynchronizeResponse> {
        for container in &request.containers {
            self.note("Synchronize", &container.name);
        }
        if let Some(on_request) = self.script.on_request.as_ref().filter(|_| !request.containers.is_empty()) {
            on_request("Synchronize", &request);
        }
        if self.script.refuses_snapshot {
            let status = ttrpc::get_status(ttrpc::Code::UNKNOWN, "not today".to_owned());
            return Err(ttrpc::Error::RpcStatus(status));
        }
        let update = if request.more { Vec::new() } else { self.script.wants.clone() };
        Ok(api::SynchronizeResponse { update, more: request.more, ..Default::default() })
    }

    async fn create_container(
        &self,
        context: &TtrpcContext,
        request: api::CreateContainerRequest,
    ) -> ttrpc::Result<api::CreateContainerResponse> {
        for (key, values) in &context.metadata {
            values.iter().for_each(|value| self.note(key, value));
        }
        self.receive("CreateContainer", &request.container.name, &request).await?;
        if self.script.only.is_some_and(|name| name != request.container.name) {
            return Ok(api::CreateContainerResponse::default());
        }
        let next = self.script.next.as_ref().map(|next| next.lock().unwrap().clone());
        let adjust = Some(next.unwrap_or_else(|| self.script.adjust.clone())).into();
        let update = self.script.update.clone();
        Ok(api::CreateContainerResponse { adjust, update, ..Default::default() })
    }

    async fn update_container(
        &self,
        _: &TtrpcContext,
        request: api::UpdateContainerRequest,
    ) -> ttrpc::Result<api::UpdateContainerResponse> {
        self.receive("UpdateContainer", &request.container.name, &request).await?;
        let (update, evict) = (self.script.updates.clone(), self.script.evicts.clone());
        Ok(api::UpdateContainerResponse { update, evict, ..Default::default() })
    }

    async fn stop_container(
        &self,
        _: &TtrpcContext,
        request: api::StopContainerRequest,
    ) -> ttrpc::Result<api::StopContainerResponse> {
        self.receive("StopContainer", &request.container.name, &request).await?;
        let update = self.script.leaves_room.clone();
        Ok(api::StopContainerResponse { update, ..Default::default() })
    }

    async fn validate_container_adjustment(
        &self,
        _: &TtrpcContext,
        request: api::ValidateContainerAdjustmentRequest,
    ) -> ttrpc::Result<api::ValidateContainerAdjustmentResponse> {
        let event = "ValidateContainerAdjustment";
        self.receive(event, &request.container.name, &request).await?;
        let reason = self.script.rejects.clone();
        Ok(api::ValidateContainerAdjustmentResponse {
            reject: reason.is_some(),
            reason: reason.unwrap_or_default(),
            ..Default::default()
        })
    }
}
    run_pod_sandbox "RunPodSandbox" RunPodSandboxRequest RunPodSandboxResponse pod;
    update_pod_sandbox "UpdatePodSandbox" UpdatePodSandboxRequest UpdatePodSandboxResponse pod;
    post_update_pod_sandbox "PostUpdatePodSandbox" PostUpdatePodSandboxRequest PostUpdatePodSandboxResponse pod;
    stop_pod_sandbox "StopPodSandbox" StopPodSandboxRequest StopPodSandboxResponse pod;
    remove_pod_sandbox "RemovePodSandbox" RemovePodSandboxRequest RemovePodSandboxResponse pod;
    post_create_container "PostCreateContainer" PostCreateContainerRequest PostCreateContainerResponse container;
    start_container "StartContainer" StartContainerRequest StartContainerResponse container;
    post_start_container "PostStartContainer" PostStartContainerRequest PostStartContainerResponse container;
    post_update_container "PostUpdateContainer" PostUpdateContainerRequest PostUpdateContainerResponse container;
    remove_container "RemoveContainer" RemoveContainerRequest RemoveContainerResponse container;
}

/// Connects a plugin; its events are written to the returned list.
pub fn connect(
    socket: PathBuf,
    index: &str,
    name: &str,
    script: impl Into<Script>,
) -> Arc<Mutex<Vec<String>>> {
    let (script, received) = (script.into(), Arc::new(Mutex::new(Vec::new())));
    let (leave, mut left) = tokio::sync::mpsc::channel(1);
    let (registered, asks) = (Arc::new(OnceLock::new()), script.asks.clone());
    let runtime = Arc::clone(&registered);
    let player =
        Arc::new(ScriptedPlugin { script, received: Arc::clone(&received), leave, runtime });
    let (index, name) = (index.to_owned(), name.to_owned());
    on_a_thread(async move || {
        let stream = reach(&socket).await;
        let stub = Stub::register(stream, &index, &name, player).await.unwrap();
        let _first = registered.set(stub.runtime());
        if let Some(asks) = asks {
            tokio::spawn(serve(stub.runtime(), asks));
        }
        tokio::select! {
            _ = stub.closed() => {}
            _ = left.recv() => stub.close(),
        }
        // Time for the close to reach the other side.
        tokio::time::sleep(Duration::from_millis(50)).await;
    });
    received
}

async fn serve(runtime: RuntimeHandle, asks: Asks) {
    let mut asks = asks.lock().await;
    while let Some((request, sender)) = asks.recv().await {
        let runtime = runtime.clone();
        tokio::spawn(async move {
            let answer = runtime.update_containers(&request).await;
            let _nobody_waits = sender.send(answer.map_err(|error| error.to_string()));
        });
    }
}

/// Whether the plugin received this: an event and the name of its container or pod.
pub fn has_received(received: &Mutex<Vec<String>>, what: &str) -> bool {
    received.lock().unwrap().iter().any(|event| event == what)
}

/// A runtime's side of a connection that applies no update.
pub struct NoUpdates;

#[async_trait]
impl Upcalls for NoUpdates {
    async fn update_containers(
        &self,
        plugin: &PluginIdentity,
        _: api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse, String> {
        Err(format!("no updates for {plugin}"))
    }
}
