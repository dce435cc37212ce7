// SPDX-License-Identifier: Apache-2.0
//! Handles the files of a bundle (decisions D1 and D16): opens the engine's document, writes a
//! patched one beside it, restores the engine's if the patched one is still in place, removes temporary
//! files. The wrapper exchanges the two files; until then the file in place is unchanged. All writers:
//! `grep -rn exchange_at src`.
//!
//! This module never decides about the contents of a document. It imports `shared`.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::warn;

use crate::daemon::shared::bundle_turns::BundleTurn;
use crate::daemon::shared::{Daemon, log_failure};
use crate::error::{Context, Error, Result};
use crate::files::{self, Original};
use crate::host::Point;
use crate::presence::{self, Backoff, IfThere};
use crate::sources;
use crate::spec::patch::{self, PatchError};
use crate::state::{Container, ContainerKey, Lifecycle, Patched};

/// A bundle with the engine's document, which plugins receive and the daemon patches.
pub(crate) struct Bundle {
    dir: Arc<OwnedFd>,
    /// The document's name in the directory.
    document: String,
    pub(crate) original: Arc<Original>,
    /// Whether the file on disk is patched, so that this container must not run with it, and `original` is the stored
    /// copy of the engine's document.
    is_patched: bool,
}

impl Bundle {
    /// Reads the document. If the file on disk was patched before, its stored original is read instead, unless that
    /// is lost, so that no change is applied twice (D16). `bundle` is the directory's path as the engine gave it.
    ///
    /// # Errors
    /// Fails when the document cannot be read, or when its stored original is temporarily unreadable.
    pub(crate) async fn open(
        daemon: &Daemon,
        dir: OwnedFd,
        bundle: &Path,
        document: &str,
    ) -> Result<Self> {
        let dir = Arc::new(dir);
        let folder = files::path_of(&dir);
        let is_in_memory = folder.as_deref().is_some_and(sources::is_quick);
        let read = if is_in_memory && !files::is_link_at(&dir, document) {
            files::read_at(&dir, document)
        } else {
            let (dir, document) = (Arc::clone(&dir), document.to_owned());
            let read = move || files::read_through_link_at(&dir, &document);
            daemon.off_loop(&bundle.to_string_lossy(), read).await
        };
        let mut original = read
            .doing(|| format!("{}", bundle.display()))
            .map_err(|error| error.hint("nothing was changed or started"))?;
        let store = daemon.records.read();
        let bundle = bundle.to_string_lossy();
        let of_folder = folder.iter().flat_map(|folder| store.of_folder(folder));
        let ours = of_folder.chain(store.of_folder(&bundle)).find_map(|known| {
            let patched =
                known.outcome.patched.as_ref().filter(|patched| patched.document == document)?;
            (!original.is_link && known.is_patched_document(&original)).then_some(patched)
        });
        let mut is_patched = false;
        if let Some(patched) = ours {
            match store.pristine(&patched.pristine) {
                Ok(pristine) => {
                    original.bytes = pristine;
                    is_patched = true;
                }
                // Patching the patched document could apply every change twice; it is used only if
                // the original is lost for good.
                Err(error) if error.may_pass() => {
                    return Err(error.hint("nothing was changed or started"));
                }
                Err(_lost) => {}
            }
        }
        let original = Arc::new(original);
        Ok(Self { dir, document: document.to_owned(), original, is_patched })
    }

    /// Refuses to patch a symbolic link: restoring the original would replace the link with a file.
    ///
    /// # Errors
    /// Fails with the first change if the document is a symbolic link.
    pub(crate) fn refuse_link(
        &self,
        changes: &[patch::SpecChange],
    ) -> std::result::Result<(), PatchError> {
        let Some(change) = changes.first().filter(|_| self.original.is_link) else {
            return Ok(());
        };
        let document = &self.document;
        let problem =
            format!("{document} is a symbolic link: nri-runc does not patch symbolic links");
        Err(PatchError::Invalid { field: change.nri_field.clone(), problem })
    }

    /// Writes the engine's document beside a file that was patched before, and returns the written file's
    /// name; `None` if the container runs with the file on disk. Called when nothing is to be patched.
    ///
    /// # Errors
    /// Fails when the container was removed meanwhile, or a file cannot be written.
    pub(crate) async fn write_engines(
        &self,
        daemon: &Daemon,
        key: &ContainerKey,
    ) -> Result<Option<String>> {
        if !self.is_patched {
            return Ok(None);
        }
        self.write_beside(daemon, key, None).await.map(Some)
    }

    /// Writes the patched document (or with `None` the engine's) beside the original, of which the
    /// daemon stores a copy (D1, D16). Returns the new file's name.
    ///
    /// # Errors
    /// Fails when the container was removed meanwhile, or a file cannot be written.
    pub(crate) async fn write_beside(
        &self,
        daemon: &Daemon,
        key: &ContainerKey,
        bytes: Option<Vec<u8>>,
    ) -> Result<String> {
        let laid = self.lay_beside(daemon, key, bytes).await;
        laid.map_err(|error| error.hint("the bundle is unchanged"))
    }

    async fn lay_beside(
        &self,
        daemon: &Daemon,
        key: &ContainerKey,
        bytes: Option<Vec<u8>>,
    ) -> Result<String> {
        let incarnation = daemon.records.read().container(key).map(|record| record.incarnation);
        let Some(incarnation) = incarnation else {
            return Err(Error::new("the container was removed while plugins handled its request"));
        };
        let document = self.document.clone();
        let temporary = format!(".{document}{}", temporary_suffix(incarnation));
        let pristine = daemon.records.read().keep_pristine(incarnation, &self.original.bytes)?;
        daemon.host.point(Point::DaemonKept)?;
        let kept = pristine.clone();
        let written = self.create(daemon, temporary.clone(), bytes).await;
        let written = written.and_then(|(inode, fingerprint)| {
            daemon.host.point(Point::DaemonWritten)?;
            let patched = Patched {
                document,
                temporary: temporary.clone(),
                inode,
                pristine,
                folder: files::path_of(&self.dir).unwrap_or_default(),
                fingerprint,
            };
            daemon.records.change(key, |record| record.outcome.patched = Some(patched))
        });
        if written.is_err() {
            daemon.records.read().drop_pristine(&kept);
        }
        written.map(|()| temporary)
    }

    /// Creates a file in the bundle; returns its inode and fingerprint.
    async fn create(
        &self,
        daemon: &Daemon,
        name: String,
        bytes: Option<Vec<u8>>,
    ) -> Result<(u64, String)> {
        let (dir, like) = (Arc::clone(&self.dir), Arc::clone(&self.original));
        let is_wanted = Arc::new(AtomicBool::new(true));
        let is_still_wanted = Arc::clone(&is_wanted);
        let folder = files::path_of(&self.dir).unwrap_or_default();
        let created = daemon.in_folder(&folder, move || {
            let bytes = bytes.as_ref().unwrap_or(&like.bytes);
            files::remove_at(&dir, &name);
            let inode = files::create_at(&dir, &name, bytes, &like)?;
            if !is_still_wanted.load(Ordering::SeqCst) {
                // The request was refused while the file was being written.
                files::remove_at(&dir, &name);
            }
            Ok((inode, files::fingerprint(bytes)))
        });
        let created = created.await;
        is_wanted.store(false, Ordering::SeqCst);
        created
    }
}

/// Number of attempts to restore the engine's document; together they take two thirds of a second.
const ATTEMPTS: usize = 6;

fn temporary_suffix(incarnation: u64) -> String {
    format!(".nri-runc.{incarnation}")
}

/// Removes the daemon's temporary files, and restores the engine's document if the patched one is
/// still in place. A missing bundle is left alone, and so is a document that was replaced or
/// edited since. A temporary failure is retried for two thirds of a second, because the container's
/// record and the stored copy of the engine's document may be removed next.
pub(crate) async fn restore(daemon: &Daemon, record: &Container) {
    log_failure("restoring a bundle", daemon.host.point(Point::DaemonRestore));
    if record.outcome.patched.is_none() && record.state != Lifecycle::Creating {
        return;
    }
    // Another container may be created in this bundle with an identical document.
    let _turn = match turn_to_restore(daemon, record).await {
        Ok(turn) => turn,
        Err(error) => {
            let (folder, why) = (record.folder(), error.why());
            return warn!("{folder}: the engine's document could not be restored: {why}");
        }
    };
    let mut backoff = Backoff::default();
    for attempt in 1..=ATTEMPTS {
        let pristine = record.outcome.patched.as_ref();
        let pristine = pristine.map(|patched| daemon.records.read().pristine(&patched.pristine));
        let of = record.clone();
        let restore = move || restore_now(&of, pristine);
        let Err(error) = daemon.in_folder(record.folder(), restore).await else { return };
        if !error.may_pass() || attempt == ATTEMPTS {
            let folder = record.folder();
            return warn!("{folder}: the engine's document could not be restored: {error}");
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

/// Acquires the bundle's turn; `None` while a verb of this container holds it, or if the bundle cannot be opened.
async fn turn_to_restore(daemon: &Daemon, record: &Container) -> Result<Option<BundleTurn>> {
    let folder = PathBuf::from(record.folder());
    let open = move || files::open_dir(&folder).if_there();
    let Ok(Some(dir)) = daemon.in_folder(record.folder(), open).await else { return Ok(None) };
    daemon.lanes.bundles.turn_unless_its_own(dir, &record.key.id).await
}

/// Attempts once to restore the document. `pristine` is the stored copy of the engine's document;
/// `None` if no patched document is on record.
fn restore_now(record: &Container, pristine: Option<Result<Vec<u8>>>) -> Result<()> {
    let dir = match files::open_dir(Path::new(record.folder())) {
        Ok(dir) => dir,
        Err(error) if error.may_pass() => return Err(error),
        Err(_gone) => return Ok(()),
    };
    let (Some(patched), Some(pristine)) = (&record.outcome.patched, pristine) else {
        return sweep(record, &dir);
    };
    let is_ours = |name: &str| match files::read_at(&dir, name) {
        Ok(there) => Ok(record.is_patched_document(&there)),
        Err(error) if error.may_pass() => Err(error),
        Err(_of_another_kind) => Ok(false),
    };
    files::remove_at(&dir, &files::kept_name(&patched.temporary));
    if is_ours(&patched.document)? {
        write_pristine(&dir, patched, pristine)?;
        files::exchange_at(&dir, &patched.temporary, &patched.document)?;
        if !is_ours(&patched.temporary)? {
            // The document was edited right before the exchange, so the edited file is put back.
            files::exchange_at(&dir, &patched.temporary, &patched.document)?;
        }
    }
    files::remove_at(&dir, &patched.temporary);
    Ok(())
}

/// Ensures that the temporary file beside the patched document holds the engine's document. If two containers were
/// created in this bundle, it may hold the other's, because an exchange leaves the replaced document there.
fn write_pristine(dir: &OwnedFd, patched: &Patched, pristine: Result<Vec<u8>>) -> Result<()> {
    let there = files::read_at(dir, &patched.temporary);
    let pristine = match pristine {
        Ok(pristine) => pristine,
        Err(error) if error.may_pass() => return Err(error),
        // The stored copy is lost, for instance with a wiped run directory; the temporary file is
        // used as it is.
        Err(lost) => return there.map(drop).map_err(|_missing| lost),
    };
    if there.is_ok_and(|there| there.bytes == pristine) {
        return Ok(());
    }
    let like = files::read_at(dir, &patched.document)?;
    files::remove_at(dir, &patched.temporary);
    files::create_at(dir, &patched.temporary, &pristine, &like).map(drop)
}

/// Removes a patched file that the daemon wrote but did not record; no wrapper knows its name.
fn sweep(record: &Container, dir: &OwnedFd) -> Result<()> {
    if record.state != Lifecycle::Creating {
        return Ok(());
    }
    let suffix = temporary_suffix(record.incarnation);
    for entry in presence::entries(Path::new(&record.call.bundle))? {
        let name = entry.file_name();
        if let Some(name) = name.to_str().filter(|name| name.ends_with(&suffix)) {
            files::remove_at(dir, name);
        }
    }
    Ok(())
}

/// Removes the temporary files, which hold the engine's bytes now that the patched document is in place. Returns the
/// document as this daemon wrote it and as it is now, if another program has rewritten it since.
pub(crate) async fn drop_temporary(daemon: &Daemon, record: &Container) -> Option<Rewritten> {
    let patched = record.outcome.patched.as_ref()?;
    let written = daemon.lanes.container(&record.key).written.take();
    let (folder, document) = (PathBuf::from(record.folder()), patched.document.clone());
    let names = [files::kept_name(&patched.temporary), patched.temporary.clone()];
    let removed = daemon.in_folder(record.folder(), move || {
        let dir = files::open_dir(&folder)?;
        names.iter().for_each(|name| files::remove_at(&dir, name));
        let Some(written) = written else { return Ok(None) };
        let there = files::read_at(&dir, &document)?.bytes;
        Ok((there != written).then_some(Rewritten { written, there }))
    });
    // A missing bundle does not show that the document was rewritten.
    removed.await.ok().flatten()
}

/// A patched document that another program has since rewritten.
pub(crate) struct Rewritten {
    pub(crate) written: Vec<u8>,
    pub(crate) there: Vec<u8>,
}
