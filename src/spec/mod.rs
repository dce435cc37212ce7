// SPDX-License-Identifier: Apache-2.0
//! `config.json`, patched without losing a byte, and the rule by which updates keep what plugins
//! own.
//!
//! Pure: values in, values out. Nothing here opens a file, asks the time or writes a log line.
//! Reference: OCI runtime-spec 1.3 (`config.md`, `config-linux.md`); decisions D16, D21 to D24.

/// The flags of `update` as a document.
pub(crate) mod flags;
/// What plugins own survives an engine's update.
pub(crate) mod overlay;
/// Whose the members of an overlay are.
pub(crate) mod owned;
/// An adjustment becomes edits of the document.
pub(crate) mod patch;
