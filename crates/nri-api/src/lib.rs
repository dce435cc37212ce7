// SPDX-License-Identifier: Apache-2.0
//! The messages of the Node Resource Interface (NRI): what a container runtime asks its plugins,
//! and what they answer. Protocol `nri.pkg.api.v1alpha1`, as of NRI v0.12.
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
//! * [`event`]: the events that a plugin subscribes to, with their bits.
//! * Feature `services`: the ttRPC clients and servers of both sides, asynchronous.
//! * Feature `json`: messages as JSON (`json`), in protobuf's own mapping.
//!
//! There is no connection here and no plugin: messages only. The generated code is checked in, so
//! that building needs no `protoc`; `tests/wire.rs` of nri-runc generates it anew and compares.

mod convert;
pub mod event;
#[cfg(feature = "json")]
pub mod json;

#[allow(
    clippy::all,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::implicit_clone,
    clippy::panic,
    clippy::ref_option,
    clippy::semicolon_if_nothing_returned,
    clippy::str_to_string,
    clippy::too_many_lines,
    clippy::uninlined_format_args,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    let_underscore_drop,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code"
)]
#[rustfmt::skip]
mod api;
#[cfg(feature = "services")]
#[allow(
    clippy::all,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::implicit_clone,
    clippy::ref_option,
    clippy::too_many_lines,
    clippy::uninlined_format_args,
    missing_debug_implementations,
    unused_qualifications,
    reason = "generated code"
)]
#[rustfmt::skip]
mod api_ttrpc;

pub use api::*;
#[cfg(feature = "services")]
pub use api_ttrpc::*;
