// SPDX-License-Identifier: Apache-2.0
//! Registration from a pod: `install` and `uninstall` below the folder where the node's folders are
//! mounted, and what the node's engine and containers say of it. The engine is asked over its socket
//! below that folder; its processes are another namespace's, and none is looked for.

use serde_json::Value;

use super::engine::Engine;
use super::ledger::Ledger;
use super::root::Root;
use super::running::{self, HandlerState};
use super::{Common, Install, Uninstall, engine_files, restart, state, unregister, users};
use crate::admin::output::PlainOutput;
use crate::config::{Config, Loaded};
use crate::error::{Error, Result};
use crate::host::Host;

/// Where nri-runc goes on a node, unless `--binary` names another path.
const PROGRAM: &str = "/opt/nri-runc/bin/nri-runc";

/// The mode of a program.
const PROGRAM_MODE: u32 = 0o755;

/// The node's engine, and the node's files.
#[derive(Debug)]
pub(in crate::admin) struct NodeEngine {
    install: Install,
    engine: Engine,
    root: Root,
    /// The node as its paths are seen from here.
    host: Host,
}

impl NodeEngine {
    /// The engine that `install` names, on the node whose folders are below `--root`.
    ///
    /// # Errors
    /// Fails without `--root`, and where the kernel cannot keep paths below it.
    pub(in crate::admin) fn open(install: &Install) -> Result<Self> {
        let mut install = install.clone();
        let Some(folder) = install.common.root.clone() else {
            return Err(Error::new(
                "node requires --root, the folder where the node's are mounted",
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

    /// Where the engine finds nri-runc on the node.
    pub(in crate::admin) fn program(&self) -> &str {
        self.install.binary.as_deref().unwrap_or(PROGRAM)
    }

    /// The folder where the node's are mounted.
    pub(in crate::admin) fn folder(&self) -> std::path::PathBuf {
        self.host.path("/")
    }

    fn registered(&self) -> Result<Option<Ledger>> {
        Ledger::load(&self.root, self.engine)
    }

    /// Registers; the document of `install`.
    ///
    /// # Errors
    /// As `install`.
    pub(in crate::admin) fn register(&self, loaded: &Loaded) -> Result<Value> {
        super::install(&self.install, loaded)
    }

    /// Undoes that; the document of `uninstall`. `None`: nothing is registered.
    ///
    /// # Errors
    /// As `uninstall`: while containers use nri-runc above all.
    pub(in crate::admin) fn unregister(&self, config: &Config) -> Result<Option<Value>> {
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

    /// The registration, to ask for its containers once it is undone.
    ///
    /// # Errors
    /// Fails when its record cannot be read.
    pub(in crate::admin) fn registration(&self) -> Result<Option<NodeRegistration<'_>>> {
        Ok(self.registered()?.map(|ledger| NodeRegistration { on: self, ledger }))
    }

    /// The command that has the engine read its files; empty where it needs none.
    pub(in crate::admin) fn restart_command(&self) -> String {
        let main = self.registered().ok().flatten().and_then(|ledger| ledger.main);
        restart::command_again(self.engine, main.as_deref(), true, &self.root)
    }

    /// The bytes of a file of the node.
    ///
    /// # Errors
    /// Fails when it is there and cannot be read.
    pub(in crate::admin) fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
        self.root.read(path).map_err(|error| Error::from(error).doing(format!("reading {path}")))
    }

    /// Replaces a program of the node in one step, whether or not it runs.
    ///
    /// # Errors
    /// Fails when the file system refuses.
    pub(in crate::admin) fn put_program(&self, path: &str, bytes: &[u8]) -> Result<()> {
        engine_files::put(&self.root, path, bytes, PROGRAM_MODE)
    }

    /// Replaces a file of the node in one step, or removes it. `is_private`: for root alone.
    ///
    /// # Errors
    /// Fails when the file system refuses, or a link is in its place.
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

    /// The folders above `path` that are missing, the outermost first.
    pub(in crate::admin) fn missing_folders(&self, path: &str) -> Vec<String> {
        engine_files::missing_folders(&self.root, path)
    }

    /// Removes those of these folders that are empty, the last first.
    pub(in crate::admin) fn remove_folders(&self, folders: &[String]) {
        engine_files::remove_folders(&self.root, folders);
    }
}

/// What is registered on a node.
#[derive(Debug)]
pub(in crate::admin) struct NodeRegistration<'n> {
    on: &'n NodeEngine,
    ledger: Ledger,
}

impl NodeRegistration<'_> {
    /// Whether the running engine has the handler; `None` where it does not answer.
    pub(in crate::admin) fn is_loaded(&self) -> Option<bool> {
        let (on, main) = (self.on, self.ledger.main.as_deref());
        let wanted = state::wanted_of(&self.ledger);
        match running::query_handler(on.engine, wanted, main, &on.root, &on.host) {
            HandlerState::Known | HandlerState::ReadEachTime => Some(true),
            HandlerState::Unknown | HandlerState::OtherProgram | HandlerState::NotDefault => {
                Some(false)
            }
            HandlerState::NotRunning | HandlerState::NoAnswer => None,
        }
    }

    /// The containers that still call nri-runc.
    pub(in crate::admin) fn users(&self, config: &Config) -> Vec<String> {
        users::list(self.on.engine, &self.ledger, &self.on.root, config)
    }

    /// What it is called: handler and engine.
    pub(in crate::admin) fn title(&self) -> String {
        format!("{} with {}", self.ledger.name, self.on.engine.title())
    }
}
