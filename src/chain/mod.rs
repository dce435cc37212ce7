// SPDX-License-Identifier: Apache-2.0
//! Asking several plugins, one after the other in index order, and what their answers and
//! silences come to.
//!
//! The daemon asks for containers, `replay` for a script; both bring the audience, which they
//! choose. Invariants: no lock is held across a plugin call, but that plugin's own turn, so
//! requests about different containers follow each other along the chain; every wait is bounded
//! by the plugin's time-out; nothing is applied here. Reference: `pkg/adaptation` of NRI v0.12,
//! with its defects 24 to 27, 44, 45, 47 and 48 put right.

mod builtin;
mod create;
mod seat;
mod tell;
mod update;
mod validate;

pub use create::{SMALL, Stopped, Table, Witness, create};
pub use seat::{Cause, Failure, Said, Seat};
pub use tell::{Told, ask_leave, tell_all};
pub use update::{stop, update};
