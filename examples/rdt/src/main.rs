// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: the RDT class of a container (cache and memory bandwidth, by resctrl), its schemata and its
//! monitoring, by annotation of the pod.
//!
//! ```text
//! cp target/debug/rdt /opt/nri/plugins/20-rdt
//! echo '{"classes": {"gold": ["shop"], "bronze": ["*"]}}' >/etc/nri/conf.d/20-rdt.conf
//! ```
//!
//! Each annotation is for one container:
//!
//! ```yaml
//! closid.rdt.noderesource.dev/container.web: gold
//! schemata.rdt.noderesource.dev/container.web: "L3:0=f;1=f,MB:0=50;1=50"     # lines, separated by `,`
//! enablemonitoring.rdt.noderesource.dev/container.web: "true"
//! ```
//!
//! A tenant may write them, so the configuration lists the namespaces that may use each class; `*` is every namespace.
//! `schemata` and `monitoring` are such lists too. They are empty by default: schemata change a class for all its
//! containers, and the processor has few monitoring groups. A container that requests anything else is refused.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use nri_plugin::{Adjustment, Context, Event, Handler, api, async_trait};
use serde::Deserialize;

const DOMAIN: &str = "rdt.noderesource.dev";

/// Which namespaces may request what.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    classes: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    schemata: Vec<String>,
    #[serde(default)]
    monitoring: Vec<String>,
}

fn permits(namespaces: &[String], namespace: &str) -> bool {
    namespaces.iter().any(|one| one == "*" || one == namespace)
}

/// The lines of schemata. Each is one line, since the kernel reads a second one as more schemata.
fn lines(text: &str) -> Result<Vec<String>, String> {
    let lines = text.split(',').map(|line| match line.split_once(':') {
        Some((resource, domains))
            if !resource.is_empty()
                && domains.contains('=')
                && line.chars().all(|c| c.is_ascii_graphic()) =>
        {
            Ok(line.to_owned())
        }
        _ => Err(format!("{line:?} is not like L3:0=f")),
    });
    lines.collect()
}

impl Config {
    /// What the pod requests for this container; `None` without an annotation.
    fn rdt(&self, pod: &api::PodSandbox, container: &str) -> Result<Option<api::LinuxRdt>, String> {
        let key = |field: &str| format!("{field}.{DOMAIN}/container.{container}");
        let asked = |field: &str| pod.annotations.get(&key(field)).map(String::as_str);
        let namespace = pod.namespace.as_str();
        let may_not = |field, what: &str| {
            format!("{}: the namespace {namespace:?} may not use {what}", key(field))
        };
        let mut rdt = None::<api::LinuxRdt>;
        if let Some(class) = asked("closid") {
            let namespaces = self.classes.get(class);
            if !namespaces.is_some_and(|namespaces| permits(namespaces, namespace)) {
                return Err(may_not("closid", &format!("the class {class:?}")));
            }
            rdt.get_or_insert_default().clos_id = Some(class.to_owned().into()).into();
        }
        if let Some(text) = asked("schemata") {
            if !permits(&self.schemata, namespace) {
                return Err(may_not("schemata", "schemata"));
            }
            let value = lines(text).map_err(|why| format!("{}: {why}", key("schemata")))?;
            let value = api::OptionalRepeatedString { value, ..Default::default() };
            rdt.get_or_insert_default().schemata = Some(value).into();
        }
        if let Some(text) = asked("enablemonitoring") {
            let is_on: bool = text.parse().map_err(|_invalid| {
                format!("{}: {text:?} is neither true nor false", key("enablemonitoring"))
            })?;
            if is_on && !permits(&self.monitoring, namespace) {
                return Err(may_not("enablemonitoring", "monitoring"));
            }
            rdt.get_or_insert_default().enable_monitoring = Some(is_on.into()).into();
        }
        Ok(rdt)
    }
}

#[derive(Default)]
struct Rdt(RwLock<Config>);

#[async_trait]
impl Handler for Rdt {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    async fn configure(
        &self,
        _: &Context,
        request: api::ConfigureRequest,
    ) -> nri_plugin::Result<()> {
        let config = serde_json::from_str(&request.config)
            .map_err(|error| format!("its configuration: {error}"))?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        let config = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let rdt = config.rdt(&request.pod, &request.container.name)?;
        let Some(rdt) = rdt else { return Ok(api::CreateContainerResponse::default()) };
        let set = |adjust: &mut api::ContainerAdjustment| {
            adjust.linux.mut_or_insert_default().rdt = Some(rdt).into();
        };
        Ok(Adjustment::new().edit(set).into())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("20-rdt", Rdt::default())
}

#[cfg(test)]
mod tests;
