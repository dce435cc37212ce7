// SPDX-License-Identifier: Apache-2.0
//! Pods: announced once, stopped after their members, removed (`life.rs`); also pods that no call
//! of a runtime begins or ends: CRI-O's without infrastructure containers.
//!
//! It never changes a container. It imports `node`, `request` and `watch`.

pub(crate) mod crio;
pub(crate) mod crio_added;
pub(crate) mod crio_removed;
pub(crate) mod life;
