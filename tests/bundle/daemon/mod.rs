// SPDX-License-Identifier: Apache-2.0
//! The daemon itself: its start and stop, operation without it, and hostile or faulty peers.

mod bypassed;
mod drain;
mod first_caller;
mod hostile_peers;
mod memory_limit;
mod own_daemon;
mod runtime_features;
mod service_manager;
mod unavailable;
