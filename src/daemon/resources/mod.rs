// SPDX-License-Identifier: Apache-2.0
//! Updates and evicts running containers as plugins request, through their cgroups or the runtime; finds and corrects
//! drift (`drift.rs`, `put_back.rs`). In this folder, the values that plugins own include those of injections.
//!
//! This module never sends a plugin an event, only results of its updates; and a failed update of another container
//! never fails the event that contained it. It imports `shared`, `registry`, `runtime` and `watch`.

pub(crate) mod apply;
pub(crate) mod classes;
pub(crate) mod drift;
pub(crate) mod error;
pub(crate) mod evict;
pub(crate) mod ignored;
pub(crate) mod in_force;
pub(crate) mod own_pod;
pub(crate) mod partial;
mod put_back;
pub(crate) mod results;
pub(crate) mod route;
pub(crate) mod ruled;
pub(crate) mod target;
pub(crate) mod updates;
