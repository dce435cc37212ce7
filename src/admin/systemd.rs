// SPDX-License-Identifier: Apache-2.0
//! The systemd unit that runs the daemon. A daemon that systemd runs is stopped and restarted with
//! systemctl: if it were started directly, systemd would start a second one.

use std::time::Duration;

use crate::error::{Error, Result, quoted};
use crate::files;
use crate::host::Host;
use crate::last_words;
use crate::limits;
use crate::runtime::bounded;

/// Name of the package's unit.
const USUAL: &str = "nri-runc.service";

/// Time limit of a systemctl request.
const REQUEST_WAIT: Duration = Duration::from_secs(10);

/// A unit that exists.
pub(super) struct Unit(String);

impl Unit {
    /// Finds the unit whose main process has this PID.
    ///
    /// # Errors
    /// Fails when systemd does not respond, or has no such unit.
    pub(super) fn of(pid: u32) -> Result<Self> {
        let cgroup =
            files::read(&Host::default().path(format!("/proc/{pid}/cgroup")), limits::KERNEL_FILE);
        let cgroup = String::from_utf8_lossy(&cgroup.unwrap_or_default()).into_owned();
        let own = cgroup.lines().filter_map(|line| line.rsplit('/').next());
        let own = own.filter(|name| name.ends_with(".service") && *name != USUAL);
        for unit in std::iter::once(USUAL).chain(own) {
            if property(unit, "MainPID")? == pid.to_string() {
                return Ok(Self(unit.to_owned()));
            }
        }
        Err(Error::new("no systemd unit has this main process"))
    }

    /// Returns the package's unit if it is installed, and either it is not inactive (another daemon would
    /// conflict with it), or `autostart` is off (only the unit may start a daemon).
    pub(super) fn that_is_wanted(autostart: bool) -> Option<Self> {
        let state = property(USUAL, "ActiveState").ok()?;
        let is_loaded = property(USUAL, "LoadState").ok()? == "loaded";
        (is_loaded && (state != "inactive" || !autostart)).then(|| Self(USUAL.to_owned()))
    }

    /// Asks systemd to start or restart the unit, without waiting.
    pub(super) fn restart(&self) -> Result<()> {
        systemctl(&["--no-block", "restart", &self.0]).map(drop)
    }

    /// Asks systemd to stop the unit and its socket, which would start the unit again.
    pub(super) fn stop(&self) -> Result<()> {
        let socket = self.0.replace(".service", ".socket");
        let _there_may_be_none = systemctl(&["--no-block", "stop", &socket]);
        systemctl(&["--no-block", "stop", &self.0]).map(drop)
    }
}

fn property(unit: &str, name: &str) -> Result<String> {
    let said = systemctl(&["show", "--property", name, "--value", unit])?;
    Ok(said.trim().to_owned())
}

/// Returns systemctl's option for a user's daemon, which is a unit of the user's service manager,
/// never of the node's.
fn of_manager() -> Option<&'static str> {
    crate::config::is_unprivileged().then_some("--user")
}

/// Returns the systemctl command with these words, for the operator to type.
pub(super) fn command(words: &str) -> String {
    ["systemctl"].into_iter().chain(of_manager()).chain([words]).collect::<Vec<_>>().join(" ")
}

fn systemctl(words: &[&str]) -> Result<String> {
    let words: Vec<&str> = of_manager().into_iter().chain(words.iter().copied()).collect();
    let said = bounded::run("systemctl", &words, REQUEST_WAIT)?;
    if said.status.success() {
        return Ok(said.stdout);
    }
    let why = last_words::of_output(&said.stderr).unwrap_or_else(|| said.status.to_string());
    Err(Error::new(format!("systemctl failed: {}", quoted(&why))))
}
