// SPDX-License-Identifier: Apache-2.0
//! Converts bundle and engine facts to the NRI messages that containerd's NRI would send.
//!
//! config.json is parsed into a view of the members that NRI has; other members are ignored. A
//! value of an unexpected type makes the document unreadable, but is left out in
//! `linux.resources`. This module never writes.

mod container;
mod exec;
mod pod;
pub(crate) mod resized;
mod resources;
mod view;

pub use container::container;
pub(crate) use container::in_document;
pub(crate) use exec::exec_process;
pub use pod::pod;
pub use resources::from_json as resources_from_json;
pub(crate) use resources::resources;
pub use view::Spec;
