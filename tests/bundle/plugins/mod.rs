// SPDX-License-Identifier: Apache-2.0
//! Plugins from connection to exit: registration, the effects of failures, replacement of one
//! process by another, and plugins that the daemon starts.

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
