// SPDX-License-Identifier: Apache-2.0
//! Observes the real runtime from outside: its state directory, its log, the exit code that a
//! monitor wrote, and commands that the daemon runs itself.
//!
//! This module never changes a record and asks no plugin. It imports `watch`.

pub(crate) mod command;
pub(crate) mod error_log;
pub(crate) mod exit_status;
pub(crate) mod state_dir;
