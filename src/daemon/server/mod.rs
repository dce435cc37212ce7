// SPDX-License-Identifier: Apache-2.0
//! Connections of wrappers, hooks and operators: frames, heartbeats, verdicts, admin answers.
//!
//! It decides nothing about containers.

mod admin;
pub(crate) mod drain;
mod explain;
mod explain_pod;
mod frames;
mod hook;
mod recording;
mod rows;
pub(crate) mod session;
mod verb;
