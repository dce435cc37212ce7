// SPDX-License-Identifier: Apache-2.0
//! Conversions from plain values to the messages that wrap them. Values are not checked.

use crate::{ContainerAdjustment, CreateContainerResponse, KeyValue};

impl From<ContainerAdjustment> for CreateContainerResponse {
    fn from(adjust: ContainerAdjustment) -> Self {
        Self { adjust: Some(adjust).into(), ..Self::default() }
    }
}

impl<K: Into<String>, V: Into<String>> From<(K, V)> for KeyValue {
    fn from((key, value): (K, V)) -> Self {
        Self { key: key.into(), value: value.into(), ..Self::default() }
    }
}

/// Wraps a value in NRI's message for an optional one: `Some(7).map(Into::into).into()` fills a
/// field.
macro_rules! present {
    ($($message:ident from $value:ty),*) => {$(
        impl From<$value> for crate::$message {
            fn from(value: $value) -> Self {
                Self { value, ..Self::default() }
            }
        }
    )*};
}

present!(
    OptionalString from String,
    OptionalInt from i64,
    OptionalInt32 from i32,
    OptionalUInt32 from u32,
    OptionalInt64 from i64,
    OptionalUInt64 from u64,
    OptionalBool from bool,
    OptionalFileMode from u32
);
