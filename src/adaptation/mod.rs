// SPDX-License-Identifier: Apache-2.0
//! The replies of all plugins become one verdict.
//!
//! Everything here is pure: values in, values out; no I/O, clock, async or log. It may name the
//! generated NRI messages and nothing else of the program, so a verdict can be replayed from
//! what was recorded. Where the reference merges wrongly, this departs from it, marked `NRI:` at
//! the place. Reference: `pkg/adaptation` and `pkg/api` of NRI v0.12.

/// How much one answer may hold.
pub(crate) mod bounds;
/// The fields that can be owned, and their names.
pub(crate) mod fields;
/// Canonical spellings of keys.
pub(crate) mod keys;
/// One CreateContainer on its way through the plugins.
pub(crate) mod merge;
/// Owners of fields.
pub(crate) mod owners;
/// What the operator lets a plugin set.
pub(crate) mod rights;
/// Updates of existing containers, and evictions.
pub(crate) mod updates;
/// What no plugin may do, and which plugins are required.
pub(crate) mod validator;

mod adjust;
mod annotation;
mod claims;
mod listed;
mod resources;
mod unknown;

pub use claims::MergeError;
pub use fields::{FieldSet, NriField};
pub use merge::{Creation, Merged};
pub(crate) use owners::Owners;
pub use resources::rule_text;
pub use rights::{Rights, RuleDecision, RuleNote, Ruling};
pub(crate) use unknown::unknown_fields;
pub use updates::{DroppedRequest, Updated, Updates};
pub use validator::DefaultValidator;
pub(crate) use validator::{ValidatorExemptions, missing_required};

#[cfg(test)]
mod tests;
