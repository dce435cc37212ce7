// SPDX-License-Identifier: Apache-2.0
//! A device node has a major and a minor number.
use nri_plugin::{Adjustment, Device};

fn main() {
    let _ = Adjustment::new().device(Device::character("/dev/fuse"));
}
