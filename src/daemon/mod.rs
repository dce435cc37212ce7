// SPDX-License-Identifier: Apache-2.0
//! The resident process: one thread, one loop over wrappers, plugins and exits.
//!
//! It holds the plugin connections and everything that is known; wrappers ask it, plugins
//! connect to it, init processes end under its eyes. A failure of one of them is its own.

mod lifecycle;
mod node;
mod plugins;
mod pods;
mod process;
mod recovery;
mod registry;
mod request;
mod resources;
mod run_dir;
mod runtime;
mod server;
mod verbs;
mod watch;

use std::io::Write;
use std::os::unix::net::UnixListener as StdListener;
use std::rc::Rc;

use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::config::Loaded;
use crate::daemon::plugins::admission;
use crate::daemon::plugins::socket;
use crate::daemon::pods::crio_added;
use crate::daemon::pods::crio_removed;
use crate::daemon::process::detach;
use crate::daemon::process::reload;
use crate::daemon::process::sockets;
use crate::daemon::process::subreaper;
use crate::daemon::recovery::bypassed;
use crate::daemon::recovery::catch_up;
use crate::daemon::recovery::rediscover;
use crate::daemon::server::drain;
use crate::daemon::server::session;
use crate::error::{Context, Result};
use crate::host::Host;
use crate::state::Store;

use crate::daemon::node::Node;
use crate::daemon::process::sockets::DaemonLock;
use crate::daemon::process::subreaper::StandIn;
use crate::daemon::run_dir::Home;

pub use crate::daemon::plugins::admission::NRI_VERSION;

/// How the daemon was started.
#[derive(Debug, Default)]
pub struct Start {
    /// Descriptor on which a wrapper waits for one byte.
    pub ready_fd: Option<i32>,
}

/// Runs the daemon until it is told to end.
///
/// # Errors
/// Fails when another daemon runs, or its sockets cannot be made.
pub fn run(loaded: Loaded, start: &Start) -> Result<()> {
    let host = loaded.config.host();
    detach::ignore_broken_pipes();
    if let Err(error) = become_independent(&host, start) {
        crate::log::start(&loaded.config, start.ready_fd.is_none());
        warn!("not started: {error}");
        say_to_starter(start, format!("E{error}").as_bytes());
        return Err(error);
    }
    let stand_in = start.ready_fd.and_then(|_inherited| subreaper::stand_aside());
    crate::log::start(&loaded.config, start.ready_fd.is_none());
    let lock = sockets::lock(&loaded.config)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "starting the event loop")?;
    let local = tokio::task::LocalSet::new();
    let ended = local.block_on(&runtime, serve(loaded, lock, start, stand_in));
    if let Err(error) = &ended {
        warn!("{error}");
    }
    ended
}

/// Loses what the process that started this one would leave to it, before anything else.
fn become_independent(host: &Host, start: &Start) -> Result<()> {
    let is_inherited = start.ready_fd.is_some();
    if is_inherited {
        detach::shake_off(host);
        detach::refuse_no_new_privs()?;
        detach::reset_priorities()?;
    }
    detach::lift_limits(is_inherited)
}

async fn serve(
    loaded: Loaded,
    lock: DaemonLock,
    start: &Start,
    stand_in: Option<StandIn>,
) -> Result<()> {
    let hangups = reload::hangups()?;
    let wrappers = sockets::for_wrappers(&loaded.config)?;
    loaded.problems.iter().for_each(|problem| warn!("{}", problem.text));
    let host = loaded.config.host();
    let boot_id = std::fs::read_to_string(host.path("/proc/sys/kernel/random/boot_id"));
    let boot_id = boot_id.unwrap_or_default().trim().to_owned();
    let state = loaded.config.run_dir.join("state");
    let (store, problems) = Store::open(&state, &boot_id)?;
    let node = Node::new(loaded.config.clone(), host, store);
    *node.stand_in.borrow_mut() = stand_in;
    let started_with = node.started_with.get_or_init(|| reload::StartedWith::new(&loaded));
    problems.iter().for_each(|problem| node.note_failure(problem, ""));
    tokio::task::spawn_local(Rc::clone(&node).write_when_there_is_room());
    let home = Home::new(&node, lock, &loaded);
    let is_first = !node.store.borrow().is_stamped();
    bypassed::adopt(&node).await;
    rediscover::again(&node).await;
    catch_up::look_around(&node).await;
    crio_added::adopt(&node, is_first).await;
    socket::open(&node);
    tokio::task::spawn_local(admission::record_protecting_plugins_later(Rc::clone(&node)));
    catch_up::recover(&node);
    crio_removed::follow_all(&node);
    if !node.is_bystander() {
        crio_added::look_out(&node);
    }
    home.open(wrappers)?;
    announce(start);
    info!("nri-runc {} is ready", env!("CARGO_PKG_VERSION"));
    tokio::select! {
        told = until_told_to_end() => told?,
        () = home.keep() => {}
        () = started_with.reload_at(hangups) => {}
        () = started_with.until_fixed() => {}
    }
    drain::drain(&node).await;
    farewell(&node).await;
    home.leave();
    drain::release(&node).await;
    Ok(())
}

fn asynchronous(listener: StdListener) -> Result<UnixListener> {
    listener.set_nonblocking(true)?;
    Ok(UnixListener::from_std(listener)?)
}

/// Tells whoever waits that the daemon can be asked: the wrapper that started it, or systemd.
fn announce(start: &Start) {
    say_to_starter(start, b"R");
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = sockets::say_ready(&socket)
    {
        warn!("could not notify the service manager: {error}");
    }
}

/// Says something to the wrapper that started this daemon and waits, once.
fn say_to_starter(start: &Start, word: &[u8]) {
    let Some(fd) = start.ready_fd else { return };
    let said = std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{fd}"))
        .and_then(|mut pipe| pipe.write_all(word));
    if let Err(error) = said {
        warn!("the process that started the daemon no longer waits: {error}");
    }
    let _closed = nix::unistd::close(fd);
}

async fn accept(node: Rc<Node>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::task::spawn_local(session::serve(Rc::clone(&node), stream));
            }
            Err(error) => {
                warn!("the daemon socket: {}", crate::error::in_our_words(&error));
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

async fn until_told_to_end() -> Result<()> {
    let doing = || "waiting for signals";
    let mut terminate = signal(SignalKind::terminate()).doing(doing)?;
    let mut interrupt = signal(SignalKind::interrupt()).doing(doing)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Lets plugins go in an orderly way; a plugin that does not answer is not waited for.
async fn farewell(node: &Rc<Node>) {
    info!("stopping");
    node.ending.set(true);
    let shutdowns =
        node.relay.guests().into_iter().map(|guest| {
            tokio::task::spawn_local(async move { guest.seat.plugin.shutdown().await })
        });
    let shutdowns: Vec<_> = shutdowns.collect();
    for shutdown in shutdowns {
        let patience = std::time::Duration::from_secs(1);
        let _not_waited_for = tokio::time::timeout(patience, shutdown).await;
    }
    node.plugin_socket.remove(&node.config.socket_path);
}
