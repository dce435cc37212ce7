// SPDX-License-Identifier: Apache-2.0
//! Connects the extension's service with a [`Handler`](crate::Handler), as `service.rs` does for
//! NRI's. It decides nothing.

use std::sync::Arc;

use nri_api::extension::{self, PluginExtension};
use ttrpc::r#async::TtrpcContext;

use crate::async_trait;
use crate::service::{Service, refusal};

impl Service {
    /// Returns the service of a plugin that subscribes to events of the extension.
    pub(crate) fn extension(self: &Arc<Self>) -> Option<Arc<dyn PluginExtension + Send + Sync>> {
        let is_wanted = !self.handler.extension_events().is_empty();
        is_wanted.then(|| Arc::clone(self) as Arc<dyn PluginExtension + Send + Sync>)
    }
}

#[async_trait]
impl PluginExtension for Service {
    async fn exec_container(
        &self,
        context: &TtrpcContext,
        request: extension::ExecContainerRequest,
    ) -> ttrpc::Result<extension::ExecContainerResponse> {
        let (context, _open) = self.begin(context);
        self.handler.observe("ExecContainer", &request);
        self.handler.exec_container(&context, request).await.map_err(refusal)
    }

    async fn validate_exec(
        &self,
        context: &TtrpcContext,
        request: extension::ValidateExecRequest,
    ) -> ttrpc::Result<extension::ValidateExecResponse> {
        let (context, _open) = self.begin(context);
        self.handler.observe("ValidateExec", &request);
        let reason = self.handler.validate_exec(&context, request).await.err();
        let reason = reason.map(|reason| reason.to_string());
        Ok(extension::ValidateExecResponse {
            reject: reason.is_some(),
            reason: reason.unwrap_or_default(),
            ..Default::default()
        })
    }

    async fn post_exec(
        &self,
        context: &TtrpcContext,
        request: extension::PostExecRequest,
    ) -> ttrpc::Result<extension::PostExecResponse> {
        let (context, _open) = self.begin(context);
        self.handler.observe("PostExec", &request);
        self.handler.post_exec(&context, request).await.map_err(refusal)?;
        Ok(extension::PostExecResponse::new())
    }

    async fn update_results(
        &self,
        context: &TtrpcContext,
        request: extension::UpdateResultsRequest,
    ) -> ttrpc::Result<extension::UpdateResultsResponse> {
        let (context, _open) = self.begin(context);
        self.handler.observe("UpdateResults", &request);
        self.handler.update_results(&context, request).await.map_err(refusal)?;
        Ok(extension::UpdateResultsResponse::new())
    }
}
