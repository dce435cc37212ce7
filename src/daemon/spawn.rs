// SPDX-License-Identifier: Apache-2.0
//! Running the real runtime on our own account: an update that cannot be written directly, an
//! eviction. The wrapper never does this; it becomes the runtime.
//!
//! The child is waited for, within bounds, and its last word is what went wrong.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::error::{Context, Error, Result, quoted};
use crate::state::Container;

use super::watch;

/// How long a runtime may take (D8: the cap of an update).
const PATIENCE: Duration = Duration::from_secs(30);

/// The most that is read of what it says.
const WORDS: u64 = 64 << 10;

/// Runs `VERB ARGUMENTS` of the runtime that made the container, with its global flags.
///
/// # Errors
/// Fails with the runtime's own words.
pub(super) async fn run(record: &Container, words: &[&str], stdin: &[u8]) -> Result<()> {
    let (input, output) = (memory(stdin)?, memory(&[])?);
    let mut child = start(record, words, input, output.try_clone()?)?;
    let ended = match watch::open(child.id()) {
        Some(process) => tokio::time::timeout(PATIENCE, watch::ended(&process)).await,
        None => Ok(()),
    };
    if ended.is_err() {
        let _gone = child.kill();
    }
    let status = child.wait()?;
    if ended.is_err() {
        return Err(Error::new(format!("{} {} did not end", record.runtime, words.join(" "))));
    }
    if status.success() {
        return Ok(());
    }
    Err(Error::new(last_words(output, &status.to_string())))
}

#[expect(clippy::disallowed_methods, reason = "the one place where the daemon starts runtimes")]
fn start(
    record: &Container,
    words: &[&str],
    input: OwnedFd,
    output: OwnedFd,
) -> Result<std::process::Child> {
    let mut command = Command::new(&record.runtime);
    command
        .args(global_flags(record))
        .args(words)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(output);
    command.spawn().doing(|| format!("starting {}", record.runtime))
}

/// The engine's flags without those that say where words go: its log is not ours to write. The
/// root is made absolute.
fn global_flags(record: &Container) -> Vec<String> {
    let mut flags = Vec::new();
    let mut words = record.global_flags.iter();
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
                    flags.extend(["--root".to_owned(), record.key.root.clone()]);
                }
            }
            _ => flags.push(word.clone()),
        }
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
    let _as_far_as_it_goes = file.take(WORDS).read_to_string(&mut text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(|| status.to_owned(), |line| quoted(line.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(flags: &[&str]) -> Container {
        let json = serde_json::json!({
            "schema": 1, "boot_id": "", "key": {"root": "/run/x", "id": "c"}, "incarnation": 1,
            "runtime": "/bin/sh", "global_flags": flags, "bundle": "", "is_sandbox": false,
            "pod": "", "name": "", "state": "running", "pid_file": null, "init_pid": null,
            "init_start": null, "engine": "", "evidence": [], "variables": [], "message": "",
            "engine_resources": {}, "overlay": {}, "owners": {}, "patched": null, "changes": [],
            "refused": [], "skipped": [], "in_flight": null
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn the_engines_log_is_not_written_and_the_root_is_absolute() {
        let record =
            record(&["--root", "../x", "--log=/l", "--log-format", "json", "--systemd-cgroup"]);
        assert_eq!(global_flags(&record), ["--root", "/run/x", "--systemd-cgroup"]);
    }

    #[tokio::test]
    async fn a_failure_is_told_in_the_last_words() {
        let fine = run(&record(&[]), &["-c", "grep -q wanted"], b"wanted").await;
        assert!(fine.is_ok(), "{fine:?}");
        let words = ["-c", "echo one >&2; echo two >&2; exit 3"];
        let failed = run(&record(&[]), &words, b"").await.unwrap_err().to_string();
        assert_eq!(failed, "two");
        let silent = run(&record(&[]), &["-c", "exit 3"], b"").await.unwrap_err().to_string();
        assert!(silent.contains('3'), "{silent}");
    }
}
