// SPDX-License-Identifier: Apache-2.0
//! What happened without this daemon: records of the one before (`catch_up.rs`), wrappers that found
//! none (`bypassed.rs`, `refusals.rs`), run directories that were wiped (`rediscover.rs`).
//!
//! It never asks a plugin about what has happened already. It imports the rooms of a container's
//! life, not the verbs.

pub(crate) mod bypassed;
pub(crate) mod catch_up;
mod notes;
pub(crate) mod rediscover;
mod refusals;
