// SPDX-License-Identifier: Apache-2.0
//! Every target of `tests/pure/fuzz`: the first byte selects one.
#![no_main]

#[path = "../../tests/pure/fuzz/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((first, rest)) = bytes.split_first() {
        let (_name, target) = targets::TARGETS[usize::from(*first) % targets::TARGETS.len()];
        target(rest);
    }
});
