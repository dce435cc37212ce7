// SPDX-License-Identifier: Apache-2.0
//! Which keys protect containers. An operator who mistyped `deny` believes that something is forbidden, so
//! an error in such a key refuses creates until the file is fixed (`Config::protection_error`). An
//! error in any other key is a warning. Nothing here reads a file.

use super::keys::nearest_key;
use super::spelling::distance_to_key;

/// Sections and keys that protect.
const SECTIONS: [&str; 3] = ["plugin", "nri.default_validator", "rule"];
const KEYS: [&str; 2] = ["exempt_namespaces", "on_daemon_failure"];
/// Keys that protect nowhere but in those sections.
const MISPLACED: [&str; 7] =
    ["required", "allow", "deny", "on_failure", "required_plugins", "hide", "from"];
/// So many letters may be wrong in a key that was meant for a section that protects.
const TYPO_LETTERS: usize = 4;

/// Whether a mistake in the key `dotted` may leave open what was meant to be closed: it is in a
/// section that protects, or would be if it were not mistyped.
pub(super) fn is_protecting(dotted: &str) -> bool {
    let is_ours = |key: &str| {
        let is_below = |section: &str| {
            key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        SECTIONS.into_iter().any(is_below) || KEYS.contains(&key)
    };
    let lower = dotted.to_lowercase().replace('-', "_");
    let last = lower.rsplit('.').next().unwrap_or_default();
    let is_misplaced = MISPLACED.contains(&last) || last.starts_with("reject_");
    let is_close = || {
        let key = nearest_key(&lower);
        is_ours(key) && distance_to_key(&lower, key) <= TYPO_LETTERS
    };
    is_ours(&lower) || is_misplaced || is_close()
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
