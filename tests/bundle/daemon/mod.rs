// SPDX-License-Identifier: Apache-2.0
//! The daemon itself: how it starts and stops, what holds while it is away, and who disturbs it.

mod bypassed;
mod drain;
mod first_caller;
mod hostile_peers;
mod memory_limit;
mod own_daemon;
mod runtime_features;
mod service_manager;
mod unavailable;
