// SPDX-License-Identifier: Apache-2.0
//! Patches `config.json` without losing a byte, and keeps plugins' values in updates.
//!
//! Pure: nothing here opens a file, reads a clock or writes a log line. Reference: OCI runtime-spec
//! 1.3 (`config.md`, `config-linux.md`); decisions D16, D21 to D24.

/// The members in which two documents differ.
pub(crate) mod differences;
/// The flags of `update` as a document.
pub(crate) mod flags;
/// Keeps the values that plugins own when an engine updates a container.
pub(crate) mod overlay;
/// The owners of an overlay's members.
pub(crate) mod owned;
/// Converts an adjustment to edits of the document.
pub(crate) mod patch;

/// An object of a document, mostly `linux.resources`.
pub(crate) type Block = serde_json::Map<String, serde_json::Value>;
