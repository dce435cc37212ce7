// SPDX-License-Identifier: Apache-2.0
//! The daemon becomes the program that now lies at its path, in the same process (D42): sockets,
//! plugin connections, launched plugins and watched processes stay, and the next program continues
//! with the state that this one leaves in a memory file.
//!
//! The daemon first asks the other program whether it can continue. Then it holds new requests,
//! finishes those in flight, and once it is idle it writes the state and executes the program, in
//! one step: no other task runs in between. Until that step nothing has changed, and a failure
//! leaves the daemon as it was.
//!
//! It never ends a plugin's connection, and never waits without a bound. It imports `shared`,
//! `connections`, `process`, `recovery`, `registry`, `run_dir` and `server`.

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

/// The time that connecting plugins have to become synchronized; new requests are served meanwhile.
const PLUGINS_WAIT: Duration = Duration::from_secs(10);

/// The time that requests in flight have; new ones are held meanwhile.
const REQUESTS_WAIT: Duration = Duration::from_secs(30);

/// The time that plugins in their handshake have meanwhile; then their connections end, since such connections,
/// made anew again and again, would hold every request.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(1);

/// The time that the last lines of the audit log have.
const AUDIT_WAIT: Duration = Duration::from_millis(200);

/// Interval of checks whether the daemon is idle.
const QUIET_CHECK: Duration = Duration::from_millis(1);

/// The file that explains missing heartbeats to wrappers; removed if the program could not be
/// executed. The next program removes it when it accepts wrappers.
struct UnderWay(PathBuf);

impl UnderWay {
    /// Writes the file; without it wrappers wait as long as for a daemon that hangs.
    fn begin(path: PathBuf) -> Self {
        let begun = clock::monotonic().to_string();
        log_failure("telling wrappers of it", crate::files::replace(&path, begun.as_bytes()));
        Self(path)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let _is_gone = std::fs::remove_file(&self.0);
    }
}

/// The parts of the daemon to hand over.
pub(crate) struct Reexec<'d> {
    pub(crate) daemon: &'d Rc<Daemon>,
    pub(crate) run_dir: &'d RunDir,
    pub(crate) drain: &'d Rc<Drain>,
    pub(crate) started_with: &'d StartedWith,
    pub(crate) metrics: &'d RefCell<MetricsServer>,
    pub(crate) is_foreground: bool,
}

impl Reexec<'_> {
    /// Becomes another program at each request and signal. Returns only if requests end.
    pub(crate) async fn serve(&self, mut signalled: Signal) {
        let Some(mut requests) = self.daemon.process.reexecs.receive() else { return };
        loop {
            let mut asked: Vec<Request<ReexecRequest>> = Vec::new();
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
            let why = format!("the daemon goes on as it is: {error}");
            warn!("{why}");
            for request in asked {
                let _caller_is_gone = request.answer.send(Err(Error::new(&why)));
            }
        }
    }

    /// Becomes the program that lies at the daemon's path; returns why it could not.
    async fn become_program(&self, all_callers: impl FnOnce() -> Vec<RawFd>) -> Error {
        let program = match self.prepare().await {
            Ok(program) => program,
            Err(error) => return error,
        };
        let held_at = clock::monotonic();
        self.drain.hold_new();
        let ready = tokio::time::timeout(REQUESTS_WAIT, self.until_quiet()).await;
        // From here on no other task runs.
        let error = match ready {
            Err(_late) => Error::new(format!(
                "requests in flight took longer than {} s",
                REQUESTS_WAIT.as_secs()
            )),
            Ok(()) => self
                .execute(&program, all_callers(), held_at)
                .err()
                .unwrap_or_else(|| Error::new("it could not be executed")),
        };
        self.pause_plugins(false);
        self.drain.go_on();
        service_manager::report_ready();
        error
    }

    /// Checks that the other program, and its configuration, can be used; waits for plugins that
    /// are connecting.
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
        Ok(program)
    }

    /// A program that starts with an error in its configuration would refuse creates, and one with
    /// another run directory would find nothing.
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

    /// Holds back the requests of plugins, or serves them again: a plugin that sends one after the other would
    /// never be idle. The next program reads them.
    fn pause_plugins(&self, is_paused: bool) {
        for plugin in self.daemon.registry.connected().iter() {
            plugin.chained.plugin.pause_requests(is_paused);
        }
    }

    /// Waits for a moment when the daemon is idle and no caller is connected.
    async fn until_quiet(&self) {
        let begun = Instant::now();
        loop {
            if begun.elapsed() >= HANDSHAKE_WAIT {
                self.daemon.registry.roster.cut_unregistered();
            }
            // Any of them may have connected just now.
            self.pause_plugins(true);
            if quiet::is_quiet(self.daemon, self.drain) {
                // The callers come back, and wait in the socket's queue.
                self.drain.send_back().await;
                // Its thread ends with this program.
                self.daemon.report.audit.flush(AUDIT_WAIT).await;
                if quiet::is_quiet(self.daemon, self.drain) {
                    return;
                }
                // They would wait without a heartbeat as long as the daemon is busy.
                self.drain.accept_again();
            }
            tokio::time::sleep(QUIET_CHECK).await;
        }
    }

    /// Writes the state and executes the program: returns only if that fails.
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
            "becoming {}: requests were finished within {} ms, {} plugins and {} processes are handed over",
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
