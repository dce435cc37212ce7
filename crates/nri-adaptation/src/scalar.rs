// SPDX-License-Identifier: Apache-2.0
//! The resources with one value each: one table for claims, overlays, offers, descriptions and
//! patches.
//!
//! The table destructures each message in full, so that a new member of the schema breaks the build
//! here. Values are JSON, with `null` for absent. Values are not validated here.

use protobuf::{Message, MessageField};
use serde_json::Value;

use crate::fields::NriField;
use nri_api as api;

/// One resource of `LinuxResources` with one value.
#[derive(Debug)]
pub struct Scalar {
    /// The field that a plugin owns.
    pub field: NriField,
    /// The section of `linux.resources` in config.json.
    pub section: &'static str,
    /// The member of that section.
    pub key: &'static str,
    get: fn(&api::LinuxResources) -> Value,
    set: fn(&mut api::LinuxResources, &Value),
}

impl Scalar {
    /// Finds the resource of a member of `linux.resources`.
    pub fn of_member(section: &str, key: &str) -> Option<&'static Self> {
        SCALARS.iter().find(|scalar| scalar.section == section && scalar.key == key)
    }

    /// Returns the value of the resource in `resources`, `null` if it is absent. Zero is a value,
    /// an empty string is not.
    pub fn get(&self, resources: &api::LinuxResources) -> Value {
        (self.get)(resources)
    }

    /// Sets the resource, or removes it if `value` is empty or has another type, such as `null`.
    pub fn set(&self, resources: &mut api::LinuxResources, value: &Value) {
        (self.set)(resources, value);
    }
}

/// A member of a message that is converted from and to JSON.
trait ScalarValue: Default {
    fn get(&self) -> Value;
    fn read(value: &Value) -> Option<Self>;
}

macro_rules! scalar_values {
    ($($message:ident.$member:ident: $read:ident)*) => {$(
        impl ScalarValue for MessageField<api::$message> {
            fn get(&self) -> Value {
                self.as_ref().map(|message| message.$member).into()
            }

            fn read(value: &Value) -> Option<Self> {
                let $member = value.$read()?;
                Some(Self::some(api::$message { $member, ..Default::default() }))
            }
        }
    )*};
}

scalar_values! {
    OptionalInt64.value: as_i64
    OptionalUInt64.value: as_u64
    OptionalBool.value: as_bool
    LinuxPids.limit: as_i64
}

impl ScalarValue for String {
    fn get(&self) -> Value {
        Some(self.as_str()).filter(|text| !text.is_empty()).into()
    }

    fn read(value: &Value) -> Option<Self> {
        value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
    }
}

/// Sets a member of a message, created if absent; a `value` of another type removes the member.
fn set<P: Message, V: ScalarValue>(
    part: &mut MessageField<P>,
    member: fn(&mut P) -> &mut V,
    value: &Value,
) {
    match V::read(value) {
        Some(value) => *member(part.mut_or_insert_default()) = value,
        None => drop(part.as_mut().map(|part| std::mem::take(member(part)))),
    }
}

macro_rules! scalars {
    ($($part:ident: $message:ident { $($member:ident $key:literal $field:ident,)+ })+) => {
        /// All resources with one value, in the order in which the reference applies them.
        pub const SCALARS: [Scalar; 16] = [
            $($(Scalar {
                field: NriField::$field,
                section: stringify!($part),
                key: $key,
                get: |all| all.$part.as_ref().map_or(Value::Null, |part| part.$member.get()),
                set: |all, value| set(&mut all.$part, |part| &mut part.$member, value),
            },)+)+
            Scalar {
                field: NriField::PidsLimit,
                section: "pids",
                key: "limit",
                get: |all| all.pids.get(),
                set: |all, value| all.pids = ScalarValue::read(value).unwrap_or_default(),
            },
        ];

        $(const _: fn(api::$message) = |api::$message { $($member: _,)+ special_fields: _ }| ();)+
    };
}

scalars! {
    memory: LinuxMemory {
        limit "limit" MemLimit,
        reservation "reservation" MemReservation,
        swap "swap" MemSwapLimit,
        kernel "kernel" MemKernelLimit,
        kernel_tcp "kernelTCP" MemTCPLimit,
        swappiness "swappiness" MemSwappiness,
        disable_oom_killer "disableOOMKiller" MemDisableOomKiller,
        use_hierarchy "useHierarchy" MemUseHierarchy,
    }
    cpu: LinuxCPU {
        shares "shares" CPUShares,
        quota "quota" CPUQuota,
        period "period" CPUPeriod,
        realtime_runtime "realtimeRuntime" CPURealtimeRuntime,
        realtime_period "realtimePeriod" CPURealtimePeriod,
        cpus "cpus" CPUSetCPUs,
        mems "mems" CPUSetMems,
    }
}
