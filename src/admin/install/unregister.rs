// SPDX-License-Identifier: Apache-2.0
//! `uninstall`: removes nri-runc's changes from the engine's files, unless containers still need
//! nri-runc.

use super::distribution::Distribution;
use super::engine::Engine;
use super::ledger::{self, Ledger, Undone};
use super::nri_decision::NriDecision;
use super::outcome::{Outcome, ResultDetails, outcome};
use super::plan::Plan;
use super::revert::{EditedFate, EditedValue};
use super::{
    FileChange, Uninstall, changes, containerd, detect, engine_files, own_nri, put_all, restart,
    users,
};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::text::{counted, short_id};

/// Returns the error for containers that would call a program that may soon be removed.
fn still_used(ids: &[String], binary: &str, whole_ids: bool) -> Error {
    let shown = ids.iter().map(|id| if whole_ids { id.as_str() } else { short_id(id) });
    let list = shown.collect::<Vec<_>>().join(", ");
    let verb = if ids.len() == 1 { "uses" } else { "use" };
    Error::new(format!("{} still {verb} {binary}: {list}", counted(ids.len(), "container"))).hint(
        "remove them first, or unregister with --force and keep the binary until they are removed",
    )
}

/// Undoes a registration; returns the changes. `whole_ids`: a refusal lists full IDs.
pub(in crate::admin) fn uninstall(
    uninstall: &Uninstall,
    config: &Config,
    whole_ids: bool,
) -> Result<Outcome> {
    let root = uninstall.named.root(&uninstall.common, config)?;
    let engine = uninstall.named.engine()?;
    let Some(ledger) = Ledger::load(&root, engine)? else {
        return Err(Error::new(format!("nri-runc is not registered with {}", engine.name()))
            .hint("remove manual entries yourself"));
    };
    require_distribution(uninstall, &ledger)?;
    let users = users::list(engine, &ledger, &root, config);
    if !users.is_empty() && !uninstall.force {
        return Err(still_used(&users, &ledger.binary, whole_ids));
    }
    let now = engine_files::read_all(&root, engine, ledger.main.as_deref())?;
    let mut undone = ledger.undone(&root, &now)?;
    if let Some((error, _names)) = undone.unclear.pop_if(|_| !uninstall.force) {
        return Err(
            error.hint("nothing was changed; fix this file, or leave it as it is with --force")
        );
    }
    let changes = changes(&root, &now, &undone.texts, &Plan::default(), Some(&ledger))?;
    let mut notes = note_edits(&ledger, &undone, &changes);
    if !uninstall.common.dry_run {
        put_all(&root, &changes)?;
        engine_files::write_or_remove(&root, &ledger::path(&root, engine), None)?;
        engine_files::remove_folders(&root, &ledger.folders);
        // These directories are removed only if they are empty: other registrations and install.sh have
        // records there too.
        root.remove_folder(&root.records());
        if root.user().is_none() {
            root.remove_folder("/var/lib/nri-runc");
        }
    }
    if users.is_empty() {
        notes.push(format!("keep {} until no container uses it", ledger.binary));
    } else {
        let (count, verb) =
            (counted(users.len(), "container"), if users.len() == 1 { "uses" } else { "use" });
        notes.push(format!("{count} still {verb} {}: keep it until then", ledger.binary));
    }
    notes.extend(note_nri(engine, &ledger));
    notes.extend(changes.iter().any(|change| own_nri::is_scope(&change.path)).then(|| {
        "a running daemon shows plugins the containers of the whole node until: nri-runc nri reload"
            .to_owned()
    }));
    let main = ledger.main.as_deref();
    notes.extend(restart::note(engine, main).filter(|_| !changes.is_empty()));
    let details = ResultDetails {
        dry: uninstall.common.dry_run,
        removes_entry: true,
        next: restart::commands(&ledger.others(), engine, main, true, &root),
        usage: Vec::new(),
    };
    Ok(outcome(engine, "uninstall", &changes, notes, details))
}

/// Returns notes on files that were edited since `install` wrote them.
fn note_edits(ledger: &Ledger, undone: &Undone, changes: &[FileChange]) -> Vec<String> {
    let mut notes = Vec::new();
    for file in &ledger.files {
        let now = changes.iter().find(|change| change.path == file.path);
        if now.is_some_and(|change| change.now != file.after) {
            let path = &file.path;
            notes.push(format!(
                "{path} was edited since: only the values that `install` set were taken back"
            ));
        }
    }
    for (path, EditedValue { keys, fate }) in &undone.edited {
        notes.push(match fate {
            EditedFate::Kept => format!("{path}: {keys} was edited since, and was kept"),
            EditedFate::Removed => format!("{path}: {keys} was edited since, and was removed"),
            EditedFate::Shortened => {
                format!("{path}: {keys} was edited since, and only the handler was removed from it")
            }
        });
    }
    for (error, names) in &undone.unclear {
        let why = error.why();
        notes.push(format!("left as it is: {why}; remove manually: {}", names.join(", ")));
    }
    notes
}

/// Refuses a named distribution that is not the registered one.
fn require_distribution(uninstall: &Uninstall, ledger: &Ledger) -> Result<()> {
    let Some(wanted) = uninstall.named.distribution else { return Ok(()) };
    let its = detect::of(ledger.main.as_deref());
    if its == Distribution::of_main(wanted.main()) || detect::is_usual_file(wanted, ledger) {
        return Ok(());
    }
    let main = ledger.main.as_deref().unwrap_or(containerd::MAIN);
    Err(Error::new(format!("nri-runc is not registered with {}, but in {main}", wanted.title()))
        .hint("uninstall without --distribution"))
}

/// Returns a note on NRI after `uninstall`.
fn note_nri(engine: Engine, ledger: &Ledger) -> Option<String> {
    match &ledger.nri {
        NriDecision::Open => None,
        NriDecision::TakeOver => {
            let others = ledger.others();
            let titles: Vec<&str> = others.iter().map(|other| other.row().title).collect();
            let who = if titles.is_empty() { engine.row().title } else { &titles.join(" and ") };
            Some(format!(
                "{who} uses its own NRI again after its restart; to let connected plugins change over: \
                 nri-runc nri stop"
            ))
        }
        NriDecision::Beside(socket) => {
            Some(format!("a running daemon listens on {socket} until: nri-runc nri restart"))
        }
    }
}
