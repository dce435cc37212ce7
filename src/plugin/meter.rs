// SPDX-License-Identifier: Apache-2.0
//! Defines the meter that receives the result of each request to a plugin. This module counts nothing.

use std::fmt::Debug;
use std::time::Duration;

use nri_transport::{CallCopies, RequestSubject};

/// A request that was sent to a plugin, and its result.
#[derive(Debug, Clone, Copy)]
pub struct CallSample<'a> {
    /// `NN-name`.
    pub plugin: &'a str,
    /// The event's name, or `Synchronize`.
    pub operation: &'static str,
    /// The pod and container that the request is about; empty if there are none.
    pub subject: RequestSubject<'a>,
    /// The time that the request waited for earlier requests.
    pub waited: Duration,
    /// The time from sending the request to its result.
    pub took: Duration,
    /// The status of a failed request: gRPC's name in snake case, `other` without a status; `None`
    /// if the plugin answered.
    pub error: Option<&'static str>,
}

/// Counts requests to plugins.
pub trait CallMeter: Debug + Send + Sync {
    /// Counts a request that has a result.
    fn record_call(&self, sample: &CallSample<'_>);

    /// Returns the longest message that [`Self::keep_copies`] receives, in bytes; 0 for none.
    fn copies_up_to(&self) -> usize {
        0
    }

    /// Receives copies of the request and its response.
    fn keep_copies(&self, _sample: &CallSample<'_>, _copies: CallCopies) {}

    /// Counts the updates and evictions that a reply requests.
    fn record_wishes(
        &self,
        plugin: &str,
        operation: &'static str,
        updates: usize,
        evictions: usize,
    );

    /// Counts a request that skipped the plugin; `reason` is one of a few words.
    fn record_skip(&self, plugin: &str, operation: &'static str, reason: &'static str);
}

/// Returns gRPC's name of a status code, in snake case.
pub(super) fn status_name(code: ttrpc::Code) -> &'static str {
    use ttrpc::Code;
    match code {
        Code::OK => "ok",
        Code::CANCELLED => "canceled",
        Code::UNKNOWN => "unknown",
        Code::INVALID_ARGUMENT => "invalid_argument",
        Code::DEADLINE_EXCEEDED => "deadline_exceeded",
        Code::NOT_FOUND => "not_found",
        Code::ALREADY_EXISTS => "already_exists",
        Code::PERMISSION_DENIED => "permission_denied",
        Code::UNAUTHENTICATED => "unauthenticated",
        Code::RESOURCE_EXHAUSTED => "resource_exhausted",
        Code::FAILED_PRECONDITION => "failed_precondition",
        Code::ABORTED => "aborted",
        Code::OUT_OF_RANGE => "out_of_range",
        Code::UNIMPLEMENTED => "unimplemented",
        Code::INTERNAL => "internal",
        Code::UNAVAILABLE => "unavailable",
        Code::DATA_LOSS => "data_loss",
    }
}
