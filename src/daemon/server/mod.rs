// SPDX-License-Identifier: Apache-2.0
//! Connections of wrappers, hooks and operators: frames, heartbeats, verdicts, admin answers.
//!
//! It never decides about a container. It imports the verbs and the verbs' imports.

mod admin;
pub(crate) mod drain;
mod explain;
mod explain_pod;
mod exposed;
mod frames;
mod holdings;
mod hook;
pub(crate) mod http;
mod later;
mod policy;
mod recording;
mod rows;
pub(crate) mod session;
mod verb;
