// SPDX-License-Identifier: Apache-2.0
//! `create`, `run` and `restore`: the wrapper asks the plugins, puts the patched document in place,
//! and becomes the runtime.

use std::convert::Infallible;

use crate::error::Result;
use crate::host::Point;
use crate::link::Attached;
use crate::presence;

use super::commit;
use super::invocation::Invocation;
use super::request::DaemonVerdict;

impl Invocation<'_> {
    /// Asks the plugins, puts their result in place, and becomes the runtime.
    pub(super) fn create(&self) -> Result<Infallible> {
        if self.is_odd_document() {
            // The daemon handles the document's name as text, but crun accepts any bytes. The policy for
            // an unavailable daemon applies, so that no container evades the plugins unnoticed.
            return self.bypass("the file name of --config is not UTF-8");
        }
        let document = match presence::insist(|| self.document()) {
            Ok(Some(document)) => document,
            // The runtime reports a missing bundle or document itself.
            Ok(None) => return self.exec_unchanged(),
            Err(unknown) => return self.bypass(&unknown.to_string()),
        };
        let bundle = (Attached::Bundle, &document.dir);
        let (proceed, mut session) = match self.ask(&document.name, &[bundle])? {
            DaemonVerdict::Proceed(proceed, session) => (proceed, session),
            DaemonVerdict::Away(why) => return self.bypass(&why),
        };
        self.host.point(Point::WrapperVerdict)?;

        // This process's only change to the document; it is undone if a later step fails.
        let committed = commit::put_in_place(&document, proceed.document.as_deref())?;
        self.host.point(Point::WrapperCommitted)?;
        if let Err(gone) = session.notify_exec() {
            // The daemon exited after its verdict: no daemon would watch this container.
            committed.undo(&document);
            return self.bypass(&gone.to_string());
        }
        let error = self.exec(&proceed);
        committed.undo(&document);
        session.notify_exec_failed(&error);
        Err(error)
    }
}
