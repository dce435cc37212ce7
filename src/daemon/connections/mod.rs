// SPDX-License-Identifier: Apache-2.0
//! Handles plugins that connect and disconnect: the socket, registration and synchronization,
//! supervision of pre-installed plugins, and plugins expected back after a restart.
//!
//! This module never decides about a container. It imports `shared`, `process`, `registry`,
//! `resources` and `watch`.

pub(crate) mod admission;
mod launched_run;
mod launcher;
mod origin;
mod refusals;
pub(crate) mod resumed;
pub(crate) mod returning;
mod slots;
mod snapshot;
pub(crate) mod socket;
mod takeover;
mod upcalls;
