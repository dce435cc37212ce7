// SPDX-License-Identifier: Apache-2.0
//! A wrapper's question, understood: whose container, which bundle, which flags. The daemon
//! reads the argv with the very same table as the wrapper did.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::argv;
use crate::host::Host;
use crate::link::{Attached, WrapperRequest};
use crate::sources::callers;
use crate::state::Key;

use crate::daemon::server::frames::Asked;

/// Everything the verb files need to know of a call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) asked: Asked,
    pub(crate) call: argv::CommandLine,
    pub(crate) key: Key,
    /// The bundle directory, absolute.
    pub(crate) bundle: PathBuf,
    pub(crate) pid_file: Option<PathBuf>,
}

impl Call {
    /// Understands a question; `None` when it has no id that a container can have.
    pub(crate) fn new(asked: Asked) -> Option<Self> {
        let question = &asked.question;
        let call = argv::read(&question.argv);
        let cwd = Path::new(&question.cwd);
        let absolute = |path: &OsStr| cwd.join(path);
        let root = match call.root.as_deref() {
            Some(root) => absolute(root),
            None => PathBuf::from(crate::runtime::default_root(Path::new(&question.runtime))),
        };
        let id = call.id.as_deref().filter(|id| !argv::is_never_an_id(id))?;
        let id = id.to_string_lossy().into_owned();
        let bundle = absolute(call.bundle.as_deref().unwrap_or_default());
        let pid_file = call.pid_file.as_deref().map(absolute);
        Some(Self {
            key: Key { root: tidy(&root).to_string_lossy().into_owned(), id },
            bundle: tidy(&bundle),
            pid_file,
            call,
            asked,
        })
    }

    pub(crate) fn question(&self) -> &WrapperRequest {
        &self.asked.question
    }

    /// The verb's name, as counted in `status`.
    pub(crate) fn verb(&self) -> &'static str {
        self.call.verb.name()
    }

    /// The wrapper's own process.
    pub(crate) fn process(&mut self) -> Option<std::os::fd::OwnedFd> {
        self.asked.take(Attached::Process)
    }

    /// Command lines of the caller and of its parent: by them an engine is known.
    pub(crate) fn callers(&self, host: &Host) -> [Vec<Vec<u8>>; 2] {
        callers(host, self.question().pid, self.question().parent_pid)
    }

    /// Words between argv[0] and the verb.
    pub(crate) fn global_flags(&self) -> Vec<String> {
        let end = self.call.verb_index.unwrap_or(1).max(1);
        self.question().argv[1..end].iter().map(lossy).collect()
    }
}

fn lossy(word: &OsString) -> String {
    word.to_string_lossy().into_owned()
}

/// Without `.` and trailing slashes, as engines' files name it; links are not resolved.
fn tidy(path: &Path) -> PathBuf {
    path.components().collect()
}
