// SPDX-License-Identifier: Apache-2.0
//! Decides each verb, in one file each, before the runtime runs. A refusal leaves bundle and container as they were.
//!
//! This module never waits for a verb's runtime: `lifecycle` settles the outcome. It imports `bundle`,
//! `lifecycle`, `shared`, `pods`, `registry`, `request`, `resources`, `runtime` and `watch`.

mod admitted;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod hook;
mod host_facts;
mod injected;
pub(crate) mod kill;
pub(crate) mod start;
pub(crate) mod update;
