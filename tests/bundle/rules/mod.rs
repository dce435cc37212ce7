// SPDX-License-Identifier: Apache-2.0
//! What the operator's rules do to plugins, containers and operators with the built binary.

mod hidden;
pub(crate) mod host;
mod origin;
mod policy;

pub(crate) use host::{lay_down, pod_container};
