// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri install ENGINE` registers nri-runc with an engine, and `uninstall` undoes that
//! byte for byte, or value by value in a file that was edited since (`revert`). Changes are planned
//! on texts (`plan`, one file per engine, `edit`), then written (`engine_files`) with an undo
//! record (`ledger`). No engine is restarted, and manual changes are never overwritten. Where an
//! engine serves NRI itself, `own_nri` asks for a decision first.

mod containerd;
mod containerd_files;
mod containerd_nri;
mod cri_entry;
mod crio;
mod detect;
mod distribution;
mod docker;
mod edit;
mod engine;
mod engine_files;
mod ledger;
mod listener;
mod nri_decision;
mod on_node;
mod outcome;
mod own_nri;
mod plan;
mod podman;
mod rendered;
mod restart;
mod revert;
mod root;
mod rows;
mod running;
mod runtime_so_far;
mod state;
mod unregister;
mod users;

use std::path::{Path, PathBuf};

use clap::Args;

use self::detect::Named;
use self::distribution::Distribution;
use self::engine::Engine;
use self::ledger::{Ledger, LedgerFile};
use self::nri_decision::{BESIDE_SOCKET, NriDecision};
pub(super) use self::on_node::NodeEngine;
pub(super) use self::outcome::Outcome;
use self::outcome::{ResultDetails, outcome};
use self::own_nri::NriCandidate;
use self::plan::{Plan, Registration, Texts};
use self::root::Root;
pub(super) use self::state::check_engines;
pub(super) use self::unregister::uninstall;
use super::output::PlainOutput;
use crate::config::{Config, Loaded};
use crate::error::{Error, Result};
use crate::plugin::socket::SocketListener;

/// `install`.
#[derive(Debug, Clone, Args)]
pub(super) struct Install {
    #[command(flatten)]
    pub(super) named: EngineNamed,
    /// Make nri-runc the default runtime.
    #[arg(long)]
    default: bool,
    /// Runtime handler name.
    #[arg(long, default_value = "nri-runc")]
    name: String,
    /// nri-runc path for the engine (default: this executable).
    #[arg(long, value_name = "PATH")]
    binary: Option<String>,
    /// Engine's main configuration file (containerd, Docker and iSulad only).
    #[arg(long, value_name = "FILE")]
    engine_config: Option<String>,
    /// Switch the engine's own NRI off, so that plugins connect to nri-runc.
    #[arg(long, conflicts_with = "beside")]
    take_over_nri: bool,
    /// Leave the engine's own NRI on; plugins of nri-runc connect to SOCKET.
    #[arg(
        long,
        value_name = "SOCKET",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = BESIDE_SOCKET
    )]
    beside: Option<String>,
    #[command(flatten)]
    pub(super) common: Common,
}

/// `uninstall`.
#[derive(Debug, Args)]
pub(super) struct Uninstall {
    #[command(flatten)]
    pub(super) named: EngineNamed,
    /// Uninstall even if containers still use nri-runc.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

/// The engine to configure.
#[derive(Debug, Clone, Args)]
pub(super) struct EngineNamed {
    /// Container engine.
    #[arg(required_unless_present = "distribution")]
    engine: Option<Engine>,
    /// Kubernetes distribution that runs containerd (default: detected).
    #[arg(long, value_name = "NAME")]
    distribution: Option<Distribution>,
    /// The engine of this user (Podman only).
    #[arg(long, conflicts_with = "root")]
    pub(super) user: bool,
}

impl EngineNamed {
    /// Whether this changes files of the host for all users, not only files below `--root` or of
    /// this user.
    pub(super) fn needs_root(&self, common: &Common) -> bool {
        common.root.is_none() && !self.user
    }

    /// Returns the engine; a distribution without an engine means containerd.
    fn engine(&self) -> Result<Engine> {
        match (self.engine, self.distribution) {
            (Some(engine), Some(_)) if !engine.has_distributions() => {
                Err(Error::new("--distribution applies to containerd only"))
            }
            (engine, _) => {
                let engine = engine.unwrap_or(Engine::OF_DISTRIBUTIONS);
                if self.user && engine.row().main_of_user.is_none() {
                    return Err(Error::new(root::NOT_A_USERS).hint("use --user with podman"));
                }
                Ok(engine)
            }
        }
    }

    fn root(&self, common: &Common, config: &Config) -> Result<Root> {
        match &common.root {
            Some(folder) => Root::confined(folder),
            None if self.user => Root::of_user(config.host()),
            None => Ok(Root::of_host(config.host())),
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(super) struct Common {
    /// Print the changes as a diff without making them.
    #[arg(long)]
    dry_run: bool,
    /// Treat this directory as / (for image builds).
    #[arg(long, value_name = "DIR")]
    pub(super) root: Option<PathBuf>,
    #[command(flatten)]
    pub(super) output: PlainOutput,
}

/// A file to change, with its current and its new text; `None` if it does not exist.
struct FileChange {
    path: String,
    now: Option<String>,
    new: Option<String>,
}

/// The facts that are read before planning.
struct Situation {
    root: Root,
    engine: Engine,
    old: Option<Ledger>,
    registration: Registration,
    listener: Option<SocketListener>,
    candidates: Vec<NriCandidate>,
    now: Texts,
}

impl Situation {
    fn of(install: &Install, loaded: &Loaded) -> Result<Self> {
        let root = install.named.root(&install.common, &loaded.config)?;
        let engine = install.named.engine()?;
        let old = Ledger::load(&root, engine)?;
        let registration = build_registration(install, engine, loaded, &root, old.as_ref())?;
        if let Some(old) = old.as_ref().filter(|old| old.main != registration.main) {
            let main = old.main.as_deref().unwrap_or("its default file");
            return Err(Error::new(format!(
                "nri-runc is already registered with {} in {main}",
                engine.name()
            ))
            .hint(format!("first: nri-runc nri uninstall {}", engine.name())));
        }
        let listener =
            listener::find(&root, &loaded.config, || listener::daemon_pid(&loaded.config));
        let main = registration.main.as_deref();
        let candidates = own_nri::candidates(engine, main, &root, listener.as_ref());
        let now = own_nri::read_all(&root, &candidates)?;
        Ok(Self { root, engine, old, registration, listener, candidates, now })
    }

    fn plan(&self, texts: &Texts) -> Result<Plan> {
        own_nri::plan(self.engine, &self.registration, &self.candidates, texts)
    }

    /// Whether this `install` makes nri-runc no longer the default runtime.
    fn removes_entry(&self) -> bool {
        self.old.as_ref().is_some_and(|old| old.default && !self.registration.default)
    }

    /// Returns the engine's texts without nri-runc's changes; fails if those were edited since.
    fn base(&self) -> Result<Texts> {
        let Some(old) = &self.old else { return Ok(self.now.clone()) };
        let mut undone = old.undone(&self.root, &self.now)?;
        if let Some((error, _names)) = undone.unclear.pop() {
            return Err(error.hint("fix this file; nothing was changed"));
        }
        match undone.edited.first() {
            Some((path, value)) => {
                let named = format!("{}{}", self.engine.name(), self.root.option());
                Err(edited_since(path, &value.keys, &named))
            }
            None => Ok(undone.texts),
        }
    }

    /// Returns notes about NRI, the process on the socket, and the host.
    fn notes(&self, config: &Config) -> Vec<String> {
        let mut notes = own_nri::notes(&self.registration, &self.candidates, &self.now);
        let is_open = self.registration.nri == NriDecision::Open;
        let other = self.listener.as_ref().filter(|_| is_open);
        notes.extend(other.map(|listener| listener::describe(listener, config)));
        notes.extend(detect::note(self.engine, self.registration.main.as_deref(), &self.root));
        notes
    }

    fn note_users(&self, config: &Config) -> Option<String> {
        let old = self.old.as_ref()?;
        let now = &self.registration;
        let is_renamed = old.name != now.name || old.binary != now.binary;
        is_renamed.then(|| users::note(self.engine, old, &self.root, config)).flatten()
    }

    /// Returns a note if nri-runc may start another runtime than the engine's current default one.
    fn note_runtime(
        &self,
        plan: &Plan,
        install: &Install,
        config: &Config,
    ) -> Result<Option<String>> {
        let has_crun = || podman::prefers_crun(|path| self.root.has_program(path));
        let built_in = || (plan.may_prefer_crun && has_crun()).then_some("crun");
        let Some(theirs) = plan.runtime.as_deref().or_else(built_in) else { return Ok(None) };
        // `install.sh` passes `--root /` on the host itself, too.
        let root = install.common.root.as_deref();
        let is_here = root.is_none_or(|root| root == Path::new("/"));
        runtime_so_far::note(theirs, self.engine, &self.registration, config, is_here)
    }

    fn details(&self, dry: bool, restarts: &[Engine]) -> ResultDetails {
        let Registration { name, binary, default, main, .. } = &self.registration;
        let (main, removes_entry) = (main.as_deref(), self.removes_entry());
        let mut others = self.old.as_ref().map(Ledger::others).unwrap_or_default();
        others.extend(restarts);
        ResultDetails {
            dry,
            removes_entry,
            next: restart::commands(&others, self.engine, main, removes_entry, &self.root),
            usage: (self.engine.row().usage)(main, name, binary, *default),
        }
    }

    fn ledger(&self, base: &Texts, plan: &Plan) -> Ledger {
        let Self { root, engine, old, registration, .. } = self;
        let created = || engine_files::missing_folders(root, &ledger::path(root, *engine));
        let mut ledger = Ledger {
            schema: ledger::SCHEMA,
            name: registration.name.clone(),
            binary: registration.binary.clone(),
            default: registration.default,
            main: registration.main.clone(),
            files: Vec::new(),
            folders: old.as_ref().map_or_else(created, |old| old.folders.clone()),
            nri: registration.nri.clone(),
            restarts: plan.restarts.iter().map(|other| other.name().to_owned()).collect(),
        };
        let of_others = ledger::folders_of_others(root, *engine);
        for (path, after) in &plan.files {
            let before = base.get(path).cloned();
            if before.as_ref() == Some(after) {
                continue;
            }
            // A directory that another registration created and both use is removed with the last
            // of them.
            let is_above = |folder: &&String| path.starts_with(&format!("{folder}/"));
            let mut made: Vec<String> = of_others.iter().filter(is_above).cloned().collect();
            made.extend(engine_files::missing_folders(root, path));
            made.retain(|folder| !ledger.folders.contains(folder));
            ledger.folders.extend(made);
            let after = Some(after.clone());
            ledger.files.push(LedgerFile { path: path.clone(), before, after });
        }
        ledger
    }

    /// Writes the undo record and all changes; if a write fails, restores the files and the record.
    fn write(&self, ledger: &Ledger, changes: &[FileChange]) -> Result<()> {
        let (root, path) = (&self.root, ledger::path(&self.root, self.engine));
        if changes.is_empty() && self.old.is_none() {
            return Ok(());
        }
        ledger.save(root, self.engine)?;
        let Err(error) = put_all(root, changes) else { return Ok(()) };
        let restored = match &self.old {
            Some(old) => old.save(root, self.engine),
            None => engine_files::write_or_remove(root, &path, None),
        };
        engine_files::remove_folders(root, &ledger.folders);
        Err(match restored {
            Ok(()) => error,
            Err(_) => error.hint(format!("{path} records changes that were not made: remove it")),
        })
    }
}

/// Registers with an engine; returns the changes.
pub(super) fn install(install: &Install, loaded: &Loaded) -> Result<Outcome> {
    let config = &loaded.config;
    let here = Situation::of(install, loaded)?;
    let (engine, now, old) = (here.engine, &here.now, here.old.as_ref());
    let plan_for_now = here.plan(now);
    let plan_for_now = if old.is_some() { plan_for_now } else { Ok(plan_for_now?) };
    own_nri::require_decision(engine, &here.registration, &here.candidates, now)?;
    if let Ok(plan) = &plan_for_now
        && !here.removes_entry()
        && plan.files.iter().all(|(path, text)| now.get(path) == Some(text))
    {
        // With an earlier registration, the engine's default runtime in the plan may be nri-runc
        // itself.
        let runtime = old.is_none().then(|| here.note_runtime(plan, install, config));
        let runtime = runtime.transpose()?.flatten().into_iter();
        let notes = runtime.chain(plan.notes.iter().cloned()).chain(here.notes(config)).collect();
        let details = here.details(install.common.dry_run, &[]);
        return Ok(outcome(engine, "install", &[], notes, details));
    }
    let base = here.base()?;
    let mut plan = if old.is_some() { here.plan(&base)? } else { plan_for_now? };
    let runtime = here.note_runtime(&plan, install, config)?;
    plan.notes.splice(0..0, runtime);
    plan.notes.extend(here.notes(config));
    plan.notes.extend(here.note_users(config));
    let changes = changes(&here.root, now, &base, &plan, old)?;
    if !install.common.dry_run {
        here.write(&here.ledger(&base, &plan), &changes)?;
    }
    let main = here.registration.main.as_deref();
    plan.notes.extend(restart::note(engine, main).filter(|_| !changes.is_empty()));
    let details = here.details(install.common.dry_run, &plan.restarts);
    Ok(outcome(engine, "install", &changes, plan.notes, details))
}

fn build_registration(
    install: &Install,
    engine: Engine,
    loaded: &Loaded,
    root: &Root,
    old: Option<&Ledger>,
) -> Result<Registration> {
    let name = install.name.clone();
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    if name.is_empty() || !name.bytes().all(is_plain) {
        return Err(Error::new(format!("{name:?} is not a valid handler name"))
            .hint("use letters, digits, '.', '_' and '-'"));
    }
    if install.engine_config.is_some() && engine.row().main.is_none() {
        return Err(Error::new("--engine-config applies to containerd, Docker and iSulad only")
            .hint("omit it: nri-runc chooses the file of this engine"));
    }
    let of_user = engine.row().file_of_user(root.user(), loaded.config.is_of_user())?;
    let file = of_user.as_deref().or(install.engine_config.as_deref());
    let named = Named { engine, file, distribution: install.named.distribution };
    let own =
        || std::env::current_exe().map(|path| path.display().to_string()).map_err(Error::from);
    let binary = install.binary.clone().map_or_else(own, Ok)?;
    if !binary.starts_with('/') || !root.has_program(&binary) {
        let wanted = match &install.common.root {
            Some(_) => "an executable under --root",
            None => "the absolute path of an executable",
        };
        return Err(Error::new(format!("{binary} is not {wanted}"))
            .hint("give the path of nri-runc with --binary"));
    }
    let nri = own_nri::decision(install, loaded, old)?;
    let is_of_node = !install.named.user && (install.default || nri == NriDecision::TakeOver);
    Ok(Registration {
        name,
        binary,
        default: install.default,
        main: detect::main_file(named, old, root)?,
        socket: loaded.config.socket_path.display().to_string(),
        nri,
        shows_node: is_of_node && own_nri::may_set_scope(install, loaded)?,
    })
}

/// Returns the error for a value that nri-runc wrote and that was edited since.
fn edited_since(path: &str, keys: &str, named: &str) -> Error {
    let error = Error::new(format!("{path}: {keys} was edited since `install` wrote it"));
    let uninstall = format!("nri-runc nri uninstall {named}");
    error.hint(format!("nothing was changed; undo that edit, or first: {uninstall}"))
}

fn changes(
    root: &Root,
    now: &Texts,
    base: &Texts,
    plan: &Plan,
    old: Option<&Ledger>,
) -> Result<Vec<FileChange>> {
    let mut paths: Vec<&String> = plan.files.keys().collect();
    paths.extend(old.into_iter().flat_map(|old| old.files.iter().map(|file| &file.path)));
    paths.sort();
    paths.dedup();
    let mut changes = Vec::new();
    for path in paths {
        let now = match now.get(path) {
            Some(text) => Some(text.clone()),
            None => engine_files::read(root, path)?,
        };
        let new = plan.files.get(path).or_else(|| base.get(path)).cloned();
        if now != new {
            changes.push(FileChange { path: path.clone(), now, new });
        }
    }
    Ok(changes)
}

fn put_all(root: &Root, changes: &[FileChange]) -> Result<()> {
    for (done, change) in changes.iter().enumerate() {
        if let Err(error) = engine_files::write_or_remove(root, &change.path, change.new.as_deref())
        {
            for change in changes.iter().take(done).rev() {
                let _best_effort =
                    engine_files::write_or_remove(root, &change.path, change.now.as_deref());
            }
            return Err(error);
        }
    }
    Ok(())
}
