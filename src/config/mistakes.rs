// SPDX-License-Identifier: Apache-2.0
//! What an error in a key does. An operator who mistyped `deny` believes that something is forbidden, so
//! an error in a key that protects refuses creates until the file is fixed
//! (`Config::protection_error`), and one in a key that names a runtime never leads to another runtime
//! (decision D7). Nothing here reads a file.

use super::keys::{KEYS as ALL, Key};
use super::lists;
use super::settings::Consequence;
use super::spelling::nearest_within;

/// Sections and keys that protect.
const SECTIONS: [&str; 2] = ["plugin", "nri.default_validator"];
const KEYS: [&str; 3] = ["exempt_namespaces", "on_daemon_failure", "on_rootless"];
/// Keys that say which runtime is used.
const RUNTIMES: [&str; 2] = ["runtime", "instance.*.path"];
/// Keys that protect nowhere but in those sections.
const MISPLACED: [&str; 7] =
    ["required", "allow", "deny", "on_failure", "required_plugins", "hide", "from"];
/// So many letters may be wrong in a key that was meant for a section that protects.
const TYPO_LETTERS: usize = 4;
/// The same of a key that names a runtime: the word is short.
const RUNTIME_TYPO_LETTERS: usize = 2;

/// What a value that the key cannot have does.
pub(super) fn of_value(key: &Key, dotted: &str) -> Consequence {
    // The default may be another runtime, or another word on a daemon that is away, than the operator
    // has had so far.
    if RUNTIMES.contains(&key.path) || key.path == "on_daemon_failure" {
        return Consequence::UsesNoFile;
    }
    of_unknown_key(dotted).max(Consequence::KeepsLast)
}

/// What the key `dotted` does, which does not exist, in a section that does.
pub(super) fn of_unknown_key(dotted: &str) -> Consequence {
    let lower = dotted.to_lowercase();
    let near = nearest_within(RUNTIME_TYPO_LETTERS, &lower, ALL.iter().map(|key| key.path));
    if near.is_some_and(|near| RUNTIMES.contains(&near)) || lower.starts_with("instance.") {
        return Consequence::UsesNoFile;
    }
    if is_protecting(dotted) { Consequence::RefusesCreates } else { Consequence::Ignored }
}

/// What a section or a list of tables does that does not exist, or a key in it: any of them may have
/// been meant to protect.
pub(super) fn of_unknown_table(dotted: &str) -> Consequence {
    of_unknown_key(dotted).max(Consequence::RefusesCreates)
}

/// Whether a mistake in the key `dotted` may leave open what was meant to be closed: it is in a
/// section that protects, or would be if it were not mistyped.
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
    fn what_was_meant_for_a_protecting_section_is_recognised() {
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
