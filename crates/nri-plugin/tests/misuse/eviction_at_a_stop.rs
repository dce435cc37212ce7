// SPDX-License-Identifier: Apache-2.0
//! The answer to StopContainer has no evictions.
use nri_plugin::{Updates, api};

fn main() {
    let _: api::StopContainerResponse = Updates::new().evict("c0", "too large").into();
}
