// SPDX-License-Identifier: Apache-2.0
//! Pods as the engines create and remove them: when plugins receive each event, and which identities a pod
//! may not claim.

mod containerd_removals;
mod crio_announced;
mod crio_folders;
mod crio_without_infra;
mod forged_identity;
mod resizes;
mod single_container;
pub(crate) mod stop_order;
