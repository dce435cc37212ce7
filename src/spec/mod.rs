// SPDX-License-Identifier: Apache-2.0
//! `config.json`, patched without losing a byte, and the rule by which updates keep what plugins
//! own.
//!
//! Pure: values in, values out. Nothing here opens a file, asks the time or writes a log line.
//! Reference: OCI runtime-spec 1.3 (`config.md`, `config-linux.md`); decisions D16, D21 to D24.

/// The members in which two documents differ.
pub(crate) mod differences;
/// The flags of `update` as a document.
pub(crate) mod flags;
/// Keeps the values that plugins own when an engine updates a container.
pub(crate) mod overlay;
/// The owners of an overlay's members.
pub(crate) mod owned;
/// Turns an adjustment into edits of the document.
pub(crate) mod patch;
