// SPDX-License-Identifier: Apache-2.0
//! The trace of a plugin's request, so that the plugin can add its spans to it. A traced caller of
//! the runtime names its span in `TRACEPARENT` and `TRACESTATE` (W3C "Trace Context", level 1);
//! plugins receive both. Nothing is recorded here.

use std::ffi::OsString;

use crate::limits;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// Returns the span of the current work, if its caller is traced.
pub(crate) fn current() -> Option<TraceContext> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Runs `work` in the caller's span, if it has one.
pub(crate) async fn within<T>(caller: Option<TraceContext>, work: impl Future<Output = T>) -> T {
    match caller {
        Some(caller) => CURRENT.scope(caller, work).await,
        None => work.await,
    }
}

/// A span of a trace, as a caller names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TraceContext {
    /// `traceparent`, in the form of version 00.
    pub(crate) parent: String,
    /// `tracestate`, which vendors of tracing systems fill; may be empty.
    pub(crate) state: String,
}

impl TraceContext {
    /// Returns the metadata for a plugin's request, under the names of the W3C headers.
    pub(crate) fn into_metadata(self) -> Vec<(&'static str, String)> {
        let state = (!self.state.is_empty()).then_some(("tracestate", self.state));
        [("traceparent", self.parent)].into_iter().chain(state).collect()
    }

    /// Reads the variables of a caller; `None` if the caller is not traced.
    pub(crate) fn of_variables(variables: &[(String, OsString)]) -> Option<Self> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| known == name);
            found.and_then(|(_, value)| value.to_str()).unwrap_or_default()
        };
        Self::read(value("TRACEPARENT"), value("TRACESTATE"))
    }

    /// Parses `traceparent` and its `tracestate`; `None` if `traceparent` is malformed, because the
    /// trace must then be ignored. A malformed `tracestate` alone is dropped.
    pub(crate) fn read(parent: &str, state: &str) -> Option<Self> {
        let (version, rest) = parent.trim().split_once('-')?;
        let (trace, rest) = rest.split_once('-')?;
        let (span, rest) = rest.split_once('-')?;
        // A later version may append further parts.
        let (flags, more) =
            rest.split_once('-').map_or((rest, None), |(flags, m)| (flags, Some(m)));
        let is_known = version == "00" && more.is_none();
        if !(is_known || (version != "00" && version != "ff")) || digits(version, 2).is_none() {
            return None;
        }
        let is_sampled = u8::from(digits(flags, 2)? & 1 == 1);
        let is_plain = |c: u8| (0x20..0x7f).contains(&c);
        let state = state.trim();
        let is_state = state.len() <= limits::TRACE_STATE && state.bytes().all(is_plain);
        let state = if is_state { state.to_owned() } else { String::new() };
        let parent = format!("00-{trace}-{span}-{is_sampled:02x}");
        (digits(trace, 32)? != 0 && digits(span, 16)? != 0).then_some(Self { parent, state })
    }
}

/// Parses a number of exactly `count` hexadecimal digits in lower case.
fn digits(text: &str, count: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_right = text.len() == count && text.bytes().all(is_digit);
    is_right.then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_read_context_is_written_unchanged() {
        let read = TraceContext::read(PARENT, "vendor=1,other=2").unwrap();
        assert_eq!((read.parent.as_str(), read.state.as_str()), (PARENT, "vendor=1,other=2"));
        let named = [("traceparent", PARENT), ("tracestate", "vendor=1,other=2")];
        assert_eq!(read.into_metadata(), named.map(|(name, value)| (name, value.to_owned())));
        let alone = TraceContext::read(PARENT, "").unwrap().into_metadata();
        assert_eq!(alone, [("traceparent", PARENT.to_owned())]);
        let unsampled = PARENT.replace("-01", "-00");
        assert_eq!(TraceContext::read(&unsampled, "").unwrap().parent, unsampled);
    }

    #[test]
    fn a_later_version_may_have_more_fields_than_this_one() {
        let later = PARENT.replacen("00-", "cc-", 1) + "-what-the-future-brings";
        assert_eq!(TraceContext::read(&later, "").unwrap().parent, PARENT);
        assert_eq!(TraceContext::read(&format!("{PARENT}-more"), ""), None);
    }

    #[test]
    fn a_malformed_trace_is_ignored() {
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-+1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\u{661}",
        ] {
            assert_eq!(TraceContext::read(text, ""), None, "{text}");
        }
    }

    #[test]
    fn an_invalid_trace_state_is_dropped() {
        for state in ["a=\u{1b}[31m", "a=1\nb=2", &"x".repeat(limits::TRACE_STATE + 1)] {
            assert_eq!(TraceContext::read(PARENT, state).unwrap().state, "", "{state:?}");
        }
    }
}
