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

use super::bundle::{DescribedBundle, DryRunBundle};
use super::dry_run::promise_facts;

/// The rules' decisions about a bundle, for these plugins, the pre-installed and the configured
/// ones.
///
/// # Errors
/// Fails when the bundle cannot be read.
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
    let rules = Rules::new(&config.rules);
    let mut document = report(config, &rules, &ruled, installed.chain(plugins.iter().cloned()));
    let image = container.image.as_ref().map(|image| image.name.as_str());
    document["injections"] = inject::report(&Injections::new(config), &rules, &ruled, image);
    let facts = promise_facts(&ruled, &pod, &container);
    document["promises"] = promise_rows(&config.promises, &facts).into();
    document["pod"]["id"] = pod.id.into();
    document["pod"]["name"] = pod.name.into();
    Ok(document)
}
