// SPDX-License-Identifier: Apache-2.0
//! Resumes the previous program's work: its descriptors, the plugins, the watched processes. An
//! unusable state is dropped with all its descriptors: then the daemon starts as after a crash.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream as StdStream;
use std::rc::Rc;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use serde_json::json;

use crate::answers::Reexec;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tracing::{info, warn};

use crate::clock;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::link::DaemonResponse;
use crate::plugin::socket::SocketFile;
use crate::state::Lifecycle;
use crate::text::counted;

use crate::daemon::connections::{admission, resumed, socket};
use crate::daemon::process::handover;
use crate::daemon::process::sockets::{DaemonLock, WrapperSocket};
use crate::daemon::process::subreaper::StandIn;
use crate::daemon::recovery::catch_up;
use crate::daemon::reexec::saved::{SavedConnection, SavedDaemon, SavedInit};
use crate::daemon::server::http::SavedMetrics;
use crate::daemon::shared::{Daemon, log_failure};

/// Time limit for a caller to read the response.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// The state left by the previous program.
pub(crate) struct Predecessor {
    pub(crate) saved: SavedDaemon,
    pub(crate) lock: DaemonLock,
    pub(crate) stand_in: Option<StandIn>,
}

/// The callers that wait for this program, the time since which requests are held, and the previous version.
pub(crate) struct Waiting {
    callers: Vec<RawFd>,
    held_at: u64,
    before: String,
}

impl Predecessor {
    /// Reads the state in this descriptor.
    ///
    /// # Errors
    /// Fails when it is unusable; all descriptors but the first three and the service manager's are then closed.
    pub(crate) fn read(number: RawFd, config: &Config) -> Result<Self> {
        let read = Self::read_state(number, config);
        if read.is_err() {
            handover::close_inherited();
        }
        read
    }

    fn read_state(number: RawFd, config: &Config) -> Result<Self> {
        let document = handover::read_state(number)?;
        let saved: SavedDaemon = serde_json::from_slice(&document)
            .map_err(|error| Error::new(format!("it cannot be read: {error}")))?;
        if saved.run_dir != config.run_dir {
            return Err(Error::new(format!("its run directory is {}", saved.run_dir.display())));
        }
        let file = std::fs::File::from(handover::own(saved.lock)?);
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_locked| Error::new("the daemon's lock was lost"))?;
        let stand_in = saved.stand_in.map(handover::own).transpose()?;
        Ok(Self { saved, lock, stand_in: stand_in.map(StandIn::resume) })
    }

    /// Returns the socket for wrappers, with the connections in its queue.
    ///
    /// # Errors
    /// Fails when its descriptor was not kept.
    pub(crate) fn wrapper_socket(&self, config: &Config) -> Result<WrapperSocket> {
        let wrappers = &self.saved.wrappers;
        let file = wrappers.has_file.then(|| SocketFile::of(&config.daemon_socket()).ok());
        let listener = handover::own(wrappers.descriptor)?.into();
        Ok(WrapperSocket { listener, file: file.flatten() })
    }
}

/// Restores plugins, sockets and watched processes. Returns the callers that wait for the daemon,
/// and the listener for metrics.
pub(crate) async fn resume(
    daemon: &Rc<Daemon>,
    saved: SavedDaemon,
) -> (Waiting, Option<SavedMetrics>) {
    daemon.stream.resume(saved.events);
    daemon.registry.returning.execs.expect(Duration::from_millis(saved.execs_expected));
    for SavedInit { key, incarnation, process } in saved.inits {
        let process = process.and_then(|number| handover::own(number).ok());
        daemon.watches.init_watches.resume(key, incarnation, process);
    }
    for SavedConnection { plugin, counts, known, launched } in saved.plugins {
        let known: BTreeSet<_> = known
            .into_iter()
            .filter_map(|at| saved.subjects.get(usize::try_from(at).ok()?).cloned())
            .collect();
        let went_on = resumed::resume(daemon, plugin, counts, known, launched).await;
        log_failure("a plugin was disconnected", went_on);
    }
    // The configuration may have changed together with the program.
    admission::disconnect_unfit(daemon, &daemon.config());
    log_failure("going on with the plugin socket", socket::resume(daemon, &saved.plugin_socket));
    admission::remember_who_is_here(daemon);
    let SavedDaemon { callers, held_at, version: before, metrics, .. } = saved;
    (Waiting { callers, held_at, before }, metrics)
}

/// Watches the foreground `run`s on record and the init processes again. Exits in the meantime are
/// handled like any others.
pub(crate) async fn follow(daemon: &Rc<Daemon>) {
    let records = daemon.records.read().all_shared();
    let mut unknown = Vec::new();
    for record in records {
        if record.pending.in_flight.is_some()
            && record.state != Lifecycle::Creating
            && let Err(why) = catch_up::catch_up(daemon, &record.key).await
        {
            warn!("the state of {} is not known yet, and is checked again: {why}", record.key.id);
            unknown.push(record.key.clone());
        }
    }
    catch_up::recover(daemon, &unknown);
}

/// Logs that the daemon continues as this program, and answers the callers that wait for it.
pub(crate) async fn report(daemon: &Rc<Daemon>, waiting: Waiting) {
    let held = Duration::from_nanos(clock::monotonic().saturating_sub(waiting.held_at));
    daemon.report.metrics.observe_reexec(held);
    let (plugins, now) = (daemon.registry.connected().len(), env!("CARGO_PKG_VERSION"));
    let millis = u64::try_from(held.as_millis()).unwrap_or(u64::MAX);
    info!(
        "re-executed: version {now} (was {}), {} stayed connected, requests were held for {millis} ms",
        waiting.before,
        counted(plugins, "plugin")
    );
    let document = json!(Reexec {
        pid: std::process::id(),
        version: now.to_owned(),
        was_version: waiting.before,
        plugins,
        held_ms: millis,
    });
    let answer = DaemonResponse::Admin(document.to_string()).encode();
    for caller in waiting.callers {
        if let Err(error) = answer_on(caller, &answer).await {
            warn!("a caller that waited for the new program: {error}");
        }
    }
}

async fn answer_on(caller: RawFd, answer: &[u8]) -> Result<()> {
    let stream = StdStream::from(handover::own(caller)?);
    stream.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(stream)?;
    let written = tokio::time::timeout(ANSWER_WAIT, stream.write_all(answer)).await;
    written.map_err(|_late| Error::new("it does not read the response"))??;
    Ok(())
}
