// SPDX-License-Identifier: Apache-2.0
//! Registration from a pod: `install` and `uninstall` below the directory where the node's root is
//! mounted, and the state of the node's engine and containers. The engine is asked over its socket
//! below that directory; its processes are in another namespace and are not inspected.

use super::engine::Engine;
use super::ledger::Ledger;
use super::outcome::Outcome;
use super::root::Root;
use super::running::{self, HandlerState};
use super::{Common, Install, Uninstall, engine_files, restart, state, unregister, users};
use crate::admin::output::PlainOutput;
use crate::config::{Config, Loaded};
use crate::error::{Error, Result};
use crate::host::Host;

/// Default path of nri-runc on a node.
const PROGRAM: &str = "/opt/nri-runc/bin/nri-runc";

/// The mode of a program.
const PROGRAM_MODE: u32 = 0o755;

/// The node's engine, and the node's files.
#[derive(Debug)]
pub(in crate::admin) struct NodeEngine {
    install: Install,
    engine: Engine,
    root: Root,
    /// The node, whose paths are resolved below `--root`.
    host: Host,
}

impl NodeEngine {
    /// Opens the engine that `install` names, on the node below `--root`.
    ///
    /// # Errors
    /// Fails without `--root`, with `--dry-run`, as [`Root::confined`] does, and for an invalid engine.
    pub(in crate::admin) fn open(install: &Install) -> Result<Self> {
        let mut install = install.clone();
        let Some(folder) = install.common.root.clone() else {
            return Err(Error::new(
                "node requires --root, the folder in which the node's folders are mounted",
            )
            .hint("to register on this host: nri-runc nri install"));
        };
        if install.common.dry_run {
            return Err(Error::new("node has no --dry-run")
                .hint("nri-runc nri install with --root and --dry-run prints the changes"));
        }
        let root = Root::confined(&folder)?;
        install.binary.get_or_insert_with(|| PROGRAM.to_owned());
        let host = Host::new(&folder.to_string_lossy(), "");
        let engine = install.named.engine()?;
        Ok(Self { install, engine, root, host })
    }

    /// Returns the path of nri-runc on the node.
    pub(in crate::admin) fn program(&self) -> &str {
        self.install.binary.as_deref().unwrap_or(PROGRAM)
    }

    /// Returns the directory where the node's root is mounted.
    pub(in crate::admin) fn folder(&self) -> std::path::PathBuf {
        self.host.path("/")
    }

    fn registered(&self) -> Result<Option<Ledger>> {
        Ledger::load(&self.root, self.engine)
    }

    /// Registers; returns the outcome of `install`.
    ///
    /// # Errors
    /// Fails as `install` does.
    pub(in crate::admin) fn register(&self, loaded: &Loaded) -> Result<Outcome> {
        super::install(&self.install, loaded)
    }

    /// Unregisters; returns the outcome of `uninstall`, `None` without a registration.
    ///
    /// # Errors
    /// Fails as `uninstall` does, which refuses while containers use nri-runc.
    pub(in crate::admin) fn unregister(&self, config: &Config) -> Result<Option<Outcome>> {
        if self.registered()?.is_none() {
            return Ok(None);
        }
        let common = Common {
            dry_run: false,
            root: self.install.common.root.clone(),
            output: PlainOutput::default(),
        };
        let uninstall = Uninstall { named: self.install.named.clone(), force: false, common };
        unregister::uninstall(&uninstall, config, false).map(Some)
    }

    /// Reads the registration. Its containers can be listed even after it is undone.
    ///
    /// # Errors
    /// Fails when the record of the registration cannot be read.
    pub(in crate::admin) fn registration(&self) -> Result<Option<NodeRegistration<'_>>> {
        Ok(self.registered()?.map(|ledger| NodeRegistration { on: self, ledger }))
    }

    /// Returns the command that makes the engine reload its files; empty if the engine needs none.
    pub(in crate::admin) fn restart_command(&self) -> String {
        let main = self.registered().ok().flatten().and_then(|ledger| ledger.main);
        restart::again(self.engine, main.as_deref(), true, &self.root)
    }

    /// Reads a file of the node.
    ///
    /// # Errors
    /// Fails when it exists and cannot be read.
    pub(in crate::admin) fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
        self.root.read(path).map_err(|error| Error::from(error).doing(format!("reading {path}")))
    }

    /// Replaces a program of the node atomically, even while it runs.
    ///
    /// # Errors
    /// Fails when the file system refuses.
    pub(in crate::admin) fn put_program(&self, path: &str, bytes: &[u8]) -> Result<()> {
        engine_files::put(&self.root, path, bytes, PROGRAM_MODE)
    }

    /// Replaces a file of the node atomically, or removes it. `is_private`: readable by root only.
    ///
    /// # Errors
    /// Fails when the file system refuses, or the file to replace is a symbolic link.
    pub(in crate::admin) fn put_text(
        &self,
        path: &str,
        text: Option<&str>,
        is_private: bool,
    ) -> Result<()> {
        match text.filter(|_| is_private) {
            Some(text) => engine_files::write(&self.root, path, text, engine_files::PRIVATE),
            None => engine_files::write_or_remove(&self.root, path, text),
        }
    }

    /// Returns the missing parent directories of `path`, the outermost first.
    pub(in crate::admin) fn missing_folders(&self, path: &str) -> Vec<String> {
        engine_files::missing_folders(&self.root, path)
    }

    /// Removes those of these directories that are empty, the last first.
    pub(in crate::admin) fn remove_folders(&self, folders: &[String]) {
        engine_files::remove_folders(&self.root, folders);
    }
}

/// A registration on a node.
#[derive(Debug)]
pub(in crate::admin) struct NodeRegistration<'n> {
    on: &'n NodeEngine,
    ledger: Ledger,
}

impl NodeRegistration<'_> {
    /// Whether the engine has loaded the handler; `None` if the engine does not run, answer or list its handlers.
    pub(in crate::admin) fn is_loaded(&self) -> Option<bool> {
        let (on, main) = (self.on, self.ledger.main.as_deref());
        let wanted = state::wanted_of(&self.ledger);
        match running::query_handler(on.engine, wanted, main, &on.root, &on.host) {
            HandlerState::Known | HandlerState::ReadEachTime => Some(true),
            HandlerState::Unknown | HandlerState::OtherProgram | HandlerState::NotDefault => {
                Some(false)
            }
            HandlerState::NotRunning | HandlerState::NoAnswer | HandlerState::NotListed => None,
        }
    }

    /// Lists the containers that still use nri-runc.
    pub(in crate::admin) fn users(&self, config: &Config) -> Vec<String> {
        users::list(self.on.engine, &self.ledger, &self.on.root, config)
    }

    /// Returns the names of the handler and the engine, for messages.
    pub(in crate::admin) fn title(&self) -> String {
        format!("{} with {}", self.ledger.name, self.on.engine.row().title)
    }
}
