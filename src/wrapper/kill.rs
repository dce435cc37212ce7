// SPDX-License-Identifier: Apache-2.0
//! `kill` of a pod's infrastructure container: the daemon is notified first, so that plugins receive
//! StopPodSandbox while the pod's network namespace still exists (D37).
//!
//! It never fails because of the daemon, never starts one, and waits a second at most. A `kill` of
//! another container, or with another signal, does not come here.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use crate::error::Result;

use super::invocation::Invocation;
use super::request::{DaemonSession, DaemonVerdict};

/// Time that a `kill` waits for plugins.
const KILL_CAP: Duration = Duration::from_secs(1);

impl Invocation<'_> {
    /// Notifies the daemon, ignoring failures, then becomes the runtime.
    pub(super) fn kill_sandbox(&self) -> Result<Infallible> {
        let session = DaemonSession::notify(self, Instant::now() + KILL_CAP);
        if let Ok(DaemonVerdict::Proceed(_, mut session)) = session {
            let _daemon_has_gone = session.notify_exec();
        }
        self.exec_unchanged()
    }
}
