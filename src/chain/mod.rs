// SPDX-License-Identifier: Apache-2.0
//! Sends one request through several plugins, in index order, and merges their replies; for a
//! missing reply, the plugin's policy applies.
//!
//! The daemon sends requests about containers, and `replay` sends those of a script; the caller chooses the
//! subscribers. Invariants: across a plugin call no lock is held except that plugin's turn, so that a plugin can handle
//! one container while a later plugin handles another; every call is bounded by the plugin's time-out; nothing is
//! applied here. Reference: `pkg/adaptation` of NRI v0.12, with BUG-24 to BUG-27, BUG-44, BUG-45, BUG-47 and BUG-48
//! corrected.

mod chained_plugin;
mod create;
mod exec;
mod members;
mod notify;
mod ruled;
mod strikes;
mod update;
mod validate;

pub use chained_plugin::{Cause, ChainedPlugin};
pub(crate) use chained_plugin::{PluginCounts, PluginFailure, unknown_field_line};
pub use create::{ChainError, Participants, create};
pub(crate) use create::{ChainObserver, SMALL};
pub(crate) use exec::{EXEC_WAIT, ExecChanges, ExecMembers, exec};
pub(crate) use members::{Member, Members};
pub use notify::{Notification, notify_all, notify_until_refused};
pub use ruled::RuleScope;
pub use update::{stop, update};
