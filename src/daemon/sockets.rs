// SPDX-License-Identifier: Apache-2.0
//! The daemon's lock, and its socket for wrappers (decision D11).

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl};

use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::plugin::socket::bind;

/// The lock that says which process is the daemon; held as long as it lives.
pub(super) type DaemonLock = Flock<std::fs::File>;

/// A daemon that was killed may still be ending when its successor starts.
const HANDOVER: Duration = Duration::from_millis(500);

/// Makes the run directory and takes the daemon's lock.
///
/// # Errors
/// Fails when another daemon lives.
pub(super) fn lock(config: &Config) -> Result<DaemonLock> {
    use std::os::unix::fs::OpenOptionsExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.run_dir);
    made.doing(|| format!("making {}", config.run_dir.display()))?;
    let path = config.run_dir.join("daemon.lock");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(&path).doing(|| format!("opening {}", path.display()))?;
    let deadline = Instant::now() + HANDOVER;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, _)) if Instant::now() < deadline => file = back,
            Err(_) => {
                let error = Error::new("another daemon is running");
                return Err(error.hint("see: nri-runc nri status"));
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The socket for wrappers.
#[derive(Debug)]
pub(super) struct ForWrappers {
    /// Where they connect.
    pub(super) listener: UnixListener,
    /// The service manager's goes on listening without us; its file is not ours to remove.
    pub(super) is_handed_over: bool,
}

/// The socket for wrappers: handed over by the service manager, or bound anew.
///
/// # Errors
/// Fails when it cannot be bound.
pub(super) fn for_wrappers(config: &Config) -> Result<ForWrappers> {
    if let Some(listener) = from_service_manager() {
        return Ok(ForWrappers { listener, is_handed_over: true });
    }
    // We hold the daemon's lock, so nobody listens here any more.
    let path = config.daemon_socket();
    let _stale = std::fs::remove_file(&path);
    Ok(ForWrappers { listener: bind(&path, 0o600, None)?, is_handed_over: false })
}

/// Socket activation: one descriptor, number 3, meant for this pid.
#[expect(unsafe_code, reason = "a descriptor passed by number")]
fn from_service_manager() -> Option<UnixListener> {
    let pid = std::env::var("LISTEN_PID").ok()?;
    let count = std::env::var("LISTEN_FDS").ok()?;
    if pid != std::process::id().to_string() || count != "1" {
        return None;
    }
    // SAFETY: sd_listen_fds(3): with these two variables descriptor 3 is ours to own.
    let fd = unsafe { OwnedFd::from_raw_fd(3) };
    // It comes without CLOEXEC: no runtime that we start may go on listening in our place.
    let _stays = fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    Some(UnixListener::from(fd))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(dir: &Path) -> Config {
        Config { run_dir: dir.join("run"), ..Config::default() }
    }

    #[test]
    fn there_is_one_daemon() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let _first = lock(&config).unwrap();
        assert!(lock(&config).unwrap_err().to_string().contains("another daemon"));
    }
}
