// SPDX-License-Identifier: Apache-2.0
//! `replay --record FILE`: records the requests of the running daemon as a script for `replay
//! FILE`. SIGINT, SIGTERM or the daemon's exit end the recording. Every line of the file is
//! complete; the last line on standard error has the number of recorded requests.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::answers::AdminRequest;
use crate::audit;
use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::text::printable;
use crate::wrapper;

use super::show::REDACTED;
use super::signals::Signals;

/// Time limit for the daemon to send the remaining requests after a signal.
const REST_WAIT: Duration = Duration::from_secs(5);

/// Bytes of free space that POLLOUT guarantees in a pipe.
const PIPE_ROOM: usize = 4096;

/// Records all requests from now on; `-` is standard output.
///
/// # Errors
/// Fails when the daemon does not run, exits, or ends the recording because this process reads too
/// slowly, and when the file exists or cannot be written.
pub(super) fn record(config: &Config, file: &Path, show_env: bool) -> Result<()> {
    let (_, stream) = wrapper::admin_stream(config, &AdminRequest::Record)
        .map_err(|error| error.hint("only a running daemon can be recorded"))?;
    stream.set_read_timeout(None)?;
    // Blocks signals before the file is created, so that from here on a signal loses nothing.
    let mut listener = RecordingStream::new(stream)?;
    let mut script = ScriptFile::create(file)?;
    let ended = listen(&mut listener, |line, listener| script.add(line, show_env, listener));
    let summary = script.summary();
    ended.map_err(|error| error.hint(summary.clone()))?;
    let line = format!("nri-runc: {}\n", printable(&summary));
    let _nobody_reads = std::io::stderr().write_all(line.as_bytes());
    Ok(())
}

/// The daemon's stream, until a signal ends it.
struct RecordingStream {
    stream: UnixStream,
    signals: Signals,
    /// Time at which the recording ends at the latest; set by a signal.
    deadline: Option<Instant>,
}

impl RecordingStream {
    /// Blocks SIGINT and SIGTERM, which end the recording instead of the process.
    fn new(stream: UnixStream) -> Result<Self> {
        let signals = Signals::block([Signal::SIGINT, Signal::SIGTERM])?;
        Ok(Self { stream, signals, deadline: None })
    }

    /// Waits until `fd` is ready; false after a signal, once the time limit has passed.
    fn wait(&mut self, fd: BorrowedFd<'_>, events: PollFlags) -> Result<bool> {
        loop {
            let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            let is_ready = self.signals.wait(Some((fd, events)), left)?;
            if self.signals.take().is_some() {
                self.ask_for_the_rest();
            } else if is_ready {
                return Ok(true);
            }
        }
    }

    /// Shuts down this side of the connection: the daemon then sends the pending requests, and
    /// closes its side. A second signal ends the wait for them.
    fn ask_for_the_rest(&mut self) {
        let wait = if self.deadline.is_some() { Duration::ZERO } else { REST_WAIT };
        self.deadline = Some(Instant::now() + wait);
        let _daemon_is_gone = self.stream.shutdown(Shutdown::Write);
    }
}

/// Passes every complete line to `add`, until the daemon or a signal ends the stream.
fn listen(
    listener: &mut RecordingStream,
    mut add: impl FnMut(&[u8], &mut RecordingStream) -> Result<()>,
) -> Result<()> {
    let stream = listener.stream.try_clone()?;
    let (mut line, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    while listener.wait(stream.as_fd(), PollFlags::POLLIN)? {
        let read = match (&stream).read(&mut bytes) {
            Ok(0) if listener.deadline.is_some() => return Ok(()),
            Ok(0) => return Err(Error::new("the daemon exited, which ended the recording")),
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Error::from(error).doing("reading from the daemon")),
        };
        let read = bytes.get(..read).unwrap_or_default();
        for part in read.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                add(&line, listener)?;
                line.clear();
            }
        }
    }
    Ok(())
}

/// The script that is being written.
struct ScriptFile {
    out: File,
    /// The script's path; `None` for standard output.
    path: Option<PathBuf>,
    requests: u64,
    /// The length of the complete lines in bytes.
    bytes: u64,
}

impl ScriptFile {
    fn create(file: &Path) -> Result<Self> {
        if file.as_os_str() == "-" {
            let out = std::io::stdout().as_fd().try_clone_to_owned()?;
            return Ok(Self { out: File::from(out), path: None, requests: 0, bytes: 0 });
        }
        // Requests contain the arguments of containers: only the owner may read them.
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(file);
        let out = opened.doing(|| format!("creating {}", file.display()))?;
        let path = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        Ok(Self { out, path: Some(path), requests: 0, bytes: 0 })
    }

    /// Adds a line from the daemon; hides environment values unless `show_env`.
    fn add(&mut self, line: &[u8], show_env: bool, listener: &mut RecordingStream) -> Result<()> {
        let mut line: Value = serde_json::from_slice(line)
            .map_err(|error| Error::new(format!("the daemon sent invalid JSON: {error}")))?;
        if let Some(why) = line["error"].as_str() {
            return Err(Error::new(why));
        }
        if !show_env {
            redact(&mut line);
        }
        let text = format!("{line}\n");
        if let Err(error) = self.write(text.as_bytes(), listener) {
            if self.path.is_some() {
                let _best_effort = self.out.set_len(self.bytes);
            }
            return Err(error.doing(format!("writing {}", self.place())));
        }
        self.bytes += u64::try_from(text.len()).unwrap_or_default();
        self.requests += u64::from(line.get("call").is_some());
        Ok(())
    }

    /// Writes the text. A signal ends the recording even while the reader of standard output blocks the write.
    fn write(&mut self, mut text: &[u8], listener: &mut RecordingStream) -> Result<()> {
        if self.path.is_some() {
            return Ok(self.out.write_all(text)?);
        }
        while !text.is_empty() {
            if !listener.wait(self.out.as_fd(), PollFlags::POLLOUT)? {
                return Err(Error::new("interrupted while standard output was blocked"));
            }
            let chunk = text.get(..PIPE_ROOM).unwrap_or(text);
            match self.out.write(chunk) {
                Ok(written) => text = text.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn place(&self) -> String {
        match &self.path {
            Some(path) => path.display().to_string(),
            None => "standard output".to_owned(),
        }
    }

    fn summary(&self) -> String {
        let requests = if self.requests == 1 { "request" } else { "requests" };
        let Self { requests: count, bytes, .. } = self;
        format!("recorded {count} {requests}, {bytes} bytes, to {}", self.place())
    }
}

/// Removes the values of environment variables; their names stay.
fn redact(line: &mut Value) {
    for place in ["/state/containers", "/request/container", "/request/process"] {
        if let Some(part) = line.pointer_mut(place) {
            audit::redact("", part, REDACTED);
        }
    }
    let answers = line.get_mut("answers").and_then(Value::as_array_mut);
    for answer in answers.into_iter().flatten() {
        answer.pointer_mut("/reply/adjust").into_iter().for_each(redact_adjustment);
    }
}

/// Removes the values of environment variables from an adjustment and its hooks.
fn redact_adjustment(adjust: &mut Value) {
    let variables = adjust.get_mut("env").and_then(Value::as_array_mut);
    for value in variables.into_iter().flatten().filter_map(|variable| variable.get_mut("value")) {
        *value = REDACTED.into();
    }
    adjust.get_mut("hooks").into_iter().for_each(|hooks| audit::redact("", hooks, REDACTED));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_variables_are_hidden_everywhere() {
        let mut line = json!({"state": {"containers": [{"id": "a", "env": ["TOKEN=secret"]}]}});
        redact(&mut line);
        assert!(!line.to_string().contains("secret") && line.to_string().contains("TOKEN="));
        let mut line = json!({"request": {"container": {"env": ["A=secret", "secret"], "hooks": {"prestart": [{"env": ["B=secret"]}]}}}});
        redact(&mut line);
        assert!(!line.to_string().contains("secret"), "{line}");
        assert_eq!(line["request"]["container"]["env"][0], format!("A={REDACTED}"));
    }

    #[test]
    fn values_of_the_variables_of_an_exec_are_hidden() {
        let mut line = json!({"request": {"process": {"args": ["sh"], "env": ["A=secret"]}}});
        redact(&mut line);
        assert_eq!(line["request"]["process"]["env"][0], format!("A={REDACTED}"));
        assert_eq!(line["request"]["process"]["args"][0], "sh");
    }

    #[test]
    fn values_of_variables_in_answers_of_plugins_are_hidden_too() {
        let adjust = json!({"env": [{"key": "TOKEN", "value": "secret"}],
            "hooks": {"prestart": [{"path": "/h", "env": ["B=secret"]}]}});
        let mut line = json!({"decision": 1, "answers": [{"plugin": "10-a", "reply": {"adjust": adjust}},
            {"plugin": "20-b", "skipped": "late"}, {"plugin": "30-c", "reply": {}}]});
        redact(&mut line);
        let text = line.to_string();
        assert!(
            !text.contains("secret") && text.contains("TOKEN") && text.contains("B="),
            "{text}"
        );
        assert_eq!(line["answers"][2], json!({"plugin": "30-c", "reply": {}}));
    }

    #[test]
    fn a_line_without_containers_stays_unchanged() {
        for line in [json!({"request": {"pod": {"id": "p"}}}), json!({"state": 5}), json!([])] {
            let mut same = line.clone();
            redact(&mut same);
            assert_eq!(same, line);
        }
    }
}
