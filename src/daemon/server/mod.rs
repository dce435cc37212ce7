// SPDX-License-Identifier: Apache-2.0
//! Connections of wrappers, hooks and operators: frames, heartbeats, verdicts, admin answers.
//!
//! It decides nothing about containers.

pub(crate) mod admin;
pub(crate) mod drain;
pub(crate) mod explain;
pub(crate) mod explain_pod;
pub(crate) mod frames;
pub(crate) mod session;
