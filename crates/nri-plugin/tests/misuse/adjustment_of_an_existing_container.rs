// SPDX-License-Identifier: Apache-2.0
//! An adjustment answers CreateContainer, and no other request.
use nri_plugin::{Adjustment, api};

fn main() {
    let _: api::UpdateContainerResponse = Adjustment::new().env("GREETING", "hello").into();
}
