// SPDX-License-Identifier: Apache-2.0
//! Allows one create at a time in a bundle, from the moment the daemon reads its document until the runtime has
//! read the patched one. Two creates at once would run each other's documents, and restore the wrong one.
//!
//! Directories are compared by inode, not by path. This module does not handle documents.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::error::{Context, Error, Result, quoted};

/// Time that a create, or a task that restores a document, waits for another create in its bundle.
const CREATE_WAIT: Duration = Duration::from_secs(30);

/// The turn to use a bundle; released on drop.
pub(crate) type BundleTurn = OwnedMutexGuard<()>;

/// A directory by device and inode.
type Directory = (u64, u64);

/// The bundles in which containers are being created.
#[derive(Debug, Default)]
pub(crate) struct Bundles(RefCell<HashMap<Directory, BundleInUse>>);

#[derive(Debug)]
struct BundleInUse {
    turn: Arc<Mutex<()>>,
    /// The container that has the turn.
    holder: String,
}

impl Bundles {
    /// Waits for the turn of the bundle `dir`, on behalf of the container `id`.
    pub(crate) async fn turn(&self, dir: impl AsFd, id: &str) -> Result<BundleTurn> {
        self.turn_within(CREATE_WAIT, dir, id).await
    }

    async fn turn_within(&self, wait: Duration, dir: impl AsFd, id: &str) -> Result<BundleTurn> {
        let directory = directory(dir)?;
        let Ok(turn) = tokio::time::timeout(wait, self.lock(directory).lock_owned()).await else {
            let holder = self.0.borrow().get(&directory).map(|used| quoted(&used.holder));
            let holder = holder.unwrap_or_default();
            let why = format!("the creation of {holder} in the same bundle takes too long");
            return Err(Error::new(why).hint("nothing was changed or started"));
        };
        self.note_holder(directory, id);
        Ok(turn)
    }

    /// Waits like [`turn`](Self::turn); `None` if a verb of the same container has the turn.
    pub(crate) async fn turn_unless_its_own(
        &self,
        dir: impl AsFd,
        id: &str,
    ) -> Result<Option<BundleTurn>> {
        let directory = directory(&dir)?;
        let is_taken = self.lock(directory).try_lock().is_err();
        let is_its = |used: &BundleInUse| used.holder == id;
        if is_taken && self.0.borrow().get(&directory).is_some_and(is_its) {
            return Ok(None);
        }
        self.turn(dir, id).await.map(Some)
    }

    /// Takes the turn if it is free.
    pub(crate) fn turn_now(&self, dir: impl AsFd, id: &str) -> Option<BundleTurn> {
        let directory = directory(dir).ok()?;
        let turn = self.lock(directory).try_lock_owned().ok()?;
        self.note_holder(directory, id);
        Some(turn)
    }

    fn lock(&self, directory: Directory) -> Arc<Mutex<()>> {
        let mut all = self.0.borrow_mut();
        all.retain(|_, used| Arc::strong_count(&used.turn) > 1);
        let new = || BundleInUse { turn: Arc::default(), holder: String::new() };
        Arc::clone(&all.entry(directory).or_insert_with(new).turn)
    }

    fn note_holder(&self, directory: Directory, id: &str) {
        if let Some(used) = self.0.borrow_mut().get_mut(&directory) {
            id.clone_into(&mut used.holder);
        }
    }
}

fn directory(dir: impl AsFd) -> Result<Directory> {
    // Uses the kernel's cached attributes, so that no file server is contacted.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(dir, "", flags, StatxFlags::INO).map_err(std::io::Error::from);
    let stat = stat.doing(|| "looking at the bundle")?;
    Ok((makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::open_dir;

    #[tokio::test]
    async fn creations_in_one_bundle_take_turns_under_any_path() {
        let temp = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let link = other.path().join("link");
        std::os::unix::fs::symlink(temp.path(), &link).unwrap();
        let dirs = [temp.path(), &link, other.path()].map(|path| open_dir(path).unwrap());
        let bundles = Bundles::default();
        let soon = Duration::from_millis(20);
        let first = bundles.turn(&dirs[0], "c1").await.unwrap();
        let why = bundles.turn_within(soon, &dirs[1], "c2").await.unwrap_err().to_string();
        assert!(why.contains("creation of c1 in the same bundle"), "{why}");
        assert!(bundles.turn_now(&dirs[1], "c2").is_none());
        let _other = bundles.turn_now(&dirs[2], "c3").unwrap();
        drop(first);
        drop(bundles.turn_within(soon, &dirs[1], "c2").await.unwrap());
        assert!(bundles.turn_now(&dirs[0], "c1").is_some());
    }

    #[tokio::test]
    async fn a_container_does_not_wait_for_its_own_turn() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, bundles) = (open_dir(temp.path()).unwrap(), Bundles::default());
        let first = bundles.turn(&dir, "c1").await.unwrap();
        assert!(bundles.turn_unless_its_own(&dir, "c1").await.unwrap().is_none());
        let other = bundles.turn_unless_its_own(&dir, "c2");
        let mut other = std::pin::pin!(other);
        let waits = tokio::time::timeout(Duration::from_millis(20), &mut other).await;
        assert!(waits.is_err(), "another one waits");
        drop(first);
        assert!(other.await.unwrap().is_some());
        assert!(bundles.turn_unless_its_own(&dir, "c1").await.unwrap().is_some(), "it is free");
    }
}
