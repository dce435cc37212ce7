// SPDX-License-Identifier: Apache-2.0
//! Keeps the rows of `plugins`: registered plugins, plugins in their handshake, launched plugins, and recently
//! disconnected or refused ones. It only stores them; `connections` decides which plugins may register.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};

use crate::answers::{PluginFailure, PluginOutput, PluginRow, PluginRun, PluginState, PrintedLine};
use crate::limits;
use crate::plugin::api::extension::{ExtensionEvent, events_in};
use crate::plugin::{ALL_EVENTS, Plugin, PluginFile, PluginIdentity, ProcessLog};

use crate::clock::now;
use crate::daemon::registry::connected::ConnectedPlugin;
use crate::daemon::registry::times;
use crate::error::Error;
use crate::text::rfc3339_nanos;

/// Time for which a disconnected or refused plugin is shown; one that disconnected with a strike is shown longer.
const SHOWN: Duration = Duration::from_secs(3600);

/// Plugins in their handshake and after their disconnection, and the launched plugins.
#[derive(Default)]
pub(crate) struct Roster {
    unregistered: RefCell<Vec<Weak<UnregisteredPlugin>>>,
    /// Notified when connections that are still in their handshake must end.
    cut: Notify,
    /// Whether new connections stay in the socket's queue.
    holds_connections: watch::Sender<bool>,
    departed: RefCell<VecDeque<(Instant, PluginRow)>>,
    launches: RefCell<Vec<Weak<LaunchRecord>>>,
    launched_before: RefCell<Vec<LaunchedBefore>>,
}

/// A pre-installed plugin across all its runs; shown as long as the launcher keeps it running.
#[derive(Default)]
pub(crate) struct LaunchRecord {
    index: String,
    name: String,
    /// The file of the current run.
    file: RefCell<Option<PluginFile>>,
    /// Whether the current run is of an older file or configuration than the one on disk.
    is_outdated: Cell<bool>,
    /// The reason why the last start failed; `None` if it succeeded.
    start_failure: RefCell<Option<String>>,
    starts: Cell<u64>,
    again_at: Cell<Option<Instant>>,
    /// The logs of the current run, and of the previous one, which explains a failure.
    log: RefCell<Option<Arc<ProcessLog>>>,
    log_before: RefCell<Option<Arc<ProcessLog>>>,
}

impl LaunchRecord {
    /// Records that the plugin is started from this file, with this log.
    pub(crate) fn record_start(&self, file: &PluginFile, log: &Arc<ProcessLog>) {
        self.record_run(file, self.starts.get() + 1, log);
    }

    /// Returns `NN-name`.
    pub(crate) fn id(&self) -> String {
        format!("{}-{}", self.index, self.name)
    }

    /// Records the file that the plugin runs, because a later start may have failed. `is_outdated`:
    /// the disk has a newer file or configuration.
    pub(crate) fn record_file(&self, file: &PluginFile, is_outdated: bool) {
        self.file.replace(Some(file.clone()));
        self.is_outdated.set(is_outdated);
    }

    /// Records the outcome of a start: the reason if it failed.
    pub(crate) fn note_start(&self, failure: Option<String>) {
        self.start_failure.replace(failure);
    }

    /// Returns why the current run is of an older program or configuration than its files; `None` if it is not.
    fn outdated(&self) -> Option<String> {
        if !self.is_outdated.get() {
            return None;
        }
        let why = self.start_failure.borrow().clone();
        let why = why.unwrap_or_else(|| "has not taken its place".to_owned());
        Some(format!("it is older than its file or configuration: the newer one {why}"))
    }

    /// Records a run of this file, new or continued from the previous program; `starts` is the number of starts so far.
    pub(crate) fn record_run(&self, file: &PluginFile, starts: u64, log: &Arc<ProcessLog>) {
        self.starts.set(starts);
        self.file.replace(Some(file.clone()));
        self.again_at.set(None);
        let before = self.log.borrow_mut().replace(Arc::clone(log));
        *self.log_before.borrow_mut() = before;
    }

    /// Records that the plugin is started again after this pause.
    pub(crate) fn starts_again_in(&self, pause: Duration) {
        self.again_at.set(Some(Instant::now() + pause));
    }

    /// Returns the output of the current run and of the previous one, the older first.
    fn output(&self) -> PluginOutput {
        let (log, before) = (self.log.borrow(), self.log_before.borrow());
        let runs = [before.as_ref(), log.as_ref()].into_iter().flatten().map(|log| {
            let line = |(at, line)| PrintedLine { at, time: rfc3339_nanos(at), line };
            let lines = log.tail().into_iter().map(line).collect();
            PluginRun { exit_status: log.exit(), lines }
        });
        PluginOutput { index: self.index.clone(), name: self.name.clone(), runs: runs.collect() }
    }

    /// Adds the data of the plugin's processes to a row.
    fn add_to(&self, row: &mut PluginRow) {
        let (log, before) = (self.log.borrow(), self.log_before.borrow());
        let ended = [log.as_ref(), before.as_ref()].into_iter().flatten();
        let ended = ended.into_iter().find(|log| log.exit().is_some());
        row.outdated = self.outdated();
        row.start_failure.clone_from(&self.start_failure.borrow());
        row.restarts = self.starts.get().saturating_sub(1);
        row.exit_status = ended.and_then(|log| log.exit());
        row.last_words = ended.map(|log| log.last_words()).unwrap_or_default();
        let pause = self.again_at.get().map(|at| at.saturating_duration_since(Instant::now()));
        row.restart_in_seconds = pause.map(|pause| pause.as_secs_f32().ceil());
    }
}

/// A plugin that the previous program launched.
pub(crate) struct LaunchedBefore {
    pub(crate) file: PluginFile,
    pub(crate) starts: u64,
    pub(crate) log: Arc<ProcessLog>,
    pub(crate) connected: Rc<ConnectedPlugin>,
}

/// A connection in its handshake; shown as long as this value exists.
pub(crate) struct UnregisteredPlugin {
    /// Index and name from the plugin's file, if the daemon launched it.
    file: Option<(String, String)>,
    pid: Option<i32>,
    /// Set once the plugin has registered.
    pub(crate) registered: Arc<OnceLock<PluginIdentity>>,
}

impl Roster {
    /// Adds a connection that is in its handshake; shown as long as the returned value exists.
    pub(crate) fn enters(
        &self,
        file: Option<(String, String)>,
        pid: Option<i32>,
    ) -> Rc<UnregisteredPlugin> {
        let plugin = Rc::new(UnregisteredPlugin { file, pid, registered: Arc::default() });
        let mut unregistered = self.unregistered.borrow_mut();
        unregistered.retain(|other| other.strong_count() > 0);
        unregistered.push(Rc::downgrade(&plugin));
        plugin
    }

    /// Whether a connection has registered as `id` and is being configured. `is_a_files`: the name
    /// belongs to a file, so that only a launched plugin may have it.
    pub(super) fn is_configuring(&self, id: &str, is_a_files: bool) -> bool {
        let unregistered = self.unregistered.borrow();
        let mut unregistered = unregistered.iter().filter_map(Weak::upgrade);
        unregistered.any(|plugin| {
            (plugin.file.is_some() || !is_a_files)
                && plugin.registered.get().is_some_and(|own| own.to_string() == id)
        })
    }

    /// Adds a pre-installed plugin that the launcher keeps running.
    pub(crate) fn launches(&self, index: &str, name: &str) -> Rc<LaunchRecord> {
        let record = Rc::new(LaunchRecord {
            index: index.to_owned(),
            name: name.to_owned(),
            ..LaunchRecord::default()
        });
        let mut launches = self.launches.borrow_mut();
        launches.retain(|other| other.strong_count() > 0);
        launches.push(Rc::downgrade(&record));
        record
    }

    /// Returns the output of a launched plugin; `wanted` is `NN-name`, a name, or, if no plugin has this name,
    /// an unambiguous prefix of either.
    ///
    /// # Errors
    /// Fails with one line if the daemon has launched no such plugin, or `wanted` is ambiguous.
    pub(super) fn output(&self, wanted: &str, connected: &[&str]) -> Result<PluginOutput, Error> {
        let launches = self.launches.borrow();
        let is_meant = |record: &Rc<LaunchRecord>| record.name == wanted || record.id() == wanted;
        let begins = |record: &Rc<LaunchRecord>| {
            let is_begun = record.name.starts_with(wanted) || record.id().starts_with(wanted);
            is_begun && !wanted.is_empty()
        };
        let launched: Vec<_> = launches.iter().filter_map(Weak::upgrade).collect();
        let mut meant: Vec<_> = launched.iter().filter(|record| is_meant(record)).collect();
        if meant.is_empty() && !connected.iter().any(|id| *id == wanted || is_named(id, wanted)) {
            meant = launched.iter().filter(|record| begins(record)).collect();
        }
        match meant.as_slice() {
            [record] => Ok(record.output()),
            [] if connected.iter().any(|id| *id == wanted || is_named(id, wanted)) => {
                Err(Error::new(format!(
                    "{wanted} was not launched by nri-runc: nri-runc does not have its output"
                )))
            }
            [] => {
                let error = Error::new(format!("no plugin {wanted} was launched"));
                Err(error.hint("see: nri-runc nri plugins"))
            }
            several => {
                let ids = several.iter().map(|record| record.id());
                let (count, ids) = (several.len(), ids.collect::<Vec<_>>().join(", "));
                Err(Error::new(format!("\"{wanted}\" is ambiguous: {count} plugins match: {ids}")))
            }
        }
    }

    /// Records that a plugin was removed from the registry.
    pub(super) fn note_departure(&self, plugin: &ConnectedPlugin, why: &str) {
        let struck = plugin.has_strikes();
        let row = PluginRow { struck, ..row(plugin, PluginState::Gone) };
        self.keep_departed(Instant::now(), gone(row, why));
    }

    /// Records a refused connection under this name; false if the same refusal is already shown, as
    /// when a refused plugin reconnects.
    pub(crate) fn note_refused(&self, plugin: &Plugin, reason: &str) -> bool {
        let row = PluginRow {
            pid: plugin.pid(),
            refused: true,
            ..empty_row(plugin.index(), plugin.name(), PluginState::Gone, false)
        };
        let row = gone(row, reason);
        // The PID in the reason differs each time.
        let kind = |row: &PluginRow| {
            row.reason.as_ref().map(|reason| reason.replace(|c: char| c.is_ascii_digit(), ""))
        };
        let gone = self.gone(Instant::now());
        let is_known = gone.iter().any(|other| other.is_same(&row) && kind(other) == kind(&row));
        self.drop_refused();
        self.keep_departed(Instant::now(), row);
        !is_known
    }

    /// Makes space for one more refused connection, so that a peer that changes its name each time
    /// displaces few rows of plugins that were connected.
    fn drop_refused(&self) {
        let mut departed = self.departed.borrow_mut();
        let is_refused = |(_, row): &(Instant, PluginRow)| row.refused;
        if departed.iter().filter(|row| is_refused(row)).count() >= limits::DEPARTED_REFUSED
            && let Some(oldest) = departed.iter().position(is_refused)
        {
            departed.remove(oldest);
        }
    }

    fn keep_departed(&self, at: Instant, row: PluginRow) {
        let mut departed = self.departed.borrow_mut();
        // A refused connection does not replace a plugin's row, although it used the same name.
        departed.retain(|(_, other)| !other.is_same(&row) || other.refused != row.refused);
        if departed.len() >= limits::DEPARTED {
            departed.pop_front();
        }
        departed.push_back((at, row));
    }

    /// Returns plugins that disconnected or were refused within the last [`SHOWN`], and plugins that
    /// disconnected earlier with a strike.
    fn gone(&self, now: Instant) -> Vec<PluginRow> {
        let mut departed = self.departed.borrow_mut();
        departed.retain(|(at, row)| row.struck || now.saturating_duration_since(*at) < SHOWN);
        let mut gone: Vec<PluginRow> = departed.iter().map(|(_, row)| row.clone()).collect();
        gone.sort_by_key(|row| row.refused);
        gone
    }

    /// Records that the previous program launched this plugin.
    pub(crate) fn note_launched_before(&self, plugin: LaunchedBefore) {
        self.launched_before.borrow_mut().push(plugin);
    }

    /// Takes the plugin `NN-name`, if the previous program launched it.
    pub(crate) fn take_launched_before(&self, id: &str) -> Option<LaunchedBefore> {
        let mut all = self.launched_before.borrow_mut();
        let at = all.iter().position(|plugin| plugin.file.id() == id)?;
        Some(all.swap_remove(at))
    }

    /// Takes all remaining plugins that the previous program launched.
    pub(crate) fn take_all_launched_before(&self) -> Vec<LaunchedBefore> {
        self.launched_before.take()
    }

    /// Leaves new connections in the socket's queue, or accepts them again.
    pub(crate) fn hold_connections(&self, is_held: bool) {
        self.holds_connections.send_if_modified(|was| std::mem::replace(was, is_held) != is_held);
    }

    /// Waits until new connections are held (`is_held`) or accepted.
    pub(crate) async fn until_held(&self, is_held: bool) {
        let mut holds = self.holds_connections.subscribe();
        // The roster owns the sender, so this cannot fail.
        let _changed = holds.wait_for(|now| *now == is_held).await;
    }

    /// Ends the connections in their handshake, except for launched plugins.
    pub(crate) fn cut_unregistered(&self) {
        self.cut.notify_waiters();
    }

    /// Completes at the next [`cut_unregistered`](Self::cut_unregistered) after this call.
    pub(crate) fn cut(&self) -> Notified<'_> {
        self.cut.notified()
    }

    /// Whether a connection is still in its handshake.
    pub(crate) fn has_unregistered(&self) -> bool {
        self.unregistered.borrow().iter().any(|plugin| plugin.strong_count() > 0)
    }

    /// Returns the file of a launched plugin, and its number of starts.
    pub(crate) fn launched_file(&self, id: &str) -> Option<(PluginFile, u64)> {
        let launches = self.launches.borrow();
        let mut launches = launches.iter().filter_map(Weak::upgrade);
        let record = launches.find(|record| record.id() == id)?;
        let file = record.file.borrow().clone()?;
        Some((file, record.starts.get()))
    }

    /// Returns launched plugins that run an older file or configuration than on disk, with the reasons.
    pub(crate) fn outdated(&self) -> Vec<(String, String)> {
        let launches = self.launches.borrow();
        let launched = launches.iter().filter_map(Weak::upgrade);
        launched.filter_map(|record| Some((record.id(), record.outdated()?))).collect()
    }

    /// Returns all rows: connected plugins first, in order.
    pub(super) fn rows(&self, connected: &[Rc<ConnectedPlugin>]) -> Vec<PluginRow> {
        let mut rows: Vec<PluginRow> =
            connected.iter().map(|plugin| row(plugin, plugin.state())).collect();
        let unregistered = self.unregistered.borrow();
        rows.extend(
            unregistered.iter().filter_map(Weak::upgrade).map(|unregistered| unregistered.row()),
        );
        for gone in self.gone(Instant::now()) {
            // A plugin that is connected again is not gone.
            if !rows.iter().any(|row| row.is_same(&gone)) {
                rows.push(gone);
            }
        }
        let launches = self.launches.borrow();
        for launched in launches.iter().filter_map(Weak::upgrade) {
            let is_its = |row: &PluginRow| row.index == launched.index && row.name == launched.name;
            let at = rows.iter().position(is_its).unwrap_or_else(|| {
                rows.push(empty_row(&launched.index, &launched.name, PluginState::Gone, true));
                rows.len() - 1
            });
            launched.add_to(&mut rows[at]);
        }
        rows
    }
}

/// Whether `NN-name` has this name.
fn is_named(id: &str, name: &str) -> bool {
    id.split_once('-').is_some_and(|(_, rest)| rest == name)
}

/// Returns a row without further data.
fn empty_row(index: &str, name: &str, state: PluginState, launched: bool) -> PluginRow {
    let (index, name) = (index.to_owned(), name.to_owned());
    PluginRow { index, name, state, launched, ..PluginRow::default() }
}

/// Returns the row of a plugin that has just disconnected or been refused.
fn gone(row: PluginRow, why: &str) -> PluginRow {
    let at = now();
    let (gone_at, gone_time, reason) = (Some(at), rfc3339_nanos(at), Some(why.to_owned()));
    PluginRow { gone_at, gone_time, reason, ..row }
}

fn row(connected: &ConnectedPlugin, state: PluginState) -> PluginRow {
    let (chained, plugin) = (&connected.chained, connected.connection());
    let events = ALL_EVENTS.iter().filter(|event| plugin.is_subscribed(**event));
    let extension = events_in(plugin.extension_events()).map(ExtensionEvent::method);
    let counts = chained.counts();
    PluginRow {
        pid: plugin.pid(),
        connected_at: counts.connected_at,
        connected_time: rfc3339_nanos(counts.connected_at),
        // The process that this connection is about to replace.
        replaces: connected.replaced_pid().filter(|_| connected.is_synchronizing()),
        events: events.map(|event| event.name().to_owned()).collect(),
        nri_version: plugin.nri_version().to_owned(),
        deprecated_events: plugin.deprecated_events().into_iter().map(str::to_owned).collect(),
        extension_events: extension.map(str::to_owned).collect(),
        requests: counts.requests,
        timeouts: counts.timeouts,
        failures: counts.failures,
        last_failure: counts.last_failure.map(|(at, what)| PluginFailure {
            at,
            time: rfc3339_nanos(at),
            what,
        }),
        failure_policy: Some(chained.policy().row()),
        time_limits: Some(times::limits(plugin)),
        answers: times::answers(plugin),
        synchronizing: times::synchronizing(plugin),
        unresponsive: chained.is_unresponsive(),
        ..empty_row(plugin.index(), plugin.name(), state, chained.launched)
    }
}

impl UnregisteredPlugin {
    fn row(&self) -> PluginRow {
        let registered = self.registered.get();
        let (index, name) = match (registered, &self.file) {
            (Some(identity), _) => (identity.index.as_str(), identity.name.as_str()),
            (None, Some((index, name))) => (index.as_str(), name.as_str()),
            (None, None) => ("", ""),
        };
        let state = match registered {
            Some(_) => PluginState::Configuring,
            None => PluginState::Registering,
        };
        let nri_version = registered.map(|identity| identity.nri_version.clone());
        PluginRow {
            pid: self.pid,
            nri_version: nri_version.unwrap_or_default(),
            ..empty_row(index, name, state, self.file.is_some())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: usize) -> PluginRow {
        empty_row("10", &name.to_string(), PluginState::Gone, false)
    }

    #[test]
    fn disconnected_plugins_are_listed_once_for_an_hour_and_bounded() {
        let roster = Roster::default();
        let now = Instant::now();
        for name in (0..limits::DEPARTED + 3).chain([5]) {
            roster.keep_departed(now, named(name));
        }
        let gone = roster.gone(now + SHOWN / 2);
        assert_eq!(gone.len(), limits::DEPARTED);
        assert_eq!(gone.iter().filter(|row| row.is_same(&named(5))).count(), 1);
        assert!(!gone.contains(&named(0)), "the oldest went");
        let struck = PluginRow { struck: true, ..named(1000) };
        roster.keep_departed(now, struck.clone());
        assert_eq!(roster.gone(now + SHOWN), [struck], "time-outs are shown until it returns");
    }

    #[test]
    fn a_connection_is_shown_until_its_handshake_ends() {
        let roster = Roster::default();
        let unregistered = roster.enters(None, Some(7));
        assert_eq!(roster.rows(&[])[0].state, PluginState::Registering);
        unregistered.registered.set(PluginIdentity::checked("10", "foo", "").unwrap()).unwrap();
        let row = roster.rows(&[])[0].clone();
        assert_eq!((row.state, row.name.as_str()), (PluginState::Configuring, "foo"));
        let file = ("20".to_owned(), "file".to_owned());
        let launched = roster.enters(Some(file), None);
        assert_eq!(roster.rows(&[])[1].name, "file");
        drop((unregistered, launched));
        assert_eq!(roster.rows(&[]), []);
    }
}
