// SPDX-License-Identifier: Apache-2.0
//! A plugin of the extension, as a closure: its responses to execs, and the received requests.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use nri_plugin::api::extension::{
    ExecAdjustment, ExecContainerRequest, ExecContainerResponse, PostExecRequest, UpdateResult,
    UpdateResultsRequest, ValidateExecRequest,
};
use nri_plugin::{
    Context, Event, ExtensionEvent, Handler, Plugin, PluginHandle, Update, Updates, api,
    async_trait,
};

use crate::play::on_a_thread;

/// The response of a plugin to an exec.
#[derive(Clone)]
pub enum ExecAnswer {
    Adjust(ExecAdjustment),
    Refuse(&'static str),
    /// Never answers.
    Hang,
    /// Closes its connection instead of answering.
    Leave,
    /// Closes its connection once it is notified.
    LeaveLater(Arc<Notify>),
}

/// A plugin that handles execs.
#[derive(Clone)]
pub struct ExecPlugin {
    events: Vec<ExtensionEvent>,
    answer: Option<ExecAnswer>,
    rejects: Option<&'static str>,
    policy: Option<api::FailurePolicy>,
    /// Never answers notifications or Shutdown.
    hangs_otherwise: bool,
    /// The CPU shares that it sets when the engine updates a container.
    pub shares: Option<u64>,
    /// The received requests, oldest first.
    pub execs: Arc<Mutex<Vec<ExecContainerRequest>>>,
    pub validated: Arc<Mutex<Vec<ValidateExecRequest>>>,
    pub posts: Arc<Mutex<Vec<PostExecRequest>>>,
    pub results: Arc<Mutex<Vec<UpdateResult>>>,
}

impl ExecPlugin {
    pub fn subscribed(events: &[ExtensionEvent]) -> Self {
        Self {
            events: events.to_vec(),
            answer: None,
            rejects: None,
            policy: None,
            hangs_otherwise: false,
            shares: None,
            execs: Arc::default(),
            validated: Arc::default(),
            posts: Arc::default(),
            results: Arc::default(),
        }
    }

    /// A plugin that gives this answer to each ExecContainer.
    pub fn answering(answer: ExecAnswer) -> Self {
        Self { answer: Some(answer), ..Self::subscribed(&[ExtensionEvent::EXEC_CONTAINER]) }
    }

    /// A plugin that validates execs, and rejects all of them with a reason.
    pub fn validating(rejects: Option<&'static str>) -> Self {
        Self { rejects, ..Self::subscribed(&[ExtensionEvent::VALIDATE_EXEC]) }
    }

    /// Declares that an exec is refused if the plugin does not answer.
    #[must_use]
    pub fn protecting(mut self) -> Self {
        self.policy = Some(api::FailurePolicy {
            fail_request: true,
            keep_connected: true,
            ..api::FailurePolicy::default()
        });
        self
    }

    /// Never answers a notification or Shutdown.
    #[must_use]
    pub fn hanging_otherwise(mut self) -> Self {
        self.hangs_otherwise = true;
        self
    }

    /// Runs it until its connection ends; returns once it is synchronized.
    pub fn connect(&self, socket: PathBuf, id: &str) -> PluginHandle {
        let plugin = Plugin::new(id, self.clone()).unwrap().socket(socket).reconnect(false);
        let handle = plugin.handle();
        let (send, ready) = std::sync::mpsc::channel();
        let waits = handle.clone();
        on_a_thread(async move || {
            tokio::spawn(async move {
                waits.ready().await;
                let _nobody_waits = send.send(());
            });
            plugin.run().await.unwrap();
        });
        ready.recv_timeout(Duration::from_secs(60)).unwrap();
        handle
    }
}

#[async_trait]
impl Handler for ExecPlugin {
    fn events(&self) -> &[Event] {
        match self.shares {
            None => &[Event::RunPodSandbox],
            Some(_) => &[Event::RunPodSandbox, Event::UpdateContainer],
        }
    }

    async fn shutdown(&self) {
        if self.hangs_otherwise {
            std::future::pending::<()>().await;
        }
    }

    async fn update_container(
        &self,
        _: &Context,
        request: api::UpdateContainerRequest,
    ) -> nri_plugin::Result<api::UpdateContainerResponse> {
        let update = |shares| -> Update { Update::of(&request.container.id).cpu_shares(shares) };
        Ok(self.shares.map(update).into_iter().collect::<Updates>().into())
    }

    fn extension_events(&self) -> &[ExtensionEvent] {
        &self.events
    }

    fn failure_policy(&self) -> Option<api::FailurePolicy> {
        self.policy.clone()
    }

    async fn exec_container(
        &self,
        context: &Context,
        request: ExecContainerRequest,
    ) -> nri_plugin::Result<ExecContainerResponse> {
        self.execs.lock().unwrap().push(request);
        match self.answer.clone() {
            None => Ok(ExecContainerResponse::default()),
            Some(ExecAnswer::Adjust(adjust)) => {
                Ok(ExecContainerResponse { adjust: Some(adjust).into(), ..Default::default() })
            }
            Some(ExecAnswer::Refuse(why)) => Err(why.into()),
            Some(answer) => {
                if let ExecAnswer::LeaveLater(when) = &answer {
                    when.notified().await;
                }
                if !matches!(answer, ExecAnswer::Hang) {
                    context.runtime().close();
                }
                std::future::pending().await
            }
        }
    }

    async fn validate_exec(
        &self,
        _: &Context,
        request: ValidateExecRequest,
    ) -> nri_plugin::Result<()> {
        self.validated.lock().unwrap().push(request);
        self.rejects.map_or(Ok(()), |why| Err(why.into()))
    }

    async fn post_exec(&self, _: &Context, request: PostExecRequest) -> nri_plugin::Result<()> {
        self.posts.lock().unwrap().push(request);
        if self.hangs_otherwise {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn update_results(
        &self,
        _: &Context,
        request: UpdateResultsRequest,
    ) -> nri_plugin::Result<()> {
        self.results.lock().unwrap().extend(request.results);
        Ok(())
    }
}
