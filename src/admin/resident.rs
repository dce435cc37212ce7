// SPDX-License-Identifier: Apache-2.0
//! `stop`, `restart`, `reexec`, and whether the running daemon is older than the files on disk.
//! Only one process is signalled: the daemon that responds on the socket, else the process that
//! holds the daemon's lock, else this installation's daemon in another run directory. A daemon that
//! systemd runs is stopped and started by systemd.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::Signal;

use crate::answers::{AdminRequest, ConfigurationInForce, Program, ProgramFile, Status};
use crate::config::{self, Config, Loaded};
use crate::error::{Context, DaemonSeen, Error, Result};
use crate::files;
use crate::host::Host;
use crate::presence::{self, IfThere};
use crate::{daemon, last_words, procfs, runtime, wrapper};

use super::progress;
use super::succession::{HowStopped, Reexecution, Restarted, Stopped};
use super::systemd::{self, Unit};

/// Time limit for the daemon's exit: it finishes requests in flight first.
const END_WAIT: Duration = Duration::from_secs(100);

/// Time limit for a daemon that is starting or exiting to respond or to be gone.
const CHANGE_WAIT: Duration = Duration::from_secs(5);

/// Time limit for the next daemon's response; systemd pauses before it starts one.
const NEXT_WAIT: Duration = Duration::from_secs(15);

/// Interval between two checks.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Time limit for an unresponsive daemon to exit after SIGTERM, and then after SIGKILL.
const HANG_WAIT: Duration = Duration::from_secs(5);

struct RunningDaemon {
    /// The daemon's status; if the daemon did not answer, only what its process shows.
    status: Box<Status>,
    pid: u32,
    process: OwnedFd,
    /// Whether the daemon listens or holds its lock, but does not respond.
    hangs: bool,
}

/// The result of one check.
enum Sight {
    Running(RunningDaemon),
    Absent,
    /// A daemon is starting or exiting: the error to report if that takes too long, and the lock's holder.
    Changing(Error, Option<u32>),
}

impl RunningDaemon {
    /// Finds the running daemon, even in another run directory. Waits up to [`CHANGE_WAIT`] for a daemon
    /// that is starting or exiting.
    fn find(loaded: &Loaded) -> Result<Option<Self>> {
        let config = &loaded.config;
        let deadline = Instant::now() + CHANGE_WAIT;
        loop {
            match Self::look(config)? {
                Sight::Running(running) => return Ok(Some(running)),
                Sight::Absent => return Self::elsewhere(loaded),
                Sight::Changing(..) if Instant::now() < deadline => std::thread::sleep(LOOK_PAUSE),
                Sight::Changing(_, Some(pid)) => return Self::behind_lock(config, pid).map(Some),
                Sight::Changing(error, None) => return Err(error),
            }
        }
    }

    fn look(config: &Config) -> Result<Sight> {
        let lock = config.daemon_lock();
        if !wrapper::is_listening(config) {
            return Ok(match holder(&lock) {
                None => Sight::Absent,
                Some(pid) => Sight::Changing(silent_holder(config, pid), Some(pid)),
            });
        }
        let error = match super::ask_status(config) {
            Ok(status) => {
                let pid = Some(status.pid).filter(|pid| *pid > 1).ok_or_else(unknown_process)?;
                return Ok(match open(pid) {
                    Ok(process) => Sight::Running(Self {
                        status: Box::new(status),
                        pid,
                        process,
                        hangs: false,
                    }),
                    Err(has_ended) => Sight::Changing(has_ended, None),
                });
            }
            Err(error) => error,
        };
        if wrapper::has_ended(&error) {
            return Ok(Sight::Changing(error, holder(&lock)));
        }
        // The daemon is of another version, or hangs. It may be killed later, so its PID is
        // verified.
        let hangs = wrapper::is_silent(config);
        let Some(pid) = holder(&lock) else { return Err(error) };
        let process = open(pid)?;
        // Compared after opening, because the PID may have been reused before.
        if holder(&lock) != Some(pid) {
            return Err(error);
        }
        Ok(Sight::Running(Self { status: shown_by_process(pid), pid, process, hangs }))
    }

    /// Returns a daemon that holds the lock and neither serves nor exits in time.
    fn behind_lock(config: &Config, pid: u32) -> Result<Self> {
        let process = open(pid)?;
        let words = procfs::command_line(&Host::default(), pid)?;
        let is_daemon = words.iter().any(|word| word == b"daemon");
        if !is_daemon || holder(&config.daemon_lock()) != Some(pid) {
            return Err(silent_holder(config, pid));
        }
        Ok(Self { status: shown_by_process(pid), pid, process, hangs: true })
    }

    /// Returns the systemd unit that runs the daemon, if there is one.
    ///
    /// # Errors
    /// Fails when systemd runs the daemon but its unit cannot be found; the hint has `instead`.
    fn unit(&self, instead: &str) -> Result<Option<Unit>> {
        if self.status.supervisor.as_deref() != Some("systemd") {
            return Ok(None);
        }
        Unit::of(self.pid).map(Some).map_err(|error| {
            let why = error.why();
            let why = format!("systemd runs the daemon (process {}), and {why}", self.pid);
            Error::new(why).hint(format!("use: {}", systemd::command(instead)))
        })
    }

    /// Finds a daemon of this installation whose run directory differs from the configuration's.
    /// Fails if there is only another installation's that serves the same plugins.
    fn elsewhere(loaded: &Loaded) -> Result<Option<Self>> {
        let find = || daemon::other::find(&loaded.config, loaded.only.as_deref());
        let Some(other) = find() else { return Ok(None) };
        if !other.is_ours {
            return Err(other.error(&loaded.config));
        }
        let pid = other.pid;
        let process = open(pid)?;
        // Compared after opening, because the PID may have been reused before.
        if find() != Some(other) {
            return Ok(None);
        }
        Ok(Some(Self { status: shown_by_process(pid), pid, process, hangs: false }))
    }

    /// Stops the daemon, which finishes requests in flight first. If it hangs, it is killed; returns whether
    /// it was killed. `is_asked`: systemd was already asked to stop it.
    fn end(&self, is_asked: bool) -> Result<bool> {
        if !is_asked {
            self.signal(Signal::TERM)?;
        }
        if self.has_ended(if self.hangs { HANG_WAIT } else { END_WAIT })? {
            return Ok(false);
        }
        if self.hangs {
            self.signal(Signal::KILL)?;
            if self.has_ended(HANG_WAIT)? {
                return Ok(true);
            }
        }
        let error = Error::new(format!("process {} has not exited yet", self.pid));
        Err(error.hint(if self.hangs {
            "it was killed but is blocked in the kernel, usually on disk I/O"
        } else {
            "a request is still in flight; try again"
        }))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match rustix::process::pidfd_send_signal(&self.process, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(std::io::Error::from_raw_os_error(errno.raw_os_error()))
                .doing(|| format!("stopping the daemon, process {}", self.pid)),
        }
    }

    fn has_ended(&self, within: Duration) -> Result<bool> {
        let wait = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
        Ok(poll(&mut [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)], wait)? > 0)
    }
}

/// Checks that a daemon could serve in this run directory.
///
/// # Errors
/// Fails with the fault and its fix.
pub(super) fn can_serve_in(run_dir: &Path) -> Result<()> {
    let there = run_dir.ancestors().find(|path| !presence::is_absent(path));
    if let Some(above) = there.filter(|path| *path != run_dir) {
        return files::try_write(above); // The first create makes the run directory.
    }
    files::make_private_dir(run_dir)?;
    files::try_write(run_dir)
}

/// Returns the error about a process that holds the daemon's lock although no daemon listens.
fn silent_holder(config: &Config, pid: u32) -> Error {
    let words = procfs::command_line(&Host::default(), pid).or_absent().unwrap_or_default();
    let name = String::from_utf8_lossy(words.first().map(Vec::as_slice).unwrap_or_default());
    let name = crate::error::quoted(&name);
    let lock = config.daemon_lock();
    Error::new(format!(
        "process {pid} ({name}) holds the lock {} but does not accept connections",
        lock.display()
    ))
    .hint(format!("kill {pid}"))
}

fn unknown_process() -> Error {
    let error = Error::new("the daemon does not report its process ID");
    error.hint("end it with systemctl, or by the process ID in the log")
}

fn open(pid: u32) -> Result<OwnedFd> {
    let process = procfs::open(pid).doing(|| format!("opening the daemon's process {pid}"))?;
    process.ok_or_else(|| Error::new(format!("the daemon's process {pid} has exited")))
}

/// Returns the process that holds the lock on this file, from `/proc/locks` (proc_locks(5)).
pub(super) fn holder(lock: &Path) -> Option<u32> {
    let meta = std::fs::metadata(lock).ok()?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    let locks = files::read_kernel(Path::new("/proc/locks")).ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [_, "FLOCK", _, "WRITE", pid, place, ..] if *place == file => pid.parse().ok(),
            _ => None,
        }
    })
}

/// Returns the parts of a daemon's status that its process shows: supervisor, configuration file, program.
fn shown_by_process(pid: u32) -> Box<Status> {
    let host = Host::default();
    let value = |name: &str| {
        let value = procfs::variable(&host, pid, name).or_absent()?;
        value.map(|value| value.to_string_lossy().into_owned())
    };
    let file = value(config::FILE_VARIABLE).map(PathBuf::from);
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let status = Status {
        supervisor: value("NOTIFY_SOCKET").map(|_socket| "systemd".to_owned()),
        configuration: Some(ConfigurationInForce { file, ..ConfigurationInForce::default() }),
        program: path.map(|path| Program { path, file: None }),
        ..Status::default()
    };
    Box::new(status)
}

/// Stops the daemon.
pub(super) fn stop(loaded: &Loaded) -> Result<Stopped> {
    let Some(running) = RunningDaemon::find(loaded)? else {
        return Ok(Stopped { stopped: false, pid: None, how: None });
    };
    let by_hand = "stop nri-runc.socket nri-runc.service";
    let unit = running.unit(by_hand)?;
    unit.as_ref().map_or(Ok(()), Unit::stop)?;
    let (killed, pid) = (running.end(unit.is_some())?, running.pid);
    let (autostart, by) = (loaded.config.autostart, unit.map(|_| "systemd"));
    let how = Some(HowStopped { killed, autostart, by });
    Ok(Stopped { stopped: true, pid: Some(pid), how })
}

/// Restarts the daemon with the configuration file and program that it has, or starts one.
pub(super) fn restart(loaded: &Loaded) -> Result<Restarted> {
    let running = RunningDaemon::find(loaded)
        .or_else(|error| can_serve_in(&loaded.config.run_dir).and(Err(error)))?;
    let status = running.as_ref().map(|running| &running.status);
    let in_force = status.and_then(|status| status.configuration.as_ref());
    let file = in_force.and_then(|in_force| in_force.file.clone());
    // If the running daemon responds and was given no configuration file, the next one gets none either, even
    // if the command line names one.
    let file = match status {
        Some(status) if status.pid > 0 => file,
        Some(_) | None => file.or_else(|| loaded.only.clone()),
    };
    let next = runtime::verify(config::load(file.as_deref()));
    if let Some(problem) = next.refusal() {
        let error = Error::new(format!("the configuration has an error: {}", problem.text));
        return Err(error.hint(match running {
            Some(_) => "fix this file first; the daemon keeps running",
            None => "fix this file first; no daemon runs",
        }));
    }
    // Checked before the running daemon is stopped, which must not happen if the next one cannot start.
    let fit = can_serve_in(&next.config.run_dir);
    fit.map_err(|error| error.hint("see: nri-runc nri check")).map_err(|error| match running {
        Some(_) => error.doing("not restarted, the daemon keeps running"),
        None => error,
    })?;
    let unit = match &running {
        Some(running) => running.unit("restart nri-runc")?,
        None => Unit::that_is_wanted(next.config.autostart),
    };
    if running.is_none() && unit.is_none() && !next.config.autostart {
        let error = Error::new("the daemon is not running, and autostart is off");
        return Err(error.hint(format!("use: {}", systemd::command("start nri-runc"))));
    }
    unit.as_ref().map_or(Ok(()), Unit::restart)?;
    let killed = running.as_ref().map_or(Ok(false), |running| running.end(unit.is_some()))?;
    let was = running.as_ref().map(|running| running.pid);
    if unit.is_none() {
        let program = status.and_then(|status| status.program.as_ref());
        let program = program.map(|program| program.path.clone()).filter(|path| path.is_file());
        let program = program.unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
        // Starting forks, which requires a single thread.
        progress::clear();
        wrapper::start_daemon(&next.config, &program, file.as_deref())?;
    }
    let pid = pid_of_next(&next.config, was)?;
    Ok(Restarted { was, pid, killed, by: unit.map(|_| "systemd") })
}

/// Waits until a daemon other than the process `was` responds; returns its PID.
fn pid_of_next(config: &Config, was: Option<u32>) -> Result<u32> {
    let deadline = Instant::now() + NEXT_WAIT;
    loop {
        match super::ask_status(config) {
            Ok(status) if was != Some(status.pid) => return Ok(status.pid),
            Err(error) if Instant::now() > deadline => {
                return Err(match error.daemon() {
                    DaemonSeen::Absent | DaemonSeen::Exited => {
                        let what =
                            format!("the next daemon has exited{}", last_line_of_next(config));
                        Error::new(what).hint("see its log, and: nri-runc nri check")
                    }
                    DaemonSeen::Silent | DaemonSeen::Unknown => error,
                });
            }
            Ok(_) if Instant::now() > deadline => {
                return Err(
                    Error::new("the daemon did not start again").hint("see: nri-runc nri check")
                );
            }
            Ok(_) | Err(_) => std::thread::sleep(LOOK_PAUSE),
        }
    }
}

/// Makes the running daemon re-execute the program that is now at its path. Does nothing without a
/// daemon.
pub(super) fn reexec(loaded: &Loaded) -> Result<Reexecution> {
    let config = &loaded.config;
    if !wrapper::is_listening(config) {
        return Ok(Reexecution::None { reexecuted: false, pid: None });
    }
    let before = super::ask_status(config).unwrap_or_default();
    let reexec = super::ask(config, &AdminRequest::Reexec)
        .map_err(|error| without_answer(config, &before, error))?;
    Ok(Reexecution::Done { reexec, reexecuted: true })
}

/// Returns the error for a failed request to re-execute. If the connection ended, the error says which daemon
/// runs now, unless the same one does.
fn without_answer(config: &Config, before: &Status, error: Error) -> Error {
    if error.daemon() != DaemonSeen::Exited {
        return error;
    }
    let deadline = Instant::now() + CHANGE_WAIT;
    let now = loop {
        match super::ask_status(config) {
            Ok(status) => break Some(status.pid),
            Err(_) if Instant::now() > deadline => break None,
            Err(_) => std::thread::sleep(LOOK_PAUSE),
        }
    };
    let next = match now {
        // The same process serves again: another request made it re-execute, which closed this
        // connection.
        Some(pid) if pid == before.pid => return error,
        Some(pid) => format!("another daemon runs, process {pid}"),
        None => format!("no daemon runs{}", last_line_of_next(config)),
    };
    let path = before.program.as_ref().map(|program| program.path.to_string_lossy());
    let path = path.unwrap_or_default();
    let what = format!("the next program, {path}, exited while it replaced the daemon, and {next}");
    Error::new(what)
        .hint("restore the previous program (install.sh --rollback), then: nri-runc nri restart")
}

/// Returns `: ` and the last line that the latest daemon printed before it exited; empty without one.
fn last_line_of_next(config: &Config) -> String {
    last_words::read(&config.run_dir).map(|words| format!(": {words}")).unwrap_or_default()
}

/// Lists the parts of the daemon that are older than the files on disk, according to its status,
/// each with the command that renews it.
pub(super) fn outdated(status: &Status) -> Vec<(String, &'static str)> {
    let mut found: Vec<_> = outdated_configuration(status).into_iter().collect();
    let program = status.program.as_ref();
    let program = program.and_then(|program| outdated_program(program, status.pid)).into_iter();
    // A re-execution keeps plugins connected, but refuses a change that needs a restart.
    let next = if is_live(status) { "nri-runc nri reexec" } else { RESTART };
    found.extend(program.map(|(what, is_there)| (what, if is_there { next } else { RESTART })));
    found
}

const RESTART: &str = "nri-runc nri restart";

/// Names the keys whose values in the files are not in force, with the command that applies them.
pub(super) fn outdated_configuration(status: &Status) -> Option<(String, &'static str)> {
    let changed = status.configuration.as_ref()?.changed.join(", ");
    let what = format!("older than the configuration files; changed: {changed}");
    let how = if is_live(status) { "nri-runc nri reload" } else { RESTART };
    (!changed.is_empty()).then_some((what, how))
}

/// Whether no changed key needs a restart; false for a daemon of an earlier version, which does not report that.
fn is_live(status: &Status) -> bool {
    let in_force = status.configuration.as_ref();
    in_force.and_then(|in_force| in_force.restart_needed.as_ref()).is_some_and(Vec::is_empty)
}

/// Describes how the daemon's program differs from the file at its path, and returns whether the file exists;
/// `None` if they are the same.
fn outdated_program(program: &Program, pid: u32) -> Option<(String, bool)> {
    let path = &program.path;
    let Ok(meta) = std::fs::metadata(path) else {
        return Some((format!("its executable {} is missing", path.display()), false));
    };
    let own = PathBuf::from(format!("/proc/{pid}/exe"));
    // The same program may have been installed again.
    if program.file == Some(ProgramFile::of(&meta)) || runtime::has_same_bytes(&own, path) {
        return None;
    }
    Some((format!("older than its executable {}", path.display()), true))
}
