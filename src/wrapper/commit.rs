// SPDX-License-Identifier: Apache-2.0
//! Exchanges the bundle's document with the patched one right before exec, and back if exec fails
//! (D1).
//!
//! At every instant the document is complete: either the engine's or the patched one, with the
//! other next to it.

use crate::error::Result;
use crate::files;

use super::invocation::BundleDocument;

/// An exchanged document, and what is needed to exchange it back.
#[derive(Debug)]
#[must_use]
pub(super) struct Committed {
    exchanged: Option<String>,
}

/// Exchanges the document with the patched file `new` beside it; without `new`, does nothing.
pub(super) fn put_in_place(document: &BundleDocument, new: Option<&str>) -> Result<Committed> {
    let Some(new) = new else { return Ok(Committed { exchanged: None }) };
    files::exchange_at(&document.dir, new, &document.name)?;
    Ok(Committed { exchanged: Some(new.to_owned()) })
}

impl Committed {
    /// Exchanges the two files back.
    pub(super) fn undo(&self, document: &BundleDocument) {
        if let Some(pristine) = &self.exchanged {
            let _daemon_repairs_it = files::exchange_at(&document.dir, pristine, &document.name);
        }
    }
}
