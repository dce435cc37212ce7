// SPDX-License-Identifier: Apache-2.0
//! Receives kernel events without polling: processes by descriptor, folders by inotify, writes by
//! fanotify, and whether the process of a created container was started.
//!
//! This module never interprets an event, and knows no record, no pod and no plugin. It imports no
//! other folder of the daemon.

pub(crate) mod folders;
pub(crate) mod pidfd;
pub(crate) mod start_watch;
pub(crate) mod timer;
pub(crate) mod writers;
