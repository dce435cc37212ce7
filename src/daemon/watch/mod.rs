// SPDX-License-Identifier: Apache-2.0
//! Kernel events without polling: processes by descriptor, folders by inotify, and whether the
//! process of a created container was started.
//!
//! These modules never decide what an event means, and know no record, no pod and no plugin. They
//! import no other module of the daemon.

pub(crate) mod folders;
pub(crate) mod pidfd;
pub(crate) mod start_watch;
