// SPDX-License-Identifier: Apache-2.0
//! Starts the daemon if it is not running: the only fork of the wrapper (decision D6).
//!
//! The wrapper forks twice and reaps the intermediate process at once, because runc would inherit
//! an unreaped child and does not expect one. The daemon inherits no descriptor or session, and of the
//! environment only the variables that lead to its files. It sends one byte through a pipe once it
//! listens, or the reason why it cannot. Its stderr (such as a panic) goes to a file of the run
//! directory (`last_words.rs`).

use std::ffi::{CString, OsStr};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, pipe2, setsid};

use crate::config::{self, Config, FILE_VARIABLE};
use crate::error::{Context, Error, Result};
use crate::files;
use crate::files::make_private_dir;
use crate::last_words;
use crate::presence::{self, IfThere};

use super::connection::dial;

/// Time limit for the lock of another process that is starting the daemon.
const START_LOCK_WAIT: Duration = Duration::from_secs(5);

/// Interval of attempts to take the lock for starting the daemon.
const START_LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Time limit from the daemon's start until it listens.
const DAEMON_START_WAIT: Duration = Duration::from_secs(5);

/// Interval of checks whether the daemon's process has been reparented.
const REPARENT_PAUSE: Duration = Duration::from_micros(100);

/// Starts the daemon and waits until it listens or `deadline` passes. Only one of several
/// concurrent wrappers starts it.
pub(super) fn launch(config: &Config, deadline: Instant) -> Result<()> {
    let file = std::env::var_os(FILE_VARIABLE);
    start(config, deadline, Path::new("/proc/self/exe"), file.as_deref())
}

/// Starts the daemon for an operator: `program` with the configuration `file`.
///
/// # Errors
/// Fails when it cannot be started, or does not listen in time.
pub(crate) fn start_daemon(config: &Config, program: &Path, file: Option<&Path>) -> Result<()> {
    start(
        config,
        Instant::now() + START_LOCK_WAIT + DAEMON_START_WAIT,
        program,
        file.map(Path::as_os_str),
    )
}

fn start(config: &Config, deadline: Instant, program: &Path, file: Option<&OsStr>) -> Result<()> {
    make_private_dir(&config.run_dir)?;
    let _lock = lock(&config.run_dir.join("start.lock"), deadline)?;
    if dial(&config.daemon_socket()).is_ok() {
        return Ok(()); // Another wrapper has started the daemon.
    }
    let (ready, announce) = pipe2(OFlag::O_CLOEXEC)?;
    let stderr = last_words::open(&config.run_dir).map(OwnedFd::from);
    spawn(announce, stderr, program, file)?;
    let left = DAEMON_START_WAIT.min(deadline.saturating_duration_since(Instant::now()));
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    let answered = poll(&mut [PollFd::new(ready.as_fd(), PollFlags::POLLIN)], timeout)?;
    let mut message = [0_u8; 1024];
    let length = if answered == 1 { std::fs::File::from(ready).read(&mut message)? } else { 0 };
    match message.get(..length) {
        Some([b'R', ..]) => return Ok(()),
        // The started daemon may have found another daemon that was restoring the run directory.
        Some([b'E', ..]) if dial(&config.daemon_socket()).is_ok() => return Ok(()),
        Some([b'E', why @ ..]) => {
            let why = String::from_utf8_lossy(why);
            return Err(Error::new(format!("the daemon refuses to start: {why}")));
        }
        Some(_) | None => {}
    }
    let words = last_words::read(&config.run_dir).map(|words| format!(": {words}"));
    let why = format!("the daemon could not be started{}", words.unwrap_or_default());
    Err(Error::new(why).hint("see: nri-runc nri check"))
}

/// Takes the lock, waiting a limited time, because its holder may itself wait for the daemon.
fn lock(path: &Path, deadline: Instant) -> Result<Flock<std::fs::File>> {
    let deadline = deadline.min(Instant::now() + START_LOCK_WAIT);
    let mut file = files::open_lock(path).doing(|| format!("opening {}", path.display()))?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, _)) if Instant::now() < deadline => file = back,
            Err(_) => {
                return Err(Error::new(
                    "timed out waiting for another process that is starting the daemon",
                ));
            }
        }
        std::thread::sleep(START_LOCK_PAUSE);
    }
}

#[expect(unsafe_code, reason = "fork")]
fn spawn(
    announce: OwnedFd,
    stderr: Option<OwnedFd>,
    program: &Path,
    file: Option<&OsStr>,
) -> Result<()> {
    // Prepared before the fork, so that this process reports a failure.
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    let program = CString::new(program.as_os_str().as_bytes())
        .map_err(|_nul| Error::new("the path of the program contains a NUL byte"))?;
    let words = ["nri-runc", "nri", "daemon", "--ready-fd", "3"];
    let words: Vec<CString> = words.iter().filter_map(|word| CString::new(*word).ok()).collect();
    let mut environment =
        vec![c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
    if let Some(file) = file {
        let pair = [FILE_VARIABLE.as_bytes(), b"=", file.as_bytes()].concat();
        environment.extend(CString::new(pair).ok());
    }
    // An unprivileged user's daemon finds its folders by these variables.
    let is_unprivileged = config::is_unprivileged();
    for name in ["HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"] {
        let value = std::env::var_os(name).filter(|_| is_unprivileged);
        let pair = value.map(|value| [name.as_bytes(), b"=", value.as_bytes()].concat());
        environment.extend(pair.and_then(|pair| CString::new(pair).ok()));
    }
    // SAFETY: this process has one thread, so the child may call any function.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => reap(child),
        ForkResult::Child => {
            let _leader = setsid();
            let middle = getpid();
            // SAFETY: as above; the child has one thread as well.
            if let Ok(ForkResult::Child) = unsafe { fork() } {
                // The daemon checks which process adopted it, so it must already be an orphan.
                while getppid() == middle {
                    std::thread::sleep(REPARENT_PAUSE);
                }
                let standard = (&null, stderr.as_ref().unwrap_or(&null));
                let _never_returns =
                    become_daemon(standard, announce, &program, &words, &environment);
            }
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { nix::libc::_exit(0) }
        }
    }
}

fn reap(child: Pid) -> Result<()> {
    loop {
        match waitpid(child, None) {
            Err(nix::errno::Errno::EINTR) => {}
            // This process inherited an ignored SIGCHLD from the engine, so the kernel has reaped
            // the child.
            Err(nix::errno::Errno::ECHILD) => return Ok(()),
            Err(errno) => return Err(errno).doing(|| "waiting for the daemon's parent"),
            Ok(_) => return Ok(()),
        }
    }
}

fn become_daemon(
    (null, stderr): (&OwnedFd, &OwnedFd),
    announce: OwnedFd,
    program: &CString,
    words: &[CString],
    environment: &[CString],
) -> Result<std::convert::Infallible> {
    // The descriptors may have any numbers: move them above 3 before 0 to 3 are replaced.
    let moved = |fd: &OwnedFd| nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_DUPFD(10));
    let (announce, null, stderr) = (moved(&announce)?, moved(null)?, moved(stderr)?);
    for (from, to) in [(null, 0), (null, 1), (stderr, 2), (announce, 3)] {
        duplicate_onto(from, to)?;
    }
    close_from(4);
    Ok(nix::unistd::execve(program, words, environment)?)
}

#[expect(unsafe_code, reason = "dup2 onto a fixed number")]
fn duplicate_onto(from: i32, to: i32) -> Result<()> {
    // SAFETY: plain system call on numbers; in this forked child nothing else uses `to`.
    let result = unsafe { nix::libc::dup2(from, to) };
    nix::errno::Errno::result(result).map(|_| ()).map_err(Error::from)
}

#[expect(unsafe_code, reason = "closing descriptors by number")]
fn close_from(first: u32) {
    // SAFETY: plain system call; this forked child executes another program next.
    let result = unsafe { nix::libc::syscall(nix::libc::SYS_close_range, first, u32::MAX, 0) };
    if result == 0 {
        return;
    }
    // Before Linux 5.9, close them one by one: an engine waits until all copies of its pipes are closed.
    let open = presence::entries(Path::new("/proc/self/fd")).or_absent().unwrap_or_default();
    let open = open.into_iter();
    let numbers: Vec<u32> =
        open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number >= first) {
        // SAFETY: as above.
        let _was_the_folder_itself = unsafe { nix::libc::close(number.cast_signed()) };
    }
}
