// SPDX-License-Identifier: Apache-2.0
//! The traits that a plugin implements, asynchronous and blocking. Every method but `events` has a
//! default that changes nothing, so a plugin writes only the handlers of its events.

use std::sync::Arc;

use nri_api as api;
use nri_api::event::Event;
use nri_api::extension::{self, ExtensionEvent};
use protobuf::MessageDyn;

use crate::cache::Cache;
use crate::context::Context;
use crate::{Result, async_trait};

/// Defines both traits from one table of handlers.
macro_rules! handlers {
    ($(
        $(#[$doc:meta])*
        $method:ident($($argument:ident: $type:ty),*) -> $answer:ty;
    )*) => {
        /// A plugin. An error from a handler refuses the engine's request (run a pod; create, start
        /// or update a container); for past events (stop, remove, the post events) the runtime only
        /// logs it.
        ///
        /// The runtime waits for a handler as long as [`Context::remaining`] returns. Then an
        /// asynchronous handler is dropped at its current await; a [`BlockingHandler`]'s runs to
        /// its end, and its answer is discarded.
        #[async_trait]
        #[expect(unused_variables, reason = "the names are documentation")]
        pub trait Handler: Send + Sync + 'static {
            /// Returns the events to receive; called after `configure`. Return at least one,
            /// because the protocol treats an empty list as all. UpdatePodSandbox,
            /// PostUpdatePodSandbox and ValidateContainerAdjustment exist since NRI v0.10: with an
            /// older runtime the plugin continues without them, or ends if it has no other events.
            fn events(&self) -> &[Event];

            /// Returns the runtime's reaction when this plugin does not answer, unless the operator
            /// configures one. `None`: the plugin is skipped, and disconnected after its first
            /// time-out. Runtimes before NRI v0.12.4 ignore this policy.
            fn failure_policy(&self) -> Option<api::FailurePolicy> {
                None
            }

            /// Returns the events of the extension to receive, if the runtime has the extension, as
            /// nri-runc does. With another runtime the plugin continues without them; see
            /// [`RuntimeHandle::delivers`](crate::RuntimeHandle::delivers).
            fn extension_events(&self) -> &[ExtensionEvent] {
                &[]
            }

            /// Returns the cache that follows the events. The plugin is subscribed to the events
            /// that the cache needs.
            fn cache(&self) -> Option<&Cache> {
                None
            }

            /// Receives every message before its method is called; for logs and counters.
            fn observe(&self, method: &'static str, message: &dyn MessageDyn) {}

            /// Called before the connection is closed, because the runtime announced it or
            /// [`PluginHandle::shut_down`](crate::PluginHandle::shut_down) was called.
            async fn shutdown(&self) {}

            $(
                $(#[$doc])*
                async fn $method(&self, context: &Context, $($argument: $type),*) -> Result<$answer> {
                    Ok(<$answer>::default())
                }
            )*
        }

        /// A plugin with blocking handlers, each on a separate thread; several may run
        /// concurrently. [`Blocking`] makes it a [`Handler`], whose methods have the same meaning.
        #[expect(unused_variables, reason = "the names are documentation")]
        pub trait BlockingHandler: Send + Sync + 'static {
            /// Returns the events to receive; see [`Handler::events`].
            fn events(&self) -> &[Event];

            /// See [`Handler::failure_policy`].
            fn failure_policy(&self) -> Option<api::FailurePolicy> {
                None
            }

            /// See [`Handler::extension_events`].
            fn extension_events(&self) -> &[ExtensionEvent] {
                &[]
            }

            /// See [`Handler::cache`].
            fn cache(&self) -> Option<&Cache> {
                None
            }

            /// See [`Handler::observe`]. It must not block.
            fn observe(&self, method: &'static str, message: &dyn MessageDyn) {}

            /// See [`Handler::shutdown`].
            fn shutdown(&self) {}

            $(
                $(#[$doc])*
                fn $method(&self, context: &Context, $($argument: $type),*) -> Result<$answer> {
                    Ok(<$answer>::default())
                }
            )*
        }

        /// Lets a program share its handler with the plugin, to read the handler's state from
        /// elsewhere.
        #[async_trait]
        impl<H: Handler + ?Sized> Handler for Arc<H> {
            fn events(&self) -> &[Event] {
                self.as_ref().events()
            }

            fn failure_policy(&self) -> Option<api::FailurePolicy> {
                self.as_ref().failure_policy()
            }

            fn extension_events(&self) -> &[ExtensionEvent] {
                self.as_ref().extension_events()
            }

            fn cache(&self) -> Option<&Cache> {
                self.as_ref().cache()
            }

            fn observe(&self, method: &'static str, message: &dyn MessageDyn) {
                self.as_ref().observe(method, message);
            }

            async fn shutdown(&self) {
                self.as_ref().shutdown().await;
            }

            $(
                async fn $method(&self, context: &Context, $($argument: $type),*) -> Result<$answer> {
                    self.as_ref().$method(context, $($argument),*).await
                }
            )*
        }

        #[async_trait]
        impl<H: BlockingHandler> Handler for Blocking<H> {
            fn events(&self) -> &[Event] {
                self.0.events()
            }

            fn failure_policy(&self) -> Option<api::FailurePolicy> {
                self.0.failure_policy()
            }

            fn extension_events(&self) -> &[ExtensionEvent] {
                self.0.extension_events()
            }

            fn cache(&self) -> Option<&Cache> {
                self.0.cache()
            }

            fn observe(&self, method: &'static str, message: &dyn MessageDyn) {
                self.0.observe(method, message);
            }

            async fn shutdown(&self) {
                let handler = Arc::clone(&self.0);
                let end = move || {
                    handler.shutdown();
                    Ok(())
                };
                let ended = on_a_thread(end).await;
                if let Err(error) = ended {
                    tracing::warn!("shutdown: {error}");
                }
            }

            $(
                async fn $method(&self, context: &Context, $($argument: $type),*) -> Result<$answer> {
                    let (handler, context) = (Arc::clone(&self.0), context.clone());
                    on_a_thread(move || handler.$method(&context, $($argument),*)).await
                }
            )*
        }
    };
}

handlers! {
    /// Receives the plugin's configuration, in any format that the plugin chooses, and facts about
    /// the runtime. The first call of each connection. An error ends the plugin.
    configure(request: api::ConfigureRequest) -> ();

    /// Receives all existing pods and containers, collected from any number of messages; the answer
    /// may update containers. Called once in each connection, before the first event. An error ends
    /// the plugin.
    synchronize(pods: Vec<api::PodSandbox>, containers: Vec<api::Container>) -> Vec<api::ContainerUpdate>;

    /// A pod starts.
    run_pod_sandbox(request: api::RunPodSandboxRequest) -> ();

    /// A pod is resized; nri-runc sends this after the resize, which an error does not undo.
    update_pod_sandbox(request: api::UpdatePodSandboxRequest) -> ();

    /// A pod was resized.
    post_update_pod_sandbox(request: api::PostUpdatePodSandboxRequest) -> ();

    /// A pod is about to stop, or has stopped.
    stop_pod_sandbox(request: api::StopPodSandboxRequest) -> ();

    /// A pod is removed.
    remove_pod_sandbox(request: api::RemovePodSandboxRequest) -> ();

    /// A container is about to be created: the only event whose answer can adjust the container. The request
    /// contains the changes of the plugins that were asked earlier.
    create_container(request: api::CreateContainerRequest) -> api::CreateContainerResponse;

    /// A container was created; its process waits for the start, except with nri-runc and an engine
    /// that calls `run`.
    post_create_container(request: api::PostCreateContainerRequest) -> ();

    /// A container is about to be started. It has a process and a cgroup, except with nri-runc and
    /// an engine that calls `run`.
    start_container(request: api::StartContainerRequest) -> ();

    /// A container was started.
    post_start_container(request: api::PostStartContainerRequest) -> ();

    /// The engine changes the resources of a container; the answer may change them, and other
    /// containers' resources.
    update_container(request: api::UpdateContainerRequest) -> api::UpdateContainerResponse;

    /// A container was updated.
    post_update_container(request: api::PostUpdateContainerRequest) -> ();

    /// A container has stopped; the answer may update others.
    stop_container(request: api::StopContainerRequest) -> api::StopContainerResponse;

    /// A container is removed.
    remove_container(request: api::RemoveContainerRequest) -> ();

    /// Receives the changes of all plugins to a container that is being created. An error refuses
    /// the container; its text is the reason.
    validate_container_adjustment(request: api::ValidateContainerAdjustmentRequest) -> ();

    /// Extension: `exec` is about to start a process in a container; the answer may change its
    /// arguments, environment, working directory and limits. An error refuses the process.
    exec_container(request: extension::ExecContainerRequest) -> extension::ExecContainerResponse;

    /// Extension: receives the changes of all plugins to a process that `exec` is about to start.
    /// An error refuses the process; its text is the reason.
    validate_exec(request: extension::ValidateExecRequest) -> ();

    /// Extension: a process of an `exec` was started, has ended, or was refused.
    post_exec(request: extension::PostExecRequest) -> ();

    /// Extension: receives the results of updates that this plugin requested.
    update_results(request: extension::UpdateResultsRequest) -> ();
}

/// A [`BlockingHandler`] as a [`Handler`].
#[derive(Debug)]
pub struct Blocking<H>(Arc<H>);

impl<H: BlockingHandler> Blocking<H> {
    /// Wraps a plugin, whose handlers then run on threads of tokio's pool for blocking work.
    pub fn new(handler: H) -> Self {
        Self(Arc::new(handler))
    }
}

async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err("the plugin's handler panicked".into()),
    }
}
