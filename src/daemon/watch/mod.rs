// SPDX-License-Identifier: Apache-2.0
//! Receives kernel events: exits of processes by descriptor, changes of folders by inotify, writes
//! by fanotify, and whether the process of a created container was started.
//!
//! This module never uses a record, a pod or a plugin. It imports no other folder of the daemon.

pub(crate) mod folders;
pub(crate) mod pidfd;
pub(crate) mod start_watch;
pub(crate) mod timer;
pub(crate) mod writers;
