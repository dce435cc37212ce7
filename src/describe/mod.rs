// SPDX-License-Identifier: Apache-2.0
//! Bundle and engine facts become NRI messages, as containerd's own NRI would have sent them.
//!
//! config.json is read through a view that knows what NRI shows and ignores the rest;
//! a value of an odd type makes the document unreadable, an odd key does not. It never writes.

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
