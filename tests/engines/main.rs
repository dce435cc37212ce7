// SPDX-License-Identifier: Apache-2.0
//! Real engines and runtimes call the built program: those that `make setup` unpacks, and newer ones if
//! they were built (`make newer`, `make engines`). A test prints which of them it lacks, and is skipped.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests start programs and write files in place")]

mod containerd;
mod crio;
mod docker;
mod features;
mod hooks;
mod interop;
mod podman;
mod real_runc;
mod suite;
mod template;
