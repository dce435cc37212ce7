// SPDX-License-Identifier: Apache-2.0
//! An update has to set at least one resource.
use nri_plugin::{Update, Updates};

fn main() {
    let _ = Updates::new().update(Update::of("c0"));
}
