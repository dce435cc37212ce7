// SPDX-License-Identifier: Apache-2.0
//! Fields of a protobuf message, without its schema: for messages of which a few fields are read
//! or left out. Messages that are read as a whole have generated types (`plugin/api`).
//! Reference: Protocol Buffers, "Encoding".

use crate::error::{Error, Result};

const VARINT: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const BYTES: u64 = 2;
const FOUR_BYTES: u64 = 5;

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireField<'b> {
    /// Its number in the schema.
    pub(crate) number: u64,
    /// The text, bytes or message in it; empty if it is a number.
    pub(crate) value: &'b [u8],
    /// All of it, as it stands in the message.
    pub(crate) whole: &'b [u8],
}

/// The fields of a message in their order. The last item is an error if the message is malformed.
pub(crate) fn fields(mut rest: &[u8]) -> impl Iterator<Item = Result<WireField<'_>>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = next_field(rest);
        rest = field.and_then(|field| rest.get(field.whole.len()..)).unwrap_or_default();
        Some(field.ok_or_else(|| Error::new("a protobuf message is malformed")))
    })
}

/// The value of the last field of that number; empty if there is none.
///
/// # Errors
/// Fails on a malformed message.
pub(crate) fn member(message: &[u8], number: u64) -> Result<&[u8]> {
    let mut found: &[u8] = &[];
    for field in fields(message) {
        let field = field?;
        if field.number == number {
            found = field.value;
        }
    }
    Ok(found)
}

/// Key and value of an entry of a map whose keys are texts.
///
/// # Errors
/// Fails on a malformed entry.
pub(crate) fn map_entry(entry: &[u8]) -> Result<(String, &[u8])> {
    Ok((text(member(entry, 1)?), member(entry, 2)?))
}

/// The number in a field; `None` if it holds something else.
pub(crate) fn number(field: &WireField<'_>) -> Option<u64> {
    let mut rest = field.whole;
    (read_varint(&mut rest)? & 7 == VARINT).then(|| read_varint(&mut rest)).flatten()
}

/// The text in a field.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// A field with a text, bytes or a message in it.
pub(crate) fn field(number: u64, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.len() + 8);
    write_varint(&mut bytes, number << 3 | BYTES);
    write_varint(&mut bytes, u64::try_from(value.len()).unwrap_or(u64::MAX));
    bytes.extend_from_slice(value);
    bytes
}

fn next_field(message: &[u8]) -> Option<WireField<'_>> {
    let mut rest = message;
    let tag = read_varint(&mut rest)?;
    let mut value: &[u8] = &[];
    match tag & 7 {
        VARINT => {
            read_varint(&mut rest)?;
        }
        EIGHT_BYTES => rest = rest.get(8..)?,
        BYTES => {
            let length = usize::try_from(read_varint(&mut rest)?).ok()?;
            (value, rest) = rest.split_at_checked(length)?;
        }
        FOUR_BYTES => rest = rest.get(4..)?,
        _ => return None,
    }
    let whole = message.get(..message.len() - rest.len())?;
    Some(WireField { number: tag >> 3, value, whole })
}

/// Seven bits to a byte, the smallest first; at most ten bytes.
fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, more) = rest.split_first()?;
        *rest = more;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Appends a number of variable length.
pub(crate) fn write_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_kind_of_field_is_stepped_over() {
        // 1: "ab", 2: 300, 3: eight bytes, 4: four bytes, 5: "".
        let message = [
            &[0x0a, 2, b'a', b'b', 0x10, 0xac, 2, 0x19][..],
            &[7; 8],
            &[0x25, 1, 2, 3, 4],
            &[0x2a, 0],
        ]
        .concat();
        let all: Vec<WireField<'_>> = fields(&message).map(Result::unwrap).collect();
        assert_eq!(all.iter().map(|field| field.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(all.iter().map(|field| field.whole.len()).sum::<usize>(), message.len());
        assert_eq!(all[0].value, b"ab");
        assert!(all[1..].iter().all(|field| field.value.is_empty()));
    }

    #[test]
    fn a_message_that_ends_too_early_is_malformed() {
        for message in [&[0x0a, 5, 1][..], &[0x0a], &[0xff; 12], &[0x0b, 1], &[0x09, 1]] {
            assert!(fields(message).any(|field| field.is_err()), "{message:?}");
            assert!(member(message, 1).is_err(), "{message:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(number in 1..1000_u64, value in proptest::collection::vec(any::<u8>(), 0..300)) {
            let bytes = field(number, &value);
            assert_eq!(member(&bytes, number).unwrap(), value);
            assert_eq!(fields(&bytes).next().unwrap().unwrap().whole, bytes);
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for _field in fields(&bytes) {}
        }
    }
}
