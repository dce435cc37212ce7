// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: resource limits of a container's processes (`ulimit`), by annotation.
//!
//! ```text
//! cargo run -p ulimit-adjuster                                 # by hand, or installed:
//! cp target/debug/ulimit-adjuster /opt/nri/plugins/10-ulimit-adjuster
//! ```
//!
//! Kubernetes has no field for these limits. The annotation is a list in JSON, for one container
//! (`ulimits.noderesource.dev/container.NAME`) or all of the pod (`…/pod`, or no suffix):
//!
//! ```yaml
//! ulimits.noderesource.dev/container.db: |
//!   [{"type": "RLIMIT_NOFILE", "soft": 65536, "hard": 131072}, {"type": "memlock", "hard": 8388608}]
//! ```
//!
//! A type may be written without `RLIMIT_` and in small letters; a missing soft limit equals the
//! hard one. An invalid list, an unknown type, and a soft limit above the hard one refuse the
//! container.

use nri_plugin::{Context, Event, Handler, api, async_trait};
use serde::Deserialize;

const KEY: &str = "ulimits.noderesource.dev";

/// The limits that Linux has (getrlimit(2)).
const LIMITS: [&str; 16] = [
    "AS",
    "CORE",
    "CPU",
    "DATA",
    "FSIZE",
    "LOCKS",
    "MEMLOCK",
    "MSGQUEUE",
    "NICE",
    "NOFILE",
    "NPROC",
    "RSS",
    "RTPRIO",
    "RTTIME",
    "SIGPENDING",
    "STACK",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    #[serde(rename = "type")]
    kind: String,
    soft: Option<u64>,
    hard: u64,
}

impl Limit {
    fn message(self) -> nri_plugin::Result<api::POSIXRlimit> {
        let Self { kind, soft, hard } = self;
        let name = kind.to_ascii_uppercase();
        let name = name.strip_prefix("RLIMIT_").unwrap_or(&name);
        if !LIMITS.contains(&name) {
            return Err(format!("{kind:?} is not a resource limit").into());
        }
        let soft = soft.unwrap_or(hard);
        if soft > hard {
            return Err(format!("the soft limit of {kind} is above its hard limit").into());
        }
        Ok(api::POSIXRlimit { type_: format!("RLIMIT_{name}"), soft, hard, ..Default::default() })
    }
}

fn limits(text: &str) -> nri_plugin::Result<Vec<api::POSIXRlimit>> {
    serde_json::from_str::<Vec<Limit>>(text)?.into_iter().map(Limit::message).collect()
}

struct UlimitAdjuster;

#[async_trait]
impl Handler for UlimitAdjuster {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        let found = nri_plugin::annotation(&request.pod, &request.container.name, KEY);
        let Some((key, text)) = found else { return Ok(api::CreateContainerResponse::default()) };
        let rlimits = limits(text).map_err(|error| format!("{key}: {error}"))?;
        Ok(api::ContainerAdjustment { rlimits, ..Default::default() }.into())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("10-ulimit-adjuster", UlimitAdjuster)
}
