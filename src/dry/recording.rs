// SPDX-License-Identifier: Apache-2.0
//! A recording is replayed to the plugins that were synchronized when it began: the first call
//! waits for them, up to a limit. Other scripts have `wait` lines instead.

use std::cell::RefCell;
use std::io::Write;
use std::time::Duration;

use crate::config::show_duration;
use crate::text::printable;

use super::dry_run::DryRun;

/// The plugins that the next call waits for.
pub(super) struct ExpectedPlugins {
    timeout: Duration,
    /// Empty: the call waits for any plugin. `None`: it does not wait.
    names: RefCell<Option<Vec<String>>>,
}

impl ExpectedPlugins {
    /// Expects no plugin yet; each wait will last at most `timeout`.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, names: RefCell::default() }
    }

    /// Expects the plugins of a recording; `None` for any other script.
    pub(super) fn expect(&self, names: Option<Vec<String>>) {
        *self.names.borrow_mut() = names;
    }

    /// Expects no plugins any longer, because the script has a `wait` line.
    pub(super) fn leave_to_the_script(&self) {
        self.names.borrow_mut().take();
    }

    /// Waits until the expected plugins are synchronized, unless plugins cannot connect. After the
    /// time-out, reports the missing ones on standard error and returns.
    pub(super) async fn wait(&self, dry_run: &DryRun) {
        let Some(names) = self.names.borrow_mut().take() else { return };
        let missing = dry_run.missing(&names);
        if missing.is_empty() || !dry_run.accepts_connections() || self.timeout.is_zero() {
            return;
        }
        let timeout = show_duration(self.timeout);
        let whom = if names.is_empty() { "a plugin" } else { &missing.join(", ") };
        report(&format!("the recording waits up to {timeout} for {whom} to connect"));
        if dry_run.wait_until_present(&names, self.timeout).await {
            return;
        }
        let missing = dry_run.missing(&names).join(", ");
        report(&format!(
            "not connected within {timeout}: {missing}; the recording continues without"
        ));
    }
}

/// Reports on standard error, because standard output is for answers.
fn report(line: &str) {
    let line = format!("nri-runc: {}\n", printable(line));
    let _nobody_reads = std::io::stderr().write_all(line.as_bytes());
}
