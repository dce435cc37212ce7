// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: limits for resources that kubelet counts but the CRI has no field for (SGX
//! memory, encrypted-VM keys, …), enforced by `misc.max` of cgroup v2 (KEP-4112).
//!
//! ```text
//! cp target/debug/misc-limits /opt/nri/plugins/40-misc-limits
//! echo '{"sgx_epc": 1000000}' >/etc/nri/conf.d/40-misc-limits.conf     # what the node has
//! ```
//!
//! An annotation of the pod has the amounts of each container: `misc.nri-runc.dev/container.web:
//! '{"sgx_epc": 65536}'`. A container that would exceed the node's amount together with the running
//! ones is refused. A container without the annotation gets 0 of each resource.
//!
//! A tenant may write the annotation, so only the node's amount protects others. The pod's overhead, which the tenant
//! does not write, cannot have the amounts: kubelet sends only its CPU and memory (KEP-4112, story 4).
//!
//! The plugin counts only the containers that its runtime sends. Containers of another handler use the node's
//! resources uncounted, unless the runtime reports the whole node (`[nri] scope = "node"` of nri-runc).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nri_plugin::{Adjustment, Context, Event, Handler, api, async_trait};

const KEY: &str = "misc.nri-runc.dev";
const FILE: &str = "misc.max";

/// Resource to amount.
type Amounts = BTreeMap<String, u64>;

#[derive(Default)]
struct State {
    capacity: Amounts,
    /// The amounts of each container.
    given: HashMap<String, Amounts>,
}

/// The amounts that the pod requests for this container.
fn asked(pod: &api::PodSandbox, container: &str) -> nri_plugin::Result<Amounts> {
    let Some((key, text)) = nri_plugin::annotation(pod, container, KEY) else {
        return Ok(Amounts::new());
    };
    serde_json::from_str(text).map_err(|error| format!("{key}: {error}").into())
}

/// A line for each resource, as `misc.max` is written.
fn lines(amounts: &Amounts) -> String {
    let lines = amounts.iter().map(|(name, amount)| format!("{name} {amount}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn parse(lines: &str) -> Amounts {
    let pairs = lines.lines().filter_map(|line| line.split_once(' '));
    pairs.filter_map(|(name, amount)| Some((name.to_owned(), amount.parse().ok()?))).collect()
}

impl State {
    fn give(&mut self, id: &str, asked: Amounts) -> nri_plugin::Result<Amounts> {
        if let Some(name) = asked.keys().find(|name| !self.capacity.contains_key(*name)) {
            return Err(format!("this node has no {name}").into());
        }
        let mut amounts = Amounts::new();
        for (name, capacity) in &self.capacity {
            let others = self.given.iter().filter(|(other, _)| *other != id);
            let used: u64 = others.filter_map(|(_, given)| given.get(name)).sum();
            let wanted = asked.get(name).copied().unwrap_or(0);
            let left = capacity.saturating_sub(used);
            if wanted > left {
                return Err(format!("it needs {wanted} of {name}, {left} are left").into());
            }
            amounts.insert(name.clone(), wanted);
        }
        self.given.insert(id.to_owned(), amounts.clone());
        Ok(amounts)
    }
}

#[derive(Default)]
struct MiscLimits(Mutex<State>);

impl MiscLimits {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Handler for MiscLimits {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer, Event::StopContainer]
    }

    async fn configure(
        &self,
        _: &Context,
        request: api::ConfigureRequest,
    ) -> nri_plugin::Result<()> {
        self.state().capacity = serde_json::from_str(&request.config)
            .map_err(|error| format!("its configuration: {error}"))?;
        Ok(())
    }

    /// The containers themselves show the amounts that they were given.
    async fn synchronize(
        &self,
        _: &Context,
        _: Vec<api::PodSandbox>,
        containers: Vec<api::Container>,
    ) -> nri_plugin::Result<Vec<api::ContainerUpdate>> {
        let mut state = self.state();
        for container in containers {
            if let Some(text) = container.linux.resources.unified.get(FILE) {
                state.given.insert(container.id.clone(), parse(text));
            }
        }
        Ok(Vec::new())
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        let asked = asked(&request.pod, &request.container.name)?;
        let amounts = self.state().give(&request.container.id, asked)?;
        let unified = [(FILE.to_owned(), lines(&amounts))].into();
        Ok(Adjustment::new()
            .resources(api::LinuxResources { unified, ..Default::default() })
            .into())
    }

    async fn stop_container(
        &self,
        _: &Context,
        request: api::StopContainerRequest,
    ) -> nri_plugin::Result<api::StopContainerResponse> {
        self.state().given.remove(&request.container.id);
        Ok(Default::default())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("40-misc-limits", MiscLimits::default())
}
