// SPDX-License-Identifier: Apache-2.0
//! Decodes a wrapper's request: its container, bundle and flags (`mod.rs`, with the wrapper's command line parser), its
//! engine and pod (`describe.rs`), and the container's first record (`record.rs`).
//!
//! This module never asks a plugin and writes nothing. It imports `shared`.

pub(crate) mod describe;
pub(crate) mod record;
pub(crate) mod resources;

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::argv;
use crate::engine;
use crate::error::{Context, Result};
use crate::host::Host;
use crate::link::{Attached, LaterProcess, WrapperRequest};
use crate::runtime::root_of;
use crate::sources::callers;
use crate::state::ContainerKey;

/// A request and its descriptors.
#[derive(Debug)]
pub(crate) struct ReceivedQuestion {
    pub(crate) question: WrapperRequest,
    descriptors: Vec<(Attached, OwnedFd)>,
}

impl ReceivedQuestion {
    /// Creates a request with its descriptors.
    pub(crate) fn new(question: WrapperRequest, descriptors: Vec<(Attached, OwnedFd)>) -> Self {
        Self { question, descriptors }
    }

    /// Creates a request without descriptors.
    pub(crate) fn alone(question: WrapperRequest) -> Self {
        Self { question, descriptors: Vec::new() }
    }

    /// Returns a descriptor of the request.
    pub(crate) fn descriptor(&self, what: Attached) -> Option<&OwnedFd> {
        self.descriptors.iter().find(|(kind, _)| *kind == what).map(|(_, fd)| fd)
    }

    /// Takes a descriptor out of the request.
    pub(crate) fn take(&mut self, what: Attached) -> Option<OwnedFd> {
        let at = self.descriptors.iter().position(|(kind, _)| *kind == what)?;
        Some(self.descriptors.swap_remove(at).1)
    }
}

/// All data of a call that the verbs need.
#[derive(Debug)]
pub(crate) struct VerbRequest {
    pub(crate) received: ReceivedQuestion,
    pub(crate) command_line: argv::CommandLine,
    pub(crate) key: ContainerKey,
    /// The bundle directory, absolute.
    pub(crate) bundle: PathBuf,
    pub(crate) pid_file: Option<PathBuf>,
}

impl VerbRequest {
    /// Decodes a request; `None` if it has no ID that a container can have.
    pub(crate) fn new(asked: ReceivedQuestion) -> Option<Self> {
        let question = &asked.question;
        let call = argv::read(&question.argv);
        let cwd = Path::new(&question.cwd);
        let absolute = |path: &OsStr| cwd.join(path);
        let runtime = Path::new(&question.runtime);
        let variable = |name: &str| engine::variable(&question.variables, name).cloned();
        let root = root_of(call.root.as_deref(), runtime, || cwd.to_owned(), variable);
        let id = call.id.as_deref().filter(|id| !argv::is_never_an_id(id))?;
        let id = id.to_string_lossy().into_owned();
        let bundle = absolute(call.bundle.as_deref().unwrap_or_default());
        let pid_file = call.pid_file.as_deref().map(absolute);
        Some(Self {
            key: ContainerKey { root, id },
            bundle: tidy(&bundle),
            pid_file,
            command_line: call,
            received: asked,
        })
    }

    pub(crate) fn question(&self) -> &WrapperRequest {
        &self.received.question
    }

    /// Returns the verb's name, as counted in `status`.
    pub(crate) fn verb(&self) -> &'static str {
        self.command_line.verb.name()
    }

    /// Takes the descriptor of the wrapper's process out of the request.
    pub(crate) fn process(&mut self) -> Option<OwnedFd> {
        self.received.take(Attached::Process)
    }

    /// Takes the process that an `exec` is about to start out of the request.
    pub(crate) fn take_later(&mut self) -> Option<LaterProcess> {
        self.received.question.later.take()
    }

    /// Returns the command lines of the caller and of its parent, which identify an engine.
    ///
    /// # Errors
    /// Fails when they cannot be read.
    pub(crate) fn callers(&self, host: &Host) -> Result<[Vec<Vec<u8>>; 2]> {
        callers(host, self.question().pid, self.question().parent_pid)
            .doing(|| "reading the command line of the engine")
    }

    /// Returns the arguments between argv[0] and the verb.
    pub(crate) fn global_flags(&self) -> Vec<String> {
        let end = self.command_line.verb_index.unwrap_or(1).max(1);
        self.question().argv[1..end].iter().map(lossy).collect()
    }
}

fn lossy(word: &OsString) -> String {
    word.to_string_lossy().into_owned()
}

/// Removes `.` and trailing slashes, so that the path is spelled as in engines' files; links are
/// not resolved.
fn tidy(path: &Path) -> PathBuf {
    path.components().collect()
}
