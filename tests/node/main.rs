// SPDX-License-Identifier: Apache-2.0
//! A node over time, with the built program and a real or a small runtime: cgroups that plugins change;
//! a daemon that is killed, re-executed or delayed; lost and damaged state; hundreds of containers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests start programs and write files in place")]

mod kills;
mod lives;
mod reexec;
mod resources;
mod slow;
mod state;
