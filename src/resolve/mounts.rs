// SPDX-License-Identifier: Apache-2.0
//! Reads the host's mounts, for adjustments with mounts that propagate. It may block, if a source
//! is on a file server that does not respond.

use crate::error::{Context, Result};
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::spec::patch::{HostFacts, HostMounts, Resolved};

/// Reads the mounts and the real paths of `sources`; neither if there are no sources.
///
/// # Errors
/// Fails when the mounts cannot be listed.
pub(crate) fn host_facts(sources: &[String], names: Resolved, host: &Host) -> Result<HostFacts> {
    if sources.is_empty() {
        return Ok(HostFacts { names, ..HostFacts::default() });
    }
    let mountinfo = host.path("/proc/self/mountinfo");
    let mountinfo = files::read(&mountinfo, limits::KERNEL_FILE)
        .doing(|| format!("{}", mountinfo.display()))
        .map_err(|error| error.hint("the bundle is unchanged"))?;
    let mut facts = HostFacts {
        mounts: Some(HostMounts::read(&String::from_utf8_lossy(&mountinfo))),
        names,
        ..HostFacts::default()
    };
    let root = std::fs::canonicalize(host.path("/"))?;
    for source in sources {
        // The runtime refuses a source that does not exist.
        let Ok(real) = std::fs::canonicalize(host.path(source)) else { continue };
        let Ok(real) = real.strip_prefix(&root) else { continue };
        facts.resolved.insert(source.clone(), format!("/{}", real.display()));
    }
    Ok(facts)
}
