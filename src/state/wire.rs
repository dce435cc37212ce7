// SPDX-License-Identifier: Apache-2.0
//! A protobuf message as records keep it: bytes in memory, hex on disk.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The bytes of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wire(pub Vec<u8>);

impl Serialize for Wire {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = String::with_capacity(self.0.len() * 2);
        for byte in &self.0 {
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Wire {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let pairs = text.as_bytes().chunks_exact(2);
        let bytes: Option<Vec<u8>> =
            pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect();
        // A record that was tampered with gives an empty message, not a dead daemon.
        Ok(Self(bytes.unwrap_or_default()))
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
    fn spoilt_hex_is_an_empty_message() {
        assert_eq!(serde_json::from_str::<Wire>("\"zz\"").unwrap(), Wire::default());
        assert_eq!(serde_json::from_str::<Wire>("\"0\"").unwrap(), Wire::default());
    }
}
