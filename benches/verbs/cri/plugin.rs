// SPDX-License-Identifier: Apache-2.0
//! The plugin of both sides, a separate process: it reads pod and container and answers with a
//! variable, a mount and an annotation, after a delay if one is set.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use nri_plugin::{Context, Handler, Plugin};
use nri_runc::plugin::{Event, api};

/// The events of a policy: a container's lifecycle without the Post events.
const LIFE: &[Event] = &[
    Event::RunPodSandbox,
    Event::StopPodSandbox,
    Event::RemovePodSandbox,
    Event::CreateContainer,
    Event::StartContainer,
    Event::UpdateContainer,
    Event::StopContainer,
    Event::RemoveContainer,
];

/// The events of most plugins.
const CREATION: &[Event] = &[Event::CreateContainer];

struct Policy {
    index: String,
    thinks: Duration,
}

#[async_trait]
impl Handler for Policy {
    fn events(&self) -> &[Event] {
        if self.thinks.is_zero() { LIFE } else { CREATION }
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        if !self.thinks.is_zero() {
            tokio::time::sleep(self.thinks).await;
        }
        let value = said(&request.pod.name, &request.container.name);
        let mount = api::Mount {
            destination: format!("/added-{}", self.index),
            type_: "tmpfs".to_owned(),
            source: "tmpfs".to_owned(),
            options: vec!["nosuid".to_owned(), "size=4k".to_owned()],
            ..Default::default()
        };
        let adjust = api::ContainerAdjustment {
            env: vec![(&variable(&self.index), &value).into()],
            mounts: vec![mount],
            annotations: [(format!("added-{}.example.org", self.index), value)].into(),
            ..Default::default()
        };
        Ok(adjust.into())
    }
}

/// The index of the plugin of this number, and with it the name and the value of its variable.
fn index(number: usize) -> String {
    format!("{}", number + 10)
}

fn variable(index: &str) -> String {
    format!("ADDED_{index}")
}

fn said(pod: &str, container: &str) -> String {
    format!("{container} in {pod}")
}

/// The variables that `count` plugins give a container.
pub(super) fn variables(count: usize, pod: &str, container: &str) -> Vec<String> {
    let one = |number| format!("{}={}", variable(&index(number)), said(pod, container));
    (0..count).map(one).collect()
}

/// `policy SOCKET INDEX NAME MILLISECONDS`
pub(crate) fn main(words: &[String]) {
    let [socket, index, name, thinks] = words else { return };
    let thinks = Duration::from_millis(thinks.parse().unwrap());
    let policy = Policy { index: index.clone(), thinks };
    let plugin = Plugin::new(&format!("{index}-{name}"), policy).unwrap().socket(socket);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _ended_by_the_bench = runtime.block_on(plugin.reconnect(false).run());
}

/// Plugins that end with this value.
pub(super) struct Policies(Vec<Child>);

impl Policies {
    pub(super) fn start(socket: &Path, count: usize, name: &str, thinks: Duration) -> Self {
        let start = |number: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.arg("policy").arg(socket).args([&index(number), name]);
            command.arg(thinks.as_millis().to_string()).stdin(Stdio::null()).spawn().unwrap()
        };
        Self((0..count).map(start).collect())
    }
}

impl Drop for Policies {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}
