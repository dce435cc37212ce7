// SPDX-License-Identifier: Apache-2.0
//! Overlays Linux resources on others, for both adjustments and updates.
//!
//! Claiming and overlaying are two steps, so that a refused claim changes no value. A value of zero is
//! present; an empty `cpus` or `mems` is absent. Values are not validated here. Reference: semantics of the
//! resource setters in NRI's result collector.

use std::collections::HashMap;

use protobuf::MessageField;

use crate::claims::{FieldClaims, MergeError};
use crate::fields::NriField;
use crate::keys;
use crate::scalar::SCALARS;
use nri_api as api;

/// Claims everything that `resources` sets, in the reference's order.
pub(crate) fn claim(
    resources: &api::LinuxResources,
    claims: &mut FieldClaims<'_>,
) -> Result<(), MergeError> {
    let api::LinuxResources {
        memory: _,
        cpu: _,
        hugepage_limits,
        blockio_class,
        rdt_class,
        unified,
        devices,
        pids,
        special_fields: _,
    } = resources;
    let [memory_and_cpu @ .., pids_limit] = &SCALARS;
    for scalar in memory_and_cpu.iter().filter(|scalar| !scalar.get(resources).is_null()) {
        claims.claim(scalar.field)?;
    }
    for limit in hugepage_limits {
        claims.claim_key(NriField::HugepageLimits, &keys::hugepage(&limit.page_size))?;
    }
    for device in devices {
        claims.device_rule(rule_text(device))?;
    }
    // Sorted, so that equal replies fail with equal messages.
    let mut unified: Vec<&String> = unified.keys().collect();
    unified.sort();
    for key in unified {
        claims.claim_key(NriField::CgroupsUnified, key)?;
    }
    claims.claim_present([
        (blockio_class.is_some(), NriField::BlockioClass),
        (rdt_class.is_some(), NriField::RdtClass),
        (pids.is_some(), pids_limit.field),
    ])
}

/// Overlays `base` with `over`; values that `over` does not set stay.
pub(crate) fn lay_over(base: &mut api::LinuxResources, over: &api::LinuxResources) {
    let api::LinuxResources {
        memory: _,
        cpu: _,
        hugepage_limits,
        blockio_class,
        rdt_class,
        unified,
        devices,
        pids: _,
        special_fields: _,
    } = over;
    for scalar in &SCALARS {
        let value = scalar.get(over);
        if !value.is_null() {
            scalar.set(base, &value);
        }
    }
    let size = |limit: &api::HugepageLimit| keys::hugepage(&limit.page_size);
    put_all(&mut base.hugepage_limits, hugepage_limits, size);
    base.devices.extend(devices.iter().cloned());
    base.unified.extend(unified.iter().map(|(key, value)| (key.clone(), value.clone())));
    set(&mut base.blockio_class, blockio_class);
    set(&mut base.rdt_class, rdt_class);
}

/// Replaces `base` if `over` is present.
pub(crate) fn set<T: Clone>(base: &mut MessageField<T>, over: &MessageField<T>) {
    if over.is_some() {
        base.clone_from(over);
    }
}

/// Puts each entry in place of the one with its key, or else appends it. NRI: the reference appends, so that
/// plugins receive page sizes and limits twice (BUG-09).
pub(crate) fn put_all<T: Clone>(list: &mut Vec<T>, entries: &[T], key: impl Fn(&T) -> String) {
    if entries.is_empty() {
        return;
    }
    let mut places: HashMap<String, usize> = HashMap::with_capacity(list.len());
    for (place, entry) in list.iter().enumerate() {
        places.entry(key(entry)).or_insert(place);
    }
    for entry in entries {
        let place = *places.entry(key(entry)).or_insert(list.len());
        match list.get_mut(place) {
            Some(old) => old.clone_from(entry),
            None => list.push(entry.clone()),
        }
    }
}

/// Removes the empty parts that were added for plugins.
pub(crate) fn strip(resources: &mut MessageField<api::LinuxResources>) {
    if let Some(resources) = resources.as_mut() {
        strip_empty(&mut resources.memory);
        strip_empty(&mut resources.cpu);
    }
    strip_empty(resources);
}

pub(crate) fn strip_empty<T: Default + PartialEq>(field: &mut MessageField<T>) {
    if field.as_ref().is_some_and(|message| *message == T::default()) {
        *field = MessageField::none();
    }
}

/// Formats a device rule as operators write it: `allow c 1:3 rwm`, with `*` for any number.
pub fn rule_text(device: &api::LinuxDeviceCgroup) -> String {
    let api::LinuxDeviceCgroup { allow, type_, major, minor, access, special_fields: _ } = device;
    let verb = if *allow { "allow" } else { "deny" };
    let kind = if type_.is_empty() { "a" } else { type_ };
    let number = |field: &MessageField<api::OptionalInt64>| {
        field.as_ref().map_or_else(|| "*".to_owned(), |number| number.value.to_string())
    };
    format!("{verb} {kind} {}:{} {access}", number(major), number(minor)).trim_end().to_owned()
}
