// SPDX-License-Identifier: Apache-2.0
//! Code that the tests and benches share: private hosts with a daemon, scripted plugins, real
//! engines and runtimes, and how a test is skipped. It has no test of its own and is never
//! published.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests start programs and write files in place")]
#![expect(missing_debug_implementations, reason = "nobody prints a test's arrangements")]
#![expect(missing_docs, reason = "names of helpers say what they do, and no other crate uses them")]

use std::time::Duration;

/// Time for which a test waits before it fails: guests without KVM are slow.
pub const PATIENCE: Duration = Duration::from_secs(240);

pub mod adjustments;
pub mod cgroup;
pub mod compare;
pub mod containerd;
pub mod corpus;
pub mod cri;
pub mod critest;
pub mod example;
pub mod exec_plugin;
pub mod exits;
pub mod golang;
pub mod injected;
pub mod leftovers;
mod outcome;
pub mod play;
pub mod podman;
pub mod program;
pub mod real_runtime;
pub mod recorder;
pub mod registry;
pub mod replay;
pub mod resctrl;
pub mod responding_plugin;
pub mod schema;
pub mod scripted_plugin;
pub mod skip;
pub mod template;
mod test_host;
pub mod tools;
pub mod tracer;

pub use example::example;
pub use outcome::{Started, fails, in_status, succeeds};
pub use scripted_plugin::{NoUpdates, Script, connect, has_received};
pub use test_host::{
    BUNDLE, BUSY, LIFE, ORDER, SILENT, TestHost, is_synchronized, life, started, task, wait_until,
};
