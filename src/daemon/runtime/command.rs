// SPDX-License-Identifier: Apache-2.0
//! Runs the real runtime from the daemon: for an update that cannot be written directly, for an
//! eviction, and for the state of a runtime whose files are unknown. The wrapper instead becomes the runtime.
//!
//! The wait for the child is bounded, and the last line of its stderr is the reason of a failure.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::Deserialize;
use tokio::time::Instant;

use crate::error::{Context, Error, Result, quoted};
use crate::limits;
use crate::presence::IfThere;
use crate::runtime::{RuntimeKind, default_root};
use crate::state::Container;

use crate::daemon::watch::pidfd;

/// Time limit for a command of the runtime (D8: the limit of an update).
const RUNTIME_WAIT: Duration = Duration::from_secs(30);

/// Interval of checks whether a child without a pidfd, or a killed one, has exited.
const REAP_CHECK: Duration = Duration::from_millis(10);

/// Runs `VERB ARGUMENTS` with the runtime that made the container, and its global flags.
///
/// # Errors
/// Fails when the runtime cannot be run, does not exit in time, or fails; then with the last line of its stderr.
pub(crate) async fn run(record: &Container, words: &[&str], stdin: &[u8]) -> Result<()> {
    run_into(record, words, stdin, Stdio::null()).await
}

/// Whether the files of the container's runtime are unknown, so that only the runtime's `state` command or the
/// container's process shows whether the container exists.
pub(crate) fn has_unknown_files(record: &Container) -> bool {
    RuntimeKind::of_program(&record.call.runtime) == RuntimeKind::Other
}

/// The output of a runtime's `state` command (OCI runtime specification, "State").
#[derive(Deserialize)]
pub(crate) struct RuntimeState {
    /// The PID of the container's process.
    pub(crate) pid: u32,
    /// `creating`, `created`, `running` or `stopped`; empty if the runtime leaves it out.
    #[serde(default)]
    pub(crate) status: String,
}

impl RuntimeState {
    /// Whether the container's process was started.
    pub(crate) fn is_started(&self) -> bool {
        !matches!(self.status.as_str(), "creating" | "created")
    }
}

/// Returns the container's state from the `state` command of a runtime whose files are unknown
/// (D2); `None` for other runtimes, and if the command fails or names no process.
pub(crate) async fn state(record: &Container) -> Option<RuntimeState> {
    if !has_unknown_files(record) {
        return None;
    }
    let answer = memory(&[]).or_absent()?;
    let stdout = answer.try_clone().or_absent()?;
    // `state` fails if the runtime has no such container.
    run_into(record, &["state", &record.key.id], &[], stdout.into()).await.ok()?;
    let mut text = String::new();
    let mut file = std::fs::File::from(answer);
    file.seek(SeekFrom::Start(0)).or_absent()?;
    file.take(limits::RUNTIME_ANSWER).read_to_string(&mut text).or_absent()?;
    serde_json::from_str(&text).ok().filter(|state: &RuntimeState| state.pid > 0)
}

async fn run_into(record: &Container, words: &[&str], stdin: &[u8], stdout: Stdio) -> Result<()> {
    let (input, output) = (memory(stdin)?, memory(&[])?);
    let child = start(record, words, (input, stdout, output.try_clone()?))?;
    // Without a pidfd the child is polled.
    let process = pidfd::open(child.id()).or_absent().flatten();
    let Some(status) = wait_or_kill(child, process.as_ref(), RUNTIME_WAIT).await? else {
        return Err(Error::new(format!(
            "{} {} did not exit",
            record.call.runtime,
            words.join(" ")
        )));
    };
    if status.success() {
        return Ok(());
    }
    Err(Error::new(last_words(output, &status.to_string())))
}

/// Waits for the child up to a limit; without polling if `process` is known. A child that does not
/// exit in time is killed; a task awaits its end, which can take long inside the kernel.
async fn wait_or_kill(
    mut child: Child,
    process: Option<&OwnedFd>,
    limit: Duration,
) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    if let Some(process) = process {
        let _or_not = tokio::time::timeout_at(deadline, pidfd::wait_until_exited(process)).await;
    }
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            break;
        }
        tokio::time::sleep(REAP_CHECK).await;
    }
    let _gone = child.kill();
    tokio::spawn(async move {
        while matches!(child.try_wait(), Ok(None)) {
            tokio::time::sleep(REAP_CHECK).await;
        }
    });
    Ok(None)
}

#[expect(clippy::disallowed_methods, reason = "the one place where the daemon starts runtimes")]
fn start(
    record: &Container,
    words: &[&str],
    (input, stdout, output): (OwnedFd, Stdio, OwnedFd),
) -> Result<Child> {
    let mut command = Command::new(&record.call.runtime);
    // An unknown runtime may choose its root by the variables of the engine's call.
    let is_unknown = has_unknown_files(record);
    let variables = record.call.variables.iter().map(|(name, value)| (name, value));
    command
        .args(global_flags(record))
        .args(words)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(variables.filter(|(name, _)| is_unknown && *name == "XDG_RUNTIME_DIR"))
        .current_dir("/")
        .stdin(input)
        .stdout(stdout)
        .stderr(output);
    command.spawn().doing(|| format!("starting {}", record.call.runtime))
}

/// Returns the engine's global flags without its log flags, because the daemon must not write that log. The
/// root is absolute. It is added if a known runtime chose it by the engine's `XDG_RUNTIME_DIR`,
/// which the command does not get.
fn global_flags(record: &Container) -> Vec<String> {
    let mut flags = Vec::new();
    let root = || ["--root".to_owned(), record.key.root.clone()];
    let mut words = record.call.global_flags.iter();
    while let Some(word) = words.next() {
        let name = word.trim_start_matches('-');
        let (name, has_value) = match name.split_once('=') {
            Some((name, _)) => (name, true),
            None => (name, false),
        };
        match name {
            "debug" => {}
            "log" | "log-format" | "root" => {
                if !has_value {
                    words.next();
                }
                if name == "root" {
                    flags.extend(root());
                }
            }
            _ => flags.push(word.clone()),
        }
    }
    let runtime = Path::new(&record.call.runtime);
    let is_known = !has_unknown_files(record);
    let is_default = || Path::new(&record.key.root) == default_root(runtime, |_| None);
    if is_known && !flags.iter().any(|flag| flag == "--root") && !is_default() {
        flags.extend(root());
    }
    flags
}

fn memory(bytes: &[u8]) -> Result<OwnedFd> {
    let fd = memfd_create(c"nri-runc", MFdFlags::MFD_CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(OwnedFd::from(file))
}

fn last_words(output: OwnedFd, status: &str) -> String {
    let mut text = String::new();
    let mut file = std::fs::File::from(output);
    let _as_far_as_it_goes = file.seek(SeekFrom::Start(0));
    let _as_far_as_it_goes = file.take(limits::RUNTIME_STDERR).read_to_string(&mut text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(|| status.to_owned(), |line| quoted(line.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(flags: &[&str]) -> Container {
        let json = serde_json::json!({
            "schema": 1, "boot_id": "", "key": {"root": "/run/runc", "id": "c"}, "incarnation": 1,
            "runtime": "/bin/sh", "global_flags": flags, "bundle": "", "is_sandbox": false,
            "pod": "", "name": "", "state": "running", "pid_file": null, "init_pid": null,
            "init_start": null, "engine": "", "evidence": [], "variables": [], "message": "",
            "engine_resources": {}, "overlay": {}, "owners": {}, "patched": null, "changes": [],
            "refused": [], "skipped": [], "in_flight": null
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn the_engines_log_flags_are_dropped_and_the_root_is_absolute() {
        let mut record =
            record(&["--root", "../x", "--log=/l", "--log-format", "json", "--systemd-cgroup"]);
        record.key.root = "/run/x".to_owned();
        assert_eq!(global_flags(&record), ["--root", "/run/x", "--systemd-cgroup"]);
    }

    #[test]
    fn the_root_flag_is_added_if_the_default_root_differs() {
        let mut record = record(&["--debug"]);
        for (runtime, root, named) in [
            ("/bin/runc", "/run/runc", ""),
            ("/bin/crun", "/run/crun", ""),
            ("/bin/crun", "/run/user/0/crun", "--root /run/user/0/crun"),
            // The default root of an unknown runtime is unknown.
            ("/bin/runsc", "/run/user/1/runc", ""),
        ] {
            (record.call.runtime, record.key.root) = (runtime.to_owned(), root.to_owned());
            assert_eq!(global_flags(&record).join(" "), named, "{runtime}");
        }
    }

    #[tokio::test]
    async fn of_the_engines_variables_only_xdg_runtime_dir_is_passed() {
        let mut record = record(&[]);
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        record.call.variables = vec![variable("XDG_RUNTIME_DIR", "/x"), variable("NAMESPACE", "n")];
        let words = ["-c", "test \"$XDG_RUNTIME_DIR$NAMESPACE\" = /x"];
        assert!(run(&record, &words, b"").await.is_ok());
    }

    fn sleeping(seconds: &str) -> Child {
        start(
            &record(&[]),
            &["-c", &format!("exec sleep {seconds}")],
            (memory(&[]).unwrap(), Stdio::null(), memory(&[]).unwrap()),
        )
        .unwrap()
    }

    #[tokio::test]
    async fn waiting_without_a_pidfd_does_not_block_other_tasks() {
        let ticks = std::cell::Cell::new(0);
        let tick = async {
            loop {
                tokio::time::sleep(REAP_CHECK).await;
                ticks.set(ticks.get() + 1);
            }
        };
        let status = tokio::select! {
            status = wait_or_kill(sleeping("0.3"), None, RUNTIME_WAIT) => status.unwrap().unwrap(),
            () = tick => unreachable!(),
        };
        assert!(status.success() && ticks.get() > 2, "{} ticks", ticks.get());
    }

    #[tokio::test]
    async fn a_process_that_does_not_end_is_killed_and_reaped() {
        for has_descriptor in [true, false] {
            let child = sleeping("60");
            let pid = child.id();
            let process = pidfd::open(pid).unwrap().filter(|_| has_descriptor);
            let status = wait_or_kill(child, process.as_ref(), Duration::from_millis(50)).await;
            assert!(status.unwrap().is_none());
            let mut left = 500;
            while pidfd::open(pid).unwrap().is_some() && left > 0 {
                tokio::time::sleep(REAP_CHECK).await;
                left -= 1;
            }
            assert!(left > 0, "it was not reaped");
        }
    }

    #[tokio::test]
    async fn a_failure_has_the_last_line_of_the_output() {
        let fine = run(&record(&[]), &["-c", "grep -q wanted"], b"wanted").await;
        assert!(fine.is_ok(), "{fine:?}");
        let words = ["-c", "echo one >&2; echo two >&2; exit 3"];
        let failed = run(&record(&[]), &words, b"").await.unwrap_err().to_string();
        assert_eq!(failed, "two");
        let silent = run(&record(&[]), &["-c", "exit 3"], b"").await.unwrap_err().to_string();
        assert!(silent.contains('3'), "{silent}");
    }
}
