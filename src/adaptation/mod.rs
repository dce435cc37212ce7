// SPDX-License-Identifier: Apache-2.0
//! The replies of all plugins become one verdict.
//!
//! Everything here is pure: values in, values out; no I/O, clock, async or log. It may name the
//! generated NRI messages and nothing else of the program, so a verdict can be replayed from
//! what was recorded. Where the reference merges wrongly, this departs from it, marked `NRI:` at
//! the place. Reference: `pkg/adaptation` and `pkg/api` of NRI v0.12.

/// How much one answer may hold.
pub mod bounds;
/// The fields that can be owned, and their names.
pub mod fields;
/// Canonical spellings of keys.
pub mod keys;
/// One CreateContainer on its way through the plugins.
pub mod merge;
/// In which order plugins are asked.
pub mod order;
/// Owners of fields.
pub mod owners;
/// What the operator lets a plugin set.
pub mod rights;
/// Updates of existing containers, and evictions.
pub mod updates;
/// What no plugin may do, and which plugins are required.
pub mod validator;

mod adjust;
mod annotation;
mod claims;
mod listed;
mod resources;
mod unknown;

pub use claims::MergeError;
pub use fields::NriField;
pub use merge::{Creation, Merged};
pub use owners::{Conflict, Owner, Owners};
pub use resources::rule_text;
pub use rights::Rights;
pub use unknown::unknown_fields;
pub use updates::{Updated, Updates};
pub use validator::{DefaultValidator, ValidatorExemptions, missing_required};

#[cfg(test)]
mod tests;
