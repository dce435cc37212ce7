// SPDX-License-Identifier: Apache-2.0
//! Names of a container's RDT and block I/O classes. containerd and CRI-O take a name from
//! annotations and write only its effect into the document. A pod may name a class that its node
//! lacks, so a name is used only if the document shows that effect. With other engines the document
//! itself names the RDT class (`ctr run --rdt-class`), and they have no block I/O classes.
//! `src/resolve` resolves the classes that plugins name.

use super::{Document, Facts};

/// Returns the requested class: the one for this container, else for a container of this name in
/// the pod, else for all the pod's containers.
fn asked_for(facts: &Facts, document: &Document<'_>, kind: &str) -> Option<String> {
    let own = format!("io.kubernetes.cri.{kind}-class");
    let of_request = facts.container.annotations.get(&own).cloned();
    let stem = format!("{kind}.resources.beta.kubernetes.io");
    let narrow = format!("{stem}/container.{}", facts.container.name);
    let pod = |key: &str| facts.pod.annotations.get(key).cloned();
    let asked = of_request.or_else(|| document.annotations.get(&own).cloned());
    let asked = asked.or_else(|| pod(&narrow)).or_else(|| pod(&format!("{stem}/pod")));
    asked.filter(|class| !class.is_empty())
}

/// Adds the class names to the facts.
pub(super) fn fill_in(facts: &mut Facts, document: &Document<'_>) {
    if !facts.engine.kind.behaviour().has_classes {
        let class = document.clos.filter(|class| !class.is_empty());
        facts.container.rdt_class = class.map(ToOwned::to_owned);
        return;
    }
    let rdt = asked_for(facts, document, "rdt");
    let blockio = asked_for(facts, document, "blockio");
    facts.container.rdt_class = rdt.filter(|class| document.clos == Some(class));
    facts.container.blockio_class = blockio.filter(|_| document.limits_block_io);
}

#[cfg(test)]
mod tests {
    use super::super::{CallerInfo, Document, EngineKind, Facts, detect};
    use super::*;

    fn told(clos: Option<&str>, limits_block_io: bool, pod: &[(&str, &str)]) -> Facts {
        told_by(EngineKind::ContainerdCri, clos, limits_block_io, pod)
    }

    fn told_by(
        kind: EngineKind,
        clos: Option<&str>,
        limits_block_io: bool,
        pod: &[(&str, &str)],
    ) -> Facts {
        let call =
            CallerInfo { id: "c1", bundle: "", parent: &[], grandparent: &[], variables: &[] };
        let annotations = Default::default();
        let document = Document {
            annotations: &annotations,
            root_path: "",
            cgroups_path: "",
            mounts: Vec::new(),
            namespaces: Vec::new(),
            clos,
            limits_block_io,
            has_seccomp: false,
        };
        let mut facts = Facts::alone(detect(&call, &document), &call);
        facts.engine.kind = kind;
        let pairs = pod.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        facts.pod.annotations = pairs.collect();
        fill_in(&mut facts, &document);
        facts
    }

    #[test]
    fn the_narrowest_annotation_names_the_class() {
        let facts = told(
            Some("gold"),
            true,
            &[
                ("rdt.resources.beta.kubernetes.io/pod", "bronze"),
                ("rdt.resources.beta.kubernetes.io/container.c1", "gold"),
                ("blockio.resources.beta.kubernetes.io/pod", "slow"),
                ("blockio.resources.beta.kubernetes.io/container.other", "fast"),
            ],
        );
        assert_eq!(facts.container.rdt_class.as_deref(), Some("gold"));
        assert_eq!(facts.container.blockio_class.as_deref(), Some("slow"));
    }

    #[test]
    fn a_class_without_effect_in_the_document_is_ignored() {
        let asked = [
            ("rdt.resources.beta.kubernetes.io/pod", "gold"),
            ("blockio.resources.beta.kubernetes.io/pod", "slow"),
        ];
        for clos in [None, Some("bronze")] {
            let facts = told(clos, false, &asked);
            assert_eq!((facts.container.rdt_class, facts.container.blockio_class), (None, None));
        }
    }

    #[test]
    fn without_a_cri_the_document_alone_names_the_class() {
        let asked = [("rdt.resources.beta.kubernetes.io/pod", "gold")];
        for kind in [EngineKind::Containerd, EngineKind::Plain, EngineKind::Docker] {
            let class = |clos| told_by(kind, clos, true, &asked).container;
            assert_eq!(class(Some("silver")).rdt_class.as_deref(), Some("silver"), "{kind:?}");
            assert_eq!((class(Some("")).rdt_class, class(None).rdt_class), (None, None));
            assert_eq!(class(Some("silver")).blockio_class, None, "{kind:?}");
        }
    }
}
