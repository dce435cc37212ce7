// SPDX-License-Identifier: Apache-2.0
//! The time of day, as records and messages carry it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time in nanoseconds.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
