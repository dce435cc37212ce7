// SPDX-License-Identifier: Apache-2.0
//! Copies of the messages of a call, for a recorder. It decodes nothing, and with the default limit
//! of 0 it copies nothing.

/// Copies of one call's encoded messages, for a recorder. A message longer than the limit is not
/// copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallCopies {
    limit: usize,
    /// The encoded `ttrpc.Request`; empty if it is longer than the limit.
    pub request: Vec<u8>,
    /// The length of the request in bytes.
    pub request_bytes: usize,
    /// The encoded `ttrpc.Response`; empty without one, or if it is longer than the limit.
    pub answer: Vec<u8>,
    /// The length of the response in bytes; 0 without one.
    pub answer_bytes: usize,
}

impl CallCopies {
    /// Copies messages of at most `limit` bytes; none if `limit` is 0.
    pub fn up_to(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    fn copy(&self, message: &[u8]) -> Vec<u8> {
        if message.len() <= self.limit { message.to_vec() } else { Vec::new() }
    }

    pub(crate) fn take_request(&mut self, message: &[u8]) {
        (self.request, self.request_bytes) = (self.copy(message), message.len());
    }

    pub(crate) fn take_answer(&mut self, message: &[u8]) {
        (self.answer, self.answer_bytes) = (self.copy(message), message.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_message_over_the_limit_only_the_length_is_kept() {
        let mut copies = CallCopies::up_to(3);
        copies.take_request(b"abc");
        copies.take_answer(b"abcd");
        assert_eq!((copies.request.as_slice(), copies.request_bytes), (&b"abc"[..], 3));
        assert_eq!((copies.answer.as_slice(), copies.answer_bytes), (&b""[..], 4));
        let mut none = CallCopies::default();
        none.take_request(b"abc");
        assert!(none.request.is_empty());
    }
}
