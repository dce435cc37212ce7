// SPDX-License-Identifier: Apache-2.0
//! Written by the generator; never edited by hand.

#![allow(
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
#[rustfmt::skip]
mod api_ttrpc;
#[rustfmt::skip]
pub(crate) mod extension;
#[cfg(feature = "services")]
#[rustfmt::skip]
pub(crate) mod extension_ttrpc;

pub use api::*;
#[cfg(feature = "services")]
pub use api_ttrpc::*;
