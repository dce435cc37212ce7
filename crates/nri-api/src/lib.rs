// SPDX-License-Identifier: Apache-2.0
//! The messages of the Node Resource Interface (NRI): a container runtime's requests to plugins,
//! and their answers. Protocol `nri.pkg.api.v1alpha1`, as of NRI v0.12.
//!
//! A plugin receives a [`CreateContainerRequest`] and answers with a [`ContainerAdjustment`]:
//!
//! ```
//! use nri_api::{ContainerAdjustment, KeyValue};
//!
//! let variable = KeyValue { key: "GREETING".to_owned(), value: "hello".to_owned(), ..Default::default() };
//! let adjustment = ContainerAdjustment { env: vec![variable], ..Default::default() };
//! assert_eq!(adjustment.env[0].key, "GREETING");
//! ```
//!
//! * [`extension`]: a service in addition to NRI's, about processes that `exec` starts and results
//!   of updates.
//! * [`event`]: the events that a plugin subscribes to, with their bits.
//! * [`identity`]: index and name of a plugin, and which of them are valid.
//! * [`text`]: names and reasons that the peer chose, quoted for one line.
//! * Feature `services`: the ttRPC clients and servers of both sides, asynchronous.
//! * Feature `json`: messages as JSON (`json`), in protobuf's mapping.
//!
//! The crate contains only messages, no connections or plugins. The generated code is checked in,
//! so that building needs no `protoc`; `tests/pure/wire.rs` of nri-runc generates it again and
//! compares.

mod convert;
pub mod event;
pub mod extension;
mod generated;
pub mod identity;
#[cfg(feature = "json")]
pub mod json;
pub mod text;

pub use generated::*;
