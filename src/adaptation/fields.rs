// SPDX-License-Identifier: Apache-2.0
//! The forty things a plugin can own in a container, as NRI numbers and names them.
//!
//! The names are used wherever operators see ownership: conflict messages, `owners` in JSON,
//! `allow` and `deny` in the configuration. The numbers go over the wire in `OwningPlugins`.
//! Nothing here knows what a field holds. Reference: `enum Field` of NRI v0.12.

use std::fmt;

/// Writes the enum and its table of names from one list, so that they cannot differ.
macro_rules! fields {
    ($($name:ident = $number:literal),+ $(,)?) => {
        /// One field of a container that plugins can set, and therefore own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "the names are NRI's and say what they are")]
        pub enum NriField {
            $($name = $number),+
        }

        impl NriField {
            /// Every field, by number.
            pub const ALL: [Self; 40] = [$(Self::$name),+];

            /// NRI's name, as in `Env`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name)),+
                }
            }
        }
    };
}

fields! {
    Annotations = 1,
    Mounts = 2,
    OciHooks = 3,
    Devices = 4,
    CdiDevices = 5,
    Env = 6,
    Args = 7,
    MemLimit = 8,
    MemReservation = 9,
    MemSwapLimit = 10,
    MemKernelLimit = 11,
    MemTCPLimit = 12,
    MemSwappiness = 13,
    MemDisableOomKiller = 14,
    MemUseHierarchy = 15,
    CPUShares = 16,
    CPUQuota = 17,
    CPUPeriod = 18,
    CPURealtimeRuntime = 19,
    CPURealtimePeriod = 20,
    CPUSetCPUs = 21,
    CPUSetMems = 22,
    PidsLimit = 23,
    HugepageLimits = 24,
    BlockioClass = 25,
    RdtClass = 26,
    CgroupsUnified = 27,
    CgroupsPath = 28,
    OomScoreAdj = 29,
    Rlimits = 30,
    IoPriority = 31,
    SeccompPolicy = 32,
    Namespace = 33,
    Sysctl = 34,
    LinuxNetDevices = 35,
    LinuxSched = 36,
    RdtClosID = 37,
    RdtSchemata = 38,
    RdtEnableMonitoring = 39,
    MemoryPolicy = 40,
}

impl NriField {
    /// NRI's number on the wire.
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// The field of that name; case matters.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name() == name)
    }
}

impl fmt::Display for NriField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_run_from_one_to_forty_without_a_gap() {
        let numbers: Vec<i32> = NriField::ALL.iter().map(|field| field.number()).collect();
        assert_eq!(numbers, (1..=40).collect::<Vec<i32>>());
    }

    #[test]
    fn each_name_leads_back_to_its_field_and_to_no_other() {
        for field in NriField::ALL {
            assert_eq!(NriField::from_name(field.name()), Some(field));
        }
        for name in ["", "None", "env", "Mount", "EnvX"] {
            assert_eq!(NriField::from_name(name), None, "{name}");
        }
    }
}
