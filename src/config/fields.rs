// SPDX-License-Identifier: Apache-2.0
//! The names of the fields that plugins can set, as `allow` and `deny` take them.
//! Nothing here reads a file.

use super::spelling::nearest;

/// The fields that plugins can set, by NRI's names; a test in `chain` compares them with the
/// adaptation's.
pub(crate) const FIELDS: [&str; 40] = [
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

/// Whether plugins can set a field of that name; else the mistake, with the nearest name.
pub(super) fn check_field(name: &str) -> Result<(), std::borrow::Cow<'static, str>> {
    if FIELDS.contains(&name) {
        return Ok(());
    }
    let hint = nearest(name, FIELDS.into_iter());
    Err(format!("{name:?} is not a field that plugins can set (did you mean {hint:?}?)").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_field_is_told_its_nearest_name() {
        for (name, hint) in [("env", "Env"), ("OCIHooks", "OciHooks"), ("CpuShares", "CPUShares")] {
            let wrong = check_field(name).unwrap_err();
            assert!(wrong.contains(&format!("did you mean {hint:?}")), "{wrong}");
        }
        assert_eq!(check_field("Env"), Ok(()));
    }
}
