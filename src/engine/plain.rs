// SPDX-License-Identifier: Apache-2.0
//! A bundle without an engine: the container is its own pod, unless its owner says otherwise by
//! annotations of ours. They count only where the user writes the whole document anyway.

use std::collections::BTreeMap;

use super::{Call, Engine, Facts, Kind, Role};

/// Pod id; several containers may name the same.
pub(super) const POD_ID: &str = "nri-runc.dev/pod-id";
/// Pod name.
pub(super) const POD_NAME: &str = "nri-runc.dev/pod-name";
/// Pod namespace.
pub(super) const POD_NAMESPACE: &str = "nri-runc.dev/pod-namespace";
/// Pod uid.
pub(super) const POD_UID: &str = "nri-runc.dev/pod-uid";
/// Container name.
pub(super) const CONTAINER_NAME: &str = "nri-runc.dev/container-name";
/// Prefix of pod labels: `nri-runc.dev/label/app` is the label `app`.
pub(super) const LABEL_PREFIX: &str = "nri-runc.dev/label/";

pub(super) fn facts(
    engine: Engine,
    call: &Call<'_>,
    annotations: &BTreeMap<String, String>,
) -> Facts {
    let counts = engine.kind == Kind::Plain;
    let said = |key: &str| annotations.get(key).filter(|_| counts).cloned();
    let id = || call.id.to_owned();
    let labels = annotations.iter().filter(|_| counts).filter_map(|(key, value)| {
        Some((key.strip_prefix(LABEL_PREFIX)?.to_owned(), value.clone()))
    });
    Facts {
        role: Role::Container,
        container_id: id(),
        container_name: said(CONTAINER_NAME).unwrap_or_else(id),
        container_labels: BTreeMap::new(),
        image: None,
        pod_id: said(POD_ID).unwrap_or_else(id),
        pod_name: said(POD_NAME).unwrap_or_else(id),
        pod_namespace: said(POD_NAMESPACE).unwrap_or_default(),
        pod_uid: said(POD_UID).unwrap_or_default(),
        pod_labels: labels.collect(),
        sandbox_config: None,
        engine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: Kind) -> Facts {
        let engine = Engine { kind, evidence: Vec::new() };
        let call = Call {
            id: "c1",
            root: "/r",
            bundle: "/b",
            parent: &[],
            grandparent: &[],
            variables: &[],
        };
        let annotations = [(POD_NAME, "web"), ("nri-runc.dev/label/app", "shop")];
        let map = annotations.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        facts(engine, &call, &map)
    }

    #[test]
    fn the_owner_of_a_plain_bundle_may_name_its_pod() {
        let facts = told(Kind::Plain);
        assert_eq!((facts.pod_name.as_str(), facts.pod_id.as_str()), ("web", "c1"));
        assert_eq!(facts.pod_labels["app"], "shop");
    }

    #[test]
    fn an_engine_that_passes_on_foreign_annotations_is_not_fooled() {
        assert_eq!(told(Kind::Crio).pod_name, "c1");
    }
}
