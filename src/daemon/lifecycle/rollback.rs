// SPDX-License-Identifier: Apache-2.0
//! A creation that came to nothing: plugins that heard of the container hear of its end, the
//! bundle is as the engine wrote it, the record is gone (but still explained).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use tracing::{debug, warn};

use crate::error::Result;
use crate::files;
use crate::host::Point;
use crate::plugin::Event;
use crate::state::{Container, Key, Lifecycle, Patched};

use crate::daemon::lifecycle::exit;
use crate::daemon::node::{Node, log_failure};
use crate::daemon::pods::life;
use crate::daemon::resources::updates;
use crate::daemon::verbs::create;

/// Undoes a creation.
pub(crate) async fn creation(node: &Rc<Node>, key: &Key) {
    let Some(record) = node.container(key) else { return };
    debug!("the creation of {} is undone", key.id);
    restore_document(node, &record);
    updates::not_created(node, key);
    exit::stopped(node, key).await;
    if !record.is_sandbox {
        node.tell(Event::RemoveContainer, key).await;
    }
    log_failure("forgetting a container", node.host.point(Point::DaemonForget));
    node.store.borrow_mut().forget(key);
    life::end_if_empty(node, &record.pod).await;
    node.drop_idle_lanes(key, &record.pod);
}

/// Removes our temporary files, and puts the engine's document back where ours still is.
/// A bundle that is gone, or a document that was written or edited since, is left alone.
pub(crate) fn restore_document(node: &Node, record: &Container) {
    log_failure("restoring a bundle", node.host.point(Point::DaemonRestore));
    let Ok(dir) = files::open_dir(Path::new(record.folder())) else { return };
    let Some(patched) = &record.patched else { return sweep(record, &dir) };
    let is_ours = |name: &str| {
        files::read_at(&dir, name).is_ok_and(|there| record.is_patched_document(&there))
    };
    files::remove_at(&dir, &files::kept_name(&patched.temporary));
    if !is_ours(&patched.document) {
        return files::remove_at(&dir, &patched.temporary);
    }
    let restored = write_pristine(node, &dir, patched).and_then(|()| {
        files::exchange_at(&dir, &patched.temporary, &patched.document)?;
        if is_ours(&patched.temporary) {
            return Ok(());
        }
        // It was edited right before: what was edited counts.
        files::exchange_at(&dir, &patched.temporary, &patched.document)
    });
    match restored {
        Ok(()) => files::remove_at(&dir, &patched.temporary),
        Err(error) => {
            warn!("{}: the engine's document could not be restored: {error}", record.folder());
        }
    }
}

/// Lays the engine's document beside ours. What lies there after an exchange may be the document
/// of another container in the same bundle.
fn write_pristine(node: &Node, dir: &OwnedFd, patched: &Patched) -> Result<()> {
    let there = files::read_at(dir, &patched.temporary);
    let pristine = match node.store.borrow().pristine(&patched.pristine) {
        Ok(pristine) => pristine,
        // Lost with a run directory that was wiped.
        Err(lost) => return there.map(drop).map_err(|_missing| lost),
    };
    if there.is_ok_and(|there| there.bytes == pristine) {
        return Ok(());
    }
    let like = files::read_at(dir, &patched.document)?;
    files::remove_at(dir, &patched.temporary);
    files::create_at(dir, &patched.temporary, &pristine, &like).map(drop)
}

/// Removes a patched file that we wrote and did not come to put on record; no wrapper ever heard
/// of it.
fn sweep(record: &Container, dir: &OwnedFd) {
    if record.state != Lifecycle::Creating {
        return;
    }
    let suffix = create::temporary_suffix(record.incarnation);
    for entry in std::fs::read_dir(&record.bundle).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if let Some(name) = name.to_str().filter(|name| name.ends_with(&suffix)) {
            files::remove_at(dir, name);
        }
    }
}

/// The patched document is in use: its temporary name, now the engine's bytes, is not needed.
pub(crate) fn drop_temporary(record: &Container) {
    let Some(patched) = &record.patched else { return };
    let Ok(dir) = files::open_dir(Path::new(record.folder())) else { return };
    files::remove_at(&dir, &files::kept_name(&patched.temporary));
    files::remove_at(&dir, &patched.temporary);
}
