// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri install ENGINE` registers nri-runc with an engine, and `uninstall` undoes that byte for
//! byte. Changes are planned on texts (`plan`, one file per engine, `edit`), then written
//! (`engine_files`) with an undo record (`ledger`). No engine is restarted, and manual changes are
//! never overwritten.

mod containerd;
mod crio;
mod dispatch;
mod docker;
mod edit;
mod engine;
mod engine_files;
mod ledger;
mod listener;
mod plan;
mod podman;
mod root;
mod running;
mod state;
mod users;

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use self::engine::Engine;
use self::ledger::{Ledger, LedgerFile};
use self::plan::{Plan, Registration, Texts};
use self::root::Root;
pub(super) use self::state::check_engines;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::text::{counted, printable, short_id};

/// `install`.
#[derive(Debug, Args)]
pub(super) struct Install {
    /// Engine to configure.
    engine: Engine,
    /// Make nri-runc the default runtime.
    #[arg(long)]
    default: bool,
    /// Runtime handler name.
    #[arg(long, default_value = "nri-runc")]
    name: String,
    /// nri-runc path for the engine (default: this executable).
    #[arg(long, value_name = "PATH")]
    binary: Option<String>,
    /// Engine's main configuration file (containerd and Docker only).
    #[arg(long, value_name = "FILE")]
    engine_config: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// `uninstall`.
#[derive(Debug, Args)]
pub(super) struct Uninstall {
    /// Engine to unregister from.
    engine: Engine,
    /// Uninstall even if containers still use nri-runc.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// Print the changes as a diff without making them.
    #[arg(long)]
    dry_run: bool,
    /// Treat this directory as / (for image builds).
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl Common {
    fn root(&self, config: &Config) -> Result<Root> {
        match &self.root {
            Some(folder) => Root::confined(folder),
            None => Ok(Root::of_host(config.host())),
        }
    }
}

impl Install {
    /// Whether nothing of this host's own is touched.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.common.root.is_some()
    }
}

impl Uninstall {
    /// Likewise.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.common.root.is_some()
    }
}

/// One file to change: its current and its new text.
struct FileChange {
    path: String,
    now: Option<String>,
    new: Option<String>,
}

/// Registers with an engine; returns what was done as a document.
pub(super) fn install(install: &Install, config: &Config) -> Result<Value> {
    let root = install.common.root(config)?;
    let engine = install.engine;
    let registration = build_registration(install, config, &root)?;
    let old = Ledger::load(&root, engine)?;
    if let Some(old) = old.as_ref().filter(|old| old.main != registration.main) {
        let main = old.main.as_deref().unwrap_or("its default file");
        return Err(Error::new(format!(
            "nri-runc is already registered with {} in {main}",
            engine.name()
        ))
        .hint(format!("first: nri-runc nri uninstall {}", engine.name())));
    }
    let now = engine_files::read_all(&root, engine, registration.main.as_deref())?;
    let plan_for_now = engine.plan(&registration, &now);
    let removes_entry = old.as_ref().is_some_and(|old| old.default && !registration.default);
    if let Ok(plan) = &plan_for_now
        && !removes_entry
        && plan.files.iter().all(|(path, text)| now.get(path) == Some(text))
    {
        let notes = plan.notes.iter().cloned().chain(listener::describe(&root, config)).collect();
        let dry = install.common.dry_run;
        let details =
            ResultDetails { dry, usage: usage(&registration, engine), removes_entry: false };
        return Ok(result_document(engine, "install", &[], notes, details));
    }
    let (base, unclear) = match &old {
        Some(old) => old.undone(&root, &now)?,
        None => (now.clone(), Vec::new()),
    };
    if let Some(path) = unclear.first() {
        return Err(edited_since(path, old.as_ref()));
    }
    let mut plan = if old.is_some() { engine.plan(&registration, &base)? } else { plan_for_now? };
    plan.notes.extend(listener::describe(&root, config));
    plan.notes.extend(old.as_ref().and_then(|old| {
        let is_renamed = old.name != registration.name || old.binary != registration.binary;
        is_renamed.then(|| note_users(engine, old, &root, config)).flatten()
    }));
    let changes = changes(&root, &now, &base, &plan, old.as_ref())?;
    if !install.common.dry_run {
        let ledger = ledger_of(&registration, &root, &base, &plan, old.as_ref(), engine);
        write(&root, engine, &ledger, old.as_ref(), &changes)?;
    }
    let details = ResultDetails {
        dry: install.common.dry_run,
        removes_entry,
        usage: usage(&registration, engine),
    };
    Ok(result_document(engine, "install", &changes, plan.notes, details))
}

fn build_registration(install: &Install, config: &Config, root: &Root) -> Result<Registration> {
    let name = install.name.clone();
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    if name.is_empty() || !name.bytes().all(is_plain) {
        return Err(Error::new(format!("{name:?} is not a valid handler name"))
            .hint("use letters, digits, '.', '_' and '-'"));
    }
    if install.engine_config.is_some()
        && !matches!(install.engine, Engine::Containerd | Engine::Docker)
    {
        return Err(Error::new("--engine-config applies to containerd and Docker only"));
    }
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
    Ok(Registration {
        name,
        binary,
        default: install.default,
        main: install.engine_config.clone(),
        socket: config.socket_path.display().to_string(),
    })
}

fn edited_since(path: &str, old: Option<&Ledger>) -> Error {
    let ours = old.and_then(|old| old.files.iter().find(|file| file.path == path));
    let added = ours.map(|file| edit::diff(path, file.before.as_deref(), file.after.as_deref()));
    let added = added.unwrap_or_default();
    let lines = added.lines().skip(2).filter_map(|line| line.strip_prefix('+')).map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    Error::new(format!("{path}: the lines that `install` wrote were edited since")).hint(format!(
        "nothing was changed; restore these lines, or remove them manually: {}",
        lines.join("; ")
    ))
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

fn ledger_of(
    registration: &Registration,
    root: &Root,
    base: &Texts,
    plan: &Plan,
    old: Option<&Ledger>,
    engine: Engine,
) -> Ledger {
    let mut ledger = Ledger::new(
        &registration.name,
        &registration.binary,
        registration.default,
        registration.main.clone(),
    );
    ledger.folders = old.map_or_else(
        || engine_files::missing_folders(root, &ledger::path(engine)),
        |old| old.folders.clone(),
    );
    for (path, after) in &plan.files {
        let before = base.get(path).cloned();
        if before.as_ref() == Some(after) {
            continue;
        }
        let mut missing = engine_files::missing_folders(root, path);
        missing.retain(|folder| !ledger.folders.contains(folder));
        ledger.folders.extend(missing);
        ledger.files.push(LedgerFile { path: path.clone(), before, after: Some(after.clone()) });
    }
    ledger
}

/// Puts everything in place, or leaves it as it was.
fn write(
    root: &Root,
    engine: Engine,
    ledger: &Ledger,
    old: Option<&Ledger>,
    changes: &[FileChange],
) -> Result<()> {
    if changes.is_empty() && old.is_none() {
        return Ok(());
    }
    ledger.save(root, engine)?;
    let Err(error) = put_all(root, changes) else { return Ok(()) };
    let restored = match old {
        Some(old) => old.save(root, engine),
        None => engine_files::write_or_remove(root, &ledger::path(engine), None),
    };
    engine_files::remove_folders(root, &ledger.folders);
    Err(match restored {
        Ok(()) => error,
        Err(_) => error.hint(format!(
            "{} records changes that were not made: remove it",
            ledger::path(engine)
        )),
    })
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

/// Warns of containers that use the handler which another `install` replaces.
fn note_users(engine: Engine, old: &Ledger, root: &Root, config: &Config) -> Option<String> {
    let count = users::list(engine, old, root, config).len();
    let verb = if count == 1 { "uses" } else { "use" };
    (count > 0).then(|| {
        format!(
            "{} still {verb} the handler {}, which this replaces: remove them before the engine \
             reads its configuration again, and keep {} until then",
            counted(count, "container"),
            old.name,
            old.binary
        )
    })
}

/// Refuses to unregister while containers would call a program that may soon be gone.
fn still_used(ids: &[String], binary: &str, whole_ids: bool) -> Error {
    let shown = ids.iter().map(|id| if whole_ids { id.as_str() } else { short_id(id) });
    let list = shown.collect::<Vec<_>>().join(", ");
    let verb = if ids.len() == 1 { "uses" } else { "use" };
    Error::new(format!("{} still {verb} {binary}: {list}", counted(ids.len(), "container"))).hint(
        "remove them first, or unregister with --force and keep the binary until they are removed",
    )
}

/// Undoes a registration; returns what was done as a document. `whole_ids`: a refusal lists ids in
/// full.
pub(super) fn uninstall(uninstall: &Uninstall, config: &Config, whole_ids: bool) -> Result<Value> {
    let root = uninstall.common.root(config)?;
    let engine = uninstall.engine;
    let Some(ledger) = Ledger::load(&root, engine)? else {
        return Err(Error::new(format!("nri-runc is not registered with {}", engine.name()))
            .hint("remove manual entries yourself"));
    };
    let users = users::list(engine, &ledger, &root, config);
    if !users.is_empty() && !uninstall.force {
        return Err(still_used(&users, &ledger.binary, whole_ids));
    }
    let now = engine_files::read_all(&root, engine, ledger.main.as_deref())?;
    let (base, unclear) = ledger.undone(&root, &now)?;
    if let Some(path) = unclear.first() {
        return Err(edited_since(path, Some(&ledger)));
    }
    let changes = changes(&root, &now, &base, &Plan::default(), Some(&ledger))?;
    let mut notes = Vec::new();
    for file in &ledger.files {
        let now = changes.iter().find(|change| change.path == file.path);
        if now.is_some_and(|change| change.now != file.after) {
            notes.push(format!(
                "{} was edited since: only the lines that `install` added were removed",
                file.path
            ));
        }
    }
    if !uninstall.common.dry_run {
        put_all(&root, &changes)?;
        engine_files::write_or_remove(&root, &ledger::path(engine), None)?;
        engine_files::remove_folders(&root, &ledger.folders);
        // The last record takes its folders with it; what install.sh recorded there stays.
        root.remove_folder(ledger::FOLDER);
        root.remove_folder("/var/lib/nri-runc");
    }
    if users.is_empty() {
        notes.push(format!("keep {} until no container uses it", ledger.binary));
    } else {
        let (count, verb) =
            (counted(users.len(), "container"), if users.len() == 1 { "uses" } else { "use" });
        notes.push(format!("{count} still {verb} {}: keep it until then", ledger.binary));
    }
    let details =
        ResultDetails { dry: uninstall.common.dry_run, removes_entry: true, usage: Vec::new() };
    Ok(result_document(engine, "uninstall", &changes, notes, details))
}

fn usage(registration: &Registration, engine: Engine) -> Vec<String> {
    engine.usage(&registration.name, &registration.binary, registration.default)
}

/// The parts of the result other than files and notes.
#[derive(Clone)]
struct ResultDetails {
    /// Nothing was changed.
    dry: bool,
    /// An entry was removed from the engine's configuration.
    removes_entry: bool,
    /// How containers use the handler from now on.
    usage: Vec<String>,
}

/// The document that `--json` prints.
fn result_document(
    engine: Engine,
    verb: &str,
    changes: &[FileChange],
    mut notes: Vec<String>,
    ResultDetails { dry, removes_entry, usage }: ResultDetails,
) -> Value {
    let files = changes.iter().map(|change| {
        let diff = edit::diff(&change.path, change.now.as_deref(), change.new.as_deref());
        json!({"path": change.path, "diff": diff, "removed": change.new.is_none()})
    });
    let files: Vec<Value> = files.collect();
    let next = if files.is_empty() { "" } else { engine.reload_command(removes_entry) };
    if engine == Engine::Docker && removes_entry && !files.is_empty() {
        notes.push(
            "a reload keeps the runtime; dockerd exits if it was the default; a restart stops \
             containers unless live-restore is set"
                .to_owned(),
        );
    }
    json!({
        "engine": engine.name(), "verb": verb, "changed": !files.is_empty() && !dry,
        "dry_run": dry, "files": files, "notes": notes, "next": next, "use": usage,
    })
}

/// For people: the diff of a dry run as it is, else a line for each file.
pub(super) fn show(document: &Value) -> String {
    let mut text = String::new();
    let is_dry = document["dry_run"] == true;
    for file in document["files"].as_array().into_iter().flatten() {
        let path = printable(file["path"].as_str().unwrap_or_default());
        if is_dry {
            text.push_str(file["diff"].as_str().unwrap_or_default());
        } else {
            let done = if file["removed"] == true { "removed" } else { "wrote" };
            text.push_str(&format!("{done} {path}\n"));
        }
    }
    if text.is_empty() {
        text.push_str("nothing to change\n");
    }
    for note in document["notes"].as_array().into_iter().flatten() {
        text.push_str(&format!("note: {}\n", printable(note.as_str().unwrap_or_default())));
    }
    match document["next"].as_str() {
        Some(next) if !next.is_empty() && !is_dry => text.push_str(&format!("next: {next}\n")),
        Some(_) | None => {}
    }
    for how in document["use"].as_array().into_iter().flatten().filter(|_| !is_dry) {
        text.push_str(&format!("use:  {}\n", how.as_str().unwrap_or_default()));
    }
    text
}
