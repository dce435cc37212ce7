// SPDX-License-Identifier: Apache-2.0
//! Required plugins: whether they are connected, and have answered. It only refuses; whether a pod
//! is exempt was decided before.

use crate::adaptation::{ValidatorExemptions, missing_required};
use crate::chain::{Cause, PluginFailure};
use crate::error::{Error, Result};

use crate::daemon::node::Node;
use crate::daemon::request::describe::Description;
use crate::daemon::request::record;

/// Refuses when a required plugin is missing, unless the pod is exempt (D14).
pub(crate) fn require_plugins(node: &Node, description: &Description) -> Result<()> {
    require_sound_configuration(node, description)?;
    let hint = "the bundle is unchanged; see: nri-runc nri plugins";
    let missing = missing(node, description, |name| node.registry.is_present(name));
    match missing.map_err(|why| Error::new(why).hint(hint))?.as_slice() {
        [] => Ok(()),
        names => {
            let why = format!("the required plugin {} is not connected", names.join(", "));
            Err(Error::new(why).hint(hint))
        }
    }
}

/// Refuses while a protecting part of the configuration cannot be read: its protection is not in
/// force. Exempt namespaces go on, so that a node can be repaired.
fn require_sound_configuration(node: &Node, description: &Description) -> Result<()> {
    let Some(why) = node.config.unreliable() else { return Ok(()) };
    if node.is_bystander() || description.is_exempt {
        return Ok(());
    }
    let hint = "the bundle is unchanged; fix this file, then retry";
    Err(Error::new(why).hint(hint))
}

/// Refuses when a required plugin was connected but did not answer, whatever its failure policy:
/// the container was not checked by it.
pub(crate) fn require_answers(
    node: &Node,
    description: &Description,
    silent: &[(String, String)],
) -> std::result::Result<(), PluginFailure> {
    let of = |name: &str| {
        let bare = |id: &str| id.split_once('-').is_some_and(|(_, bare)| bare == name);
        silent.iter().find(|(id, _)| id == name || bare(id))
    };
    let fails =
        |id: &str, text| Err(PluginFailure { plugin: id.to_owned(), cause: Cause::Timeout, text });
    match missing(node, description, |name| of(name).is_none()) {
        Ok(names) => match names.into_iter().find_map(of) {
            Some((id, why)) => fails(id, format!("the required plugin {id} {why}")),
            None => Ok(()),
        },
        Err(why) => fails("", why),
    }
}

/// The required plugins that are not present, unless this pod is exempt.
fn missing<'n>(
    node: &'n Node,
    description: &Description,
    is_present: impl Fn(&str) -> bool,
) -> std::result::Result<Vec<&'n str>, String> {
    if node.is_bystander() {
        return Ok(Vec::new());
    }
    let config = &node.config;
    let exemptions = ValidatorExemptions {
        is_exempt: description.is_exempt,
        tolerate_missing_plugins_annotation: &config
            .default_validator
            .tolerate_missing_plugins_annotation,
    };
    let required = config.required_plugins();
    let (pod, container) = (record::known_pod(node, description), &description.container.name);
    missing_required(&pod, container, exemptions, required, is_present)
}
