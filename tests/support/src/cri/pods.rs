// SPDX-License-Identifier: Apache-2.0
//! Two pods of different shape, and their lifecycles through the CRI: every value that an engine
//! can send about a pod is in one of them.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::cri::{self, Cri};

use super::generated::{
    Capability, CdiDevice, ContainerConfig, Device, DnsConfig, Int64Value, KeyValue,
    LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, Mount, NamespaceMode, NamespaceOption, PodSandboxConfig,
    SecurityProfile, UpdateContainerResourcesRequest, security_profile::ProfileType,
};

/// A pod and its containers.
#[derive(Clone)]
pub struct Pod {
    pub handler: &'static str,
    pub config: PodSandboxConfig,
    /// Runs until it is stopped, and is updated.
    pub app: ContainerConfig,
    pub update: LinuxContainerResources,
    /// Exits by itself with code 3.
    pub helper: ContainerConfig,
    /// Whether its containers are removed one by one, or with it.
    pub is_orderly: bool,
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> std::collections::HashMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.into_iter().map(ToOwned::to_owned).collect()
}

fn namespaces(network: NamespaceMode, pid: NamespaceMode) -> Option<NamespaceOption> {
    let ipc = NamespaceMode::Pod as i32;
    Some(NamespaceOption { network: network as i32, pid: pid as i32, ipc })
}

/// The pod and one of its containers with a separate network.
pub fn on_own_network(
    mut pod: PodSandboxConfig,
    mut app: ContainerConfig,
) -> (PodSandboxConfig, ContainerConfig) {
    let own = NamespaceMode::Pod as i32;
    let of_pod = pod.linux.as_mut().and_then(|linux| linux.security_context.as_mut()).unwrap();
    of_pod.namespace_options.as_mut().unwrap().network = own;
    let of_app = app.linux.as_mut().and_then(|linux| linux.security_context.as_mut()).unwrap();
    of_app.namespace_options.as_mut().unwrap().network = own;
    (pod, app)
}

fn seccomp(profile: ProfileType) -> Option<SecurityProfile> {
    Some(SecurityProfile { profile_type: profile as i32 })
}

/// Every value that kubelet may set, on a separate network, with a shared PID namespace.
pub fn rich(cgroup: &str, dir: &Path) -> Pod {
    let resources = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 256 << 20,
        ..Default::default()
    };
    let overhead = LinuxContainerResources {
        cpu_shares: 10,
        memory_limit_in_bytes: 8 << 20,
        ..Default::default()
    };
    let mut config = cri::pod(cgroup, "web-0");
    config.hostname = "web-host".to_owned();
    config.log_directory = dir.join("logs").display().to_string();
    config.dns_config = Some(DnsConfig {
        servers: words(["192.0.2.53"]),
        searches: words(["shop.example", "example"]),
        options: words(["ndots:5"]),
    });
    config.labels = map([("app", "web"), ("example.org/tier", "front")]);
    config.annotations = map([("example.org/team", "blue"), ("plain", "words, \"quoted\"")]);
    config.linux = Some(LinuxPodSandboxConfig {
        cgroup_parent: format!("/{}", crate::cgroup::below(cgroup, "pod-web")),
        security_context: Some(LinuxSandboxSecurityContext {
            namespace_options: namespaces(NamespaceMode::Pod, NamespaceMode::Pod),
            seccomp: seccomp(ProfileType::RuntimeDefault),
        }),
        sysctls: map([("net.core.somaxconn", "512")]),
        overhead: Some(overhead),
        resources: Some(resources),
    });
    let update = LinuxContainerResources {
        cpu_shares: 700,
        cpu_period: 100_000,
        cpu_quota: 30_000,
        memory_limit_in_bytes: 96 << 20,
        ..Default::default()
    };
    let (app, helper) = (rich_app(dir), rich_helper());
    Pod { handler: "rich", config, app, update, helper, is_orderly: true }
}

fn rich_app(dir: &Path) -> ContainerConfig {
    let mut app = cri::container("app", &["/bin/sleep", "1000"]);
    app.working_dir = "/data".to_owned();
    app.envs.push(KeyValue { key: "EMPTY".to_owned(), value: String::new() });
    app.mounts = vec![
        Mount {
            container_path: "/data".to_owned(),
            host_path: dir.join("data").display().to_string(),
            readonly: true,
        },
        Mount {
            container_path: "/etc/hosts".to_owned(),
            host_path: dir.join("data/hello").display().to_string(),
            readonly: false,
        },
    ];
    app.devices = vec![Device {
        container_path: "/dev/nothing".to_owned(),
        host_path: "/dev/null".to_owned(),
        permissions: "rw".to_owned(),
    }];
    app.labels = map([("example.org/extra", "yes")]);
    app.annotations = map([("example.org/pin", "0")]);
    app.log_path = "app/0.log".to_owned();
    let linux = app.linux.as_mut().unwrap();
    linux.resources = Some(LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 20_000,
        cpu_shares: 204,
        memory_limit_in_bytes: 64 << 20,
        oom_score_adj: 900,
        cpuset_cpus: "0".to_owned(),
        cpuset_mems: "0".to_owned(),
        ..Default::default()
    });
    linux.security_context = Some(LinuxContainerSecurityContext {
        capabilities: Some(Capability {
            add_capabilities: words(["NET_ADMIN"]),
            drop_capabilities: words(["MKNOD", "CHOWN"]),
        }),
        namespace_options: namespaces(NamespaceMode::Pod, NamespaceMode::Pod),
        seccomp: seccomp(ProfileType::RuntimeDefault),
        masked_paths: words(["/proc/kcore", "/proc/keys"]),
        readonly_paths: words(["/proc/sys"]),
        ..Default::default()
    });
    app
}

fn rich_helper() -> ContainerConfig {
    let mut helper = cri::container("helper", &["/bin/sh"]);
    helper.args = words(["-c", "sleep 0.3; exit 3"]);
    helper.cdi_devices = vec![CdiDevice { name: "example.org/card=one".to_owned() }];
    let linux = helper.linux.as_mut().unwrap();
    linux.security_context = Some(LinuxContainerSecurityContext {
        namespace_options: namespaces(NamespaceMode::Pod, NamespaceMode::Pod),
        run_as_user: Some(Int64Value { value: 1001 }),
        run_as_group: Some(Int64Value { value: 1002 }),
        supplemental_groups: vec![2000, 2001],
        no_new_privs: true,
        readonly_rootfs: true,
        seccomp: seccomp(ProfileType::Unconfined),
        ..Default::default()
    });
    helper
}

/// As few values as possible: no limits, the host's network, separate PID namespaces, and a handler
/// that passes no annotation.
pub fn lean(cgroup: &str) -> Pod {
    let mut config = cri::pod(cgroup, "bare");
    config.metadata.as_mut().unwrap().attempt = 2;
    config.labels = map([("io.kubernetes.pod.name", "bare")]);
    let mut app = cri::container("app", &[]);
    app.envs = Vec::new();
    app.metadata.as_mut().unwrap().attempt = 1;
    app.linux.as_mut().unwrap().resources = None;
    let mut helper = cri::container("helper", &["/bin/sh", "-c", "sleep 0.3; exit 3"]);
    helper.linux.as_mut().unwrap().resources = None;
    let update = LinuxContainerResources { cpu_shares: 300, ..Default::default() };
    Pod { handler: "", config, app, update, helper, is_orderly: false }
}

/// The IDs in a lifecycle, each with its replacement.
pub type Ids = Vec<(String, &'static str)>;

/// Runs the pod from its start to its removal; returns the IDs.
pub async fn live(cri: &mut Cri, pod: &Pod) -> Ids {
    let id = cri::run_pod_with(cri, pod.config.clone(), pod.handler).await;
    let app = cri::create(cri, &id, pod.config.clone(), pod.app.clone()).await;
    cri::start(cri, &app).await.unwrap();
    let helper = cri::create(cri, &id, pod.config.clone(), pod.helper.clone()).await;
    cri::start(cri, &helper).await.unwrap();
    assert_eq!(ends(cri, &helper).await, 3);
    update(cri, &app, pod.update.clone()).await.unwrap();
    if pod.is_orderly {
        cri::end_container(cri, &app).await;
        cri::end_container(cri, &helper).await;
    }
    cri::end_pod(cri, &id).await;
    vec![(id, "POD"), (app, "APP"), (helper, "HELPER")]
}

pub async fn update(
    cri: &mut Cri,
    id: &str,
    resources: LinuxContainerResources,
) -> Result<(), tonic::Status> {
    let request =
        UpdateContainerResourcesRequest { container_id: id.to_owned(), linux: Some(resources) };
    cri.update_container_resources(request).await.map(|_| ())
}

/// Waits until a container has exited; returns its exit code.
pub async fn ends(cri: &mut Cri, id: &str) -> i32 {
    let deadline = Instant::now() + crate::PATIENCE;
    loop {
        if let Some(code) = exit_code(cri, id).await {
            return code;
        }
        assert!(Instant::now() < deadline, "{id} does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn exit_code(cri: &mut Cri, id: &str) -> Option<i32> {
    let request =
        super::generated::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    let status = cri.container_status(request).await.unwrap().into_inner().status?;
    let has_ended = status.state() == super::generated::ContainerState::ContainerExited;
    has_ended.then_some(status.exit_code)
}
