// SPDX-License-Identifier: Apache-2.0
//! `policy test --bundle`: the rules' decisions about the container of a bundle. No plugin is
//! started or asked, and the bundle is only read.

use std::path::Path;

use serde_json::Value;

use crate::config::Config;
use crate::error::Result;
use crate::host::Host;
use crate::inject::{self, Injections};
use crate::plugin;
use crate::rules::{RuledPod, Rules, promise_rows, report};
use crate::text::printable;

use super::bundle::{DescribedBundle, DryRunBundle};
use super::dry_run::promise_facts;

/// The rules' decisions about a bundle, for these plugins and for the pre-installed and configured
/// ones.
///
/// # Errors
/// Fails when the bundle is unreadable.
pub(crate) fn policy(
    config: &Config,
    bundle: &Path,
    id: Option<&str>,
    plugins: &[String],
) -> Result<Value> {
    let bundle = DryRunBundle::open(bundle)?;
    let host = Host::new(&config.debug_host_root, "");
    let id = id.map_or_else(|| bundle.id(), ToOwned::to_owned);
    let DescribedBundle { pod, container, origin, .. } = bundle.describe(&id, &host, config)?;
    let (engine, is_doubtful) = origin;
    let ruled = RuledPod::of(&pod, &engine, is_doubtful);
    let (installed, _) = plugin::discover(&config.plugin_path, &config.plugin_config_path);
    let installed = installed.iter().map(plugin::PluginFile::id);
    let rules = Rules::of(config);
    let mut document = report(config, &rules, &ruled, installed.chain(plugins.iter().cloned()));
    let image = container.image.as_ref().map(|image| image.name.as_str());
    document["injections"] = inject::report(&Injections::new(config), &rules, &ruled, image);
    let facts = promise_facts(&ruled, &pod, &container);
    document["promises"] = promise_rows(&config.promises, &facts).into();
    document["pod"]["id"] = pod.id.into();
    document["pod"]["name"] = pod.name.into();
    Ok(document)
}

/// The clause about a plugin that no rule and no section restricts.
pub(super) const UNRESTRICTED: &str = "may set everything";

/// Describes what rules leave a plugin, as a clause.
pub(crate) fn effect(row: &Value) -> String {
    if row["hidden"] == true {
        return "hears nothing of this pod".to_owned();
    }
    let mut effects = Vec::new();
    for (key, what) in [
        ("refused", "refused"),
        ("would_refuse", "noted"),
        ("refused_by_section", "refused by its own section"),
    ] {
        match row[key].as_array().map(Vec::as_slice) {
            None | Some([]) => {}
            Some([all]) if all == "*" => effects.push(format!("{what}: everything")),
            Some(fields) => {
                let fields: Vec<String> =
                    fields.iter().filter_map(|field| field.as_str().map(printable)).collect();
                effects.push(format!("{what}: {}", fields.join(" ")));
            }
        }
    }
    if effects.is_empty() { UNRESTRICTED.to_owned() } else { effects.join("; ") }
}
