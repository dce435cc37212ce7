// SPDX-License-Identifier: Apache-2.0
//! Reloads the configuration (D42): the files are read and checked as a whole, every step that can refuse them comes
//! before the first change, and then all values that a running daemon can change take effect together. A request in
//! flight finishes with the values that it has read.
//!
//! This module never applies a configuration with an error (D43), nor a value that needs a restart: it
//! reports such a value and keeps the old one. It imports `shared`, `connections`, `process`, `recovery`,
//! `run_dir` and `server`.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tracing::{info, warn};

use crate::answers::Reloaded;
use crate::config::{ChangedKey, Config, Effect, Loaded, Scope};
use crate::error::{Error, Result};
use crate::inject;
use crate::plugin::{PluginFile, discover};

use crate::daemon::connections::{admission, returning, socket};
use crate::daemon::process::service_manager;
use crate::daemon::process::started_with::StartedWith;
use crate::daemon::recovery::{enabled, node_scope};
use crate::daemon::run_dir::RunDir;
use crate::daemon::server::http::{self, MetricsServer};
use crate::daemon::shared::Daemon;

/// Interval at which the files are read again while an error in them makes creates fail.
const FIXED_CHECK: Duration = Duration::from_millis(500);

/// The parts of the daemon that a reload changes.
pub(crate) struct Reloads<'d> {
    pub(crate) daemon: &'d Rc<Daemon>,
    pub(crate) run_dir: &'d RunDir,
    pub(crate) started_with: &'d StartedWith,
    pub(crate) metrics: &'d RefCell<MetricsServer>,
}

impl Reloads<'_> {
    /// Reloads at each SIGHUP and each request, one after the other. Returns when an error that made creates fail is
    /// fixed and only a new daemon can apply the files.
    pub(crate) async fn serve(&self, mut hangups: Signal) {
        let Some(mut requests) = self.daemon.process.reloads.receive() else { return };
        let mut is_reported = false;
        loop {
            let is_unreliable = self.daemon.config().protection_error.is_some();
            tokio::select! {
                _ = hangups.recv() => drop(self.reload(false).await),
                Some(request) = requests.recv() => {
                    let outcome = self.reload(request.what.is_dry).await;
                    let _caller_is_gone = request.answer.send(outcome);
                }
                () = tokio::time::sleep(FIXED_CHECK), if is_unreliable => {
                    if self.reload_if_fixed(&mut is_reported).await {
                        return;
                    }
                }
            }
        }
    }

    /// Reloads once the error that makes creates fail is fixed. Returns true if only a new daemon
    /// can apply the files, and a supervisor or wrapper will start one.
    async fn reload_if_fixed(&self, is_reported: &mut bool) -> bool {
        let (loaded, now) = (self.started_with.read(), self.daemon.config());
        if loaded.refusal().is_some() {
            *is_reported = false;
            return false;
        }
        let is_live = !loaded.config.clone().keep_started(&now);
        if is_live && !*is_reported && self.reload(false).await.is_ok() {
            return false;
        }
        if self.started_with.supervisor().is_some() || loaded.config.autostart {
            info!("the configuration is valid again: stopping, so that the next daemon loads it");
            return true;
        }
        if !std::mem::replace(is_reported, true) {
            warn!("the configuration is fixed; restart the daemon to use it");
        }
        false
    }

    /// Reads the files and puts them in force, or only reports the changes.
    async fn reload(&self, is_dry: bool) -> Result<Reloaded> {
        if is_dry {
            return self.check(true).map(|(reloaded, _)| reloaded);
        }
        service_manager::report_reloading();
        let outcome = self.apply().await;
        service_manager::report_ready();
        let name = match &outcome {
            Ok(reloaded) if reloaded.changed.is_empty() => "unchanged",
            Ok(_) => "applied",
            Err(_) => "refused",
        };
        self.daemon.report.metrics.count_reload(name);
        if let Err(error) = &outcome {
            warn!("{error}");
        }
        outcome
    }

    /// Compares the files with the configuration in force.
    fn check(&self, is_dry: bool) -> Result<(Reloaded, Loaded)> {
        let loaded = self.started_with.read();
        if let Some(problem) = loaded.refusal() {
            return Err(not_reloaded(&problem.text));
        }
        let changed = self.started_with.changes(&loaded);
        let reloaded = Reloaded {
            applied: !is_dry,
            restart_needed: names(&changed, true),
            changed,
            restart_with: self.started_with.how_to_restart().to_owned(),
            warnings: self.warnings(&loaded),
        };
        Ok((reloaded, loaded))
    }

    fn warnings(&self, loaded: &Loaded) -> Vec<String> {
        let mut warnings = loaded.warnings();
        let config = &loaded.config;
        let (found, _) = discover(&config.plugin_path, &config.plugin_config_path);
        let mut known = self.daemon.registry.known_plugins();
        known.extend(found.iter().map(PluginFile::id));
        warnings.extend(config.unseen_plugins(&known));
        warnings.extend(inject::unfit(config));
        warnings
    }

    async fn apply(&self) -> Result<Reloaded> {
        let (reloaded, loaded) = self.check(false)?;
        let before = self.daemon.config();
        let mut next = loaded.config.clone();
        next.keep_started(&before);
        let socket_change = socket::prepare(&self.daemon.config(), &next)
            .map_err(|error| not_reloaded(&error.to_string()))?;
        let is_metrics_elsewhere = next.metrics_listen != before.metrics_listen;
        let at = next.metrics_listen.as_ref().filter(|_| is_metrics_elsewhere);
        let metrics = match http::open(at).await {
            Ok(metrics) => metrics,
            Err(error) => {
                socket::abandon(socket_change, &next);
                return Err(not_reloaded(&format!("metrics.listen: {error}")));
            }
        };
        // From here on nothing waits, and a failure is only logged.
        let is_shown = tracing::enabled!(tracing::Level::INFO);
        if is_shown {
            log(&reloaded);
        }
        self.put_in_force(&before, *next, &loaded);
        socket::change(self.daemon, socket_change, &before.socket_path);
        if is_metrics_elsewhere {
            self.metrics.borrow_mut().serve(self.daemon, metrics);
        }
        if !is_shown {
            log(&reloaded);
        }
        Ok(reloaded)
    }

    fn put_in_force(&self, before: &Config, next: Config, loaded: &Loaded) {
        let log = |config: &Config| {
            (config.log_level.clone(), config.log_target.clone(), config.log_format.clone())
        };
        if log(before) != log(&next) && !crate::log::change(before, &next) {
            warn!("the log could not be changed");
        }
        self.daemon.report.audit.apply(&next);
        let shown_more = self.daemon.replace_config(next);
        returning::expect_added(self.daemon, before);
        returning::synchronize_anew(self.daemon, &shown_more, returning::SHOWN_MORE);
        admission::disconnect_unfit(self.daemon, before);
        enabled::catch_up(self.daemon);
        follow_scope(self.daemon, self.daemon.config().scope != before.scope);
        self.started_with.put_in_force(loaded);
        self.run_dir.note_configuration(loaded);
        // The new configuration may change which plugins protect containers by their declaration.
        admission::record_protecting_plugins(self.daemon);
    }
}

/// Follows the containers made without nri-runc if `nri.scope` is `node`. If the scope has changed (`is_changed`),
/// first adds or drops their records; if there are any, plugins are synchronized again.
pub(crate) fn follow_scope(daemon: &Rc<Daemon>, is_changed: bool) {
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        if is_changed && node_scope::apply(&daemon).await {
            let why = "nri.scope has changed: the plugin must reconnect to be synchronized again";
            returning::synchronize_anew(&daemon, &daemon.registry.connected(), why);
        }
        node_scope::look_again(&daemon.watches);
        if daemon.config().scope == Scope::Node {
            node_scope::follow(daemon).await;
        }
    });
}

fn not_reloaded(why: &str) -> Error {
    Error::new(format!("configuration not reloaded, the previous one stays in force: {why}"))
}

/// Returns a line about each changed key that needs a restart, or, if `needs_restart` is false, about the others.
fn names(changed: &[ChangedKey], needs_restart: bool) -> Vec<String> {
    let wanted = |changed: &&ChangedKey| (changed.effect == Effect::Restart) == needs_restart;
    changed.iter().filter(wanted).map(|changed| changed.line.clone()).collect()
}

/// Logs one line for a reload, and one for each warning.
fn log(reloaded: &Reloaded) {
    reloaded.warnings.iter().for_each(|warning| warn!("{warning}"));
    let (applied, restarts) = (names(&reloaded.changed, false), &reloaded.restart_needed);
    let mut parts = Vec::new();
    if !applied.is_empty() {
        parts.push(format!("applied {}", applied.join(", ")));
    }
    if !restarts.is_empty() {
        parts.push(format!(
            "restart needed ({}) for {}",
            reloaded.restart_with,
            restarts.join(", ")
        ));
    }
    if parts.is_empty() {
        parts.push("nothing has changed".to_owned());
    }
    info!("configuration reloaded: {}", parts.join("; "));
}
