// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: runs plugins of NRI v0.1, each as one process per call, with the request as JSON on standard
//! input and the answer on standard output.
//!
//! ```text
//! cp target/debug/v010-adapter /opt/nri/plugins/50-v010-adapter
//! echo '{"plugins": [{"type": "clearcfs", "conf": {}}]}' >/etc/nri/conf.json     # as before: /opt/nri/bin/clearcfs
//! ```
//!
//! | event | state | of |
//! |---|---|---|
//! | RunPodSandbox, StopPodSandbox | `create`, `delete` | the pod |
//! | StartContainer, StopContainer | `create`, `delete` | a container, whose process exists |
//!
//! The plugins run in their order, and each receives the results of those before it. The first failure of a `create`
//! refuses the pod or the container. A `delete` calls all of them, and the runtime logs their failures. States that NRI
//! v0.1 also had (`pre-create`, `update`, `pause`, `resume`) are not sent.
//!
//! A plugin is a program directly in the folder of plugins, and runs as the user of the adapter, without a shell, with
//! `PATH` as its only variable. It has a second, or less if the runtime waits less; then it is killed with what it
//! started. An optional configuration changes the defaults:
//! `{"conf": "/etc/nri/conf.json", "bin": "/opt/nri/bin", "timeout_ms": 1000}`.

mod process;
mod request;

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use nri_plugin::{Blocking, BlockingHandler, Context, Event, api};
use request::State;
use serde::Deserialize;
use serde_json::Value;

/// How long before the runtime stops waiting the last plugin is killed, so that the adapter still answers.
const RESERVE: Duration = Duration::from_millis(200);

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    conf: PathBuf,
    bin: PathBuf,
    timeout_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { conf: "/etc/nri/conf.json".into(), bin: "/opt/nri/bin".into(), timeout_ms: 1000 }
    }
}

/// The list of plugins in the format of NRI v0.1.
#[derive(Deserialize)]
#[serde(default)]
struct List {
    version: String,
    plugins: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "type")]
    name: String,
    #[serde(default)]
    conf: Value,
}

impl Default for List {
    fn default() -> Self {
        Self { version: "0.1".to_owned(), plugins: Vec::new() }
    }
}

impl List {
    /// Reads the list. It is read for each event, so a change needs no restart. Without the file there are no plugins.
    fn read(path: &Path) -> Result<Self, String> {
        match std::fs::read(path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|why| format!("{}: {why}", path.display()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("reading {}: {error}", path.display())),
        }
    }
}

#[derive(Default)]
struct Adapter(RwLock<Config>);

impl Adapter {
    fn invoke(
        &self,
        context: &Context,
        state: State,
        spec: &request::Of<'_>,
    ) -> Result<(), String> {
        let config = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        let list = List::read(&config.conf)?;
        let (mut results, mut failures) = (Vec::new(), Vec::new());
        for Listed { name, conf } in &list.plugins {
            let request = spec.request(&list.version, state, conf, &results).to_string();
            let remaining = context.remaining().map(|remaining| remaining.saturating_sub(RESERVE));
            let own = Duration::from_millis(config.timeout_ms);
            let limit = remaining.map_or(own, |remaining| remaining.min(own));
            match process::call(&config.bin, name, request.into_bytes(), limit) {
                Ok(result) => results.push(result),
                Err(why) => failures.push(format!("plugin {name:?} of NRI v0.1: {why}")),
            }
            if state == State::Create && !failures.is_empty() {
                break;
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
    }
}

impl BlockingHandler for Adapter {
    fn events(&self) -> &[Event] {
        &[Event::RunPodSandbox, Event::StopPodSandbox, Event::StartContainer, Event::StopContainer]
    }

    fn configure(&self, _: &Context, request: api::ConfigureRequest) -> nri_plugin::Result<()> {
        if !request.config.trim().is_empty() {
            let config = serde_json::from_str(&request.config)
                .map_err(|error| format!("its configuration: {error}"))?;
            *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
        }
        Ok(())
    }

    fn run_pod_sandbox(
        &self,
        context: &Context,
        request: api::RunPodSandboxRequest,
    ) -> nri_plugin::Result<()> {
        Ok(self.invoke(context, State::Create, &request::of_pod(&request.pod))?)
    }

    fn stop_pod_sandbox(
        &self,
        context: &Context,
        request: api::StopPodSandboxRequest,
    ) -> nri_plugin::Result<()> {
        Ok(self.invoke(context, State::Delete, &request::of_pod(&request.pod))?)
    }

    fn start_container(
        &self,
        context: &Context,
        request: api::StartContainerRequest,
    ) -> nri_plugin::Result<()> {
        let of = request::of_container(&request.pod, &request.container);
        Ok(self.invoke(context, State::Create, &of)?)
    }

    fn stop_container(
        &self,
        context: &Context,
        request: api::StopContainerRequest,
    ) -> nri_plugin::Result<api::StopContainerResponse> {
        let of = request::of_container(&request.pod, &request.container);
        self.invoke(context, State::Delete, &of)?;
        Ok(api::StopContainerResponse::default())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("50-v010-adapter", Blocking::new(Adapter::default()))
}

#[cfg(test)]
mod tests;
