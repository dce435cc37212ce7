// SPDX-License-Identifier: Apache-2.0
//! Pods and containers through an engine's CRI, on the host's network, so that no CNI is needed.

use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Uri};

use generated as cri;

#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::allow_attributes,
    clippy::too_many_lines,
    unreachable_pub,
    unused_qualifications,
    missing_debug_implementations,
    reason = "generated code"
)]
#[rustfmt::skip]
pub mod generated;

/// A network and devices of the tests.
pub mod node;

/// Whole lifecycles of pods.
pub mod pods;

/// A command in a container, as kubelet's probes run it.
pub mod exec_sync;

pub type Cri = cri::runtime_service_client::RuntimeServiceClient<Channel>;

/// A connection to an engine's socket.
pub async fn connect(socket: PathBuf) -> Channel {
    let connect = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connect).await.unwrap()
}

fn on_the_host() -> cri::NamespaceOption {
    let node = cri::NamespaceMode::Node as i32;
    cri::NamespaceOption { network: node, pid: cri::NamespaceMode::Container as i32, ipc: 0 }
}

/// A pod of the namespace `shop`.
pub fn pod(cgroup: &str, name: &str) -> cri::PodSandboxConfig {
    let security = cri::LinuxSandboxSecurityContext {
        namespace_options: Some(on_the_host()),
        ..Default::default()
    };
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            namespace: "shop".to_owned(),
            attempt: 0,
        }),
        annotations: [("example.org/team".to_owned(), "blue".to_owned())].into(),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: format!("/{cgroup}"),
            security_context: Some(security),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub fn container(name: &str, command: &[&str]) -> cri::ContainerConfig {
    let security = cri::LinuxContainerSecurityContext {
        namespace_options: Some(on_the_host()),
        ..Default::default()
    };
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
        image: Some(image()),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        envs: vec![cri::KeyValue { key: "FROM".to_owned(), value: "pod".to_owned() }],
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(cri::LinuxContainerResources {
                cpu_shares: 1024,
                memory_limit_in_bytes: 64 << 20,
                ..Default::default()
            }),
            security_context: Some(security),
        }),
        ..Default::default()
    }
}

pub fn image() -> cri::ImageSpec {
    cri::ImageSpec { image: "localhost/busybox:1".to_owned(), ..Default::default() }
}

/// Runs a pod with the default handler; returns its ID.
pub async fn run_pod(cri: &mut Cri, config: cri::PodSandboxConfig) -> String {
    run_pod_with(cri, config, "").await
}

/// Runs a pod with that handler; returns its ID.
pub async fn run_pod_with(cri: &mut Cri, config: cri::PodSandboxConfig, handler: &str) -> String {
    let request =
        cri::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
    cri.run_pod_sandbox(request).await.unwrap().into_inner().pod_sandbox_id
}

/// Creates a container in the pod of that ID; returns its ID.
pub async fn create(
    cri: &mut Cri,
    pod_id: &str,
    pod: cri::PodSandboxConfig,
    config: cri::ContainerConfig,
) -> String {
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: pod_id.to_owned(),
        config: Some(config),
        sandbox_config: Some(pod),
    };
    cri.create_container(request).await.unwrap().into_inner().container_id
}

pub async fn start(cri: &mut Cri, id: &str) -> Result<(), tonic::Status> {
    let request = cri::StartContainerRequest { container_id: id.to_owned() };
    cri.start_container(request).await.map(|_| ())
}

/// The engine's verbose status of a container.
pub async fn info(cri: &mut Cri, id: &str) -> serde_json::Value {
    let request = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    let info = cri.container_status(request).await.unwrap().into_inner().info;
    serde_json::from_str(&info["info"]).unwrap()
}

pub async fn end_container(cri: &mut Cri, id: &str) {
    let stop = cri::StopContainerRequest { container_id: id.to_owned(), timeout: 0 };
    cri.stop_container(stop).await.unwrap();
    let remove = cri::RemoveContainerRequest { container_id: id.to_owned() };
    cri.remove_container(remove).await.unwrap();
}

pub async fn end_pod(cri: &mut Cri, id: &str) {
    let stop = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
    cri.stop_pod_sandbox(stop).await.unwrap();
    let remove = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
    cri.remove_pod_sandbox(remove).await.unwrap();
}
