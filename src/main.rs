// SPDX-License-Identifier: Apache-2.0
//! nri-runc.
fn main() {}
