// SPDX-License-Identifier: Apache-2.0
//! The verbs as stories: what the daemon decides before the runtime runs. A refusal leaves bundle
//! and container as they were.
//!
//! It never waits for the runtime: what that makes of a verb is settled in `lifecycle`. It imports
//! every room below it.

mod admitted;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod hook;
mod host_facts;
mod require;
pub(crate) mod start;
pub(crate) mod update;
