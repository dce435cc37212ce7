// SPDX-License-Identifier: Apache-2.0
//! Caches facts about the host and its engines, so that they are not read for each container.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::cgroup::{Cgroups, Mounts};
use crate::daemon::runtime::exit_status::ExitCodes;
use crate::error::Result;
use crate::host::Host;
use crate::runtime::features::KnownRuntimes;
use crate::sources::Sources;

#[derive(Default)]
pub(crate) struct Caches {
    /// Known runtimes; shared with the threads that query runtimes' features.
    pub(crate) runtimes: Arc<KnownRuntimes>,
    /// The engines' files and sockets.
    pub(crate) sources: Sources,
    /// Exit codes that containerd published, and engines whose monitors write none.
    pub(crate) exit_codes: ExitCodes,
    mounts: RefCell<Option<Rc<Mounts>>>,
    own_cgroups: OnceCell<Option<Rc<Cgroups>>>,
}

impl Caches {
    /// Returns the mount points of cgroups; cached, because a host with many containers has many mounts.
    ///
    /// # Errors
    /// Fails when the mount table cannot be read.
    pub(crate) fn cgroup_mounts(&self, host: &Host) -> Result<Rc<Mounts>> {
        if let Some(known) = &*self.mounts.borrow() {
            return Ok(Rc::clone(known));
        }
        let read = Rc::new(Mounts::read(host)?);
        *self.mounts.borrow_mut() = Some(Rc::clone(&read));
        Ok(read)
    }

    /// Returns the daemon's own cgroups, which do not change once it is ready; `None` if they cannot be found.
    ///
    /// # Errors
    /// Fails when they cannot be read now.
    pub(crate) fn own_cgroups(&self, host: &Host, mounts: &Mounts) -> Result<Option<Rc<Cgroups>>> {
        if let Some(known) = self.own_cgroups.get() {
            return Ok(known.clone());
        }
        let found = match Cgroups::find(host, mounts, std::process::id(), &BTreeMap::new()) {
            Ok(found) => Some(Rc::new(found)),
            Err(error) if error.may_pass() => return Err(error),
            Err(_none) => None,
        };
        Ok(self.own_cgroups.get_or_init(|| found).clone())
    }
}
