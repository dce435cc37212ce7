// SPDX-License-Identifier: Apache-2.0
//! The forty fields that a plugin can own in a container, with NRI's numbers and names.
//!
//! The names are used in conflict messages, in `owners` in JSON, and for `allow` and `deny` in the
//! configuration. The numbers are sent in `OwningPlugins`. This module does not handle a field's content.
//! Reference: `enum Field` of NRI v0.12.

use std::fmt;

/// Defines the enum and its table of names from one list, so that they cannot differ.
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

            /// Returns NRI's name, such as `Env`.
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
    /// Returns NRI's number on the wire.
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// Finds the field of that name, case-sensitive.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name() == name)
    }
}

/// A set of fields, which may also contain the right to evict containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldSet(u64);

impl FieldSet {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// Every field, and evictions.
    pub const ALL: Self = Self(u64::MAX);
    /// Only evictions, as bit 0: no field has the number 0.
    pub const EVICTION: Self = Self(1);

    /// Returns the set of one field.
    pub const fn of(field: NriField) -> Self {
        Self(1 << field as u8)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Removes the fields of `other`.
    pub const fn remove(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    /// Whether this set contains all of `other`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
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
    fn field_numbers_run_from_1_to_40_without_a_gap() {
        let numbers: Vec<i32> = NriField::ALL.iter().map(|field| field.number()).collect();
        assert_eq!(numbers, (1..=40).collect::<Vec<i32>>());
    }

    #[test]
    fn a_set_contains_only_the_inserted_fields() {
        for field in NriField::ALL {
            let only = FieldSet::of(field);
            assert_eq!(NriField::ALL.into_iter().filter(|f| only.has(FieldSet::of(*f))).count(), 1);
            assert!(only.has(FieldSet::of(field)) && !only.has(FieldSet::EVICTION));
            let mut rest = FieldSet::ALL;
            rest.remove(only);
            assert!(!rest.has(only) && rest.has(FieldSet::EVICTION));
            assert!(rest.or(only) == FieldSet::ALL && !FieldSet::NONE.has(only));
            assert_eq!(FieldSet::ALL.or(only), FieldSet::ALL);
        }
    }

    #[test]
    fn each_name_identifies_exactly_one_field() {
        for field in NriField::ALL {
            assert_eq!(NriField::from_name(field.name()), Some(field));
        }
        for name in ["", "None", "env", "Mount", "EnvX"] {
            assert_eq!(NriField::from_name(name), None, "{name}");
        }
    }
}
