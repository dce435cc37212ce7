// SPDX-License-Identifier: Apache-2.0
//! Tests of the library without root, engines or the built program: on recorded, generated and golden
//! input, and over connections inside this process.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests start programs and write files in place")]

mod argv;
mod failures;
mod fuzz;
mod length;
mod linear;
mod lossless;
mod recorded_calls;
mod rules;
mod schema;
mod sessions;
mod stub;
mod wire;
