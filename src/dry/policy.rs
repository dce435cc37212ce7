// SPDX-License-Identifier: Apache-2.0
//! `policy test --bundle`: the rules' decisions about the container of a bundle. No plugin is
//! started or asked, and the bundle is only read.

use std::path::Path;

use crate::answers::{PluginRights, PolicyAnswer};
use crate::config::{Config, EVERY_FIELD};
use crate::error::Result;
use crate::host::Host;
use crate::inject::{self, Injections};
use crate::plugin;
use crate::rules::{RuledPod, Rules, promise_rows, report};
use crate::text::printable;

use super::bundle::{DescribedBundle, DryRunBundle};
use super::dry_run::promise_facts;

/// Returns what the rules decide about a bundle, for these plugins and for the pre-installed and
/// configured ones.
///
/// # Errors
/// Fails when the bundle is unreadable.
pub(crate) fn policy(
    config: &Config,
    bundle: &Path,
    id: Option<&str>,
    plugins: &[String],
) -> Result<PolicyAnswer> {
    let bundle = DryRunBundle::open(bundle)?;
    let host = Host::new(&config.debug_host_root, "");
    let id = id.map_or_else(|| bundle.id(), ToOwned::to_owned);
    let DescribedBundle { pod, container, origin, .. } = bundle.describe(&id, &host, config)?;
    let (engine, is_doubtful) = origin;
    let ruled = RuledPod::of(&pod, &engine, is_doubtful);
    let (installed, _) = plugin::discover(&config.plugin_path, &config.plugin_config_path);
    let installed = installed.iter().map(plugin::PluginFile::id);
    let rules = Rules::of(config);
    let mut answer = report(config, &rules, &ruled, installed.chain(plugins.iter().cloned()));
    let image = container.image.as_ref().map(|image| image.name.as_str());
    answer.injections = inject::report(&Injections::new(config), &rules, &ruled, image);
    let facts = promise_facts(&ruled, &pod, &container);
    answer.promises = promise_rows(&config.promises, &facts);
    (answer.pod.id, answer.pod.name) = (pod.id, pod.name);
    Ok(answer)
}

/// The clause about a plugin that no rule and no section restricts.
pub(super) const UNRESTRICTED: &str = "may set everything";

/// Describes, as a clause, what a plugin may still do under the rules.
pub(crate) fn effect(rights: &PluginRights) -> String {
    if rights.hidden {
        return "receives nothing about this pod".to_owned();
    }
    let PluginRights { refused, would_refuse, refused_by_section, .. } = rights;
    let effects = [
        (refused, "refused"),
        (would_refuse, "noted"),
        (refused_by_section, "refused by its own section"),
    ];
    let effects = effects.into_iter().filter(|(fields, _)| !fields.is_empty());
    let effects = effects.map(|(fields, what)| match fields.as_slice() {
        [all] if all == EVERY_FIELD => format!("{what}: everything"),
        fields => format!("{what}: {}", printable(&fields.join(" "))),
    });
    let effects: Vec<String> = effects.collect();
    if effects.is_empty() { UNRESTRICTED.to_owned() } else { effects.join("; ") }
}
