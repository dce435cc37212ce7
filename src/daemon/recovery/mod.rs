// SPDX-License-Identifier: Apache-2.0
//! Handles events that happened without this daemon: records of its predecessor (`catch_up.rs`), wrappers that found no
//! daemon (`bypassed.rs`, `refusals.rs`), lost records of containers (`rediscover.rs`), lost records of pods
//! (`lost_pods.rs`), plugins that were disabled (`enabled.rs`), engines that abandoned containers without a call
//! (`lost.rs`), containers that the plain runtime made without nri-runc (`node_scope.rs`).
//!
//! This module never asks a plugin about a past event. It imports `bundle`, `lifecycle`, `shared`, `pods`, `request`,
//! `resources`, `runtime` and `watch`.

pub(crate) mod bypassed;
pub(crate) mod catch_up;
pub(crate) mod enabled;
pub(crate) mod lost;
pub(crate) mod lost_pods;
pub(crate) mod node_scope;
mod notes;
pub(crate) mod rediscover;
mod refusals;
