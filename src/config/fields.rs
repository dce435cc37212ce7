// SPDX-License-Identifier: Apache-2.0
//! Checks names of fields that plugins can set, as used in `allow`, `deny` and `drift.reapply`.
//! Nothing here reads a file.

use nri_adaptation::NriField;

use super::spelling::did_you_mean;

/// Checks that plugins can set a field of that name; else returns the mistake, with a similar name.
pub(super) fn check_field(name: &str) -> Result<(), std::borrow::Cow<'static, str>> {
    if NriField::from_name(name).is_some() {
        return Ok(());
    }
    let hint = did_you_mean(name, NriField::ALL.into_iter().map(NriField::name));
    Err(format!("{name:?} is not a field that plugins can set{hint}").into())
}

/// Checks that a field of that name is a cgroup resource that can be restored; else returns the
/// mistake.
pub(super) fn check_resource(name: &str) -> Result<(), std::borrow::Cow<'static, str>> {
    check_field(name)?;
    let is_resource = match name {
        "PidsLimit" | "HugepageLimits" | "CgroupsUnified" => true,
        "MemoryPolicy" => false,
        name => name.starts_with("Mem") || name.starts_with("CPU"),
    };
    let why = || format!("{name:?} is not a resource that can be restored").into();
    is_resource.then_some(()).ok_or_else(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_field_gets_the_nearest_name() {
        for (name, hint) in [("env", "Env"), ("OCIHooks", "OciHooks"), ("CpuShares", "CPUShares")] {
            let wrong = check_field(name).unwrap_err();
            assert!(wrong.contains(&format!("did you mean {hint}?")), "{wrong}");
        }
        assert_eq!(check_field("Env"), Ok(()));
    }

    #[test]
    fn only_cgroup_resources_can_be_reapplied() {
        for name in ["CPUSetCPUs", "MemLimit", "PidsLimit", "HugepageLimits", "CgroupsUnified"] {
            assert_eq!(check_resource(name), Ok(()), "{name}");
        }
        for name in ["Env", "Rlimits", "OomScoreAdj", "MemoryPolicy", "BlockioClass", "CPUSetCPU"] {
            assert!(check_resource(name).is_err(), "{name}");
        }
    }
}
