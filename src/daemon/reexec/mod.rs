// SPDX-License-Identifier: Apache-2.0
//! Executes the program that now lies at the daemon's path, in the same process (D42). Sockets, plugin connections,
//! launched plugins and watched processes stay, and the next program continues from the state that this program leaves
//! in a memory file (`process/handover.rs`). It is begun by `nri-runc nri reexec`, SIGUSR2, or a wrapper with a newer
//! protocol.
//!
//! The daemon first asks the other program whether it can continue, stops reading plugins' requests, and answers the
//! requests already read. Then it holds new wrapper requests and new plugin connections, and finishes the requests in
//! flight. Once idle, it writes the state and executes the program in one step, in which no other task runs. A failure
//! before that leaves the daemon, its records and its synchronized plugins as they were.
//!
//! This module never ends the connection of a synchronized plugin; a plugin that takes too long to register or be
//! synchronized must reconnect. Unprompted requests of plugins delay a wrapper by at most `HOLD`, and every wait is
//! bounded. It imports `shared`, `connections`, `process`, `recovery`, `registry`, `run_dir` and `server`.

mod program;
mod quiet;
pub(crate) mod resume;
mod saved;

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::signal::unix::Signal;
use tracing::{info, warn};

use crate::clock;
use crate::error::{Error, Result};
use crate::host::Point;

use crate::daemon::process::handover::{self, PassedOn};
use crate::daemon::process::requests::{ReexecRequest, Request};
use crate::daemon::process::started_with::StartedWith;
use crate::daemon::process::{service_manager, signals};
use crate::daemon::run_dir::RunDir;
use crate::daemon::server::drain::Drain;
use crate::daemon::server::http::MetricsServer;
use crate::daemon::shared::{Daemon, log_failure};

use program::Program;

pub(crate) use program::abilities;
pub(crate) use saved::SavedDaemon;

/// Time limit for connecting plugins to be synchronized; new requests are served meanwhile.
const PLUGINS_WAIT: Duration = Duration::from_secs(10);

/// Time limit for requests in flight, of plugins and of wrappers together.
const REQUESTS_WAIT: Duration = Duration::from_secs(30);

/// Time limit, while new requests are held, for plugins to register and be synchronized; then the connections of
/// external ones end.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(1);

/// Time for which new requests are held if no wrapper's request is unfinished, but other work is: a plugin
/// chooses how long its requests last, and must not block the node's containers.
const HOLD: Duration = Duration::from_secs(2);
/// Time for which new requests are then served before the next attempt.
const BREATH: Duration = Duration::from_secs(1);

/// Time limit for writing the last lines of the audit log.
const AUDIT_WAIT: Duration = Duration::from_millis(200);

/// Interval of checks whether the daemon is idle.
const QUIET_CHECK: Duration = Duration::from_millis(1);

/// The file that shows wrappers why heartbeats are missing. If the next program could not be executed,
/// this program removes the file; otherwise the next program does when it accepts wrappers.
struct UnderWay(PathBuf);

impl UnderWay {
    /// Writes the file; without it wrappers wait as long as for a hanging daemon.
    fn begin(path: PathBuf) -> Self {
        let begun = clock::monotonic().to_string();
        log_failure("notifying wrappers", crate::files::replace(&path, begun.as_bytes()));
        Self(path)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let _is_gone = std::fs::remove_file(&self.0);
    }
}

fn late() -> Error {
    Error::new(format!("requests in flight took longer than {} s", REQUESTS_WAIT.as_secs()))
}

/// The parts of the daemon that a re-execution needs.
pub(crate) struct Reexec<'d> {
    pub(crate) daemon: &'d Rc<Daemon>,
    pub(crate) run_dir: &'d RunDir,
    pub(crate) drain: &'d Rc<Drain>,
    pub(crate) started_with: &'d StartedWith,
    pub(crate) metrics: &'d RefCell<MetricsServer>,
    pub(crate) is_foreground: bool,
}

impl Reexec<'_> {
    /// Executes the program at the daemon's path at each request and signal. Never ends.
    pub(crate) async fn serve(&self, mut signalled: Signal) {
        let Some(mut requests) = self.daemon.process.reexecs.receive() else { return };
        loop {
            let mut asked: Vec<Request<ReexecRequest, _>> = Vec::new();
            tokio::select! {
                _ = signalled.recv() => {}
                Some(request) = requests.recv() => asked.push(request),
            }
            let all_callers = || {
                asked.extend(std::iter::from_fn(|| requests.try_recv().ok()));
                asked.iter().map(|request| request.what.descriptor).collect()
            };
            let error = self.become_program(all_callers).await;
            self.daemon.report.metrics.count_reexec("failed");
            let why = format!("the daemon continues unchanged: {error}");
            warn!("{why}");
            for request in asked {
                let _caller_is_gone = request.answer.send(Err(Error::new(&why)));
            }
        }
    }

    /// Executes the program at the daemon's path; returns only if that fails, with the reason.
    async fn become_program(&self, all_callers: impl FnOnce() -> Vec<RawFd>) -> Error {
        let program = match self.prepare().await {
            Ok(program) => program,
            Err(error) => return error,
        };
        let until = Instant::now() + REQUESTS_WAIT;
        let error = loop {
            if let Err(error) = self.until_plugins_have_answers(until).await {
                break error;
            }
            let held_at = clock::monotonic();
            self.hold(true);
            let ready = tokio::time::timeout_at(until.into(), self.until_quiet()).await;
            // From here on no other task runs.
            match ready {
                Ok(true) => {
                    let executed = self.execute(&program, all_callers(), held_at);
                    break executed.err().unwrap_or_else(|| Error::new("it could not be executed"));
                }
                Ok(false) if Instant::now() >= until => break late(),
                Ok(false) => {
                    self.hold(false);
                    if let Err(error) = self.check_launched() {
                        break error;
                    }
                    tokio::time::sleep(BREATH).await;
                }
                Err(_late) => break late(),
            }
        };
        self.hold(false);
        self.pause_plugins(false);
        service_manager::report_ready();
        error
    }

    /// Holds new requests of wrappers and connections of plugins, or resumes serving them.
    fn hold(&self, is_held: bool) {
        self.daemon.registry.roster.hold_connections(is_held);
        if is_held {
            self.drain.hold_new();
        } else {
            self.drain.go_on();
        }
    }

    /// Stops reading requests of plugins, and waits until those already read are answered. Requests
    /// of wrappers are served meanwhile.
    async fn until_plugins_have_answers(&self, until: Instant) -> Result<()> {
        loop {
            self.pause_plugins(true);
            let connected = self.daemon.registry.connected();
            let asks = connected.iter().find(|plugin| plugin.connection().open_requests() > 0);
            let Some(asks) = asks else { return Ok(()) };
            if Instant::now() >= until {
                let (id, most) = (asks.id(), REQUESTS_WAIT.as_secs());
                return Err(Error::new(format!(
                    "updates requested by {id} took longer than {most} s"
                )));
            }
            tokio::time::sleep(QUIET_CHECK).await;
        }
    }

    /// Checks that the other program and its configuration are usable; waits for plugins that are connecting.
    async fn prepare(&self) -> Result<Program> {
        self.check_configuration()?;
        let program = Program::find(self.started_with)?;
        self.daemon.host.point(Point::DaemonReexecProbe)?;
        program.probe().await?;
        let connecting = async {
            while quiet::has_unsettled_plugins(self.daemon) {
                tokio::time::sleep(QUIET_CHECK).await;
            }
        };
        let _or_they_are_waited_for_with_the_requests =
            tokio::time::timeout(PLUGINS_WAIT, connecting).await;
        self.check_launched()?;
        Ok(program)
    }

    /// Fails while a launched plugin is being synchronized. `sync_timeout` bounds the
    /// synchronization, which is not interrupted, and requests must not be held that long.
    fn check_launched(&self) -> Result<()> {
        let connected = self.daemon.registry.connected();
        let late = connected.iter().find(|one| one.is_launched() && one.is_synchronizing());
        late.map_or(Ok(()), |late| {
            let error = Error::new(format!("{} is still being synchronized", late.id()));
            Err(error.hint("try again once nri-runc nri plugins shows it as synchronized"))
        })
    }

    /// Checks the configuration: with an error in it, the next program would refuse creates. A changed
    /// key that needs a restart is refused too: with another run directory there would be no records.
    fn check_configuration(&self) -> Result<()> {
        let loaded = self.started_with.read();
        if let Some(problem) = loaded.refusal() {
            let error = Error::new(format!("the configuration has an error: {}", problem.text));
            return Err(error.hint("fix it first"));
        }
        if loaded.config.clone().keep_started(&self.daemon.config()) {
            let keys = self.started_with.changes(&loaded);
            let keys: Vec<&str> = keys.iter().map(|changed| changed.key.as_str()).collect();
            let error = Error::new(format!("changed keys need a restart: {}", keys.join(", ")));
            return Err(error.hint(format!("use: {}", self.started_with.how_to_restart())));
        }
        Ok(())
    }

    /// Pauses or resumes reading plugins' requests: a plugin that sends them continuously would never be idle. The next
    /// program reads them.
    fn pause_plugins(&self, is_paused: bool) {
        for plugin in self.daemon.registry.connected().iter() {
            plugin.connection().pause_requests(is_paused);
        }
    }

    /// Waits until the daemon is idle and no caller is connected; false if the daemon is still busy
    /// after [`HOLD`] although no wrapper's request is unfinished.
    async fn until_quiet(&self) -> bool {
        let begun = Instant::now();
        loop {
            // Repeated in each round, because a plugin may have connected meanwhile.
            self.pause_plugins(true);
            if begun.elapsed() >= HANDSHAKE_WAIT {
                self.cut_unsettled();
            }
            if quiet::is_quiet(self.daemon, self.drain) {
                // The callers reconnect, and wait in the socket's queue.
                self.drain.send_back().await;
                // The audit log's thread ends with this program.
                self.daemon.report.audit.flush(AUDIT_WAIT).await;
                if quiet::is_quiet(self.daemon, self.drain) {
                    return true;
                }
                // The callers are accepted again, because in the socket's queue they would receive
                // no heartbeat.
                self.drain.accept_again();
            }
            if begun.elapsed() >= HOLD && self.drain.is_idle() {
                return false;
            }
            tokio::time::sleep(QUIET_CHECK).await;
        }
    }

    /// Ends the connections of plugins that have not registered or are not synchronized; otherwise
    /// plugins that keep connecting would keep all requests waiting.
    fn cut_unsettled(&self) {
        self.daemon.registry.roster.cut_unregistered();
        let connected = self.daemon.registry.connected();
        // Ending the connection would stop a launched plugin; see `check_launched`.
        let others = connected.iter().filter(|plugin| !plugin.is_launched());
        for plugin in others.filter(|plugin| plugin.is_synchronizing()) {
            let why =
                "the daemon is being re-executed, and the plugin was not synchronized in time";
            plugin.disconnect(why);
        }
    }

    /// Writes the state and executes the program; returns only if that fails.
    fn execute(&self, program: &Program, callers: Vec<RawFd>, held_at: u64) -> Result<()> {
        self.daemon.host.point(Point::DaemonReexecHeld)?;
        let waited = Duration::from_nanos(clock::monotonic().saturating_sub(held_at));
        let state = self.save(callers, held_at);
        let document = serde_json::to_vec(&state).map_err(|error| Error::new(error.to_string()))?;
        let file = handover::write_state(self.started_with.state_version(), &document)?;
        let mut descriptors = state.descriptors();
        descriptors.push(handover::number(&file));
        let _passed_on = PassedOn::new(descriptors)?;
        self.daemon.host.point(Point::DaemonReexecState)?;
        info!(
            "executing {}: requests were finished within {} ms, {} plugins and {} processes are handed over",
            program.path().display(),
            waited.as_millis(),
            state.plugins.len(),
            state.inits.len()
        );
        service_manager::report_reloading();
        let _blocked = signals::block()?;
        let _tells = UnderWay::begin(self.daemon.config().reexec_file());
        self.daemon.host.point(Point::DaemonReexecExec)?;
        Err(program.execute(handover::number(&file), self.is_foreground, self.started_with.only()))
    }
}
