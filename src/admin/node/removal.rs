// SPDX-License-Identifier: Apache-2.0
//! Undoes a node's setup: label, registration, daemon, files. While a container uses nri-runc, only
//! the label is removed, because the container's kill and delete would fail without the rest. If
//! containers still use nri-runc at the time limit, the label is set again, and the rest stays.

use std::time::{Duration, Instant};

use super::log;
use super::program::node_configuration;
use super::record::NodeRecord;
use super::setup::{NodeSetup, show_changes};
use super::signals::EndSignals;
use crate::admin::ask_status;
use crate::admin::install::Outcome;
use crate::answers::AdminRequest;
use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::text::counted;
use crate::wrapper;

/// Interval of checks whether containers still need nri-runc.
const USERS_POLL: Duration = Duration::from_secs(2);

/// Time limit for the daemon's exit: it finishes requests in flight first.
const DAEMON_WAIT: Duration = Duration::from_secs(100);

/// Interval of checks whether the daemon has exited.
const DAEMON_POLL: Duration = Duration::from_millis(100);

/// Undoes the setup. Once the engine is unregistered no signal interrupts this, because kubelet
/// repeats SIGTERM after a restart of the engine.
///
/// # Errors
/// Fails, and sets the label again, when nri-runc cannot be unregistered within `within`, normally
/// because containers need it, or a second signal arrives meanwhile. If a later step fails, for instance because
/// the engine cannot be restarted, label and registration are removed already, and the rest stays.
pub(super) fn take_back(setup: &NodeSetup, signals: &EndSignals, within: Duration) -> Result<()> {
    let config = node_configuration(&setup.on.folder())?.config;
    setup.set_label(false);
    signals.forget();
    let registration = setup.on.registration()?;
    let outcome = match unregister(setup, &config, signals, within) {
        Ok(outcome) => outcome,
        Err(error) => {
            setup.set_label(true);
            return Err(error);
        }
    };
    if let Some(outcome) = outcome {
        show_changes(&outcome);
        if outcome.changed {
            setup.restart(&outcome)?;
        }
    }
    if let Some(registration) = registration {
        if !setup.waits_until(None, || registration.is_loaded() == Some(false)) {
            let error =
                Error::new(format!("the engine still has the handler {}", registration.title()));
            return Err(error.hint(format!("{} stays until it is restarted", setup.on.program())));
        }
        // Until its restart, the engine may have created further containers with nri-runc.
        let users = registration.users(&config);
        if !users.is_empty() {
            let count = counted(users.len(), "container");
            let error = Error::new(format!("{count} began to use nri-runc meanwhile"));
            return Err(error.hint(format!("{} stays until they end", setup.on.program())));
        }
    }
    let ended = end_daemon(&config)?;
    remove_files(setup, &config, ended)
}

/// Unregisters nri-runc as soon as no container needs it; gives up after `within` or at a signal.
fn unregister(
    setup: &NodeSetup,
    config: &Config,
    signals: &EndSignals,
    within: Duration,
) -> Result<Option<Outcome>> {
    let deadline = Instant::now() + within;
    let mut was = String::new();
    loop {
        let error = match setup.on.unregister(config) {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        let line = error.to_string();
        if line != was {
            log(&format!("waiting: {line}"));
        }
        was = line;
        if Instant::now() >= deadline || signals.wait(USERS_POLL) {
            return Err(error);
        }
    }
}

/// Stops the node's daemon unless systemd runs it; returns whether no daemon runs afterwards.
fn end_daemon(config: &Config) -> Result<bool> {
    if !wrapper::is_listening(config) {
        return Ok(true);
    }
    if ask_status(config)?.supervisor.as_deref() == Some("systemd") {
        log("the daemon is left to systemd, which runs it");
        return Ok(false);
    }
    wrapper::admin(config, &AdminRequest::Stop).doing(|| "stopping the daemon")?;
    let deadline = Instant::now() + DAEMON_WAIT;
    while wrapper::is_listening(config) {
        if Instant::now() >= deadline {
            return Err(Error::new("the daemon has not exited yet"));
        }
        std::thread::sleep(DAEMON_POLL);
    }
    log("stopped the daemon");
    Ok(true)
}

/// Removes the files of `node`, and those of the run directory if no daemon runs (`ended`). Files
/// that were edited after `node` wrote them are kept, and logged.
fn remove_files(setup: &NodeSetup, config: &Config, ended: bool) -> Result<()> {
    let mut record = NodeRecord::load(&setup.on)?;
    for path in record.paths() {
        match record.remove(&setup.on, &path)? {
            true => log(&format!("removed {path}")),
            false => log(&format!("kept (locally modified): {path}")),
        }
    }
    if ended {
        // The run directory itself stays, because it may be a mount point.
        for entry in std::fs::read_dir(&config.run_dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let removed =
                if is_dir { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.doing(|| format!("removing {}", path.display()))?;
        }
    }
    record.end(&setup.on)?;
    log("removed; the node is as it was");
    Ok(())
}
