// SPDX-License-Identifier: Apache-2.0
//! A wrapper's request, understood: whose container, which bundle, which engine and pod.
//!
//! It asks no plugin and changes nothing but the list of contradicted identity claims.

pub(crate) mod call;
pub(crate) mod identity;
