// SPDX-License-Identifier: Apache-2.0
//! Connects the protocol's service with a [`Handler`]: collects a snapshot from its parts, handles
//! StateChange from old runtimes, updates the cache, and converts errors to statuses. It decides
//! nothing.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use nri_api as api;
use nri_api::event::{ALL_EVENTS, Event};
use ttrpc::r#async::TtrpcContext;

use crate::cache;
use crate::context::{Context, RuntimeHandle};
use crate::handler::Handler;
use crate::progress::{OpenRequest, Phase, Progress};
use crate::subscription::{Subscription, knows_later_events};
use crate::{HandlerError, async_trait};

/// Time after Shutdown for the runtime to close the connection; then the plugin does.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

pub(crate) struct Service {
    pub(crate) handler: Arc<dyn Handler>,
    runtime: RuntimeHandle,
    config: String,
    /// The received parts of the snapshot.
    snapshot: Mutex<api::SynchronizeRequest>,
    refused: Arc<OnceLock<String>>,
    progress: Arc<Progress>,
    /// The time-out that the runtime stated in Configure, in milliseconds.
    request_timeout: AtomicI64,
    /// Whether the previous connection ended at a subscription that the runtime may not have
    /// supported.
    was_in_doubt: bool,
}

impl Service {
    pub(crate) fn new(
        handler: Arc<dyn Handler>,
        runtime: RuntimeHandle,
        config: String,
        progress: Arc<Progress>,
    ) -> Self {
        let was_in_doubt = progress.in_doubt.swap(false, Ordering::Relaxed);
        Self {
            handler,
            runtime,
            config,
            was_in_doubt,
            snapshot: Mutex::default(),
            refused: Arc::new(OnceLock::new()),
            progress,
            request_timeout: AtomicI64::new(0),
        }
    }

    /// Returns the cell that receives the reason if the plugin refuses to start.
    pub(crate) fn refused(&self) -> Arc<OnceLock<String>> {
        Arc::clone(&self.refused)
    }

    /// Records why Configure or Synchronize failed, which ends the plugin: its handler refused, or the runtime has none
    /// of its events.
    fn start_refused(&self, error: HandlerError) -> ttrpc::Error {
        let _only_the_first_counts = self.refused.set(error.to_string());
        refusal(error)
    }

    /// Adds a part to the snapshot; returns the whole once it is complete.
    fn collect(&self, part: api::SynchronizeRequest) -> Option<api::SynchronizeRequest> {
        let mut whole = self.snapshot.lock().ok()?;
        whole.pods.extend(part.pods);
        whole.containers.extend(part.containers);
        (!part.more).then(|| std::mem::take(&mut *whole))
    }

    fn subscription(&self, knows_later: Option<bool>) -> Result<Subscription, HandlerError> {
        let bits = |events: &[Event]| events.iter().fold(0, |bits, event| bits | event.bit());
        let followed = self.handler.cache().map_or(0, |_| bits(cache::EVENTS));
        let wanted = bits(self.handler.events()) | followed;
        let asked = Subscription::new(wanted, knows_later, self.was_in_doubt)?;
        self.progress.in_doubt.store(asked.in_doubt, Ordering::Relaxed);
        Ok(asked)
    }

    /// Begins a request. Its deadline is the one that the runtime sent with it, else it follows
    /// from the time-out that Configure stated.
    pub(crate) fn begin(&self, context: &TtrpcContext) -> (Context, OpenRequest) {
        let named = u64::try_from(context.timeout_nano).unwrap_or(0);
        let usual = u64::try_from(self.request_timeout.load(Ordering::Relaxed)).unwrap_or(0);
        let timeout = match (named, usual) {
            (0, 0) => None,
            (0, usual) => Some(Duration::from_millis(usual)),
            (named, _) => Some(Duration::from_nanos(named)),
        };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let open = self.progress.begin(deadline);
        (Context { runtime: self.runtime.clone(), deadline }, open)
    }
}

pub(crate) fn refusal(error: impl Into<HandlerError>) -> ttrpc::Error {
    let text = error.into().to_string();
    ttrpc::Error::RpcStatus(ttrpc::get_status(ttrpc::Code::UNKNOWN, text))
}

/// The container of a notification; pods' notifications have none.
macro_rules! notified {
    (run_pod_sandbox $request:ident) => {
        None
    };
    (update_pod_sandbox $request:ident) => {
        None
    };
    (post_update_pod_sandbox $request:ident) => {
        None
    };
    (stop_pod_sandbox $request:ident) => {
        None
    };
    (remove_pod_sandbox $request:ident) => {
        None
    };
    ($method:ident $request:ident) => {
        $request.container.as_ref()
    };
}

/// Defines the whole service: the methods of the events in both tables, and the others as given.
macro_rules! service {
    (
        notify { $($method:ident $name:ident $request:ident $response:ident)* }
        answer { $($asked:ident $asked_name:ident $asked_request:ident $asked_response:ident)* }
        $($rest:tt)*
    ) => {
        #[async_trait]
        impl api::Plugin for Service {
            $(async fn $method(
                &self,
                context: &TtrpcContext,
                request: api::$request,
            ) -> ttrpc::Result<api::$response> {
                let (context, _open) = self.begin(context);
                self.handler.observe(Event::$name.name(), &request);
                if let Some(cache) = self.handler.cache() {
                    cache.follow(Event::$name, request.pod.as_ref(), notified!($method request));
                }
                let answer = self.handler.$method(&context, request).await;
                answer.map(|()| api::$response::new()).map_err(refusal)
            })*

            $(async fn $asked(
                &self,
                context: &TtrpcContext,
                request: api::$asked_request,
            ) -> ttrpc::Result<api::$asked_response> {
                let (context, _open) = self.begin(context);
                self.handler.observe(Event::$asked_name.name(), &request);
                if let Some(cache) = self.handler.cache() {
                    let (pod, container) = (request.pod.as_ref(), request.container.as_ref());
                    cache.follow(Event::$asked_name, pod, container);
                }
                self.handler.$asked(&context, request).await.map_err(refusal)
            })*

            $($rest)*
        }
    };
}

service! {
    notify {
        run_pod_sandbox RunPodSandbox RunPodSandboxRequest RunPodSandboxResponse
        update_pod_sandbox UpdatePodSandbox UpdatePodSandboxRequest UpdatePodSandboxResponse
        post_update_pod_sandbox PostUpdatePodSandbox PostUpdatePodSandboxRequest PostUpdatePodSandboxResponse
        stop_pod_sandbox StopPodSandbox StopPodSandboxRequest StopPodSandboxResponse
        remove_pod_sandbox RemovePodSandbox RemovePodSandboxRequest RemovePodSandboxResponse
        post_create_container PostCreateContainer PostCreateContainerRequest PostCreateContainerResponse
        start_container StartContainer StartContainerRequest StartContainerResponse
        post_start_container PostStartContainer PostStartContainerRequest PostStartContainerResponse
        post_update_container PostUpdateContainer PostUpdateContainerRequest PostUpdateContainerResponse
        remove_container RemoveContainer RemoveContainerRequest RemoveContainerResponse
    }
    answer {
        create_container CreateContainer CreateContainerRequest CreateContainerResponse
        update_container UpdateContainer UpdateContainerRequest UpdateContainerResponse
        stop_container StopContainer StopContainerRequest StopContainerResponse
    }

    async fn configure(
        &self,
        context: &TtrpcContext,
        mut request: api::ConfigureRequest,
    ) -> ttrpc::Result<api::ConfigureResponse> {
        self.request_timeout.store(request.request_timeout, Ordering::Relaxed);
        let (context, _open) = self.begin(context);
        if request.config.is_empty() {
            request.config.clone_from(&self.config);
        }
        self.handler.observe("Configure", &request);
        let knows_later = knows_later_events(&request);
        let configured = self.handler.configure(&context, request).await;
        let subscription = configured.and_then(|()| self.subscription(knows_later));
        Ok(api::ConfigureResponse {
            events: subscription.map_err(|error| self.start_refused(error))?.events,
            failure_policy: self.handler.failure_policy().into(),
            ..api::ConfigureResponse::default()
        })
    }

    async fn synchronize(
        &self,
        context: &TtrpcContext,
        part: api::SynchronizeRequest,
    ) -> ttrpc::Result<api::SynchronizeResponse> {
        let (context, _open) = self.begin(context);
        self.progress.in_doubt.store(false, Ordering::Relaxed);
        let Some(whole) = self.collect(part) else {
            return Ok(api::SynchronizeResponse { more: true, ..Default::default() });
        };
        // Subscribes before the plugin is synchronized, so that it misses no event.
        self.runtime.subscribe(self.handler.extension_events()).await;
        self.handler.observe("Synchronize", &whole);
        if let Some(cache) = self.handler.cache() {
            cache.reset(&whole.pods, &whole.containers);
        }
        let updates = self.handler.synchronize(&context, whole.pods, whole.containers).await;
        let update = updates.map_err(|error| self.start_refused(error))?;
        self.progress.phase.send_replace(Phase::Synchronized(self.runtime.clone()));
        Ok(api::SynchronizeResponse { update, ..Default::default() })
    }

    async fn shutdown(&self, _: &TtrpcContext, request: api::Empty) -> ttrpc::Result<api::Empty> {
        self.handler.observe("Shutdown", &request);
        self.handler.shutdown().await;
        let trunk = self.runtime.trunk.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SHUTDOWN_GRACE).await;
            trunk.close("the runtime shut the plugin down");
        });
        Ok(api::Empty::new())
    }

    async fn validate_container_adjustment(
        &self,
        context: &TtrpcContext,
        request: api::ValidateContainerAdjustmentRequest,
    ) -> ttrpc::Result<api::ValidateContainerAdjustmentResponse> {
        let (context, _open) = self.begin(context);
        self.handler.observe(Event::ValidateContainerAdjustment.name(), &request);
        let verdict = self.handler.validate_container_adjustment(&context, request).await;
        let reason = verdict.err().map(|reason| reason.to_string());
        Ok(api::ValidateContainerAdjustmentResponse {
            reject: reason.is_some(),
            reason: reason.unwrap_or_default(),
            ..Default::default()
        })
    }

    /// Handles the form in which runtimes before NRI v0.12 send events that now have separate
    /// methods.
    async fn state_change(
        &self,
        context: &TtrpcContext,
        change: api::StateChangeEvent,
    ) -> ttrpc::Result<api::Empty> {
        let number = change.event.value();
        let (pod, container) = (change.pod, change.container);
        macro_rules! pass_on {
            ($method:ident $request:ident { $($field:ident),* }) => {{
                let request = api::$request { $($field,)* ..Default::default() };
                self.$method(context, request).await.map(|_| api::Empty::new())
            }};
        }
        let Some(event) = ALL_EVENTS.into_iter().find(|event| event.number() == number) else {
            return Err(refusal(format!("StateChange for the unknown event {number}")));
        };
        match event {
            Event::RunPodSandbox => pass_on!(run_pod_sandbox RunPodSandboxRequest { pod }),
            Event::StopPodSandbox => pass_on!(stop_pod_sandbox StopPodSandboxRequest { pod }),
            Event::RemovePodSandbox => pass_on!(remove_pod_sandbox RemovePodSandboxRequest { pod }),
            Event::PostUpdatePodSandbox => {
                pass_on!(post_update_pod_sandbox PostUpdatePodSandboxRequest { pod })
            }
            Event::PostCreateContainer => {
                pass_on!(post_create_container PostCreateContainerRequest { pod, container })
            }
            Event::StartContainer => {
                pass_on!(start_container StartContainerRequest { pod, container })
            }
            Event::PostStartContainer => {
                pass_on!(post_start_container PostStartContainerRequest { pod, container })
            }
            Event::PostUpdateContainer => {
                pass_on!(post_update_container PostUpdateContainerRequest { pod, container })
            }
            Event::RemoveContainer => {
                pass_on!(remove_container RemoveContainerRequest { pod, container })
            }
            Event::CreateContainer
            | Event::UpdateContainer
            | Event::StopContainer
            | Event::UpdatePodSandbox
            | Event::ValidateContainerAdjustment => {
                Err(refusal(format!("StateChange for {}, which needs an answer", event.name())))
            }
        }
    }
}
