// SPDX-License-Identifier: Apache-2.0
//! Saves a connected plugin for the next program of this process, and resumes it: its descriptor, unanswered requests,
//! number of the next call, and process. The plugin notices nothing. It can only be saved between two calls.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nri_transport::{Blob, SavedTrunk, Upcalls, continue_to_call, resume_runtime};
use protobuf::Message;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::child::PluginProcess;
use super::process::ProcessLog;
use super::session::{Plugin, PluginParts};
use super::{PluginIdentity, api};

/// A plugin between two calls.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedPlugin {
    pub(crate) descriptor: RawFd,
    index: String,
    name: String,
    nri_version: String,
    events: i32,
    takes_all: bool,
    declared: Option<Blob>,
    pid: Option<i32>,
    timeout: Duration,
    speaks_state_change: bool,
    /// The events of the extension to which the plugin is subscribed.
    #[serde(default)]
    extension: u32,
    trunk: SavedTrunk,
    /// The process of a launched plugin.
    pub(crate) process: Option<SavedProcess>,
}

/// The process of a launched plugin.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedProcess {
    pid: i32,
    /// The pipe with the process's output, until the output has ended.
    pub(crate) output: Option<RawFd>,
    /// The last lines that the process printed, each with its time.
    #[serde(default)]
    tail: Vec<(i64, String)>,
    /// The beginning of an unfinished line.
    line: Blob,
}

impl SavedProcess {
    pub(super) fn new(pid: i32, log: &ProcessLog) -> Self {
        let (output, line) = log.save();
        Self { pid, output, tail: log.tail(), line: Blob(line) }
    }
}

impl SavedPlugin {
    /// Returns `NN-name`.
    pub(crate) fn id(&self) -> String {
        format!("{}-{}", self.index, self.name)
    }

    pub(crate) fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Duplicates the plugin's connection, to identify the process at its other end.
    ///
    /// # Errors
    /// Fails when the descriptor cannot be duplicated.
    #[expect(unsafe_code, reason = "a descriptor passed by number")]
    pub(crate) fn connection(&self) -> std::io::Result<OwnedFd> {
        // SAFETY: a plain system call on a number; it fails where no such descriptor is open.
        let copy = unsafe { nix::libc::fcntl(self.descriptor, nix::libc::F_DUPFD_CLOEXEC, 3) };
        let copy = nix::errno::Errno::result(copy)?;
        // SAFETY: the descriptor was made here, for this value alone.
        Ok(unsafe { OwnedFd::from_raw_fd(copy) })
    }
}

impl Plugin {
    /// Whether the plugin is between two calls: none is open in either direction.
    pub(crate) fn is_idle(&self) -> bool {
        self.turns.is_idle() && self.caller.is_idle()
    }

    /// Returns the number of the plugin's requests that were read and are not answered.
    pub(crate) fn open_requests(&self) -> usize {
        self.caller.open_requests()
    }

    /// Stops or resumes reading the plugin's requests.
    pub(crate) fn pause_requests(&self, is_paused: bool) {
        self.caller.pause_requests(is_paused);
    }

    /// Saves the plugin, which still owns its descriptor.
    pub(crate) fn save(&self) -> SavedPlugin {
        let declared = self.declared().and_then(|declared| declared.write_to_bytes().ok());
        let PluginIdentity { index, name, nri_version } = self.identity.clone();
        SavedPlugin {
            descriptor: self.caller.descriptor(),
            index,
            name,
            nri_version,
            events: self.event_bits(),
            takes_all: self.takes_all(),
            extension: self.extension_events(),
            declared: declared.map(Blob),
            pid: self.pid(),
            timeout: self.timeout(),
            speaks_state_change: self.speaks_state_change.load(Ordering::Relaxed),
            trunk: self.caller.save(self.trunk.frames_received()),
            process: self.save_process(),
        }
    }

    /// Resumes a plugin that another program of this process has saved. `log` receives the output
    /// of a launched plugin.
    ///
    /// # Errors
    /// Fails when its descriptor is not a stream, or the saved data is invalid.
    pub(crate) async fn resume(
        saved: SavedPlugin,
        upcalls: Arc<dyn Upcalls>,
        log: Option<&Arc<ProcessLog>>,
    ) -> std::io::Result<Self> {
        let stream = StdStream::from(own(saved.descriptor)?);
        stream.set_nonblocking(true)?;
        let SavedPlugin { index, name, nri_version, .. } = saved;
        let identity = PluginIdentity { index, name, nri_version };
        let split = continue_to_call(UnixStream::from_std(stream)?, saved.trunk)?;
        let (trunk, caller, runtime) = split;
        let server = resume_runtime(&trunk, runtime, identity.clone(), upcalls).await;
        let server = server.map_err(|error| std::io::Error::other(error.to_string()))?;
        server.resume_extension(saved.extension);
        let declared = saved.declared.map(|bytes| api::FailurePolicy::parse_from_bytes(&bytes.0));
        let parts = PluginParts {
            identity,
            events: saved.events,
            takes_all: saved.takes_all,
            declared: declared.transpose()?,
            pid: saved.pid,
            timeout: saved.timeout,
            speaks_state_change: saved.speaks_state_change,
        };
        let mut plugin = Self::from_parts(parts, trunk, caller, server);
        if let (Some(process), Some(log)) = (saved.process, log) {
            let output = process.output.map(own).transpose()?;
            log.resume(process.tail, process.line.0, output);
            plugin.set_process(PluginProcess::resume(process.pid, log));
        }
        Ok(plugin)
    }
}

/// Takes ownership of a descriptor by number, and makes it close-on-exec.
///
/// # Errors
/// Fails when the descriptor is closed.
#[expect(unsafe_code, reason = "a descriptor passed by number")]
fn own(number: RawFd) -> std::io::Result<OwnedFd> {
    // SAFETY: a plain system call on a number; it fails where no such descriptor is open.
    let result = unsafe { nix::libc::fcntl(number, nix::libc::F_SETFD, nix::libc::FD_CLOEXEC) };
    nix::errno::Errno::result(result)?;
    // SAFETY: the descriptor is open, and the previous program's state gives it to this plugin alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
