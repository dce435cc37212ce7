// SPDX-License-Identifier: Apache-2.0
//! The setup of a node, in an order that permits an interruption after each step: configuration,
//! program, registration, restart of the engine, proof that the engine has the handler, label. If a
//! complete setup is repeated, nothing is changed or restarted.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::helper::Helper;
use super::program::{node_configuration, put_configuration, put_program, refresh_daemon};
use super::record::NodeRecord;
use super::signals::EndSignals;
use super::{NodeLabel, NodeOptions, log};
use crate::admin::install::{NodeEngine, Outcome};
use crate::error::{Error, Result};

/// Time limit for a restarted engine's response.
const ENGINE_WAIT: Duration = Duration::from_secs(120);

/// Interval at which the restarted engine is asked.
const ENGINE_POLL: Duration = Duration::from_millis(500);

/// The options and paths for setting up a node.
#[derive(Debug)]
pub(super) struct NodeSetup {
    pub(super) on: NodeEngine,
    helper: Helper,
    label: Option<NodeLabel>,
    node_config: Option<PathBuf>,
    units: Vec<String>,
    no_restart: bool,
}

impl NodeSetup {
    pub(super) fn new(options: &NodeOptions, label: Option<NodeLabel>) -> Result<Self> {
        let on = NodeEngine::open(&options.install)?;
        let systemd = on.folder().join("run/systemd/private");
        let helper = Helper::new(options.helper.clone(), systemd);
        let (units, node_config) = (options.unit.clone(), options.node_config.clone());
        Ok(Self { on, helper, label, node_config, units, no_restart: options.no_restart })
    }

    pub(super) fn helper(&self) -> &Helper {
        &self.helper
    }

    /// Takes the steps of the setup that are not done yet.
    ///
    /// # Errors
    /// Fails at the first step that fails; earlier steps stay, and are not repeated.
    pub(super) fn put_in_place(&self, signals: &EndSignals) -> Result<()> {
        let mut record = NodeRecord::load(&self.on)?;
        let configuration = put_configuration(&self.on, &mut record, self.node_config.as_deref())?;
        let program = put_program(&self.on, &mut record)?;
        let loaded = node_configuration(&self.on.folder())?;
        refresh_daemon(&loaded.config, program, configuration);
        let was_pending = record.is_restart_pending;
        record.is_restart_pending = true;
        record.save(&self.on)?;
        let outcome = match self.on.register(&loaded) {
            Ok(outcome) => outcome,
            Err(error) => {
                record.is_restart_pending = was_pending;
                record.save(&self.on)?;
                return Err(error);
            }
        };
        show_changes(&outcome);
        outcome.notes.iter().for_each(|note| log(&format!("note: {note}")));
        let Some(registration) = self.on.registration()? else {
            return Err(Error::new("node does not register this engine")
                .hint("node is for containerd, CRI-O and Docker"));
        };
        let changed = outcome.changed || was_pending;
        if changed || registration.is_loaded() == Some(false) {
            let restarted = self.restart(&outcome);
            // With --no-restart, a loaded handler means that the operator has restarted the engine
            // (or that it was loaded before).
            if !(self.no_restart && registration.is_loaded() == Some(true)) {
                restarted?;
            }
        }
        if !self.waits_until(Some(signals), || registration.is_loaded() == Some(true)) {
            let title = registration.title();
            return Err(Error::new(format!("the engine does not show {title} after its restart"))
                .hint("on the node: nri-runc nri check, and the engine's log"));
        }
        record.is_restart_pending = false;
        record.save(&self.on)?;
        if let Some(label) = &self.label {
            self.helper.label(label, true)?;
            log(&format!("labelled the node {}: {}={}", label.node, label.key, label.value));
        }
        log(&format!("ready: {}", registration.title()));
        Ok(())
    }

    /// Makes the engine reload its files: runs the command of `outcome`, which `install` or `uninstall` returned.
    ///
    /// # Errors
    /// Fails, with the command as the hint, if the operator has to run it or systemd could not.
    pub(super) fn restart(&self, outcome: &Outcome) -> Result<()> {
        // Without a change, the outcome's command does not apply.
        let printed = Some(&outcome.next).filter(|_| outcome.changed);
        let command = printed.cloned().unwrap_or_else(|| self.on.restart_command());
        if command.is_empty() {
            return Ok(()); // The engine detects the change by itself.
        }
        let manually = || format!("on this node: {command}");
        if self.no_restart {
            let error = Error::new("the engine has not read its configuration yet");
            return Err(error.hint(manually()));
        }
        let steps: Vec<&str> = command.split(" && ").collect();
        for (at, step) in steps.iter().enumerate() {
            let words: Vec<&str> = step.split_whitespace().collect();
            let ["systemctl", verb, units @ ..] = words.as_slice() else {
                let error = Error::new("the engine has not read its configuration yet");
                return Err(error.hint(manually()));
            };
            let units = match self.units.as_slice() {
                named @ [_, ..] if at + 1 == steps.len() => named.to_vec(),
                _ => units.iter().map(|unit| (*unit).to_owned()).collect(),
            };
            log(&format!("systemd: {verb} {}", units.join(" or ")));
            self.helper
                .systemd(verb, &units)
                .map_err(|error| error.doing("the engine was not restarted").hint(manually()))?;
        }
        Ok(())
    }

    /// Waits until `holds` returns true, at most [`ENGINE_WAIT`], or until one of `signals` arrives; returns
    /// whether it did return true.
    pub(super) fn waits_until(
        &self,
        signals: Option<&EndSignals>,
        holds: impl Fn() -> bool,
    ) -> bool {
        let deadline = Instant::now() + ENGINE_WAIT;
        loop {
            if holds() {
                return true;
            }
            if Instant::now() >= deadline || pause(signals, ENGINE_POLL) {
                return false;
            }
        }
    }

    /// Returns the reason why a node that was ready is not ready now. An engine that does not respond is no
    /// reason, because it may be restarting.
    pub(super) fn lost(&self) -> Option<String> {
        let registration = match self.on.registration() {
            Ok(Some(registration)) => registration,
            Ok(None) => return Some("nri-runc was unregistered on the node".to_owned()),
            Err(error) => return Some(error.to_string()),
        };
        (registration.is_loaded() == Some(false)).then(|| {
            format!(
                "the engine no longer has {}: its files were changed (delete this pod to register \
                 again)",
                registration.title()
            )
        })
    }

    /// Sets the node's label or removes it; a failure is only logged.
    pub(super) fn set_label(&self, is_set: bool) {
        let labelled = self.label.as_ref().map(|label| self.helper.label(label, is_set));
        if let Some(Err(error)) = labelled {
            log(&error.to_string());
        }
    }
}

/// Waits for `within`; returns whether a signal ended the wait.
fn pause(signals: Option<&EndSignals>, within: Duration) -> bool {
    match signals {
        Some(signals) => signals.wait(within),
        None => {
            std::thread::sleep(within);
            false
        }
    }
}

/// Logs the files that `install` or `uninstall` changed, one per line.
pub(super) fn show_changes(outcome: &Outcome) {
    outcome.files.iter().for_each(|file| log(&file.line()));
}
