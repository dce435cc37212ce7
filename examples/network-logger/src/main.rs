// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: logs the network namespace and the addresses of each pod.
//!
//! ```text
//! cargo run -p network-logger -- --socket /var/run/nri/nri.sock        # by hand, or installed:
//! cp target/debug/network-logger /opt/nri/plugins/99-network-logger
//! ```
//!
//! A line for each pod that exists at the start, and for each that starts, stops or is removed, on standard error; the
//! daemon logs those of a launched plugin under its name:
//!
//! ```text
//! started pod shop/web: network namespace /var/run/netns/cni-1, addresses 10.0.0.7, fd00::7
//! ```
//!
//! A pod on the host network has no network namespace. Addresses are as the engine reports them; some report none.

use nri_plugin::{Context, Event, Handler, api, async_trait};
use tracing::info;

/// What the line says about the pod's network.
fn network(pod: &api::PodSandbox) -> String {
    let namespace = pod.linux.namespaces.iter().find(|one| one.type_ == "network");
    let namespace = match namespace.map(|one| one.path.as_str()) {
        None => "the node's network",
        Some("") => "a network namespace without a path",
        Some(path) => &format!("network namespace {path}"),
    };
    match pod.ips.as_slice() {
        [] => format!("{namespace}, no addresses"),
        addresses => format!("{namespace}, addresses {}", addresses.join(", ")),
    }
}

fn line(what: &str, pod: &api::PodSandbox) -> String {
    let line = format!("{what} pod {}/{}: {}", pod.namespace, pod.name, network(pod));
    // So a name cannot add a second line.
    line.replace(char::is_control, "?")
}

struct NetworkLogger;

#[async_trait]
impl Handler for NetworkLogger {
    fn events(&self) -> &[Event] {
        &[Event::RunPodSandbox, Event::StopPodSandbox, Event::RemovePodSandbox]
    }

    async fn synchronize(
        &self,
        _: &Context,
        pods: Vec<api::PodSandbox>,
        _: Vec<api::Container>,
    ) -> nri_plugin::Result<Vec<api::ContainerUpdate>> {
        for pod in &pods {
            info!("{}", line("existing", pod));
        }
        Ok(Vec::new())
    }

    async fn run_pod_sandbox(
        &self,
        _: &Context,
        request: api::RunPodSandboxRequest,
    ) -> nri_plugin::Result<()> {
        info!("{}", line("started", &request.pod));
        Ok(())
    }

    async fn stop_pod_sandbox(
        &self,
        _: &Context,
        request: api::StopPodSandboxRequest,
    ) -> nri_plugin::Result<()> {
        info!("{}", line("stopped", &request.pod));
        Ok(())
    }

    async fn remove_pod_sandbox(
        &self,
        _: &Context,
        request: api::RemovePodSandboxRequest,
    ) -> nri_plugin::Result<()> {
        info!("{}", line("removed", &request.pod));
        Ok(())
    }

    async fn shutdown(&self) {
        info!("the runtime ends the plugin");
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("99-network-logger", NetworkLogger)
}

#[cfg(test)]
mod tests {
    use nri_plugin::harness::{Runtime, container, pod};

    use super::*;

    fn in_namespace(path: &str, addresses: &[&str]) -> api::PodSandbox {
        let mut pod = pod("web");
        let type_ = "network".to_owned();
        let namespace = api::LinuxNamespace { type_, path: path.to_owned(), ..Default::default() };
        pod.linux.mut_or_insert_default().namespaces = vec![namespace];
        pod.ips = addresses.iter().map(|one| (*one).to_owned()).collect();
        pod
    }

    #[test]
    fn a_line_has_the_namespace_and_all_addresses() {
        let line = line("started", &in_namespace("/run/netns/a", &["10.0.0.7", "fd00::7"]));
        let wanted = "network namespace /run/netns/a, addresses 10.0.0.7, fd00::7";
        assert_eq!(line, format!("started pod default/web: {wanted}"));
    }

    #[test]
    fn a_line_names_the_missing_network_facts() {
        assert_eq!(network(&pod("web")), "the node's network, no addresses");
        let unnamed = "a network namespace without a path, no addresses";
        assert_eq!(network(&in_namespace("", &[])), unnamed);
    }

    #[test]
    fn a_name_cannot_write_a_second_line() {
        let mut pod = pod("web");
        pod.name = "a\nstarted pod b\u{1b}[2J".to_owned();
        let line = line("removed", &pod);
        assert!(line.starts_with("removed pod default/a?started pod b?[2J: "), "{line}");
    }

    #[tokio::test]
    async fn the_network_logger_follows_a_pod_and_changes_nothing() {
        let mut runtime = Runtime::new().unwrap();
        runtime.run_pod(pod("before")).await.unwrap();
        runtime.add("99-network-logger", NetworkLogger).await.unwrap();
        runtime.run_pod(in_namespace("/run/netns/a", &[])).await.unwrap();
        let created = runtime.create(container("nginx", "web")).await.unwrap();
        assert_eq!(created.adjust, api::ContainerAdjustment::default());
        runtime.remove_pod("web").await.unwrap();
        runtime.restart().await.unwrap();
        assert_eq!(runtime.plugins(), ["99-network-logger"]);
    }
}
