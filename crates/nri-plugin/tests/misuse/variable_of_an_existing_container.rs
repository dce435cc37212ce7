// SPDX-License-Identifier: Apache-2.0
//! The environment of an existing container is fixed: only resources can be updated.
use nri_plugin::Update;

fn main() {
    let _ = Update::of("c0").cpu_shares(512).env("GREETING", "hello");
}
