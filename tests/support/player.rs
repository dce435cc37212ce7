// SPDX-License-Identifier: Apache-2.0
//! A plugin in the test's own process: adjusts, refuses, hangs or leaves as it is told, and
//! writes down what it hears.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use nri_runc::plugin::api;
use nri_runc::plugin::stub::Stub;
use ttrpc::r#async::TtrpcContext;

/// How a plugin behaves.
#[derive(Clone, Default)]
pub(crate) struct Manner {
    pub(crate) adjust: api::ContainerAdjustment,
    pub(crate) refuses: Option<&'static str>,
    pub(crate) hangs: bool,
    pub(crate) leaves: bool,
}

struct Player {
    manner: Manner,
    told: Arc<Mutex<Vec<String>>>,
    leave: tokio::sync::mpsc::Sender<()>,
}

impl Player {
    fn note(&self, event: &str, subject: &str) {
        self.told.lock().unwrap().push(format!("{event} {subject}"));
    }
}

#[async_trait]
impl api::Plugin for Player {
    async fn configure(
        &self,
        _: &TtrpcContext,
        _: api::ConfigureRequest,
    ) -> ttrpc::Result<api::ConfigureResponse> {
        Ok(api::ConfigureResponse { events: 0x7ff, ..Default::default() })
    }

    async fn synchronize(
        &self,
        _: &TtrpcContext,
        request: api::SynchronizeRequest,
    ) -> ttrpc::Result<api::SynchronizeResponse> {
        for container in &request.containers {
            self.note("Synchronize", &container.name);
        }
        Ok(api::SynchronizeResponse { more: request.more, ..Default::default() })
    }

    async fn create_container(
        &self,
        _: &TtrpcContext,
        request: api::CreateContainerRequest,
    ) -> ttrpc::Result<api::CreateContainerResponse> {
        self.note("CreateContainer", &request.container.name);
        if self.manner.hangs {
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        if self.manner.leaves {
            let _leaving = self.leave.send(()).await;
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        if let Some(why) = self.manner.refuses {
            let status = ttrpc::get_status(ttrpc::Code::UNKNOWN, why.to_owned());
            return Err(ttrpc::Error::RpcStatus(status));
        }
        let adjust = Some(self.manner.adjust.clone()).into();
        Ok(api::CreateContainerResponse { adjust, ..Default::default() })
    }

    async fn run_pod_sandbox(
        &self,
        _: &TtrpcContext,
        request: api::RunPodSandboxRequest,
    ) -> ttrpc::Result<api::RunPodSandboxResponse> {
        self.note("RunPodSandbox", &request.pod.name);
        Ok(Default::default())
    }

    async fn stop_pod_sandbox(
        &self,
        _: &TtrpcContext,
        request: api::StopPodSandboxRequest,
    ) -> ttrpc::Result<api::StopPodSandboxResponse> {
        self.note("StopPodSandbox", &request.pod.name);
        Ok(Default::default())
    }

    async fn remove_pod_sandbox(
        &self,
        _: &TtrpcContext,
        request: api::RemovePodSandboxRequest,
    ) -> ttrpc::Result<api::RemovePodSandboxResponse> {
        self.note("RemovePodSandbox", &request.pod.name);
        Ok(Default::default())
    }

    async fn post_create_container(
        &self,
        _: &TtrpcContext,
        request: api::PostCreateContainerRequest,
    ) -> ttrpc::Result<api::PostCreateContainerResponse> {
        self.note("PostCreateContainer", &request.container.name);
        Ok(Default::default())
    }

    async fn start_container(
        &self,
        _: &TtrpcContext,
        request: api::StartContainerRequest,
    ) -> ttrpc::Result<api::StartContainerResponse> {
        self.note("StartContainer", &request.container.name);
        Ok(Default::default())
    }

    async fn post_start_container(
        &self,
        _: &TtrpcContext,
        request: api::PostStartContainerRequest,
    ) -> ttrpc::Result<api::PostStartContainerResponse> {
        self.note("PostStartContainer", &request.container.name);
        Ok(Default::default())
    }

    async fn stop_container(
        &self,
        _: &TtrpcContext,
        request: api::StopContainerRequest,
    ) -> ttrpc::Result<api::StopContainerResponse> {
        self.note("StopContainer", &request.container.name);
        Ok(Default::default())
    }

    async fn remove_container(
        &self,
        _: &TtrpcContext,
        request: api::RemoveContainerRequest,
    ) -> ttrpc::Result<api::RemoveContainerResponse> {
        self.note("RemoveContainer", &request.container.name);
        Ok(Default::default())
    }
}

/// Connects a plugin; what it hears is written to the list that is returned.
pub(crate) fn connect(
    socket: PathBuf,
    index: &str,
    name: &str,
    manner: Manner,
) -> Arc<Mutex<Vec<String>>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let (leave, mut left) = tokio::sync::mpsc::channel(1);
    let player = Arc::new(Player { manner, told: Arc::clone(&told), leave });
    let (index, name) = (index.to_owned(), name.to_owned());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
            let stub = Stub::register(stream, &index, &name, player).await.unwrap();
            tokio::select! {
                _ = stub.closed() => {}
                _ = left.recv() => stub.close(),
            }
            // Lets the closing reach the other side.
            tokio::time::sleep(Duration::from_millis(50)).await;
        });
    });
    told
}
