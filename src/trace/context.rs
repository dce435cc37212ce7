// SPDX-License-Identifier: Apache-2.0
//! The trace in which a request is made, as text: `traceparent` and `tracestate` of the W3C
//! recommendation "Trace Context", level 1.

use std::fmt;

/// The longest `tracestate` that is passed on: the recommendation asks for 512 bytes at least.
const LONGEST_STATE: usize = 512;

/// A span of a trace, to which what happens next belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TraceContext {
    /// Never 0.
    pub(crate) trace: u128,
    /// Never 0.
    pub(crate) span: u64,
    /// Whether somebody records the trace.
    pub(crate) is_sampled: bool,
    /// What tracing systems of other vendors say of it; may be empty.
    pub(crate) state: String,
}

impl TraceContext {
    /// Reads `traceparent`, with the `tracestate` beside it. None if it is malformed: whoever reads
    /// it must then go on as if there were no trace. A malformed `tracestate` alone is left out.
    pub(crate) fn read(parent: &str, state: &str) -> Option<Self> {
        let (version, rest) = parent.trim().split_once('-')?;
        let (trace, rest) = rest.split_once('-')?;
        let (span, rest) = rest.split_once('-')?;
        // A later version may append more.
        let (flags, more) =
            rest.split_once('-').map_or((rest, None), |(flags, m)| (flags, Some(m)));
        let is_known = version == "00" && more.is_none();
        if !(is_known || (version != "00" && version != "ff")) || digits(version, 2).is_none() {
            return None;
        }
        let (trace, span) = (digits(trace, 32)?, u64::try_from(digits(span, 16)?).ok()?);
        let is_sampled = digits(flags, 2)? & 1 == 1;
        let is_plain = |c: u8| (0x20..0x7f).contains(&c);
        let state = state.trim();
        let is_state = state.len() <= LONGEST_STATE && state.bytes().all(is_plain);
        let state = if is_state { state.to_owned() } else { String::new() };
        (trace != 0 && span != 0).then_some(Self { trace, span, is_sampled, state })
    }
}

/// So many hexadecimal digits in lower case.
fn digits(text: &str, count: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_right = text.len() == count && text.bytes().all(is_digit);
    is_right.then(|| u128::from_str_radix(text, 16).ok())?
}

/// As `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_was_read_is_written_again() {
        let read = TraceContext::read(PARENT, "vendor=1,other=2").unwrap();
        assert_eq!((read.trace >> 120, read.span & 0xff), (0x0a, 0x31));
        assert!(read.is_sampled);
        assert_eq!(read.state, "vendor=1,other=2");
        assert_eq!(read.to_string(), PARENT);
        let unsampled = PARENT.replace("-01", "-00");
        assert_eq!(TraceContext::read(&unsampled, "").unwrap().to_string(), unsampled);
    }

    #[test]
    fn a_later_version_may_say_more_and_this_one_may_not() {
        let later = PARENT.replacen("00-", "cc-", 1) + "-what-the-future-brings";
        assert_eq!(TraceContext::read(&later, "").unwrap().to_string(), PARENT);
        assert_eq!(TraceContext::read(&format!("{PARENT}-more"), ""), None);
    }

    #[test]
    fn what_is_malformed_is_no_trace() {
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
    fn a_state_that_no_header_may_hold_is_left_out() {
        for state in ["a=\u{1b}[31m", "a=1\nb=2", &"x".repeat(LONGEST_STATE + 1)] {
            assert_eq!(TraceContext::read(PARENT, state).unwrap().state, "", "{state:?}");
        }
    }
}
