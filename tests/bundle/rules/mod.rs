// SPDX-License-Identifier: Apache-2.0
//! The effect of the operator's rules on plugins, containers and operators, with the built binary.

mod hidden;
pub(crate) mod host;
mod origin;
mod policy;

pub(crate) use host::{lay_down, pod_container};
