// SPDX-License-Identifier: Apache-2.0
//! Holds the state of the daemon's own process: its configuration at the start, operators' requests
//! to it, and whether it is ending.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use crate::answers::{Reexec, Reloaded};
use crate::daemon::process::requests::{ReexecRequest, ReloadRequest, Requests};
use crate::daemon::process::started_with::StartedWith;
use crate::daemon::process::subreaper::StandIn;

/// Counts work in progress.
#[derive(Debug, Clone, Default)]
pub(crate) struct Activity(Rc<Cell<usize>>);

/// Work in progress until it is dropped.
#[derive(Debug)]
pub(crate) struct ActiveWork(Activity);

impl Activity {
    /// Counts new work.
    pub(crate) fn begin(&self) -> ActiveWork {
        self.0.set(self.0.get() + 1);
        ActiveWork(self.clone())
    }

    /// Whether no work is in progress.
    pub(crate) fn is_none(&self) -> bool {
        self.0.get() == 0
    }
}

impl Drop for ActiveWork {
    fn drop(&mut self) {
        let Self(Activity(count)) = self;
        count.set(count.get().saturating_sub(1));
    }
}

/// The daemon's own process.
#[derive(Default)]
pub(crate) struct OwnProcess {
    pub(crate) started_with: OnceCell<StartedWith>,
    pub(crate) reloads: Requests<ReloadRequest, Reloaded>,
    pub(crate) reexecs: Requests<ReexecRequest, Reexec>,
    /// Work in progress outside the lanes, which a re-execution awaits.
    pub(crate) activity: Activity,
    /// The process between the daemon and a subreaper above it.
    pub(crate) stand_in: RefCell<Option<StandIn>>,
    /// Whether the daemon is ending: a plugin that exits then is not restarted.
    pub(crate) is_ending: Cell<bool>,
}

impl OwnProcess {
    /// Lets the monitor of an ended or failed container exit without waiting for the daemon.
    pub(crate) fn release_monitor(&self) {
        if let Some(stand_in) = &*self.stand_in.borrow() {
            stand_in.wake();
        }
    }
}
