// SPDX-License-Identifier: Apache-2.0
//! A protobuf message in a record: bytes in memory, shared with the sender; hexadecimal on disk.

use std::fmt;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::value::RawValue;

use crate::formats::protobuf;

/// The bytes of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wire(pub Arc<[u8]>);

impl Wire {
    /// Returns the message without these top-level fields; a malformed message is returned
    /// unchanged.
    pub fn without(bytes: &[u8], fields: &[u64]) -> Self {
        let mut kept = Vec::with_capacity(bytes.len());
        for field in protobuf::fields(bytes) {
            let Ok(field) = field else { return Self(bytes.into()) };
            if !fields.contains(&field.number) {
                kept.extend_from_slice(field.whole);
            }
        }
        Self(kept.into())
    }

    /// Returns only the top-level field `number`; ignores everything after a malformed field.
    pub fn only(&self, number: u64) -> Vec<u8> {
        let fields = protobuf::fields(&self.0).map_while(Result::ok);
        let wanted = fields.filter(|field| field.number == number);
        wanted.flat_map(|field| field.whole.iter().copied()).collect()
    }

    /// Whether the message begins with this field.
    pub fn begins_with(&self, number: u64) -> bool {
        protobuf::fields(&self.0)
            .next()
            .is_some_and(|field| field.is_ok_and(|field| field.number == number))
    }
}

impl Wire {
    /// Whether the message has the field `number`, containing a message with the field `inner`.
    pub fn has_inside(&self, number: u64, inner: u64) -> bool {
        let mut fields = protobuf::fields(&self.0).flatten();
        fields.any(|field| {
            let mut inside = protobuf::fields(field.value).flatten();
            field.number == number && inside.any(|field| field.number == inner)
        })
    }
}

/// Decodes a message without a copy of its text, because a starting daemon reads thousands.
struct Hexadecimal;

impl Visitor<'_> for Hexadecimal {
    type Value = Wire;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hexadecimal digits")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Wire, E> {
        let mut others = 0;
        let mut value = |byte: u8| {
            let value = VALUES[usize::from(byte)];
            others |= value;
            value & 15
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let pairs = pairs.iter();
        let bytes: Arc<[u8]> = pairs.map(|[high, low]| value(*high) << 4 | value(*low)).collect();
        // A manipulated message becomes empty: an error would set the whole record aside.
        let is_whole = others <= 15 && rest.is_empty();
        Ok(Wire(if is_whole { bytes } else { Arc::default() }))
    }
}

/// The value of each digit; above 15 for other bytes.
const VALUES: [u8; 256] = {
    let mut values = [16; 256];
    let mut value = 0;
    while value < 16 {
        values[DIGITS[value as usize] as usize] = value;
        value += 1;
    }
    values
};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The two digits of each byte.
const PAIRS: [[u8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

impl Serialize for Wire {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Converted in place, and checked for characters to escape eight bytes at a time: a message may have
        // megabytes, and is written several times in a container's life. Only serde_json can write such a value.
        let mut text = vec![b'"'; self.0.len() * 2 + 2];
        let digits = text.get_mut(1..).unwrap_or_default().as_chunks_mut::<2>().0;
        for (pair, byte) in digits.iter_mut().zip(&*self.0) {
            *pair = PAIRS[usize::from(*byte)];
        }
        let text = String::from_utf8(text).map_err(ser::Error::custom)?;
        RawValue::from_string(text).map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Wire {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Hexadecimal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_disk_as_hex() {
        let wire = Wire((0..=255).collect());
        let text = serde_json::to_string(&wire).unwrap();
        assert!(text.starts_with("\"000102") && text.ends_with("fdfeff\""), "{text}");
        assert_eq!(serde_json::from_str::<Wire>(&text).unwrap(), wire);
    }

    #[test]
    fn omitted_fields_do_not_change_the_others() {
        // Fields 1: "ab", 2: 300, 3: eight bytes, 4: "", and 1 again.
        let message =
            [&[0x0a, 2, b'a', b'b', 0x10, 0xac, 2, 0x19][..], &[7; 8], &[0x22, 0, 0x0a, 1, b'c']]
                .concat();
        let without = |fields: &[u64]| Wire::without(&message, fields).0.to_vec();
        assert_eq!(without(&[]), message);
        assert_eq!(without(&[1, 3]), [0x10, 0xac, 2, 0x22, 0]);
        assert_eq!(without(&[1, 2, 3, 4]), [0_u8; 0]);
        let wire = Wire(message.clone().into());
        assert!(wire.begins_with(1) && !wire.begins_with(2));
        assert_eq!((wire.only(2), wire.only(7)), (vec![0x10, 0xac, 2], vec![]));
        assert_eq!(Wire([0x10, 1, 0x80].into()).only(2), [0x10, 1], "what can be read");
        let nested = Wire([0x12, 3, 0x1a, 1, b'x'].into());
        assert!(nested.has_inside(2, 3) && !nested.has_inside(2, 1) && !nested.has_inside(3, 3));
    }

    #[test]
    fn a_message_that_ends_too_early_is_kept_as_it_is() {
        for message in [&[0x0a, 5, 1][..], &[0x0a], &[0x80; 12], &[0x0b, 1], &[0x09, 1]] {
            assert_eq!(*Wire::without(message, &[1]).0, *message);
        }
    }

    #[test]
    fn invalid_hex_yields_an_empty_message() {
        for text in ["zz", "0", "0a0", "0a0b0g"] {
            let read = serde_json::from_value::<Wire>(text.into()).unwrap();
            assert_eq!(read, Wire::default(), "{text}");
        }
    }
}
