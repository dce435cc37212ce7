// SPDX-License-Identifier: Apache-2.0
//! A bundle without an engine: the container is its own pod, unless its owner says otherwise by
//! annotations of ours.

use super::{CallerInfo, DetectedEngine, Document, Facts, own};

pub(super) fn facts(
    engine: DetectedEngine,
    call: &CallerInfo<'_>,
    document: &Document<'_>,
) -> Facts {
    let mut facts = Facts::alone(engine, call);
    facts.pod.annotations = document.annotations.clone();
    own::apply(&mut facts, document, document.annotations);
    facts
}
