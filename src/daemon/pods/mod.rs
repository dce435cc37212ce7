// SPDX-License-Identifier: Apache-2.0
//! Handles pods: announced once, stopped after their members, removed (`life.rs`); the plugins that must have answered
//! for them (`required.rs`); their resizes by kubelet (`resized.rs`); and pods that begin and end without a runtime
//! call (CRI-O's without infrastructure containers). On engines without pods a pod has the process and the addresses of
//! its container (`own_process.rs`).
//!
//! This module never changes a container. It imports `runtime`, `shared`, `request` and `watch`.

pub(crate) mod crio;
pub(crate) mod crio_added;
pub(crate) mod crio_removed;
pub(crate) mod kubelet;
pub(crate) mod life;
pub(crate) mod own_process;
pub(crate) mod promises;
pub(crate) mod required;
pub(crate) mod resized;
pub(crate) mod stopping;
