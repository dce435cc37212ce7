// SPDX-License-Identifier: Apache-2.0
//! Output for operators and their programs: lists, screens, events, metrics, the audit log,
//! recordings.

mod audit;
mod behind;
mod compared_recordings;
mod console;
mod events;
mod lists;
mod metrics;
mod recordings;
mod refusals;
mod schemas;
mod screens;
mod sysdump;
mod terminal;
mod top;
