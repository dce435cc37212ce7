// SPDX-License-Identifier: Apache-2.0
//! The registered plugins: which of them is notified of what, in which order, and what has been
//! sent so far.
//!
//! It never accepts a connection and never decides what an answer means. It imports no other room.

pub(crate) mod recording;
pub(crate) mod relay;
pub(crate) mod roster;
