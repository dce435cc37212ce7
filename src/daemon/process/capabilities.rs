// SPDX-License-Identifier: Apache-2.0
//! Drops the capabilities that the daemon does not need: it keeps the listed ones in its permitted
//! and effective sets. The bounding set is unchanged, so that the programs it starts (plugins, the
//! runtime's `update`) have root's usual capabilities. Reference: capabilities(7), "Transformation
//! of capabilities during execve()".

use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits,
    set_capabilities,
};
use tracing::debug;

/// The capabilities that the daemon keeps, with reasons.
const KEPT: &[CapabilitySet] = &[
    CapabilitySet::CHOWN,            // the group of the plugin socket
    CapabilitySet::DAC_OVERRIDE,     // bundles, records and cgroups of other users
    CapabilitySet::DAC_READ_SEARCH,  // the engines' own files
    CapabilitySet::FOWNER,           // modes and times of files that it replaces
    CapabilitySet::FSETID,           // the set-group-ID bit of a folder in which it replaces files
    CapabilitySet::KILL,             // evictions, plugins that it launched
    CapabilitySet::NET_BIND_SERVICE, // a metrics port below 1024
    CapabilitySet::SETGID,           // starting plugins with root's group
    CapabilitySet::SYS_ADMIN,        // addresses in a container's network namespace, block I/O
    CapabilitySet::SYS_NICE,         // its own priority, which it does not inherit from a container
    CapabilitySet::SYS_PTRACE,       // reading the programs of other processes
    CapabilitySet::SYS_RESOURCE,     // its own limits
];

/// Drops the capabilities that the daemon does not need. The sets belong to a thread, so call it
/// before the process has a second thread. If it fails, the daemon still serves.
pub(crate) fn give_up() {
    if let Err(error) = drop_all_but(kept()) {
        debug!("capabilities are kept: {error}");
    }
}

fn kept() -> CapabilitySet {
    KEPT.iter().fold(CapabilitySet::empty(), |all, one| all | *one)
}

fn drop_all_but(kept: CapabilitySet) -> rustix::io::Result<()> {
    // With NO_ROOT, programs that the daemon starts would lack root's capabilities too.
    let bits = capabilities_secure_bits()?;
    if bits.contains(CapabilitiesSecureBits::NO_ROOT) {
        return Ok(());
    }
    let now = capabilities(None)?;
    let sets = CapabilitySets {
        effective: now.effective & kept,
        permitted: now.permitted & kept,
        inheritable: now.inheritable,
    };
    set_capabilities(None, sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one set of a process, as `/proc` shows it.
    fn shown(status: &str, name: &str) -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
    }

    fn bits(sets: CapabilitySet) -> u64 {
        sets.bits()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "what a started program has is the question")]
    fn only_started_programs_regain_dropped_capabilities() {
        let is_root = nix::unistd::geteuid().is_root();
        // Runs in a new thread, because capability sets belong to a thread and the other tests'
        // threads need theirs.
        let (before, after, child) = std::thread::spawn(|| {
            let own = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let before = own();
            give_up();
            let mut command = std::process::Command::new("cat");
            let child = command.arg("/proc/self/status").output().unwrap().stdout;
            (before, own(), String::from_utf8(child).unwrap())
        })
        .join()
        .unwrap();
        for set in ["CapPrm", "CapEff"] {
            assert_eq!(shown(&after, set), shown(&before, set) & bits(kept()), "{set}");
            if is_root {
                assert_eq!(shown(&child, set), shown(&before, set), "{set} of a started program");
            }
        }
        assert_eq!(shown(&after, "CapBnd"), shown(&before, "CapBnd"));
        assert_eq!(bits(kept()) & bits(CapabilitySet::SYS_MODULE | CapabilitySet::SYS_BOOT), 0);
    }
}
