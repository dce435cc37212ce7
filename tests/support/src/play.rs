// SPDX-License-Identifier: Apache-2.0
//! Plugins in separate threads, and handlers that do the same at every event.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nri_plugin::{Handler, RuntimeHandle, Stub};

/// Runs a future in a new thread with its own event loop.
pub fn on_a_thread<F: Future<Output = ()>>(
    work: impl FnOnce() -> F + Send + 'static,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(work());
    })
}

/// Connects, and retries for five seconds: a starting daemon opens its plugin socket last.
pub async fn reach(socket: &Path) -> tokio::net::UnixStream {
    for _attempt in 0..500 {
        if let Ok(stream) = tokio::net::UnixStream::connect(socket).await {
            return stream;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::net::UnixStream::connect(socket).await.unwrap()
}

/// Connects a handler as `id`, for as long as its connection lasts. If it is refused, the test
/// waits for it in vain and reports that.
pub fn play(socket: PathBuf, id: &str, handler: Arc<dyn Handler>) {
    let id = id.to_owned();
    on_a_thread(async move || {
        let stream = reach(&socket).await;
        if let Ok(stub) = Stub::serve(stream, &id, "", handler).await {
            stub.closed().await;
        }
    });
}

/// Connects a handler like [`play`] and waits until it is registered; returns its handle to call
/// the runtime.
pub fn play_registered(socket: PathBuf, id: &str, handler: Arc<dyn Handler>) -> RuntimeHandle {
    let (id, (sender, receiver)) = (id.to_owned(), std::sync::mpsc::channel());
    on_a_thread(async move || {
        let stub = Stub::serve(reach(&socket).await, &id, "", handler).await.unwrap();
        sender.send(stub.runtime()).unwrap();
        stub.closed().await;
    });
    receiver.recv().unwrap()
}

/// Implements a plugin that calls the type's `act` at every event, with the context, the event and
/// the name of the container or the pod. `act` returns the content of a response to
/// CreateContainer; other events use the permitted parts of it. The rest of the handler follows the
/// type.
#[macro_export]
macro_rules! acts_at_every_event {
    ($type:ty { $($rest:tt)* }) => {
        $crate::acts_at_every_event! { @of $type { $($rest)* }
            run_pod_sandbox RunPodSandbox RunPodSandboxRequest pod;
            update_pod_sandbox UpdatePodSandbox UpdatePodSandboxRequest pod;
            post_update_pod_sandbox PostUpdatePodSandbox PostUpdatePodSandboxRequest pod;
            stop_pod_sandbox StopPodSandbox StopPodSandboxRequest pod;
            remove_pod_sandbox RemovePodSandbox RemovePodSandboxRequest pod;
            post_create_container PostCreateContainer PostCreateContainerRequest container;
            start_container StartContainer StartContainerRequest container;
            post_start_container PostStartContainer PostStartContainerRequest container;
            post_update_container PostUpdateContainer PostUpdateContainerRequest container;
            remove_container RemoveContainer RemoveContainerRequest container;
            validate_container_adjustment ValidateContainerAdjustment ValidateContainerAdjustmentRequest container;
        }
    };
    (@of $type:ty { $($rest:tt)* } $($method:ident $event:ident $request:ident $subject:ident;)*) => {
        #[nri_plugin::async_trait]
        impl nri_plugin::Handler for $type {
            $($rest)*

            $(async fn $method(
                &self,
                context: &nri_plugin::Context,
                request: nri_plugin::api::$request,
            ) -> nri_plugin::Result<()> {
                let event = nri_plugin::Event::$event;
                self.act(context, event, &request.$subject.name).await.map(drop)
            })*

            async fn create_container(
                &self,
                context: &nri_plugin::Context,
                request: nri_plugin::api::CreateContainerRequest,
            ) -> nri_plugin::Result<nri_plugin::api::CreateContainerResponse> {
                let event = nri_plugin::Event::CreateContainer;
                self.act(context, event, &request.container.name).await
            }

            async fn update_container(
                &self,
                context: &nri_plugin::Context,
                request: nri_plugin::api::UpdateContainerRequest,
            ) -> nri_plugin::Result<nri_plugin::api::UpdateContainerResponse> {
                let event = nri_plugin::Event::UpdateContainer;
                let answer = self.act(context, event, &request.container.name).await?;
                let (update, evict) = (answer.update, answer.evict);
                Ok(nri_plugin::api::UpdateContainerResponse { update, evict, ..Default::default() })
            }

            async fn stop_container(
                &self,
                context: &nri_plugin::Context,
                request: nri_plugin::api::StopContainerRequest,
            ) -> nri_plugin::Result<nri_plugin::api::StopContainerResponse> {
                let event = nri_plugin::Event::StopContainer;
                let update = self.act(context, event, &request.container.name).await?.update;
                Ok(nri_plugin::api::StopContainerResponse { update, ..Default::default() })
            }
        }
    };
}
