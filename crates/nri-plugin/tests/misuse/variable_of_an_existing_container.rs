// SPDX-License-Identifier: Apache-2.0
//! A container that exists has its environment: only resources can be updated.
use nri_plugin::Update;

fn main() {
    let _ = Update::of("c0").cpu_shares(512).env("GREETING", "hello");
}
