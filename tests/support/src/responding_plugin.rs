// SPDX-License-Identifier: Apache-2.0
//! A plugin with a script for each event: answer, refuse, sleep, hang, disconnect, call back. It
//! records its events, and the number of concurrent requests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nri_plugin::{Adjustment, Context};
use nri_runc::plugin::{ALL_EVENTS, Event, api};
use tokio::sync::Semaphore;

use crate::acts_at_every_event;

/// The response.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Response {
    Answer,
    Refuse(&'static str),
    Sleep(u64),
    Hang,
    Leave,
    /// Requests an update of the container `other` before it answers.
    CallBack,
    /// Sets this variable, in a create.
    Set(&'static str),
    /// Waits until the test permits the answer, then sets this variable in a create.
    WaitAndSet(&'static str),
    /// Waits this number of milliseconds, then sets this variable in a create.
    SleepAndSet(u64, &'static str),
}

/// Chooses the response by the event and the name of the container or pod.
type Script = dyn Fn(Event, &str) -> Response + Send + Sync;

pub struct RespondingPlugin {
    script: Box<Script>,
    events: Vec<Event>,
    declares: Option<api::FailurePolicy>,
    received: Mutex<Vec<String>>,
    /// A permit for each answer that has to wait.
    pub may_answer: Semaphore,
    in_hand: AtomicUsize,
    most: AtomicUsize,
}

impl RespondingPlugin {
    pub fn new(script: impl Fn(Event, &str) -> Response + Send + Sync + 'static) -> Self {
        let all = ALL_EVENTS.into_iter();
        Self {
            script: Box::new(script),
            events: all.filter(|event| *event != Event::ValidateContainerAdjustment).collect(),
            declares: None,
            received: Mutex::default(),
            may_answer: Semaphore::new(0),
            in_hand: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }
    }

    pub fn always(act: Response) -> Self {
        Self::new(move |_, _| act)
    }

    /// Responds with `act` at `event` and answers everything else.
    pub fn at(event: Event, act: Response) -> Self {
        Self::new(move |what, _| if what == event { act } else { Response::Answer })
    }

    pub fn validates(mut self) -> Self {
        self.events = ALL_EVENTS.to_vec();
        self
    }

    pub fn declares(mut self, fail_request: bool, keep_connected: bool) -> Self {
        let policy = api::FailurePolicy { fail_request, keep_connected, ..Default::default() };
        self.declares = Some(policy);
        self
    }

    /// Returns the received events as `EVENT NAME`, in order.
    pub fn received(&self) -> Vec<String> {
        self.received.lock().unwrap().clone()
    }

    /// The maximum number of concurrent requests.
    pub fn most_at_once(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    async fn act(
        &self,
        context: &Context,
        event: Event,
        name: &str,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        self.received.lock().unwrap().push(format!("{} {name}", event.name()));
        let now = self.in_hand.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let act = (self.script)(event, name);
        let done = self.perform(act, context).await;
        self.in_hand.fetch_sub(1, Ordering::SeqCst);
        done?;
        let mut created = Adjustment::new();
        if let Response::Set(key) | Response::WaitAndSet(key) | Response::SleepAndSet(_, key) = act
        {
            created = created.env(key, "1");
        }
        Ok(created.into())
    }

    async fn perform(&self, act: Response, context: &Context) -> nri_plugin::Result<()> {
        match act {
            Response::Answer | Response::Set(_) => {}
            Response::Refuse(why) => return Err(why.into()),
            Response::Sleep(millis) | Response::SleepAndSet(millis, _) => {
                tokio::time::sleep(Duration::from_millis(millis)).await;
            }
            Response::WaitAndSet(_) => self.may_answer.acquire().await?.forget(),
            Response::Hang => tokio::time::sleep(Duration::from_secs(600)).await,
            Response::Leave => {
                context.runtime().close();
                tokio::time::sleep(Duration::from_secs(600)).await;
            }
            Response::CallBack => {
                let update =
                    api::ContainerUpdate { container_id: "other".into(), ..Default::default() };
                let request =
                    api::UpdateContainersRequest { update: vec![update], ..Default::default() };
                context.runtime().update_containers(&request).await?;
            }
        }
        Ok(())
    }
}

acts_at_every_event! { RespondingPlugin {
    fn events(&self) -> &[Event] {
        &self.events
    }

    fn failure_policy(&self) -> Option<api::FailurePolicy> {
        self.declares.clone()
    }

    async fn shutdown(&self) {
        self.received.lock().unwrap().push("Shutdown".to_owned());
    }
} }

/// A plugin that its connection and the test share.
pub type SharedPlugin = Arc<RespondingPlugin>;
