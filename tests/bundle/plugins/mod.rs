// SPDX-License-Identifier: Apache-2.0
//! Plugins from their connection to their end: who may register, what their failures cost, how one
//! process replaces another, and the plugins that the daemon starts itself.

mod first_create;
mod go_stub;
mod launched;
pub(crate) mod policies;
mod replaced_files;
mod required;
mod reserved_names;
mod response_times;
mod socket;
mod takeover;
mod takeover_fights;
mod trace_context;
mod unknown_fields;
