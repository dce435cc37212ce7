// SPDX-License-Identifier: Apache-2.0
//! Runs the resident process: one thread, one loop over wrappers, plugins and exits.
//!
//! The daemon holds the plugin connections and all records; wrappers send it requests, plugins
//! connect to it, and it watches init processes. A failure of one of them affects no other. Each
//! folder's `mod.rs` states its purpose, what it never does and what it imports; `tests/tidy.rs`
//! lists the permitted imports.

mod bundle;
mod connections;
mod lifecycle;
mod pods;
mod process;
mod recovery;
mod reexec;
mod registry;
mod reload;
mod request;
mod resources;
mod run_dir;
mod runtime;
mod server;
mod shared;
mod verbs;
mod watch;

use std::cell::RefCell;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;
use std::time::Duration;

use tokio::runtime::{LocalOptions, LocalRuntime};
use tracing::{error, info, warn};

use crate::allocator::Allocator;
use crate::config::{Config, Loaded, Scope};
use crate::error::{Context, Result};
use crate::files;
use crate::host::{Host, Point};
use crate::last_words;
use crate::presence::{self, IfThere};
use crate::state::Store;

use connections::{admission, socket};
use lifecycle::exit;
use pods::{crio, crio_added, crio_removed, resized};
use process::signals::Signals;
use process::sockets::{DaemonLock, WrapperSocket};
use process::started_with::StartedWith;
use process::subreaper::StandIn;
use process::{capabilities, detach, service_manager, sockets, subreaper};
use recovery::{bypassed, catch_up, enabled, lost, lost_pods, node_scope, rediscover};
use reexec::Reexec;
use reexec::SavedDaemon;
use reexec::resume::{self, Predecessor};
use reload::Reloads;
use resources::drift;
use run_dir::RunDir;
use server::drain::Drain;
use server::http::MetricsServer;
use shared::Daemon;

pub(crate) use process::other;
pub(crate) use reexec::abilities;

/// Time limit for a plugin's shutdown when the daemon ends.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(1);

/// Time limit for writing the last lines of the audit log when the daemon ends.
const AUDIT_WAIT: Duration = Duration::from_secs(2);

/// How the daemon was started.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// Pipe through which the daemon sends one message to the wrapper that started it.
    pub ready_fd: Option<i32>,
    /// Descriptor of the state that the previous program of this process left.
    pub state_fd: Option<i32>,
    /// Whether the previous program of this process logged as a background daemon.
    pub in_background: bool,
    /// Whether this process only tests that a daemon can start: it does the steps that need no run directory,
    /// then exits.
    pub is_trial: bool,
}

impl Start {
    fn is_foreground(&self) -> bool {
        self.ready_fd.is_none() && !self.in_background
    }
}

/// The daemon's initial state: its lock and socket, and the state of the previous program, if any.
struct Beginning {
    lock: DaemonLock,
    stand_in: Option<StandIn>,
    wrappers: WrapperSocket,
    saved: Option<SavedDaemon>,
}

impl Beginning {
    fn new(config: &Config) -> Result<Self> {
        let lock = sockets::lock(config)?;
        let wrappers = sockets::wrapper_socket(config)?;
        Ok(Self { lock, stand_in: None, wrappers, saved: None })
    }

    /// Continues from the previous program's state; if that is unusable, starts like any other
    /// daemon.
    fn resume(before: Result<Predecessor>, config: &Config) -> Result<Self> {
        match before {
            Ok(before) => {
                let wrappers = before.wrapper_socket(config)?;
                let Predecessor { saved, lock, stand_in } = before;
                Ok(Self { lock, stand_in, wrappers, saved: Some(saved) })
            }
            Err(why) => {
                warn!("the previous program's state was dropped, plugins have to reconnect: {why}");
                Self::new(config)
            }
        }
    }
}

/// Runs the daemon until a signal ends it, another daemon takes its run directory, or only a new daemon can apply a
/// fixed configuration. A trial returns at once.
///
/// # Errors
/// Fails when the daemon cannot start, for instance because another one runs.
pub(crate) fn run(mut loaded: Loaded, start: &Start) -> Result<()> {
    let host = loaded.config.host();
    // A wrapper executes /proc/self/exe, which would make `ps` and `top` show `exe`.
    let _stays = nix::sys::prctl::set_name(c"nri-runc");
    // Read before anything is opened: if the state is unusable, this closes the previous program's descriptors.
    let before = start.state_fd.map(|number| Predecessor::read(number, &loaded.config));
    detach::ignore_broken_pipes();
    if start.is_trial {
        become_independent(&host, start)?;
        host.point(Point::DaemonStart)?;
        return event_loop().map(drop);
    }
    if let Err(error) = become_independent(&host, start) {
        crate::log::start(&loaded.config, start.is_foreground());
        warn!("not started: {error}");
        write_to_starter(start, format!("E{error}").as_bytes());
        return Err(error);
    }
    host.point(Point::DaemonStart)?;
    let stand_in = start.ready_fd.and_then(|_inherited| subreaper::stand_aside());
    crate::log::start(&loaded.config, start.is_foreground());
    if matches!(before, Some(Ok(_))) {
        loaded = loaded.for_next_program();
    }
    let begun = match before {
        Some(before) => Beginning::resume(before, &loaded.config),
        None => other::refuse_beside(&loaded).and_then(|()| Beginning::new(&loaded.config)),
    };
    let mut beginning =
        begun.inspect_err(|error| write_to_starter(start, format!("E{error}").as_bytes()))?;
    beginning.stand_in = beginning.stand_in.or(stand_in);
    capabilities::give_up();
    Allocator::keep_blocks_of_this_thread();
    let runtime = event_loop()?;
    let ended = runtime.block_on(serve(loaded, beginning, start));
    if let Err(error) = &ended {
        warn!("{error}");
    }
    ended
}

/// Creates the loop, with one queue for all tasks. A `LocalSet` has a second queue, and an event that wakes tasks of
/// both costs another wait for the kernel's events.
fn event_loop() -> Result<LocalRuntime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build_local(LocalOptions::default()).doing(|| "starting the event loop")
}

/// Drops the attributes inherited from a wrapper, or from the command that runs a trial, and raises the limits.
fn become_independent(host: &Host, start: &Start) -> Result<()> {
    let is_inherited = start.ready_fd.is_some() || start.is_trial;
    if is_inherited {
        detach::reset_inherited_attributes(host);
        detach::refuse_no_new_privs()?;
        detach::reset_priorities()?;
    }
    detach::lift_limits(is_inherited)
}

async fn serve(loaded: Loaded, beginning: Beginning, start: &Start) -> Result<()> {
    let mut signals = Signals::new()?;
    let Beginning { lock, stand_in, wrappers, saved } = beginning;
    report(&loaded);
    let daemon = open_node(&loaded, stand_in, start)?;
    if saved.is_some() {
        daemon.host.point(Point::DaemonReexecBegun)?;
    }
    let started_with = daemon.process.started_with.get_or_init(|| StartedWith::new(&loaded));
    tokio::task::spawn_local(write_records(Rc::clone(&daemon)));
    let drain = Rc::new(Drain::default());
    daemon.expect_former_execs(saved.is_some());
    let run_dir = RunDir::new(&daemon, &drain, lock, &loaded);
    tokio::task::spawn_local(exit::watch_all(Rc::clone(&daemon)));
    tokio::task::spawn_local(crio::watch(Rc::clone(&daemon)));
    let waiting = match saved {
        Some(saved) => {
            let resumed = resume::resume(&daemon, saved).await;
            daemon.note_execs_resumed();
            daemon.host.point(Point::DaemonReexecTaken)?;
            Some(resumed)
        }
        None => {
            begin(&daemon).await;
            None
        }
    };
    follow_engines(&daemon);
    run_dir.open(wrappers)?;
    let metrics = match waiting {
        Some((waiting, metrics)) => {
            resume::follow(&daemon).await;
            resume::report(&daemon, waiting).await;
            MetricsServer::resume(&daemon, metrics).await
        }
        None => MetricsServer::start(&daemon).await,
    };
    let metrics = RefCell::new(metrics);
    let (is_foreground, metrics) = (start.is_foreground(), &metrics);
    let reloads = Reloads { daemon: &daemon, run_dir: &run_dir, started_with, metrics };
    let (daemon, run_dir, drain) = (&daemon, &run_dir, &drain);
    let reexec = Reexec { daemon, run_dir, drain, started_with, metrics, is_foreground };
    announce(start);
    info!("nri-runc {} is ready", env!("CARGO_PKG_VERSION"));
    tokio::select! {
        () = signals.ends.wait() => {}
        () = run_dir.keep_complete() => {}
        () = reloads.serve(signals.hangups) => {}
        () = reexec.serve(signals.reexecs) => {}
        () = service_manager::keep_informed() => {}
        () = crate::log::deliver_waiting() => {}
        () = crate::log::count_held_back() => {}
    }
    drain.drain(daemon, &mut signals.ends).await;
    farewell(daemon).await;
    run_dir.leave();
    drain.release().await;
    Ok(())
}

/// Logs the configuration's errors, and their effect on creates.
fn report(loaded: &Loaded) {
    loaded.warnings().iter().for_each(|warning| warn!("{warning}"));
    if let Some(why) = &loaded.config.protection_error {
        error!("creates are refused until the configuration is fixed: {why}");
    } else if loaded.is_last_good() {
        warn!("the last valid configuration stays in force");
    }
}

/// Starts the tasks that follow what engines do without calling the daemon.
fn follow_engines(daemon: &Rc<Daemon>) {
    crio_removed::follow_all(daemon);
    resized::follow_all(daemon);
    enabled::catch_up(daemon);
    tokio::task::spawn_local(lost::look_out(Rc::clone(daemon)));
    tokio::task::spawn_local(drift::look_out(Rc::clone(daemon)));
    // If the previous program had `nri.scope = "node"`, its records are dropped.
    reload::follow_scope(daemon, daemon.config().scope == Scope::Handler);
    if !daemon.is_bystander() {
        crio_added::look_out(daemon);
    }
}

/// Returns the daemon's state, with the records of earlier daemons of this boot.
fn open_node(loaded: &Loaded, stand_in: Option<StandIn>, start: &Start) -> Result<Rc<Daemon>> {
    let host = loaded.config.host();
    let path = host.path("/proc/sys/kernel/random/boot_id");
    // Without a boot ID, the records of another boot cannot be recognized, and a wrong ID would
    // drop every record.
    let boot_id = presence::insist(|| files::read_kernel(&path).if_there());
    let boot_id = boot_id.doing(|| format!("reading {}", path.display()))?;
    let boot_id = boot_id.unwrap_or_default().trim().to_owned();
    let (store, problems) = Store::open(&loaded.config.run_dir.join("state"), &boot_id)?;
    let daemon = Daemon::new(Config::clone(&loaded.config), host, store);
    *daemon.process.stand_in.borrow_mut() = stand_in;
    problems.iter().for_each(|problem| daemon.report.note_failure(problem, ""));
    if let Some(words) = last_words::take(&loaded.config.run_dir, !start.is_foreground()) {
        daemon.report.note_failure(&format!("the previous daemon ended with: {words}"), "");
    }
    Ok(daemon)
}

/// Starts without a previous program: handles what happened since the last daemon, and opens the plugin socket.
async fn begin(daemon: &Rc<Daemon>) {
    let is_first = !daemon.records.read().is_stamped();
    lost_pods::restore(daemon).await;
    bypassed::adopt(daemon).await;
    rediscover::rediscover(daemon).await;
    node_scope::adopt(daemon).await;
    let unknown = catch_up::make_true(daemon).await;
    crio_added::adopt(daemon, is_first).await;
    socket::open(daemon);
    tokio::task::spawn_local(admission::record_protecting_plugins_later(Rc::clone(daemon)));
    catch_up::recover(daemon, &unknown);
}

/// Reports that the daemon is ready: to the wrapper that started it, and to systemd.
fn announce(start: &Start) {
    write_to_starter(start, b"R");
    service_manager::report_ready();
}

/// Writes one message to the wrapper that started this daemon and waits for the daemon.
fn write_to_starter(start: &Start, word: &[u8]) {
    let Some(fd) = start.ready_fd else { return };
    let written = std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{fd}"))
        .and_then(|mut pipe| pipe.write_all(word));
    if let Err(error) = written {
        warn!("the process that started the daemon no longer waits: {error}");
    }
    let _closed = nix::unistd::close(fd);
}

/// Time for which execs stay protected while the daemon ends; longer than the shutdown takes.
const PROTECTED_TO_THE_END: Duration = Duration::from_secs(60);

/// Shuts plugins down cleanly, up to a time limit; then removes the plugin socket and writes the rest of the audit log.
async fn farewell(daemon: &Rc<Daemon>) {
    info!("stopping");
    daemon.process.is_ending.set(true);
    if daemon.registry.exec_interest().protects {
        // Execs are still served while the plugins that protect them are shut down.
        daemon.registry.returning.execs.expect(PROTECTED_TO_THE_END);
    }
    let shutdowns = daemon.registry.all_connections().into_iter().map(|connected| {
        tokio::task::spawn_local(async move {
            connected.shutdown("it was shut down").await;
        })
    });
    let all = futures_util::future::join_all(shutdowns);
    let _not_waited_for = tokio::time::timeout(SHUTDOWN_WAIT, all).await;
    daemon.registry.socket.remove(&daemon.config().socket_path);
    daemon.report.audit.flush(AUDIT_WAIT).await;
}

async fn write_records(daemon: Rc<Daemon>) {
    daemon.records.write_when_there_is_room().await;
}
