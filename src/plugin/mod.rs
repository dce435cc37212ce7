// SPDX-License-Identifier: Apache-2.0
//! One plugin: bytes, handshake, calls. Placeholder until its first landing.

/// The generated messages and services.
pub mod api;
