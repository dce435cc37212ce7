// SPDX-License-Identifier: Apache-2.0
//! A plugin that subscribes to almost nothing, receives the snapshot and requests updates of other
//! containers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nri_plugin::Stub;
use nri_runc::plugin::api;
use serde_json::json;
use ttrpc::r#async::TtrpcContext;

/// The plugin.
#[derive(Default)]
pub(crate) struct Mover {
    /// Time that it takes for each part of Synchronize.
    pub(crate) thinks: Duration,
}

impl Mover {
    pub(crate) async fn joins(self, socket: &Path) -> Stub {
        let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
        Stub::register(stream, "10", "mover", Arc::new(self)).await.unwrap()
    }
}

#[async_trait]
impl api::Plugin for Mover {
    async fn configure(
        &self,
        _: &TtrpcContext,
        _: api::ConfigureRequest,
    ) -> ttrpc::Result<api::ConfigureResponse> {
        // RemoveContainer alone, because at least one event must be named.
        Ok(api::ConfigureResponse { events: 1 << 10, ..Default::default() })
    }

    async fn synchronize(
        &self,
        _: &TtrpcContext,
        request: api::SynchronizeRequest,
    ) -> ttrpc::Result<api::SynchronizeResponse> {
        tokio::time::sleep(self.thinks).await;
        Ok(api::SynchronizeResponse { more: request.more, ..Default::default() })
    }
}

/// A request to set the CPU shares of a container.
pub(crate) fn shares(container: &str, value: u64) -> api::UpdateContainersRequest {
    let resources = json!({"cpu": {"shares": value}});
    let resources =
        nri_runc::testing::describe::resources_from_json(resources.as_object().unwrap());
    let linux =
        api::LinuxContainerUpdate { resources: Some(resources).into(), ..Default::default() };
    let update = api::ContainerUpdate {
        container_id: container.to_owned(),
        linux: Some(linux).into(),
        ..Default::default()
    };
    api::UpdateContainersRequest { update: vec![update], ..Default::default() }
}
