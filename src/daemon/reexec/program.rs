// SPDX-License-Identifier: Apache-2.0
//! Checks whether the program that now lies at the daemon's path can continue from this daemon's
//! state, and executes it.

use std::ffi::{CString, OsStr};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::FILE_VARIABLE;
use crate::daemon::process::handover::STATE_VERSIONS;
use crate::daemon::process::started_with::StartedWith;
use crate::error::{Context, Error, Result, quoted};
use crate::limits;
use crate::presence::IfThere;

/// Time limit for a program to list the states from which it can continue.
const PROBE_WAIT: Duration = Duration::from_secs(5);

/// The program at the daemon's path.
pub(super) struct Program {
    path: PathBuf,
    state_version: u32,
}

/// Returns the version of this program and the states from which it can continue, as reported to the daemon
/// that it may replace.
pub(crate) fn abilities() -> Value {
    json!({"version": env!("CARGO_PKG_VERSION"), "states": STATE_VERSIONS})
}

impl Program {
    /// Returns the file at the path from which this daemon was started.
    pub(super) fn find(started_with: &StartedWith) -> Result<Self> {
        let path = Some(started_with.program().path.clone()).filter(|path| path.is_absolute());
        let path = path.ok_or_else(|| Error::new("the path of the daemon's program is unknown"))?;
        let meta = std::fs::metadata(&path).if_there().doing(|| path.display().to_string())?;
        if !meta.is_some_and(|meta| meta.is_file()) {
            return Err(Error::new(format!("there is no program {}", path.display())));
        }
        Ok(Self { path, state_version: started_with.state_version() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Asks the program whether it can continue from this daemon's state.
    ///
    /// # Errors
    /// Fails when it does not confirm that in time.
    pub(super) async fn probe(&self) -> Result<()> {
        let path = self.path.display();
        let answer = tokio::time::timeout(PROBE_WAIT, self.ask()).await;
        let answer = answer.map_err(|_late| {
            Error::new(format!(
                "{path} did not report its features within {} s",
                PROBE_WAIT.as_secs()
            ))
        })??;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let Some(states) = answer["states"].as_array() else {
            return Err(Error::new(format!("{path} cannot replace a running daemon")).hint(
                "it is not nri-runc, or a version without this feature: restart the daemon",
            ));
        };
        if states.iter().any(|state| *state == self.state_version) {
            return Ok(());
        }
        let version = quoted(answer["version"].as_str().unwrap_or("?"));
        let why = format!("{path} (version {version}) cannot continue from this daemon's state");
        Err(Error::new(why).hint("restart the daemon"))
    }

    #[expect(clippy::disallowed_methods, reason = "the successor is started here alone")]
    async fn ask(&self) -> Result<Vec<u8>> {
        use tokio::io::AsyncReadExt;
        let doing = || format!("asking {}", self.path.display());
        let mut command = tokio::process::Command::new(&self.path);
        command.args(["nri", "daemon", "--probe-state"]).env_clear().kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().doing(doing)?;
        let mut answer = Vec::new();
        if let Some(output) = child.stdout.take() {
            let limit = u64::try_from(limits::CANDIDATE_ANSWER).unwrap_or(0);
            output.take(limit).read_to_end(&mut answer).await.doing(doing)?;
        }
        let status = child.wait().await.doing(doing)?;
        if !status.success() {
            return Err(Error::new(format!("it failed ({status})")).doing(doing()));
        }
        Ok(answer)
    }

    /// Executes the program with the state in descriptor `state`; returns only if that fails, with
    /// the reason.
    pub(super) fn execute(&self, state: RawFd, is_foreground: bool, file: Option<&Path>) -> Error {
        let words = ["nri-runc", "nri", "daemon", "--state-fd"].map(str::to_owned);
        let mut words = words.to_vec();
        words.push(state.to_string());
        if !is_foreground {
            words.push("--in-background".to_owned());
        }
        let environment = std::env::vars_os().filter(|(name, _)| name != FILE_VARIABLE);
        let mut variables: Vec<Vec<u8>> =
            environment.map(|(name, value)| pair(&name, &value)).collect();
        variables.extend(file.map(|file| pair(OsStr::new(FILE_VARIABLE), file.as_os_str())));
        let text = |bytes: Vec<u8>| CString::new(bytes).ok();
        let words: Vec<CString> =
            words.into_iter().filter_map(|word| text(word.into_bytes())).collect();
        let variables: Vec<CString> = variables.into_iter().filter_map(text).collect();
        let Some(path) = text(self.path.as_os_str().as_bytes().to_vec()) else {
            return Error::new("the path of the daemon's program contains a NUL byte");
        };
        let executed = nix::unistd::execve(&path, &words, &variables);
        let errno = executed.err().unwrap_or(nix::errno::Errno::UnknownErrno);
        let why = crate::error::in_our_words(&errno.into());
        Error::new(format!("{} could not be executed: {why}", self.path.display()))
    }
}

fn pair(name: &OsStr, value: &OsStr) -> Vec<u8> {
    [name.as_bytes(), b"=", value.as_bytes()].concat()
}
