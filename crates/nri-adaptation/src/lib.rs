// SPDX-License-Identifier: Apache-2.0
//! Merges the answers of Node Resource Interface (NRI) plugins into one adjustment of a container.
//!
//! A container runtime asks plugin after plugin about each container that it creates or updates.
//! This crate merges their answers: it determines which plugin owns which field, which two plugins
//! conflict, what the operator forbids, and which adjustment is finally applied.
//!
//! ```
//! use nri_adaptation::{Creation, MergeError, Rights};
//! use nri_api::{Container, ContainerAdjustment, KeyValue, PodSandbox};
//!
//! let set_greeting = |value: &str| {
//!     let variable = KeyValue { key: "GREETING".into(), value: value.into(), ..Default::default() };
//!     ContainerAdjustment { env: vec![variable], ..Default::default() }.into()
//! };
//! let container = Container { id: "c0".into(), ..Default::default() };
//! let creation = Creation::new(PodSandbox::default(), container);
//! let creation = creation.answer("10-first", &Rights::default(), set_greeting("hello")).unwrap();
//! // The next plugin is asked with `creation.request()`, in which the variable is set already.
//! assert_eq!(creation.container().env, ["GREETING=hello"]);
//!
//! let refused = creation.clone().answer("20-second", &Rights::default(), set_greeting("bye"));
//! assert!(matches!(refused, Err(MergeError::Conflict(_))));
//!
//! let merged = creation.finish();
//! assert_eq!(merged.adjust.env[0].value, "hello");
//! assert_eq!(merged.owners.to_flat("c0")["Env[GREETING]"], "10-first");
//! ```
//!
//! * [`Creation`] merges the answers to CreateContainer, [`Updates`] those to UpdateContainer and
//!   StopContainer.
//! * [`Creation::offer`] adds defaults, which yield to the container's values and to every
//!   plugin's.
//! * [`Owners`] records which plugin set or removed what; [`NriField`] names the fields as NRI
//!   does.
//! * [`Rights`] has the fields that the operator permits a plugin to set.
//! * [`DefaultValidator`] is NRI's built-in validator, [`missing_required`] finds required plugins
//!   that are absent.
//!
//! Everything here is pure: no I/O, no clock, no async, no log. A result can be computed again from
//! recorded answers. Where NRI's adaptation merges incorrectly, this crate differs; comments with
//! `NRI:` mark the places. Reference: `pkg/adaptation` and `pkg/api` of NRI v0.12.

mod adjust;
mod annotation;
mod bounds;
mod claims;
mod encoded;
mod fields;
/// Canonical spellings of keys.
pub mod keys;
mod listed;
mod merge;
mod offers;
mod owners;
mod resources;
mod rights;
mod scalar;
mod schema;
mod unknown;
mod updates;
mod validator;

pub use bounds::{MOST_IN_ALL, MOST_IN_ONE, TooMany, check};
pub use claims::MergeError;
pub use fields::{FieldSet, NriField};
pub use merge::{Creation, Merged};
pub use offers::{Yielded, as_adjustment};
pub use owners::{Conflict, Owner, Owners};
pub use resources::rule_text;
pub use rights::{Forbidden, Rights, RuleDecision, RuleNote, Ruling, UnknownField};
pub use scalar::{SCALARS, Scalar};
pub use unknown::unknown_fields;
pub use updates::{DroppedRequest, Updated, Updates};
pub use validator::{DefaultValidator, REQUIRED_PLUGINS, ValidatorExemptions, missing_required};

/// Quotes text that a plugin or an engine chose, for a message.
fn quoted(text: &str) -> String {
    nri_api::text::one_line(text, 4 << 10)
}

#[cfg(test)]
mod tests;
