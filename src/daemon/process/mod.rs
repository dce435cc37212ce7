// SPDX-License-Identifier: Apache-2.0
//! Handles the daemon as a process: detached from its starter, the only one in its run directory,
//! with the configuration loaded at its start and at reloads.
//!
//! This module never looks at a container. It imports no other folder of the daemon.

pub(crate) mod capabilities;
pub(crate) mod detach;
pub(crate) mod handover;
pub(crate) mod other;
pub(crate) mod own;
pub(crate) mod requests;
pub(crate) mod service_manager;
pub(crate) mod signals;
pub(crate) mod sockets;
pub(crate) mod started_with;
pub(crate) mod subreaper;
