// SPDX-License-Identifier: Apache-2.0
//! Collects the data of one call of the runtime: its command line, the configuration, the real
//! runtime, and the document that this runtime will read. This module decides nothing.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::argv::CommandLine;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::files;
use crate::host::{Host, Point};
use crate::link::{LaterProcess, Proceed};
use crate::presence::{self, IfThere};
use crate::runtime;

/// The data about one call of the runtime that the handlers of its verb need.
pub(super) struct Invocation<'a> {
    pub(super) argv: &'a [OsString],
    pub(super) call: &'a CommandLine,
    pub(super) config: &'a Config,
    pub(super) host: Host,
    pub(super) runtime: PathBuf,
    /// The process of an `exec` that is reported to the daemon.
    pub(super) later: Option<LaterProcess>,
    /// Whether the request has the arguments of that process in full.
    pub(super) shows_process: bool,
}

/// A document's directory, opened, and its name there.
pub(super) struct BundleDocument {
    pub(super) dir: OwnedFd,
    pub(super) name: String,
}

impl<'a> Invocation<'a> {
    /// Creates a call that may involve the daemon.
    pub(super) fn new(
        argv: &'a [OsString],
        call: &'a CommandLine,
        config: &'a Config,
        runtime: PathBuf,
    ) -> Self {
        Self { argv, call, config, host: config.host(), runtime, later: None, shows_process: false }
    }

    /// Returns the command line for the daemon. For an `exec` it ends with the container's ID unless
    /// plugins receive the process: the request describes the process separately and shortened.
    pub(super) fn request_argv(&self) -> &[OsString] {
        let later = self.later.as_ref().filter(|_| !self.shows_process);
        let end = later.and(self.call.id_index).map_or(self.argv.len(), |at| at + 1);
        self.argv.get(..end).unwrap_or(self.argv)
    }

    pub(super) fn exec(&self, proceed: &Proceed) -> Error {
        let argv = proceed.argv.as_deref().unwrap_or(self.argv);
        let replaced = self.host.point(Point::WrapperExec);
        match replaced.and_then(|()| runtime::replace_process(&self.runtime, argv)) {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    pub(super) fn exec_unchanged(&self) -> Result<Infallible> {
        runtime::replace_process(&self.runtime, self.argv)
    }

    /// Opens the directory of the document that the runtime will read, if the document exists:
    /// `config.json` in the bundle, or the file that crun's `--config` names.
    ///
    /// # Errors
    /// Fails when it cannot be determined whether the document exists: the runtime may find it.
    pub(super) fn document(&self) -> Result<Option<BundleDocument>> {
        let Some((dir, name)) = self.document_path() else { return Ok(None) };
        let Some(dir) = files::open_dir(&dir).if_there()? else { return Ok(None) };
        let inode = files::inode_at(&dir, &name)?;
        Ok(inode.map(|_there| BundleDocument { dir, name }))
    }

    /// Returns the document's directory and name; `None` if `--config` names no file, or its name is
    /// not UTF-8.
    fn document_path(&self) -> Option<(PathBuf, String)> {
        let bundle = self.call.bundle.as_deref().unwrap_or_default();
        let Some(file) = &self.call.config else {
            return Some((PathBuf::from(bundle), "config.json".to_owned()));
        };
        let file = PathBuf::from(file);
        let name = file.file_name()?.to_str()?.to_owned();
        Some((file.parent()?.to_owned(), name))
    }

    /// Whether the runtime will read a file whose name is not UTF-8.
    pub(super) fn is_odd_document(&self) -> bool {
        let file = self.call.config.as_deref().map(Path::new);
        let is_odd = |file: &Path| file.file_name().is_some_and(|name| name.to_str().is_none());
        // A file that cannot be examined may exist.
        file.is_some_and(|file| is_odd(file) && presence::exists(file).unwrap_or(true))
    }

    pub(super) fn doing(&self) -> String {
        doing(self.call)
    }
}

/// Returns the start of this call's failure messages, such as "cannot create 4f1c".
pub(super) fn doing(call: &CommandLine) -> String {
    let id = call.id.as_deref().unwrap_or_default().to_string_lossy();
    format!("cannot {} {id}", call.verb.name())
}
