// SPDX-License-Identifier: Apache-2.0
//! Fields of a protobuf message, without its schema, for messages of which only a few fields are
//! read or removed. Messages that are read as a whole have generated types (`nri-api`). Reference:
//! Protocol Buffers, "Encoding".

use protobuf::CodedInputStream;
use protobuf::rt::WireType;

use crate::error::{Error, Result};

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireField<'b> {
    /// The field's number in the schema.
    pub(crate) number: u64,
    /// The field's text, bytes or message; empty for a number.
    pub(crate) value: &'b [u8],
    /// The whole encoded field.
    pub(crate) whole: &'b [u8],
}

/// Returns the fields of a message in order. The last item is an error if the message is malformed.
pub(crate) fn fields(message: &[u8]) -> impl Iterator<Item = Result<WireField<'_>>> {
    let mut input = CodedInputStream::from_bytes(message);
    let mut is_malformed = false;
    std::iter::from_fn(move || {
        if is_malformed || input.eof().unwrap_or(true) {
            return None;
        }
        let field = next_field(message, &mut input);
        is_malformed = field.is_none();
        Some(field.ok_or_else(|| Error::new("a protobuf message is malformed")))
    })
}

/// Returns the value of the last field with this number, or an empty value.
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

/// Returns key and value of an entry of a map whose keys are texts.
///
/// # Errors
/// Fails on a malformed entry.
pub(crate) fn map_entry(entry: &[u8]) -> Result<(String, &[u8])> {
    Ok((text(member(entry, 1)?), member(entry, 2)?))
}

/// Returns the number in a field; `None` for another wire type.
pub(crate) fn number(field: &WireField<'_>) -> Option<u64> {
    let mut input = CodedInputStream::from_bytes(field.whole);
    let (_, kind) = read_tag(&mut input)?;
    (kind == WireType::Varint).then(|| input.read_raw_varint64().ok()).flatten()
}

/// Returns a field's bytes as text; bytes that are not UTF-8 are replaced.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Encodes a field with a text, bytes or message.
pub(crate) fn field(number: u64, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.len() + 8);
    write_varint(&mut bytes, number << 3 | WireType::LengthDelimited as u64);
    write_varint(&mut bytes, u64::try_from(value.len()).unwrap_or(u64::MAX));
    bytes.extend_from_slice(value);
    bytes
}

fn next_field<'b>(message: &'b [u8], input: &mut CodedInputStream<'b>) -> Option<WireField<'b>> {
    let begin = usize::try_from(input.pos()).ok()?;
    let (number, kind) = read_tag(input)?;
    let mut length = 0;
    if kind == WireType::LengthDelimited {
        length = input.read_raw_varint32().ok()?;
        input.skip_raw_bytes(length).ok()?;
    } else {
        input.skip_field(kind).ok()?;
    }
    let whole = message.get(begin..usize::try_from(input.pos()).ok()?)?;
    let value = whole.get(whole.len() - usize::try_from(length).ok()?..)?;
    Some(WireField { number, value, whole })
}

/// Returns the number of the next field, and its wire type.
fn read_tag(input: &mut CodedInputStream<'_>) -> Option<(u64, WireType)> {
    let tag = input.read_raw_varint32().ok()?;
    Some((u64::from(tag >> 3), WireType::new(tag & 7)?))
}

/// Appends a variable-length number.
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
    fn fields_of_each_kind_can_be_skipped() {
        // Fields 1: "ab", 2: 300, 3: eight bytes, 4: four bytes, 5: "".
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
        fn written_values_are_read_back(number in 1..1000_u64, value in proptest::collection::vec(any::<u8>(), 0..300)) {
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
