// SPDX-License-Identifier: Apache-2.0
//! `start` and `delete`: the wrapper notifies the daemon, then becomes the runtime.

use std::convert::Infallible;

use crate::error::Result;
use crate::host::Point;

use super::invocation::Invocation;
use super::request::DaemonVerdict;

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
}
