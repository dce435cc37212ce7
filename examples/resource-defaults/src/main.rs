// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: resources of a container by annotation of its pod, and defaults for all.
//!
//! ```text
//! cargo run -p resource-defaults -- --config defaults.json     # by hand, or installed:
//! cp target/debug/resource-defaults /opt/nri/plugins/20-resource-defaults
//! cp defaults.json /etc/nri/conf.d/20-resource-defaults.conf
//! ```
//!
//! The annotation `resources.nri-runc.dev/container.NAME` applies to the container NAME, else
//! `resources.nri-runc.dev/pod` or `resources.nri-runc.dev` for every container of the pod. Its
//! value has the form of `linux.resources` in a config.json:
//!
//! ```json
//! {"cpu": {"shares": 512, "cpus": "0-1"}, "memory": {"limit": 268435456}, "pids": {"limit": 100}}
//! ```
//!
//! An annotation replaces the engine's values. The configuration has the same form; it applies to
//! containers without an annotation, and sets only values that the engine left unset.

use std::collections::HashMap;
use std::sync::Mutex;

use nri_plugin::{Adjustment, Context, Event, Handler, api, async_trait};
use serde::Deserialize;

const KEY: &str = "resources.nri-runc.dev";

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Resources {
    cpu: Cpu,
    memory: Memory,
    pids: Pids,
    unified: HashMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Cpu {
    shares: Option<u64>,
    quota: Option<i64>,
    period: Option<u64>,
    cpus: String,
    mems: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Memory {
    limit: Option<i64>,
    reservation: Option<i64>,
    swap: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Pids {
    limit: Option<i64>,
}

impl Resources {
    fn parse(text: &str, from: &str) -> nri_plugin::Result<Self> {
        serde_json::from_str(text).map_err(|error| format!("{from}: {error}").into())
    }

    /// Removes the values that `chosen` has already.
    fn where_open(mut self, chosen: &api::LinuxResources) -> Self {
        let Self { cpu, memory, pids, unified } = &mut self;
        cpu.shares.take_if(|_| chosen.cpu.shares.is_some());
        cpu.quota.take_if(|_| chosen.cpu.quota.is_some());
        cpu.period.take_if(|_| chosen.cpu.period.is_some());
        cpu.cpus.retain(|_| chosen.cpu.cpus.is_empty());
        cpu.mems.retain(|_| chosen.cpu.mems.is_empty());
        memory.limit.take_if(|_| chosen.memory.limit.is_some());
        memory.reservation.take_if(|_| chosen.memory.reservation.is_some());
        memory.swap.take_if(|_| chosen.memory.swap.is_some());
        pids.limit.take_if(|_| chosen.pids.is_some());
        unified.retain(|file, _| !chosen.unified.contains_key(file));
        self
    }

    fn message(self) -> api::LinuxResources {
        let cpu = api::LinuxCPU {
            shares: self.cpu.shares.map(Into::into).into(),
            quota: self.cpu.quota.map(Into::into).into(),
            period: self.cpu.period.map(Into::into).into(),
            cpus: self.cpu.cpus,
            mems: self.cpu.mems,
            ..Default::default()
        };
        let memory = api::LinuxMemory {
            limit: self.memory.limit.map(Into::into).into(),
            reservation: self.memory.reservation.map(Into::into).into(),
            swap: self.memory.swap.map(Into::into).into(),
            ..Default::default()
        };
        let pids = self.pids.limit.map(|limit| api::LinuxPids { limit, ..Default::default() });
        api::LinuxResources {
            cpu: Some(cpu).into(),
            memory: Some(memory).into(),
            pids: pids.into(),
            unified: self.unified,
            ..Default::default()
        }
    }
}

#[derive(Default)]
struct ResourceDefaults {
    defaults: Mutex<Resources>,
}

#[async_trait]
impl Handler for ResourceDefaults {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    async fn configure(
        &self,
        _: &Context,
        request: api::ConfigureRequest,
    ) -> nri_plugin::Result<()> {
        let text = Some(request.config).filter(|text| !text.trim().is_empty());
        let defaults = Resources::parse(text.as_deref().unwrap_or("{}"), "its configuration")?;
        if let Ok(mut slot) = self.defaults.lock() {
            *slot = defaults;
        }
        Ok(())
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        let (pod, container) = (&request.pod, &request.container);
        let resources = match nri_plugin::annotation(pod, &container.name, KEY) {
            Some((key, text)) => Resources::parse(text, &key)?,
            None => {
                let defaults = self.defaults.lock().map(|slot| slot.clone()).unwrap_or_default();
                defaults.where_open(&container.linux.resources)
            }
        };
        Ok(Adjustment::new().resources(resources.message()).into())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("20-resource-defaults", ResourceDefaults::default())
}
