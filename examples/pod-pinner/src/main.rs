// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: exclusive CPUs for pods that request whole CPUs, decided by the resources
//! of the whole pod (`pod.linux.pod_resources`, known before its first container; KEP-4112).
//!
//! ```text
//! cp target/debug/pod-pinner /opt/nri/plugins/30-pod-pinner
//! echo '{"exclusive": "2-7", "shared": "0-1"}' >/etc/nri/conf.d/30-pod-pinner.conf
//! ```
//!
//! A pod whose request equals its limit and is a number of whole CPUs gets that many of the
//! `exclusive` CPUs, one set for all its containers, until the pod is removed. If too few are free,
//! the pod is refused. The CPUs are on one NUMA node if one has enough, and the pod's memory is on
//! the same nodes. Other containers run on the `shared` ones. kubelet's own CPU manager must be
//! off.
//!
//! The plugin knows only the pods that its runtime sends. On a node with containers of another
//! handler, those run on the exclusive CPUs too, unless the runtime reports the whole node (`[nri]
//! scope = "node"` of nri-runc).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nri_plugin::{Adjustment, Context, Event, Handler, api, async_trait};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    exclusive: String,
    shared: String,
    /// The kernel's folder of the NUMA nodes.
    #[serde(default = "kernels_nodes")]
    nodes: PathBuf,
}

fn kernels_nodes() -> PathBuf {
    "/sys/devices/system/node".into()
}

/// The CPUs of each NUMA node; none without NUMA.
fn nodes(folder: &Path) -> nri_plugin::Result<BTreeMap<u32, BTreeSet<u32>>> {
    let mut nodes = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        if let Some(number) = number {
            let list = std::fs::read_to_string(entry.path().join("cpulist"))?;
            nodes.insert(number, numbers(list.trim())?);
        }
    }
    Ok(nodes)
}

#[derive(Default)]
struct State {
    exclusive: BTreeSet<u32>,
    shared: String,
    nodes: BTreeMap<u32, BTreeSet<u32>>,
    /// Pod to CPUs.
    taken: HashMap<String, BTreeSet<u32>>,
}

/// Returns the numbers of a list such as `0,2-4`.
fn numbers(list: &str) -> nri_plugin::Result<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u32>()?..=last.parse::<u32>()?);
    }
    Ok(all)
}

fn list<'n>(numbers: impl Iterator<Item = &'n u32>) -> String {
    numbers.map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The number of whole CPUs that the pod was given, if its request equals its limit.
fn whole_cpus(pod: &api::PodSandbox) -> Option<usize> {
    let cpu = &pod.linux.pod_resources.cpu;
    let (quota, period) = (cpu.quota.value, i64::try_from(cpu.period.value).ok()?);
    let is_whole = quota > 0 && period > 0 && quota % period == 0;
    let count = is_whole.then(|| usize::try_from(quota / period).ok())??;
    (cpu.shares.value == 1024 * u64::try_from(count).ok()?).then_some(count)
}

impl State {
    /// The pod's own CPUs, taken now if it has none yet; `None` if it needs none.
    fn take(&mut self, pod: &api::PodSandbox) -> nri_plugin::Result<Option<BTreeSet<u32>>> {
        let Some(count) = whole_cpus(pod) else { return Ok(None) };
        if let Some(cpus) = self.taken.get(&pod.id) {
            return Ok(Some(cpus.clone()));
        }
        let is_free = |cpu: &&u32| !self.taken.values().any(|taken| taken.contains(cpu));
        let free: BTreeSet<u32> = self.exclusive.iter().filter(is_free).copied().collect();
        if free.len() < count {
            let left = free.len();
            return Err(format!("the pod wants {count} exclusive CPUs, {left} are left").into());
        }
        let in_node = |cpus: &BTreeSet<u32>| &free & cpus;
        let one_node = self.nodes.values().map(in_node).find(|cpus| cpus.len() >= count);
        let cpus: BTreeSet<u32> = one_node.unwrap_or(free).into_iter().take(count).collect();
        self.taken.insert(pod.id.clone(), cpus.clone());
        Ok(Some(cpus))
    }

    /// The NUMA nodes of these CPUs, as `cpuset.mems` is written; empty without NUMA.
    fn memory(&self, cpus: &BTreeSet<u32>) -> String {
        let nodes = self.nodes.iter().filter(|(_, of_node)| !of_node.is_disjoint(cpus));
        list(nodes.map(|(node, _)| node))
    }
}

#[derive(Default)]
struct PodPinner(Mutex<State>);

impl PodPinner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Handler for PodPinner {
    fn events(&self) -> &[Event] {
        &[Event::RunPodSandbox, Event::CreateContainer, Event::RemovePodSandbox]
    }

    async fn configure(
        &self,
        _: &Context,
        request: api::ConfigureRequest,
    ) -> nri_plugin::Result<()> {
        let config: Config = serde_json::from_str(&request.config)
            .map_err(|error| format!("its configuration: {error}"))?;
        let mut state = self.state();
        state.exclusive = numbers(&config.exclusive)?;
        state.shared = config.shared;
        state.nodes = nodes(&config.nodes)?;
        Ok(())
    }

    /// The containers themselves show the CPUs that were taken.
    async fn synchronize(
        &self,
        _: &Context,
        pods: Vec<api::PodSandbox>,
        containers: Vec<api::Container>,
    ) -> nri_plugin::Result<Vec<api::ContainerUpdate>> {
        let mut state = self.state();
        for pod in pods.iter().filter(|pod| whole_cpus(pod).is_some()) {
            let mut members = containers.iter().filter(|one| one.pod_sandbox_id == pod.id);
            let cpus = members.next().map(|one| numbers(&one.linux.resources.cpu.cpus));
            if let Some(cpus) = cpus.transpose()?.filter(|cpus| cpus.is_subset(&state.exclusive)) {
                state.taken.insert(pod.id.clone(), cpus);
            }
        }
        Ok(Vec::new())
    }

    async fn run_pod_sandbox(
        &self,
        _: &Context,
        request: api::RunPodSandboxRequest,
    ) -> nri_plugin::Result<()> {
        self.state().take(&request.pod).map(|_| ())
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        let mut state = self.state();
        let own = state.take(&request.pod)?;
        let (cpus, mems) = match own {
            Some(cpus) => (list(cpus.iter()), state.memory(&cpus)),
            None => (state.shared.clone(), String::new()),
        };
        let cpu = Some(api::LinuxCPU { cpus, mems, ..Default::default() }).into();
        Ok(Adjustment::new().resources(api::LinuxResources { cpu, ..Default::default() }).into())
    }

    async fn remove_pod_sandbox(
        &self,
        _: &Context,
        request: api::RemovePodSandboxRequest,
    ) -> nri_plugin::Result<()> {
        self.state().taken.remove(&request.pod.id);
        Ok(())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("30-pod-pinner", PodPinner::default())
}
