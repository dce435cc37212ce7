// SPDX-License-Identifier: Apache-2.0
//! Lists the members of `linux.resources` that runc accepts without applying them, in one table for
//! creates and updates. crun applies every member that it accepts, and refuses the others itself.
//!
//! Callers decide how to handle them. Reference: runc's `update.go`, which reads only some members,
//! and its change log (1.0.0-rc94: kernel memory).

/// When runc ignores a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IgnoredAt {
    /// Only in an `update`.
    Update,
    /// Also when the container is created.
    Always,
}

/// A member of `linux.resources` that runc ignores.
#[derive(Debug)]
pub(crate) struct IgnoredMember {
    section: &'static str,
    /// The member's key; empty for the whole section.
    key: &'static str,
    at: IgnoredAt,
}

const fn row(section: &'static str, key: &'static str, at: IgnoredAt) -> IgnoredMember {
    IgnoredMember { section, key, at }
}

const IGNORED_BY_RUNC: [IgnoredMember; 13] = [
    row("memory", "kernel", IgnoredAt::Always),
    row("memory", "kernelTCP", IgnoredAt::Always),
    row("memory", "useHierarchy", IgnoredAt::Always),
    row("memory", "swappiness", IgnoredAt::Update),
    row("memory", "disableOOMKiller", IgnoredAt::Update),
    row("hugepageLimits", "", IgnoredAt::Update),
    row("devices", "", IgnoredAt::Update),
    row("blockIO", "leafWeight", IgnoredAt::Update),
    row("blockIO", "weightDevice", IgnoredAt::Update),
    row("blockIO", "throttleReadBpsDevice", IgnoredAt::Update),
    row("blockIO", "throttleWriteBpsDevice", IgnoredAt::Update),
    row("blockIO", "throttleReadIOPSDevice", IgnoredAt::Update),
    row("blockIO", "throttleWriteIOPSDevice", IgnoredAt::Update),
];

/// Whether runc's `update` ignores a member; `key` is empty for a section that is not an object.
pub(crate) fn is_ignored_in_updates(section: &str, key: &str) -> bool {
    IGNORED_BY_RUNC.iter().any(|row| row.section == section && row.key == key)
}

/// Whether runc ignores a member even at the creation.
pub(crate) fn is_always_ignored(section: &str, key: &str) -> bool {
    IGNORED_BY_RUNC
        .iter()
        .any(|row| row.at == IgnoredAt::Always && row.section == section && row.key == key)
}
