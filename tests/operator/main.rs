// SPDX-License-Identifier: Apache-2.0
//! The operator's commands: `install`, `check`, the configuration and its reload, plugins without
//! containers (`adjust`, `replay`). The built program, on files and folders of each test.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests start programs and write files in place")]

mod adaptation;
mod check;
mod config;
mod dry;
mod install_engines;
mod install_script;
