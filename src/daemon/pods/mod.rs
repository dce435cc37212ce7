// SPDX-License-Identifier: Apache-2.0
//! Pods: announced once, stopped after their members, removed; also those that no call of a runtime
//! begins or ends.
//!
//! It changes no container.

pub(crate) mod crio;
pub(crate) mod crio_added;
pub(crate) mod crio_removed;
pub(crate) mod life;
