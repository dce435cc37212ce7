// SPDX-License-Identifier: Apache-2.0
//! The built binary, a real runtime and this machine's cgroups: changes that plugins request for
//! running containers reach their cgroups, and stay there. The files are those of v1 (or hybrid);
//! `v2` has those of v2 alone, which `make vm` provides.

mod checkpoint;
mod classes;
mod clock;
mod drift;
mod evictions;
mod failed;
mod fields;
mod journaled;
mod lasting;
mod matrix;
mod node_helper;
mod others;
mod parallel;
mod plain;
mod repeated;
mod resctrl;
mod resized;
mod scopes;
mod units;
mod v2;

use nri_runc::plugin::api;
use serde_json::Value;
use test_support::adjustments::update_of;
use test_support::real_runtime::RealRuntime;
use test_support::scripted_plugin::{Ask, Asks};
use test_support::{Script, TestHost, fails, skip, succeeds, wait_until};

/// The test's end of the channel.
struct Asking(tokio::sync::mpsc::UnboundedSender<Ask>);

/// The two ends of a channel by which a test makes a plugin send requests.
fn asking() -> (Asking, Asks) {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    (Asking(sender), std::sync::Arc::new(tokio::sync::Mutex::new(receiver)))
}

impl Asking {
    /// Makes the plugin send the request, and waits for the response.
    fn ask(
        &self,
        request: api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse, String> {
        self.try_ask(request).unwrap()
    }

    /// Like [`Self::ask`], for a daemon that may die meanwhile: then the inner or the outer result
    /// is an error.
    fn try_ask(
        &self,
        request: api::UpdateContainersRequest,
    ) -> Result<Result<api::UpdateContainersResponse, String>, String> {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.0.send((request, sender)).map_err(|error| error.to_string())?;
        let answer = receiver.recv_timeout(std::time::Duration::from_secs(60));
        answer.map_err(|error| error.to_string())
    }
}

/// A host with the real runc; the fields are dropped in this order, so containers end first.
struct Place {
    real: RealRuntime,
    host: TestHost,
}

/// Returns the host if v1 has the controllers; `None` after printing why a test is skipped.
fn place(more: &str) -> Option<Place> {
    if !std::path::Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists() {
        skip::machine_lacks("this host has no cgroup v1");
        return None;
    }
    anywhere("runc", more)
}

/// A host with this runtime, on any cgroup version.
fn anywhere(runtime: &str, more: &str) -> Option<Place> {
    let mut place = unstarted_place(runtime, more)?;
    place.host.start_daemon();
    Some(place)
}

/// Like [`anywhere`], without starting the daemon.
fn unstarted_place(runtime: &str, more: &str) -> Option<Place> {
    let host = TestHost::new(more);
    let real = RealRuntime::with(&host.path(""), runtime)?;
    host.configure(real.runc(), more);
    Some(Place { host, real })
}

impl Place {
    /// Creates and starts a container that sleeps.
    fn run(&self, id: &str, resources: &Value) {
        self.create(id, resources);
        succeeds(&self.host.verb(&["start", id]));
    }

    fn create(&self, id: &str, resources: &Value) {
        self.prepare(id, resources);
        succeeds(&self.host.create_from(id, id));
        self.settled(id);
    }

    /// Writes the bundle, which has the container's name.
    fn prepare(&self, id: &str, resources: &Value) {
        let mut document = self.real.document(id, &["sleep", "1000"]);
        document["linux"]["resources"] = resources.clone();
        std::fs::create_dir_all(self.host.path(id)).unwrap();
        self.host.write(&format!("{id}/config.json"), &document.to_string());
    }

    fn settled(&self, id: &str) {
        wait_until("the create is settled", || {
            self.state(id).is_some_and(|state| state != "creating")
        });
    }

    fn state(&self, id: &str) -> Option<String> {
        let pods = self.host.admin(&["pods"]);
        let mut all = pods
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|pod| pod["containers"].as_array().cloned().unwrap_or_default());
        let found = all.find(|container| container["id"] == id)?;
        found["state"].as_str().map(str::to_owned)
    }

    /// The content of a cgroup file of the container.
    fn file(&self, id: &str, controller: &str, file: &str) -> String {
        let path = format!("/sys/fs/cgroup/{controller}{}/{file}", self.real.cgroup(id));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| format!("{path}: {e}"));
        text.trim_end().to_owned()
    }

    fn update(&self, id: &str, request: &Value) -> std::process::Output {
        let root = self.host.path("root").display().to_string();
        let words = ["--root", &root, "update", "--resources", "-", id];
        self.host.call_with(&words, &request.to_string())
    }

    /// Connects a plugin that sends the test's requests.
    fn asker(&self) -> Asking {
        self.asker_called("10", "asker")
    }

    fn asker_called(&self, index: &str, name: &str) -> Asking {
        let (asking, asks) = asking();
        let script = Script { asks: Some(asks), ..Script::default() };
        let _plugin = self.host.plugin(index, name, script);
        asking
    }
}

fn request(updates: Vec<api::ContainerUpdate>) -> api::UpdateContainersRequest {
    api::UpdateContainersRequest { update: updates, ..Default::default() }
}

/// Requests one update; returns whether it was applied.
fn is_done(asking: &Asking, id: &str, resources: &Value) -> bool {
    asking.ask(request(vec![update_of(id, resources)])).unwrap().failed.is_empty()
}
