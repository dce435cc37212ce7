// SPDX-License-Identifier: Apache-2.0
//! A handler for every event, with the harness's runtime: it runs and removes a pod with one
//! container.
//!
//! `cargo run -p nri-plugin --features harness --example every_event`
#![expect(clippy::print_stdout, reason = "an example prints")]

use nri_plugin::harness::{Runtime, container, pod};
use nri_plugin::{
    ALL_EVENTS, Adjustment, Blocking, BlockingHandler, Context, Event, Resources, Result, Update,
    Updates, annotation, api,
};

struct EveryEvent;

impl BlockingHandler for EveryEvent {
    fn events(&self) -> &[Event] {
        &ALL_EVENTS
    }

    fn configure(&self, _: &Context, request: api::ConfigureRequest) -> Result<()> {
        println!("Configure by {}", request.runtime_name);
        Ok(())
    }

    fn synchronize(
        &self,
        _: &Context,
        pods: Vec<api::PodSandbox>,
        containers: Vec<api::Container>,
    ) -> Result<Vec<api::ContainerUpdate>> {
        println!("Synchronize with {} pods, {} containers", pods.len(), containers.len());
        Ok(Updates::new().into())
    }

    fn run_pod_sandbox(&self, _: &Context, request: api::RunPodSandboxRequest) -> Result<()> {
        println!("RunPodSandbox {}", request.pod.name);
        Ok(())
    }

    fn update_pod_sandbox(&self, _: &Context, request: api::UpdatePodSandboxRequest) -> Result<()> {
        println!("UpdatePodSandbox {}", request.pod.name);
        Ok(())
    }

    fn post_update_pod_sandbox(
        &self,
        _: &Context,
        request: api::PostUpdatePodSandboxRequest,
    ) -> Result<()> {
        println!("PostUpdatePodSandbox {}", request.pod.name);
        Ok(())
    }

    fn create_container(
        &self,
        context: &Context,
        request: api::CreateContainerRequest,
    ) -> Result<api::CreateContainerResponse> {
        let (pod, container) = (&request.pod, &request.container);
        println!(
            "CreateContainer {}, to be answered within {:?}",
            container.name,
            context.remaining()
        );
        let shares = match annotation(pod, &container.name, "shares.example.org") {
            Some((key, text)) => text.parse().map_err(|error| format!("{key}: {error}"))?,
            None => 512,
        };
        Ok(Adjustment::new().resources(Resources::new().cpu_shares(shares)).into())
    }

    fn validate_container_adjustment(
        &self,
        _: &Context,
        request: api::ValidateContainerAdjustmentRequest,
    ) -> Result<()> {
        println!("ValidateContainerAdjustment {}", request.container.name);
        match request.adjust.args.is_empty() {
            true => Ok(()),
            false => Err("no plugin may change the command line".into()),
        }
    }

    fn post_create_container(
        &self,
        _: &Context,
        request: api::PostCreateContainerRequest,
    ) -> Result<()> {
        println!("PostCreateContainer {}", request.container.name);
        Ok(())
    }

    fn start_container(&self, _: &Context, request: api::StartContainerRequest) -> Result<()> {
        println!("StartContainer {}", request.container.name);
        Ok(())
    }

    fn post_start_container(
        &self,
        _: &Context,
        request: api::PostStartContainerRequest,
    ) -> Result<()> {
        println!("PostStartContainer {}", request.container.name);
        Ok(())
    }

    fn update_container(
        &self,
        _: &Context,
        request: api::UpdateContainerRequest,
    ) -> Result<api::UpdateContainerResponse> {
        println!("UpdateContainer {}", request.container.name);
        Ok(Updates::from(Update::of(&request.container.id).memory_reservation(1 << 20)).into())
    }

    fn post_update_container(
        &self,
        _: &Context,
        request: api::PostUpdateContainerRequest,
    ) -> Result<()> {
        println!("PostUpdateContainer {}", request.container.name);
        Ok(())
    }

    fn stop_container(
        &self,
        _: &Context,
        request: api::StopContainerRequest,
    ) -> Result<api::StopContainerResponse> {
        println!("StopContainer {}", request.container.name);
        Ok(Updates::new().into())
    }

    fn remove_container(&self, _: &Context, request: api::RemoveContainerRequest) -> Result<()> {
        println!("RemoveContainer {}", request.container.name);
        Ok(())
    }

    fn stop_pod_sandbox(&self, _: &Context, request: api::StopPodSandboxRequest) -> Result<()> {
        println!("StopPodSandbox {}", request.pod.name);
        Ok(())
    }

    fn remove_pod_sandbox(&self, _: &Context, request: api::RemovePodSandboxRequest) -> Result<()> {
        println!("RemovePodSandbox {}", request.pod.name);
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut runtime = Runtime::new()?;
    runtime.add("10-every-event", Blocking::new(EveryEvent)).await?;
    runtime.run_pod(pod("web")).await?;
    runtime.resize_pod("web", Resources::new().cpu_shares(2048).into()).await?;
    runtime.create(container("nginx", "web")).await?;
    runtime.start_container("nginx").await?;
    runtime.update("nginx", Resources::new().memory_limit(1 << 30).into()).await?;
    runtime.remove_pod("web").await
}
