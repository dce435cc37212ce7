// SPDX-License-Identifier: Apache-2.0
//! The rows of `check` about promises (`[[require]]`): one for each promise whose plugin is missing (at most
//! `limits::LISTED`), or one for all promises; and one for kubelet's socket if a promise needs it.

use super::{Daemon, Finding, finding, warning};
use crate::answers::PromiseRow;
use crate::config::{Config, RuleMode};
use crate::error::quoted;
use crate::limits;
use crate::sources;

const PROMISES: &str = "promises";

/// Returns the rows. `socket` is the row about the plugin socket; its hint is the command that frees the socket.
pub(super) fn rows(config: &Config, running: &Daemon, socket: &Finding) -> Vec<Finding> {
    if config.promises.is_empty() {
        return Vec::new();
    }
    let mut rows = Vec::new();
    let of_daemon = running.status.as_ref().and_then(|status| status.promises.as_ref());
    let unmet: Vec<&PromiseRow> =
        of_daemon.into_iter().flatten().filter(|row| !row.connected).collect();
    for row in unmet.iter().take(limits::LISTED) {
        let (name, plugin) = (quoted(&row.promise), quoted(&row.plugin));
        let detail =
            format!("the promise \"{name}\" needs the plugin {plugin}, which is not connected");
        if row.mode == RuleMode::Audit {
            let hint = "start it before the promise is enforced";
            rows.push(warning(PROMISES, format!("{detail}; it is in audit mode"), hint));
            continue;
        }
        let hint = match running.passes_through() {
            true => socket.hint.as_str(),
            false => "start it; to see why it is not connected: nri-runc nri plugins",
        };
        rows.push(finding(PROMISES, false, format!("{detail}: its containers are refused"), hint));
    }
    if unmet.is_empty() {
        let detail = match of_daemon {
            Some(_) => "each has its plugin",
            None => "unknown until the daemon runs",
        };
        rows.push(finding(PROMISES, true, detail, ""));
    }
    let sections = config.promises.iter();
    if let Some(section) = sections.clone().find(|section| section.needs_kubelet()) {
        let asked = sources::try_kubelet(&config.host(), &config.pod_resources);
        let row = match asked {
            Ok(()) => finding("kubelet", true, config.pod_resources.display().to_string(), ""),
            Err(error) => {
                let name = quoted(&section.name);
                let effect = format!(
                    "until kubelet answers, the promise \"{name}\" applies to every pod of kubelet"
                );
                let detail = format!("{}; {effect}", error.why());
                finding("kubelet", false, detail, "start kubelet, or set kubernetes.pod_resources")
            }
        };
        rows.push(row);
    }
    rows
}
