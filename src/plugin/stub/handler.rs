// SPDX-License-Identifier: Apache-2.0
//! What a plugin does at each event. Every method but `events` has a default that changes
//! nothing, so a plugin writes only what it cares for.

use protobuf::MessageDyn;

use super::super::{Event, api};
use super::{Result, RuntimeHandle, async_trait};

/// A plugin. An error from a handler refuses what the engine is doing (create, start, update), or
/// is noted where there is nothing left to refuse (stop, remove, the post events).
///
/// A handler may take as long as the request time-out that `configure` receives. One that takes
/// longer is not stopped: the next request may find it still at work.
#[async_trait]
#[expect(unused_variables, reason = "the names are documentation")]
pub trait PluginHandler: Send + Sync + 'static {
    /// The events to receive; asked after `configure`. There must be one at least: the protocol
    /// takes an empty list for all events.
    fn events(&self) -> &[Event];

    /// What silence of this plugin means, where the operator has not decided; None: it is
    /// skipped, and disconnected at its first time-out. Runtimes before NRI v0.12.4 ignore it.
    fn failure_policy(&self) -> Option<api::FailurePolicy> {
        None
    }

    /// Everything that arrives, as it came, before its own method; for logs and counters.
    fn observe(&self, method: &'static str, message: &dyn MessageDyn) {}

    /// The configuration text (in any form the plugin likes) and what the runtime is. The first
    /// call of each connection; `runtime` may be kept for later.
    async fn configure(
        &self,
        runtime: &RuntimeHandle,
        request: api::ConfigureRequest,
    ) -> Result<()> {
        Ok(())
    }

    /// All that lives already, whole, however many parts it came in; the answer may update it.
    /// Once in each connection, before the first event.
    async fn synchronize(
        &self,
        runtime: &RuntimeHandle,
        pods: Vec<api::PodSandbox>,
        containers: Vec<api::Container>,
    ) -> Result<Vec<api::ContainerUpdate>> {
        Ok(Vec::new())
    }

    /// The runtime shuts the plugin down; the connection ends soon after.
    async fn shutdown(&self) {}

    /// A pod begins.
    async fn run_pod_sandbox(
        &self,
        runtime: &RuntimeHandle,
        request: api::RunPodSandboxRequest,
    ) -> Result<()> {
        Ok(())
    }

    /// A pod is about to be resized.
    async fn update_pod_sandbox(
        &self,
        runtime: &RuntimeHandle,
        request: api::UpdatePodSandboxRequest,
    ) -> Result<()> {
        Ok(())
    }

    /// A pod was resized.
    async fn post_update_pod_sandbox(
        &self,
        runtime: &RuntimeHandle,
        request: api::PostUpdatePodSandboxRequest,
    ) -> Result<()> {
        Ok(())
    }

    /// A pod has ended.
    async fn stop_pod_sandbox(
        &self,
        runtime: &RuntimeHandle,
        request: api::StopPodSandboxRequest,
    ) -> Result<()> {
        Ok(())
    }

    /// A pod is forgotten.
    async fn remove_pod_sandbox(
        &self,
        runtime: &RuntimeHandle,
        request: api::RemovePodSandboxRequest,
    ) -> Result<()> {
        Ok(())
    }

    /// A container is about to be made: the one place to adjust it. The request shows what
    /// plugins with a lower index have changed already.
    async fn create_container(
        &self,
        runtime: &RuntimeHandle,
        request: api::CreateContainerRequest,
    ) -> Result<api::CreateContainerResponse> {
        Ok(api::CreateContainerResponse::new())
    }

    /// A container was made; its process waits.
    async fn post_create_container(
        &self,
        runtime: &RuntimeHandle,
        request: api::PostCreateContainerRequest,
    ) -> Result<()> {
        Ok(())
    }

    /// A container is about to be started; its pid and cgroup are there.
    async fn start_container(
        &self,
        runtime: &RuntimeHandle,
        request: api::StartContainerRequest,
    ) -> Result<()> {
        Ok(())
    }

    /// A container was started.
    async fn post_start_container(
        &self,
        runtime: &RuntimeHandle,
        request: api::PostStartContainerRequest,
    ) -> Result<()> {
        Ok(())
    }

    /// The engine wants other resources for a container; the answer may change them, and those
    /// of other containers.
    async fn update_container(
        &self,
        runtime: &RuntimeHandle,
        request: api::UpdateContainerRequest,
    ) -> Result<api::UpdateContainerResponse> {
        Ok(api::UpdateContainerResponse::new())
    }

    /// A container was updated.
    async fn post_update_container(
        &self,
        runtime: &RuntimeHandle,
        request: api::PostUpdateContainerRequest,
    ) -> Result<()> {
        Ok(())
    }

    /// A container has ended; the answer may update others.
    async fn stop_container(
        &self,
        runtime: &RuntimeHandle,
        request: api::StopContainerRequest,
    ) -> Result<api::StopContainerResponse> {
        Ok(api::StopContainerResponse::new())
    }

    /// A container is forgotten.
    async fn remove_container(
        &self,
        runtime: &RuntimeHandle,
        request: api::RemoveContainerRequest,
    ) -> Result<()> {
        Ok(())
    }

    /// What all plugins together want of a container; an error rejects it, with its text as the
    /// reason.
    async fn validate_container_adjustment(
        &self,
        runtime: &RuntimeHandle,
        request: api::ValidateContainerAdjustmentRequest,
    ) -> Result<()> {
        Ok(())
    }
}
