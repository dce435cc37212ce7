// SPDX-License-Identifier: Apache-2.0
//! The consequence of an error in a key. An operator who mistypes `deny` believes that something is
//! forbidden, so after a start with an error in a protecting key, creates fail until the file is
//! fixed (`Config::protection_error`). An error in a key that names a runtime never replaces a
//! runtime that is in force (decision D7). Nothing here reads a file.

use super::keys::{KEYS as ALL, Key};
use super::lists;
use super::settings::Consequence;
use super::spelling::nearest_within;

/// Sections that protect, besides lists (`TableList::protects`).
const SECTIONS: [&str; 2] = ["plugin", "nri.default_validator"];
/// Keys outside of these sections that protect.
const KEYS: [&str; 3] = ["exempt_namespaces", "on_daemon_failure", "on_rootless"];
/// Keys that determine the runtime.
const RUNTIMES: [&str; 2] = ["runtime", "instance.*.path"];
/// Keys of protecting sections; in any other place, an operator may have meant such a section.
const MISPLACED: [&str; 7] =
    ["required", "allow", "deny", "on_failure", "required_plugins", "hide", "from"];
/// Maximum edit distance at which a key is taken for a misspelled key of a protecting section.
const TYPO_LETTERS: usize = 4;
/// Maximum edit distance for keys that name a runtime; smaller, because these keys are short.
const RUNTIME_TYPO_LETTERS: usize = 2;

/// Returns the consequence of an invalid value of a key.
pub(super) fn of_value(key: &Key, dotted: &str) -> Consequence {
    // The default may name another runtime, or another policy for an unavailable daemon, than the
    // one in force.
    if RUNTIMES.contains(&key.path) || key.path == "on_daemon_failure" {
        return Consequence::UsesNoFile;
    }
    of_unknown_key(dotted).max(Consequence::KeepsLast)
}

/// Returns the consequence of the unknown key `dotted` in a known section.
pub(super) fn of_unknown_key(dotted: &str) -> Consequence {
    let lower = dotted.to_lowercase();
    let near = nearest_within(RUNTIME_TYPO_LETTERS, &lower, ALL.iter().map(|key| key.path));
    if near.is_some_and(|near| RUNTIMES.contains(&near)) || lower.starts_with("instance.") {
        return Consequence::UsesNoFile;
    }
    if is_protecting(dotted) { Consequence::RefusesCreates } else { Consequence::Ignored }
}

/// Returns the consequence of an unknown section or list of tables, or of a key in it: it may be a
/// misspelled protecting one.
pub(super) fn of_unknown_table(dotted: &str) -> Consequence {
    of_unknown_key(dotted).max(Consequence::RefusesCreates)
}

/// Whether a mistake in the key `dotted` may permit what the operator meant to forbid: it is in a
/// protecting section, or may be a misspelled protecting key.
fn is_protecting(dotted: &str) -> bool {
    let is_ours = |key: &str| {
        let is_below = |section: &str| {
            key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let lists = lists::LISTS.iter().filter(|list| list.protects).map(|list| list.name);
        let mut sections = SECTIONS.into_iter().chain(lists);
        sections.any(is_below) || KEYS.contains(&key)
    };
    let lower = dotted.to_lowercase().replace('-', "_");
    let last = lower.rsplit('.').next().unwrap_or_default();
    let is_misplaced = MISPLACED.contains(&last) || last.starts_with("reject_");
    let near = || nearest_within(TYPO_LETTERS, &lower, ALL.iter().map(|key| key.path));
    is_ours(&lower) || is_misplaced || near().is_some_and(is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_protecting_keys_are_recognized() {
        for key in [
            "plugin.a.requird",
            "plugin.a.Deny",
            "Plugin.a.deny",
            "plugins.a.deny",
            "plugin",
            "plugin.deny",
            "nri.default_validator.enabled",
            "nri.Default_Validator.enable",
            "nri.default-validator.enable",
            "default_validator.enable",
            "nri.required_plugins",
            "required",
            "rule.deny",
            "exempt_namespace",
            "on_daemon_fialure",
            "on_rootles",
        ] {
            assert!(is_protecting(key), "{key}");
        }
        for key in [
            "nri.socket_pat",
            "log.levle",
            "autostrat",
            "eviction.graze",
            "metrics.listen",
            "metrics.enable",
            "defaults.namespace",
        ] {
            assert!(!is_protecting(key), "{key}");
        }
    }
}
