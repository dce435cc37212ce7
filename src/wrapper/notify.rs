// SPDX-License-Identifier: Apache-2.0
//! Handles `start`, `delete`, and `kill` of a pod's infrastructure container: the wrapper notifies the daemon, then
//! becomes the runtime.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::host::Point;

use super::invocation::Invocation;
use super::request::{DaemonSession, DaemonVerdict};

/// Time that a `kill` waits for plugins.
const KILL_CAP: Duration = Duration::from_secs(1);

impl Invocation<'_> {
    /// Notifies the daemon before the runtime runs.
    pub(super) fn notify_daemon(&self) -> Result<Infallible> {
        let (proceed, mut session) = match self.ask("", &[])? {
            DaemonVerdict::Proceed(proceed, session) => (proceed, session),
            DaemonVerdict::Away(why) => return self.bypass(&why),
        };
        self.host.point(Point::WrapperVerdict)?;
        if let Err(gone) = session.notify_exec() {
            return self.bypass(&gone.to_string());
        }
        let error = self.exec(&proceed);
        session.notify_exec_failed(&error);
        Err(error)
    }

    /// Notifies the daemon of a `kill` that ends an infrastructure container, ignoring failures: plugins receive
    /// StopPodSandbox while the pod's network namespace still exists (D37). Never starts a daemon.
    pub(super) fn kill_sandbox(&self) -> Result<Infallible> {
        let session = DaemonSession::notify(self, Instant::now() + KILL_CAP);
        if let Ok(DaemonVerdict::Proceed(_, mut session)) = session {
            let _daemon_has_gone = session.notify_exec();
        }
        self.exec_unchanged()
    }
}
