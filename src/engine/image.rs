// SPDX-License-Identifier: Apache-2.0
//! What an image says of itself: labels of its configuration, annotations of its manifest. Engines
//! mix them with those of the operator; here they are told apart again.

use std::collections::BTreeMap;

use serde_json::Value;

use super::texts;

/// The labels in an image's configuration.
pub(super) fn labels(config: &Value) -> BTreeMap<String, String> {
    let docker = config.pointer("/config/Labels");
    texts(docker.or_else(|| config.pointer("/container_config/Labels")))
}

/// The annotations in an image's manifest.
pub(super) fn annotations(manifest: &Value) -> BTreeMap<String, String> {
    texts(manifest.get("annotations"))
}
