// SPDX-License-Identifier: Apache-2.0
//! containerd without CRI: `ctr`, nerdctl, other clients. ctr writes the labels of its command line
//! to annotations, nerdctl its own labels; containerd's record has all labels, including the
//! image's. So nri-runc's keys are accepted only in annotations. The container is its own pod.

use super::identity::{Claims, Field, Source};
use super::{CallerInfo, DetectedEngine, Document, Facts, Image, Seen, Wanted, containerd, own};

/// Only nerdctl writes this key.
pub(super) const NERDCTL_NAMESPACE: &str = "nerdctl/namespace";
const NERDCTL_NAME: &str = "nerdctl/name";

pub(super) fn wanted(call: &CallerInfo<'_>, _: &Document<'_>) -> Wanted {
    let mut store = containerd::query(call, vec![call.id.to_owned()]);
    if let Some(query) = &mut store {
        query.with_images = true;
    }
    Wanted { files: Vec::new(), store }
}

pub(super) fn facts(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let mut facts = facts_of_record(engine, seen);
    own::apply(&mut facts, seen.document, seen.document.annotations);
    facts
}

/// Describes the container like [`facts`], with the name from nerdctl's annotation, and the namespace
/// from the bundle's path, else from nerdctl's annotation.
pub(super) fn facts_of_nerdctl(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let Seen { call, document, .. } = seen;
    let mut facts = facts_of_record(engine, seen);
    if let Some(name) = document.said(NERDCTL_NAME) {
        facts.pod.name.clone_from(&name);
        facts.container.name = name;
    }
    let mut claims = Claims::new(facts.engine.kind);
    let by_bundle = containerd::namespace(call.bundle).map(ToOwned::to_owned);
    claims.add(Field::PodNamespace, Source::BundlePath, by_bundle);
    let said = document.said(NERDCTL_NAMESPACE);
    claims.add(Field::PodNamespace, Source::Annotation, said);
    let settled = claims.settle(Field::PodNamespace, &mut facts.contradictions);
    if let Some((namespace, writer)) = settled {
        (facts.pod.namespace, facts.namespace_by) = (namespace, Some(writer));
    }
    own::apply(&mut facts, document, document.annotations);
    facts
}

/// Describes the container by containerd's record. The caller applies nri-runc's own keys.
fn facts_of_record(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let Seen { call, document, found } = seen;
    let mut facts = Facts::alone(engine, call);
    facts.pod.annotations = document.annotations.clone();
    facts.pod.uid = call.id.to_owned();
    match found.records.get(call.id) {
        Some(record) => {
            facts.container.labels = record.labels.clone();
            facts.pod.labels = record.labels.clone();
            own::note_labels(&mut facts, &record.labels, document);
            let name = record.image.clone();
            let digest = record.image_digest.clone();
            facts.container.image =
                (!name.is_empty()).then(|| Image { name, digest, ..Image::default() });
            // The handler is the name that the client used: of the OCI runtime, else of the shim.
            let named = [&record.binary, &record.runtime].into_iter().find(|name| !name.is_empty());
            facts.pod.runtime_handler = named.cloned().unwrap_or_default();
        }
        None => {
            facts.unread = Some("containerd's record of the container".to_owned());
            let why = found.store_problem.as_deref().unwrap_or("it has no record of it");
            facts
                .missing
                .push(format!("containerd did not provide labels, image and runtime: {why}"));
        }
    }
    facts
}
