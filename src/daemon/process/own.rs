// SPDX-License-Identifier: Apache-2.0
//! The daemon's own process: its configuration at the start, and whether it is ending.

use std::cell::{Cell, OnceCell, RefCell};

use crate::daemon::process::requests::ReloadRequests;
use crate::daemon::process::started_with::StartedWith;
use crate::daemon::process::subreaper::StandIn;

/// The daemon's own process.
#[derive(Default)]
pub(crate) struct OwnProcess {
    pub(crate) started_with: OnceCell<StartedWith>,
    pub(crate) reloads: ReloadRequests,
    /// The process that stands between this one and a subreaper.
    pub(crate) stand_in: RefCell<Option<StandIn>>,
    /// While the daemon ends, it starts no process any more.
    pub(crate) is_ending: Cell<bool>,
}

impl OwnProcess {
    /// A container has ended, or its creation failed: its monitor must not wait for the daemon.
    pub(crate) fn release_monitor(&self) {
        if let Some(stand_in) = &*self.stand_in.borrow() {
            stand_in.wake();
        }
    }
}
