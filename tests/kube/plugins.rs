// SPDX-License-Identifier: Apache-2.0
//! Plugins in the test's own process: they connect to the plugin socket like a DaemonSet's, and
//! disconnect on drop.

use std::sync::Arc;
use std::thread::JoinHandle;

use nri_plugin::{Adjustment, Context, Handler, Stub, async_trait};
use nri_runc::plugin::{Event, api};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::inside::admin;
use super::machine::wait_for;
use super::node::PLUGINS;

type Ask = (api::UpdateContainersRequest, std::sync::mpsc::Sender<Result<(), String>>);

pub(super) struct Plugin {
    asks: Option<UnboundedSender<Ask>>,
    thread: Option<JoinHandle<()>>,
}

impl Plugin {
    /// Connects it as `id` (`NN-name`); it is synchronized when this returns.
    #[track_caller]
    pub(super) fn connect(id: &'static str, handler: Arc<dyn Handler>) -> Self {
        let plugin = Self::start(id, handler);
        let (index, name) = id.split_once('-').unwrap();
        wait_for("the plugin is synchronized", || {
            let plugins = admin(&["plugins"]);
            let mut all = plugins.as_array()?.iter();
            let it = all.find(|one| one["index"] == index && one["name"] == name)?;
            (it["state"] == "synchronized").then_some(())
        });
        plugin
    }

    /// Connects a plugin without waiting until it is synchronized.
    pub(super) fn start(id: &'static str, handler: Arc<dyn Handler>) -> Self {
        let (sender, asks) = unbounded_channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(serve(id, handler, asks));
        });
        Self { asks: Some(sender), thread: Some(thread) }
    }

    /// Requests the eviction of a container, unprompted.
    pub(super) fn evict(&self, id: &str, reason: &str) -> Result<(), String> {
        let eviction = api::ContainerEviction {
            container_id: id.to_owned(),
            reason: reason.to_owned(),
            ..Default::default()
        };
        self.ask(api::UpdateContainersRequest { evict: vec![eviction], ..Default::default() })
    }

    /// Sends an unsolicited request.
    pub(super) fn ask(&self, request: api::UpdateContainersRequest) -> Result<(), String> {
        let (sender, answer) = std::sync::mpsc::channel();
        self.asks.as_ref().unwrap().send((request, sender)).unwrap();
        answer.recv().unwrap()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        drop(self.asks.take());
        let _its_failure_was_shown = self.thread.take().map(JoinHandle::join);
    }
}

async fn serve(id: &str, handler: Arc<dyn Handler>, mut asks: UnboundedReceiver<Ask>) {
    let stream = tokio::net::UnixStream::connect(PLUGINS).await.unwrap();
    let stub = Stub::serve(stream, id, "", handler).await.unwrap();
    while let Some((request, sender)) = asks.recv().await {
        let answer = stub.update_containers(&request).await;
        let _nobody_waits = sender.send(answer.map(|_| ()).map_err(|error| error.to_string()));
    }
    stub.close();
}

/// Sets a variable and a limit of open files in the containers of one name.
pub(super) struct Greeter(pub(super) &'static str);

#[async_trait]
impl Handler for Greeter {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        if request.container.name != self.0 {
            return Ok(api::CreateContainerResponse::default());
        }
        Ok(Adjustment::new().env("GREETING", "hello").rlimit("RLIMIT_NOFILE", 123, 321).into())
    }
}
