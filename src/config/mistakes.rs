// SPDX-License-Identifier: Apache-2.0
//! Which keys protect, and what a mistake in them is: an operator who mistyped `deny` believes
//! that something is closed. Such a mistake is never passed over: creates are refused until the
//! file is fixed (`Config::protection_error`). Elsewhere a mistake is a warning.
//! Nothing here reads a file.

use super::reader::{distance_to_key, nearest, nearest_key};

/// The fields that plugins can set, by NRI's names; `chain` has a test that the adaptation knows
/// the same.
pub const FIELDS: [&str; 40] = [
    "Annotations",
    "Mounts",
    "OciHooks",
    "Devices",
    "CdiDevices",
    "Env",
    "Args",
    "MemLimit",
    "MemReservation",
    "MemSwapLimit",
    "MemKernelLimit",
    "MemTCPLimit",
    "MemSwappiness",
    "MemDisableOomKiller",
    "MemUseHierarchy",
    "CPUShares",
    "CPUQuota",
    "CPUPeriod",
    "CPURealtimeRuntime",
    "CPURealtimePeriod",
    "CPUSetCPUs",
    "CPUSetMems",
    "PidsLimit",
    "HugepageLimits",
    "BlockioClass",
    "RdtClass",
    "CgroupsUnified",
    "CgroupsPath",
    "OomScoreAdj",
    "Rlimits",
    "IoPriority",
    "SeccompPolicy",
    "Namespace",
    "Sysctl",
    "LinuxNetDevices",
    "LinuxSched",
    "RdtClosID",
    "RdtSchemata",
    "RdtEnableMonitoring",
    "MemoryPolicy",
];

/// Whether plugins can set a field of that name; else what is wrong, with the nearest name.
pub(super) fn check_field(name: &str) -> Result<(), std::borrow::Cow<'static, str>> {
    if FIELDS.contains(&name) {
        return Ok(());
    }
    let hint = nearest(name, FIELDS.into_iter());
    Err(format!("{name:?} is not a field that plugins can set, did you mean {hint:?}?").into())
}

/// Sections and keys that protect.
const SECTIONS: [&str; 3] = ["plugin", "nri.default_validator", "rule"];
const KEYS: [&str; 2] = ["exempt_namespaces", "on_daemon_failure"];
/// Keys that protect nowhere but in those sections.
const MISPLACED: [&str; 5] = ["required", "allow", "deny", "on_failure", "required_plugins"];
/// So many letters may be wrong in a key that was meant for a section that protects.
const CLOSE: usize = 4;

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
        is_ours(key) && distance_to_key(&lower, key) <= CLOSE
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

    #[test]
    fn a_mistyped_field_is_told_its_nearest_name() {
        for (name, hint) in [("env", "Env"), ("OCIHooks", "OciHooks"), ("CpuShares", "CPUShares")] {
            let wrong = check_field(name).unwrap_err();
            assert!(wrong.contains(&format!("did you mean {hint:?}")), "{wrong}");
        }
        assert_eq!(check_field("Env"), Ok(()));
    }
}
