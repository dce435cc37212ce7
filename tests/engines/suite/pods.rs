// SPDX-License-Identifier: Apache-2.0
//! Pods of one container through an engine's CRI: the pod has the container's name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::cri::exec_sync::exec_sync;
use test_support::cri::generated::{
    ContainerConfig, ContainerState, ContainerStatusRequest, CreateContainerRequest, KeyValue,
    Mount,
};
use test_support::cri::{self, Cri};
use tokio::runtime::Runtime;

use super::{Call, Printed, Wanted};

pub(crate) struct CriPods {
    runtime: Runtime,
    socket: PathBuf,
    cgroup: String,
    handler: &'static str,
    /// The IDs of each pod and its container by their name.
    ids: RefCell<HashMap<String, (String, Option<String>)>>,
}

impl CriPods {
    pub(crate) fn new(
        runtime: Runtime,
        socket: PathBuf,
        cgroup: String,
        handler: &'static str,
    ) -> Self {
        Self { runtime, socket, cgroup, handler, ids: RefCell::default() }
    }

    /// Runs a container that `change` changes before its creation.
    pub(crate) fn run(
        &self,
        wanted: &Wanted<'_>,
        change: impl FnOnce(&mut ContainerConfig),
    ) -> Result<String, String> {
        let mut app = cri::container(wanted.name, wanted.args);
        let variable = |(key, value): &(&str, &str)| KeyValue {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        app.envs.extend(wanted.env.iter().map(variable));
        let mount = |path: &&str| Mount {
            container_path: (*path).to_owned(),
            host_path: (*path).to_owned(),
            readonly: true,
        };
        app.mounts.extend(wanted.folders.iter().map(mount));
        change(&mut app);
        let started = self.runtime.block_on(self.start(wanted.name, app));
        // Engines escape the quotes of nri-runc's message.
        started.map_err(|message| message.replace('\\', ""))
    }

    async fn start(&self, name: &str, app: ContainerConfig) -> Result<String, String> {
        let mut client = Cri::new(cri::connect(self.socket.clone()).await);
        let config = cri::pod(&self.cgroup, name);
        let pod = cri::run_pod_with(&mut client, config.clone(), self.handler).await;
        self.ids.borrow_mut().insert(name.to_owned(), (pod.clone(), None));
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.clone(),
            config: Some(app),
            sandbox_config: Some(config),
        };
        let created =
            client.create_container(request).await.map_err(|status| status.to_string())?;
        let id = created.into_inner().container_id;
        self.ids.borrow_mut().insert(name.to_owned(), (pod, Some(id.clone())));
        cri::start(&mut client, &id).await.map_err(|status| status.to_string())?;
        Ok(id)
    }

    pub(crate) fn id(&self, name: &str) -> String {
        self.ids.borrow()[name].1.clone().unwrap()
    }

    /// Waits until the engine knows of the end of a container, perhaps after killing its process;
    /// returns the exit code.
    pub(crate) fn end(&self, name: &str, kills: bool) -> String {
        let container_id = self.id(name);
        let ended = async {
            let mut client = Cri::new(cri::connect(self.socket.clone()).await);
            if kills {
                let pid = cri::info(&mut client, &container_id).await["pid"].as_i64().unwrap();
                kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
            }
            let request = ContainerStatusRequest { container_id, verbose: false };
            loop {
                let response = client.container_status(request.clone()).await.unwrap();
                let status = response.into_inner().status.unwrap();
                if status.state() == ContainerState::ContainerExited {
                    return status.exit_code.to_string();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let patient = async { tokio::time::timeout(test_support::PATIENCE, ended).await };
        self.runtime.block_on(patient).unwrap()
    }

    /// Runs words by ExecSync.
    pub(crate) fn exec(&self, name: &str, call: &Call<'_>) -> Printed {
        let id = self.id(name);
        let call =
            async { exec_sync(cri::connect(self.socket.clone()).await, &id, call.words).await };
        match self.runtime.block_on(call) {
            Ok(printed) => {
                let text = [&printed.stdout, &printed.stderr].map(|b| String::from_utf8_lossy(b));
                Printed { code: Some(printed.exit_code), text: text.concat() }
            }
            Err(error) => Printed { code: None, text: error.to_string() },
        }
    }

    /// Ends and removes a container and its pod, if there is one of this name.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let Some((pod, app)) = self.ids.borrow_mut().remove(name) else { return false };
        self.runtime.block_on(async {
            let mut client = Cri::new(cri::connect(self.socket.clone()).await);
            if let Some(app) = app {
                cri::end_container(&mut client, &app).await;
            }
            cri::end_pod(&mut client, &pod).await;
        });
        true
    }
}

/// A runtime for the calls of one test.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
