// SPDX-License-Identifier: Apache-2.0
//! Edits a JSON document without rewriting it, and reads it as Go's decoder does.
//!
//! A container's `config.json` is written by one program and read by another, both usually in Go. A
//! program between them that parses and serializes it changes it: unknown members are lost,
//! `1E+400` becomes an error, blanks and the order of members change, and only one of the two
//! programs may read a member spelled `Process`. [`SpecDocument`] makes the requested changes, and
//! preserves every other byte:
//!
//! ```
//! use oci_document::SpecDocument;
//! use serde_json::json;
//!
//! # fn main() -> Result<(), oci_document::DocumentError> {
//! let text = br#"{ "process": {"args": ["sh"], "x-vendor": 1.50}, "hostname" : "a" }"#;
//! let mut document = SpecDocument::parse(text)?;
//! document.root().object("process")?.set("cwd", &json!("/"))?;
//! assert_eq!(
//!     document.to_bytes(),
//!     br#"{ "process": {"args": ["sh"], "x-vendor": 1.50,"cwd": "/"}, "hostname" : "a" }"#
//! );
//! # Ok(())
//! # }
//! ```
//!
//! An ambiguous edit is refused: of `args` and `ARGS` in one object, Go's decoder may read one and
//! other readers the other ([`DocumentError::Ambiguous`]). [`odd_document`] reads a whole document
//! like Go, and [`fold`] and [`is_field`] compare names of members like Go.
//!
//! Everything here is pure: no file is opened.

mod array;
mod decoded;
mod document;
mod gojson;
mod scan;

pub use array::{Array, Item};
pub use decoded::odd_document;
pub use document::{DocumentError, MAX_BYTES, Object, SpecDocument};
pub use gojson::{fold, is_field};

#[cfg(test)]
mod tests;
