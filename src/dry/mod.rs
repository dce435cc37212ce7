// SPDX-License-Identifier: Apache-2.0
//! Plugins without a node: `replay` sends them the requests of a script, `adjust` applies their
//! changes (or a file's) to a bundle, `policy` shows what the rules decide about a bundle, and
//! `compare` shows or compares decisions about a manifest or a recording.
//!
//! These commands need no container, engine, daemon or root. They ask plugins, and merge and apply the replies, with
//! the daemon's code. Reference: docs/plugins.md.

mod adjust;
mod bundle;
mod calls;
mod compare;
mod compared;
mod dry_run;
mod line;
mod manifest;
mod policy;
mod recording;
mod replay;
mod script;

#[cfg(test)]
pub(crate) use adjust::Adjusted;
pub(crate) use adjust::{AdjustOptions, Output, run as adjust};
pub(crate) use compare::{manifest as compare_manifest, recording as compare_recording};
pub(crate) use compared::{ChangedDecision, Compared, ComparedContainer, JudgedContainer};
pub use line::check as check_line;
pub(crate) use policy::{effect as effect_of, policy};
pub(crate) use replay::{ReplayOptions, run as replay};
