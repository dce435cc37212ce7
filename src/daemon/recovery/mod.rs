// SPDX-License-Identifier: Apache-2.0
//! What happened without this daemon: records of the one before, wrappers that found none, run
//! directories that were wiped.
//!
//! It asks no plugin about anything that has happened already.

pub(crate) mod bypassed;
pub(crate) mod catch_up;
mod notes;
pub(crate) mod rediscover;
mod refusals;
