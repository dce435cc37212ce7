// SPDX-License-Identifier: Apache-2.0
//! Edits a JSON document without rewriting it, and reads it as Go's decoder does.
//!
//! A container's `config.json` is written by one program and read by another, both usually in Go. A program between
//! them that parses and serializes it changes it: unknown members get lost, `1E+400` becomes an error, blanks and
//! the order of members change, and a member that is spelled `Process` may be read by one and not by the other.
//! [`SpecDocument`] makes the requested changes, and every other byte stays as it was:
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
//! An edit that would have to guess is refused: of `args` and `ARGS` in one object, Go's decoder reads one and another
//! reader another ([`DocumentError::Ambiguous`]). [`odd_document`] reads a whole document as Go does, and
//! [`fold`] and [`is_field`] compare names of members as Go compares them.
//!
//! Everything here is pure: values in, values out. No file is opened.

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
