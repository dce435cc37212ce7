// SPDX-License-Identifier: Apache-2.0
//! Runs a program that prints a response and exits, within a time limit: a runtime's `--version`,
//! `systemctl`.
//!
//! When the program ends, its remaining children are killed; when the time is over, the program too.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::error::{Context, Error, Result};
use crate::limits;

/// The output of a program, and how it ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `program` with these arguments, and empty standard input.
///
/// # Errors
/// Fails when it cannot be executed, or does not end within `wait`.
pub(crate) fn run(program: impl AsRef<OsStr>, words: &[&str], wait: Duration) -> Result<Answer> {
    run_with(program.as_ref(), words, None, wait)
}

/// Like [`run`], with one additional environment variable.
///
/// # Errors
/// As [`run`].
#[expect(clippy::disallowed_methods, reason = "the one place for programs that answer and end")]
pub(crate) fn run_with(
    program: &OsStr,
    words: &[&str],
    variable: Option<(&str, &str)>,
    wait: Duration,
) -> Result<Answer> {
    let mut command = std::process::Command::new(program);
    command.envs(variable);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let spawned = command.current_dir("/").process_group(0).spawn();
    let mut child = spawned.doing(|| format!("executing {}", program.display()))?;
    let deadline = Instant::now() + wait;
    let (stdout, stderr) = (child.stdout.take().map(read), child.stderr.take().map(read));
    let text = |receiver: Option<Receiver<Vec<u8>>>| {
        let left = deadline.saturating_duration_since(Instant::now());
        let bytes = receiver.and_then(|receiver| receiver.recv_timeout(left).ok());
        bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0));
    // The program has closed its pipes, so it is about to exit. It is not reaped yet, so no other
    // process can get its PID.
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let is_running = || matches!(waitid(Id::Pid(pid), flags), Ok(WaitStatus::StillAlive));
    while stdout.is_some() && is_running() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let has_ended = !is_running();
    // Kills the program, if it still runs, and the children that it left behind.
    let _already_gone = killpg(pid, Signal::SIGKILL);
    let status = child.wait().doing(|| format!("executing {}", program.display()))?;
    match (stdout, stderr) {
        (Some(stdout), Some(stderr)) if has_ended => Ok(Answer { status, stdout, stderr }),
        _ => {
            let shown = program.display();
            Err(Error::new(format!("{shown} did not answer within {} s", wait.as_secs())))
        }
    }
}

/// Reads a pipe in a thread, so that the caller can stop waiting; the thread ends with the pipe.
fn read(pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _what_came = pipe.take(limits::RUNTIME_ANSWER).read_to_end(&mut bytes);
        let _nobody_waits = sender.send(bytes);
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(20);

    #[test]
    fn a_program_that_ends_yields_both_outputs() {
        let said = run("/bin/sh", &["-c", "echo out; echo err >&2; exit 3"], WAIT).unwrap();
        assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(said.status.code(), Some(3));
    }

    #[test]
    fn a_program_that_hangs_or_cannot_run_is_an_error() {
        let wait = Duration::from_millis(200);
        let error = run("/bin/sh", &["-c", "sleep 600"], wait).unwrap_err().to_string();
        assert!(error.contains("did not answer"), "{error}");
        let error = run("/nowhere/program", &[], WAIT).unwrap_err().to_string();
        assert!(error.contains("executing /nowhere/program: it is missing"), "{error}");
    }
}
