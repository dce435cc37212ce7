// SPDX-License-Identifier: Apache-2.0
//! Resources alone update nothing: an update is about a container.
use nri_plugin::{Resources, Updates};

fn main() {
    let _ = Updates::new().update(Resources::new().cpu_shares(512));
}
