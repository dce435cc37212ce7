// SPDX-License-Identifier: Apache-2.0
//! Spawns, stops and reaps the process of a plugin that the daemon starts.
//!
//! The plugin inherits its socket as descriptor 3, a pipe for its output, and exactly three
//! environment variables. The kernel kills it when the daemon dies. `session.rs` handles the
//! protocol.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use crate::error::{Context, Result};

use super::discover::PluginFile;
use super::handover::SavedProcess;
use super::process::ProcessLog;

/// Time in which a process whose connection closed may exit by itself: the kernel closes the
/// descriptors before it reports the exit.
const LEAVE_WAIT: Duration = Duration::from_millis(200);

/// Time limit for a plugin to exit after SIGTERM.
const TERM_WAIT: Duration = Duration::from_secs(1);

/// Interval of checks of a process that is expected to exit.
const EXIT_POLL: Duration = Duration::from_millis(20);

/// The process of a launched plugin with its process group; a drop kills the group. A PID is enough, because only this
/// struct reaps the child; and a PID can be passed to the next program of this process.
#[derive(Debug)]
pub(super) struct PluginProcess {
    process: Option<Pid>,
    log: Arc<ProcessLog>,
}

impl PluginProcess {
    /// Starts the plugin with its socket as descriptor 3. `log` receives its output and exit.
    #[expect(unsafe_code, clippy::disallowed_methods, reason = "the one place that starts plugins")]
    pub(super) fn spawn(file: &PluginFile, socket: OwnedFd, log: &Arc<ProcessLog>) -> Result<Self> {
        let number = socket.as_raw_fd();
        let (output, input) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let parent = nix::unistd::getpid();
        let mut command = std::process::Command::new(&file.path);
        command
            .env_clear()
            .env("NRI_PLUGIN_NAME", &file.name)
            .env("NRI_PLUGIN_IDX", &file.index)
            .env("NRI_PLUGIN_SOCKET", "3")
            .stdin(std::process::Stdio::null())
            .stdout(input.try_clone()?)
            .stderr(input)
            .process_group(0);
        // SAFETY: the closure runs between fork and exec and only makes system calls.
        unsafe {
            command.pre_exec(move || {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                if nix::unistd::getppid() != parent {
                    // The daemon exited before the death signal was set, so the child would outlive it.
                    return Err(nix::errno::Errno::ESRCH.into());
                }
                pass_as_descriptor_3(number)
            });
        }
        let child = command.spawn().doing(|| format!("starting {}", file.path.display()))?;
        // Closes this process's copies of the writing end: reading ends when the plugin's are closed.
        drop(command);
        log.read_from(output);
        let pid = i32::try_from(child.id()).ok().map(Pid::from_raw);
        Ok(Self { process: pid, log: Arc::clone(log) })
    }

    /// Takes over a plugin's process that the daemon started before it re-executed.
    pub(super) fn resume(pid: i32, log: &Arc<ProcessLog>) -> Self {
        Self { process: Some(Pid::from_raw(pid)), log: Arc::clone(log) }
    }

    /// Saves the process for the next program.
    pub(super) fn save(&self) -> Option<SavedProcess> {
        self.process.map(|pid| SavedProcess::new(pid.as_raw(), &self.log))
    }

    pub(super) fn pid(&self) -> Option<i32> {
        self.process.map(Pid::as_raw)
    }

    /// Whether the process has exited, reaped or not.
    pub(super) fn has_exited(&self) -> bool {
        self.process.is_none_or(has_exited)
    }

    /// Waits, up to this time, for a process that is about to exit by itself.
    pub(super) async fn wait_for_exit(&self, wait: Duration) {
        if let Some(process) = self.process {
            wait_for_exit(process, wait).await;
        }
    }

    /// Ends the process in the background: SIGTERM first, SIGKILL after [`TERM_WAIT`]. A process
    /// that has closed its connection first gets a moment to exit by itself.
    pub(super) fn stop(mut self, has_left: bool) {
        let Some(process) = self.process.take() else { return };
        let log = Arc::clone(&self.log);
        tokio::spawn(async move {
            if has_left {
                wait_for_exit(process, LEAVE_WAIT).await;
            }
            let by_itself = has_exited(process);
            end(process, TERM_WAIT, log, by_itself).await;
        });
    }
}

impl Drop for PluginProcess {
    fn drop(&mut self) {
        let Some(child) = self.process.take() else { return };
        let by_itself = has_exited(child);
        signal(child, Signal::SIGKILL);
        // Reaps in a task, because even a killed process may take long to end, and this thread must not wait.
        if let Ok(handle) = tokio::runtime::Handle::try_current() {
            handle.spawn(end(child, Duration::ZERO, Arc::clone(&self.log), by_itself));
        }
    }
}

/// Signals the process group, which includes the process.
fn signal(child: Pid, signal: Signal) {
    let _already_gone = kill(Pid::from_raw(-child.as_raw()), signal);
}

/// Sends SIGTERM to the process group, waits up to `grace` for the process, sends SIGKILL to the group, and reaps.
async fn end(child: Pid, grace: Duration, log: Arc<ProcessLog>, by_itself: bool) {
    signal(child, Signal::SIGTERM);
    wait_for_exit(child, grace).await;
    // The process is not reaped yet, so the PID is still its own.
    signal(child, Signal::SIGKILL);
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => {
                return log.note_exit(ExitStatus::from_raw((code & 0xff) << 8), by_itself);
            }
            Ok(WaitStatus::Signaled(_, signal, _)) => {
                return log.note_exit(ExitStatus::from_raw(signal as i32), by_itself);
            }
            Ok(_) => tokio::time::sleep(EXIT_POLL).await,
            Err(_) => return,
        }
    }
}

async fn wait_for_exit(child: Pid, wait: Duration) {
    let deadline = tokio::time::Instant::now() + wait;
    while !has_exited(child) && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(EXIT_POLL).await;
    }
}

/// Whether the process has ended, without reaping it.
fn has_exited(child: Pid) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(waitid(Id::Pid(child), flags), Ok(WaitStatus::StillAlive))
}

#[expect(unsafe_code, reason = "dup2 onto a fixed number")]
fn pass_as_descriptor_3(number: i32) -> std::io::Result<()> {
    if number == 3 {
        // dup2 onto itself would leave CLOEXEC set.
        // SAFETY: plain system call on a number, in the forked child.
        let result = unsafe { nix::libc::fcntl(3, nix::libc::F_SETFD, 0) };
        return nix::errno::Errno::result(result).map(|_| ()).map_err(Into::into);
    }
    // SAFETY: plain system call on numbers, in the forked child.
    let result = unsafe { nix::libc::dup2(number, 3) };
    nix::errno::Errno::result(result).map(|_| ()).map_err(Into::into)
}
