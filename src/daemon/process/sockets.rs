// SPDX-License-Identifier: Apache-2.0
//! Takes the daemon's lock, and binds its socket for wrappers (decision D11).

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl};

use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::files;
use crate::files::make_private_dir;
use crate::plugin::socket::{Bound, SocketFile, bind, listener_at};
use crate::presence::IfThere;

/// The daemon's lock; the process holds it until it exits.
pub(crate) type DaemonLock = Flock<std::fs::File>;

/// Time that a starting daemon waits for the lock of a running daemon, which may be about to end.
const HANDOVER: Duration = Duration::from_millis(500);

/// Time limit for a killed daemon to release its lock: the kernel frees its memory first.
const ENDING_WAIT: Duration = Duration::from_secs(3);

/// Interval of attempts to take the lock.
const LOCK_CHECK: Duration = Duration::from_millis(10);

/// Makes the run directory and takes the daemon's lock.
///
/// # Errors
/// Fails when another process holds the lock, or the run directory is unusable, for instance writable by other users.
pub(crate) fn lock(config: &Config) -> Result<DaemonLock> {
    let mut file = lock_file(config)?;
    let begun = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, _)) if begun.elapsed() < HANDOVER => file = back,
            Err(_) if listener_at(&config.daemon_socket(), &config.host()).is_some() => {
                let error = Error::new("another daemon is running");
                return Err(error.hint("see: nri-runc nri status"));
            }
            Err((back, _)) if begun.elapsed() < ENDING_WAIT => file = back,
            Err(_) => return Err(held(config)),
        }
        std::thread::sleep(LOCK_CHECK);
    }
}

/// Takes the lock in one attempt, for the event loop, which must not block.
///
/// # Errors
/// As [`lock`].
pub(crate) fn try_lock(config: &Config) -> Result<DaemonLock> {
    let locked = Flock::lock(lock_file(config)?, FlockArg::LockExclusiveNonblock);
    locked.map_err(|_held| held(config))
}

fn lock_file(config: &Config) -> Result<std::fs::File> {
    make_private_dir(&config.run_dir)?;
    let path = config.daemon_lock();
    files::open_lock(&path).doing(|| format!("opening {}", path.display()))
}

fn held(config: &Config) -> Error {
    let why = format!("another process holds {}", config.daemon_lock().display());
    Error::new(why).hint("nri-runc nri check names it")
}

/// Whether a daemon holds the lock. If not, the lock is free again on return.
pub(crate) fn is_locked(config: &Config) -> bool {
    let Some(file) = files::open_own(&config.daemon_lock()).or_absent() else { return false };
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
}

/// The socket for wrappers.
#[derive(Debug)]
pub(crate) struct WrapperSocket {
    pub(crate) listener: UnixListener,
    /// The socket's file; `None` if the service manager owns the socket and keeps it open without
    /// the daemon.
    pub(crate) file: Option<SocketFile>,
}

/// Returns the socket for wrappers: the service manager's, or a newly bound one.
///
/// # Errors
/// Fails when it cannot be bound.
pub(crate) fn wrapper_socket(config: &Config) -> Result<WrapperSocket> {
    if let Some(listener) = from_service_manager() {
        return Ok(WrapperSocket { listener, file: None });
    }
    bound(config)
}

/// Binds the socket for wrappers anew.
///
/// # Errors
/// Fails when the file cannot be created.
pub(crate) fn bound(config: &Config) -> Result<WrapperSocket> {
    // The caller holds the daemon's lock, so no other process listens here.
    let Bound { listener, file } = bind(&config.daemon_socket(), 0o600, None)?;
    Ok(WrapperSocket { listener, file: Some(file) })
}

/// Converts the listener for the event loop.
///
/// # Errors
/// Fails when it cannot be registered.
pub(crate) fn asynchronous(listener: UnixListener) -> Result<tokio::net::UnixListener> {
    listener.set_nonblocking(true)?;
    Ok(tokio::net::UnixListener::from_std(listener)?)
}

/// Returns the number of the socket's descriptor, if the service manager passed one. A re-execution keeps
/// the number.
pub(crate) fn number_from_service_manager() -> Option<RawFd> {
    let pid = std::env::var("LISTEN_PID").ok()?;
    let count = std::env::var("LISTEN_FDS").ok()?;
    (pid == std::process::id().to_string() && count == "1").then_some(3)
}

/// Returns the socket that the service manager passed, if any: descriptor 3, meant for this PID.
#[expect(unsafe_code, reason = "a descriptor passed by number")]
fn from_service_manager() -> Option<UnixListener> {
    let number = number_from_service_manager()?;
    // SAFETY: sd_listen_fds(3): with its two variables this process owns the descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    // The descriptor comes without CLOEXEC, but a child of the daemon must not keep the socket open.
    let _stays = fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    Some(UnixListener::from(fd))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn config(dir: &Path) -> Config {
        Config { run_dir: dir.join("run"), ..Config::default() }
    }

    #[test]
    fn only_one_daemon_runs() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let first = lock(&config).unwrap();
        let _serves = bound(&config).unwrap();
        assert!(lock(&config).unwrap_err().to_string().contains("another daemon"));
        assert!(try_lock(&config).unwrap_err().to_string().contains("another process holds"));
        drop(first);
        drop(try_lock(&config).unwrap());
        assert!(lock(&config).is_ok());
    }

    #[test]
    fn a_lock_held_by_a_silent_process_is_awaited_and_reported() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let first = lock(&config).unwrap();
        let error = lock(&config).unwrap_err().to_string();
        assert!(error.contains("another process holds") && error.contains("check"), "{error}");
        let ends = std::thread::spawn(move || {
            std::thread::sleep(HANDOVER * 2);
            drop(first);
        });
        assert!(lock(&config).is_ok(), "a killed one has ended by then");
        ends.join().unwrap();
    }

    #[test]
    fn a_run_directory_that_others_may_write_to_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        drop(lock(&config).unwrap());
        std::fs::set_permissions(&config.run_dir, PermissionsExt::from_mode(0o777)).unwrap();
        let error = lock(&config).unwrap_err().to_string();
        assert!(error.contains("is writable by others"), "{error}");
    }
}
