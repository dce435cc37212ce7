// SPDX-License-Identifier: Apache-2.0
//! Fills in the times in a plugin's row of `plugins`: its limits, its response times, its Synchronize.

use std::time::Duration;

use crate::answers::{AnswerRow, SynchronizeRow, TimeLimits};
use crate::plugin::Plugin;

/// Returns the time limits of the plugin's requests. Without `sync_timeout`, each request of a Synchronize
/// has the same limit as other requests.
pub(super) fn limits(plugin: &Plugin) -> TimeLimits {
    TimeLimits {
        request_ms: millis(plugin.timeout()),
        synchronize_ms: plugin.sync_timeout().map(millis),
    }
}

/// Returns a plugin's response times and its limit; `None` if it has not answered within the last hour.
pub(super) fn answers(plugin: &Plugin) -> Option<AnswerRow> {
    let times = plugin.answer_times()?;
    Some(AnswerRow {
        count: times.count,
        p50_ms: millis(times.p50),
        p99_ms: millis(times.p99),
        limit_ms: millis(plugin.timeout()),
        busy_for_an_hour: times.is_busy,
    })
}

/// Returns the progress of a plugin's Synchronize, if one is in progress.
pub(super) fn synchronizing(plugin: &Plugin) -> Option<SynchronizeRow> {
    let progress = plugin.sync_progress()?;
    Some(SynchronizeRow {
        for_ms: millis(progress.begun.elapsed()),
        limit_ms: millis(progress.limit),
        answered: progress.answered,
    })
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 100.0
}
