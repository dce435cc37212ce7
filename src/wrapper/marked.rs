// SPDX-License-Identifier: Apache-2.0
//! `exec` and `kill` go straight to the runtime, unless the container has a mark (`src/mark.rs`) or
//! the daemon takes part in each `exec` (`later.rs`). Looking for a missing mark costs one
//! failing `openat`. Other commands look for none, but a create that is passed on removes a stale one.

use std::path::Path;

use crate::argv::{self, CommandLine, Verb};
use crate::config::Config;
use crate::error::Result;
use crate::mark::{self, Mark};
use crate::presence;
use crate::runtime;

use super::later::ExecInterest;
use super::pass_through::is_switched_off;

/// Returns the mark of the call's container, if the call needs it.
///
/// # Errors
/// Fails when the mark for an `exec` with `--process` cannot be read, unless every command passes through.
pub(super) fn mark_of(
    config: &Config,
    call: &CommandLine,
    runtime: &Path,
    interest: ExecInterest,
) -> Result<Option<Mark>> {
    let is_wanted = interest != ExecInterest::Nothing;
    let may_matter = match call.verb {
        Verb::Exec => call.process.is_some() || is_wanted,
        Verb::Kill => argv::ending_signal(call).is_some(),
        Verb::Create | Verb::Run | Verb::Restore | Verb::Start | Verb::Update => false,
        Verb::Delete | Verb::Pause | Verb::Resume | Verb::State => false,
        Verb::Nri | Verb::Other | Verb::None => false,
    };
    let id = call.id.as_deref().filter(|id| may_matter && !argv::is_never_an_id(id));
    let Some(id) = id.filter(|_| !call.is_inert || is_wanted) else { return Ok(None) };
    let (root, id) = (root_of(call, runtime), id.to_string_lossy());
    let is_for_it = |mark: &Mark| {
        if call.verb == Verb::Kill { mark.is_sandbox } else { is_wanted || !mark.values.is_empty() }
    };
    let find = || mark::find(&config.run_dir, &root, &id);
    let found = match find() {
        Err(_unknown) if is_switched_off(config) => return Ok(None),
        Err(_unknown) => presence::insist(find),
        found => found,
    };
    match found {
        // A `kill` never fails because of the mark.
        Err(_unknown) if call.verb == Verb::Kill => Ok(None),
        // Without --process, there is no document to which to add the plugins' values.
        Err(_unknown) if call.process.is_none() => Ok(None),
        found => Ok(found?.filter(is_for_it)),
    }
}

/// Removes the mark of an earlier container of this ID, which was removed while no daemon ran. If
/// the runtime still has that container, it refuses to create the new one.
pub(super) fn remove_stale(config: &Config, call: &CommandLine, runtime: &Path) {
    let Some(id) = call.id.as_deref().filter(|id| !argv::is_never_an_id(id)) else { return };
    let root = root_of(call, runtime);
    if presence::is_absent(&Path::new(&root).join(id)) {
        let place = mark::place(&config.run_dir, &root, &id.to_string_lossy());
        let _usually_there_is_none = std::fs::remove_file(place);
    }
}

fn root_of(call: &CommandLine, runtime: &Path) -> String {
    let cwd = || std::env::current_dir().unwrap_or_default();
    runtime::root_of(call.root.as_deref(), runtime, cwd, |name| std::env::var_os(name))
}
