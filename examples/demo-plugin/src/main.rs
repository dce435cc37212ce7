// SPDX-License-Identifier: Apache-2.0
//! The plugin of `make demo`: adds an environment variable, a mount, an annotation and CPU shares
//! to each container, and records its events. It is launched as a pre-installed plugin: its socket
//! is descriptor 3, its settings come with Configure.

use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use nri_plugin::{Stub, api};
use ttrpc::r#async::TtrpcContext;

#[derive(Default)]
struct Greeter {
    data: Mutex<String>,
    saw: Mutex<String>,
}

impl Greeter {
    fn note(&self, event: &str, pod: &str, container: &str) {
        let Ok(path) = self.saw.lock() else { return };
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path.as_str());
        if let Ok(mut file) = file {
            let _best_effort = writeln!(file, "{event:<20} pod {pod:<8} {container}");
        }
    }
}

fn optional(value: u64) -> api::OptionalUInt64 {
    api::OptionalUInt64 { value, ..api::OptionalUInt64::default() }
}

#[async_trait]
impl api::Plugin for Greeter {
    async fn configure(
        &self,
        _: &TtrpcContext,
        request: api::ConfigureRequest,
    ) -> ttrpc::Result<api::ConfigureResponse> {
        for line in request.config.lines() {
            let slot = match line.split_once('=') {
                Some(("data", value)) => self.data.lock().map(|mut slot| *slot = value.to_owned()),
                Some(("saw", value)) => self.saw.lock().map(|mut slot| *slot = value.to_owned()),
                _ => Ok(()),
            };
            drop(slot);
        }
        self.note("Configure", "-", &format!("runtime {}", request.runtime_name));
        // Every event except for updates and validation.
        Ok(api::ConfigureResponse { events: 0x67f, ..api::ConfigureResponse::default() })
    }

    async fn synchronize(
        &self,
        _: &TtrpcContext,
        request: api::SynchronizeRequest,
    ) -> ttrpc::Result<api::SynchronizeResponse> {
        self.note("Synchronize", "-", &format!("{} containers live", request.containers.len()));
        Ok(api::SynchronizeResponse::new())
    }

    async fn shutdown(&self, _: &TtrpcContext, _: api::Empty) -> ttrpc::Result<api::Empty> {
        Ok(api::Empty::new())
    }

    async fn create_container(
        &self,
        _: &TtrpcContext,
        request: api::CreateContainerRequest,
    ) -> ttrpc::Result<api::CreateContainerResponse> {
        let args = request.container.args.first().cloned().unwrap_or_default();
        self.note("CreateContainer", &request.pod.name, &format!("runs {args}"));
        let data = self.data.lock().map(|data| data.clone()).unwrap_or_default();
        let env = api::KeyValue {
            key: "GREETING".to_owned(),
            value: "hello-from-a-plugin".to_owned(),
            ..api::KeyValue::default()
        };
        let mount = api::Mount {
            destination: "/data".to_owned(),
            type_: "bind".to_owned(),
            source: data,
            options: vec!["bind".to_owned(), "ro".to_owned()],
            ..api::Mount::default()
        };
        let cpu = api::LinuxCPU { shares: Some(optional(512)).into(), ..api::LinuxCPU::default() };
        let resources =
            api::LinuxResources { cpu: Some(cpu).into(), ..api::LinuxResources::default() };
        let linux = api::LinuxContainerAdjustment {
            resources: Some(resources).into(),
            ..api::LinuxContainerAdjustment::default()
        };
        let adjust = api::ContainerAdjustment {
            env: vec![env],
            mounts: vec![mount],
            annotations: [("example.org/greeted".to_owned(), "yes".to_owned())].into(),
            linux: Some(linux).into(),
            ..api::ContainerAdjustment::default()
        };
        let adjust = Some(adjust).into();
        Ok(api::CreateContainerResponse { adjust, ..api::CreateContainerResponse::default() })
    }

    async fn run_pod_sandbox(
        &self,
        _: &TtrpcContext,
        request: api::RunPodSandboxRequest,
    ) -> ttrpc::Result<api::RunPodSandboxResponse> {
        self.note("RunPodSandbox", &request.pod.name, "");
        Ok(api::RunPodSandboxResponse::new())
    }

    async fn stop_pod_sandbox(
        &self,
        _: &TtrpcContext,
        request: api::StopPodSandboxRequest,
    ) -> ttrpc::Result<api::StopPodSandboxResponse> {
        self.note("StopPodSandbox", &request.pod.name, "");
        Ok(api::StopPodSandboxResponse::new())
    }

    async fn remove_pod_sandbox(
        &self,
        _: &TtrpcContext,
        request: api::RemovePodSandboxRequest,
    ) -> ttrpc::Result<api::RemovePodSandboxResponse> {
        self.note("RemovePodSandbox", &request.pod.name, "");
        Ok(api::RemovePodSandboxResponse::new())
    }

    async fn post_create_container(
        &self,
        _: &TtrpcContext,
        request: api::PostCreateContainerRequest,
    ) -> ttrpc::Result<api::PostCreateContainerResponse> {
        self.note("PostCreateContainer", &request.pod.name, &named(&request.container));
        Ok(api::PostCreateContainerResponse::new())
    }

    async fn start_container(
        &self,
        _: &TtrpcContext,
        request: api::StartContainerRequest,
    ) -> ttrpc::Result<api::StartContainerResponse> {
        self.note("StartContainer", &request.pod.name, &named(&request.container));
        Ok(api::StartContainerResponse::new())
    }

    async fn post_start_container(
        &self,
        _: &TtrpcContext,
        request: api::PostStartContainerRequest,
    ) -> ttrpc::Result<api::PostStartContainerResponse> {
        self.note("PostStartContainer", &request.pod.name, &named(&request.container));
        Ok(api::PostStartContainerResponse::new())
    }

    async fn stop_container(
        &self,
        _: &TtrpcContext,
        request: api::StopContainerRequest,
    ) -> ttrpc::Result<api::StopContainerResponse> {
        self.note("StopContainer", &request.pod.name, &named(&request.container));
        Ok(api::StopContainerResponse::new())
    }

    async fn remove_container(
        &self,
        _: &TtrpcContext,
        request: api::RemoveContainerRequest,
    ) -> ttrpc::Result<api::RemoveContainerResponse> {
        self.note("RemoveContainer", &request.pod.name, &named(&request.container));
        Ok(api::RemoveContainerResponse::new())
    }
}

fn named(container: &api::Container) -> String {
    format!("container {} (pid {})", container.name, container.pid)
}

#[expect(unsafe_code, reason = "a descriptor passed by number")]
fn socket() -> std::os::unix::net::UnixStream {
    // SAFETY: NRI hands a launched plugin its socket as descriptor 3, for it alone.
    unsafe { OwnedFd::from_raw_fd(3) }.into()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ttrpc::Result<()> {
    let stream = socket();
    stream.set_nonblocking(true).map_err(|error| ttrpc::Error::Others(error.to_string()))?;
    let stream = tokio::net::UnixStream::from_std(stream)
        .map_err(|error| ttrpc::Error::Others(error.to_string()))?;
    let stub = Stub::register(stream, "10", "greeter", Arc::new(Greeter::default())).await?;
    stub.closed().await;
    Ok(())
}
