// SPDX-License-Identifier: Apache-2.0
//! The plugins of the benches, each a separate process: one adds its own variable and annotation to
//! each container, after working for a time if one is set; the other adds a variable to each exec.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nri_plugin::api::extension::{ExecAdjustment, ExecContainerRequest, ExecContainerResponse};
use nri_plugin::{Context, Event, ExtensionEvent, Handler, Plugin, Stub};
use nri_runc::plugin::api;
use ttrpc::r#async::TtrpcContext;

struct Adder {
    index: String,
    works: Duration,
    /// Number of variables that it adds.
    variables: usize,
}

#[async_trait]
impl api::Plugin for Adder {
    async fn configure(
        &self,
        _: &TtrpcContext,
        _: api::ConfigureRequest,
    ) -> ttrpc::Result<api::ConfigureResponse> {
        // CreateContainer alone.
        Ok(api::ConfigureResponse { events: 1 << 3, ..Default::default() })
    }

    async fn synchronize(
        &self,
        _: &TtrpcContext,
        request: api::SynchronizeRequest,
    ) -> ttrpc::Result<api::SynchronizeResponse> {
        Ok(api::SynchronizeResponse { more: request.more, ..Default::default() })
    }

    async fn create_container(
        &self,
        _: &TtrpcContext,
        _: api::CreateContainerRequest,
    ) -> ttrpc::Result<api::CreateContainerResponse> {
        if !self.works.is_zero() {
            // The timers of an event loop are too coarse for a millisecond.
            std::thread::sleep(self.works);
        }
        let name = format!("ADDED_{}", self.index);
        let one = |number: usize| api::KeyValue {
            key: if number == 0 { name.clone() } else { format!("{name}_{number}") },
            value: "b".into(),
            ..Default::default()
        };
        let adjust = api::ContainerAdjustment {
            env: (0..self.variables).map(one).collect(),
            annotations: [(name, "b".to_owned())].into(),
            ..Default::default()
        };
        Ok(api::CreateContainerResponse { adjust: Some(adjust).into(), ..Default::default() })
    }
}

/// `plugin SOCKET INDEX MICROSECONDS VARIABLES`
pub(crate) fn main(words: &[String]) {
    let [socket, index, works, variables] = words else { return };
    nri_runc::Allocator::keep_blocks_of_this_thread();
    let adder = Adder {
        index: index.clone(),
        works: Duration::from_micros(works.parse().unwrap()),
        variables: variables.parse().unwrap(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
        let stub = Stub::register(stream, index, "adder", Arc::new(adder)).await.unwrap();
        stub.closed().await;
    });
}

struct ExecAdder;

#[async_trait]
impl Handler for ExecAdder {
    fn events(&self) -> &[Event] {
        &[Event::RunPodSandbox]
    }

    fn extension_events(&self) -> &[ExtensionEvent] {
        &[ExtensionEvent::EXEC_CONTAINER]
    }

    async fn exec_container(
        &self,
        _: &Context,
        _: ExecContainerRequest,
    ) -> nri_plugin::Result<ExecContainerResponse> {
        let env = api::KeyValue { key: "ADDED".into(), value: "b".into(), ..Default::default() };
        let adjust = ExecAdjustment { env: vec![env], ..Default::default() };
        Ok(ExecContainerResponse { adjust: Some(adjust).into(), ..Default::default() })
    }
}

/// `exec-plugin SOCKET`
pub(crate) fn exec_main(words: &[String]) {
    let [socket] = words else { return };
    let plugin = Plugin::new("10-execs", ExecAdder).unwrap().socket(socket);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(plugin.run()).unwrap();
}

/// Plugins that end with this value.
#[derive(Default)]
pub(crate) struct Plugins(Vec<Child>);

impl Plugins {
    pub(crate) fn start(socket: &Path, count: usize, works: Duration) -> Self {
        Self::setting(socket, count, works, 1)
    }

    /// Plugins that add this number of variables each.
    pub(crate) fn setting(socket: &Path, count: usize, works: Duration, variables: usize) -> Self {
        let start = |number: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.arg("plugin").arg(socket).arg(format!("{:02}", number + 10));
            command.arg(works.as_micros().to_string()).arg(variables.to_string());
            command.stdin(Stdio::null()).spawn().unwrap()
        };
        Self((0..count).map(start).collect())
    }

    /// The plugin that handles execs.
    pub(crate) fn of_execs(socket: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("exec-plugin").arg(socket).stdin(Stdio::null());
        Self(vec![command.spawn().unwrap()])
    }
}

impl Drop for Plugins {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}
