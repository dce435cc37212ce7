// SPDX-License-Identifier: Apache-2.0
//! Header fields of HTTP/2 (RFC 7541), only as one gRPC call needs them: fields are written as
//! literals without a table, and only fields with a literal name, such as `grpc-status` and
//! `grpc-message`, are read. The size of the table is set to 0.

/// Huffman codes by their length, in the order of their values (RFC 7541, appendix B). Bytes that
/// do not occur in gRPC fields are omitted; a zero byte takes the place of one that precedes others
/// of its length.
const CODES: [(u32, &[u8]); 11] = [
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b"!\"()?"),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\0$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
    (19, b"\\"),
];

/// The length of the longest code of all, in bits.
const LONGEST_CODE: u32 = 30;

/// Appends a field.
pub(super) fn write_field(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        write_length(block, text.len());
        block.extend_from_slice(text.as_bytes());
    }
}

/// Returns the fields of a block that have literal names; `None` if the block is malformed.
pub(super) fn read_fields(block: &[u8]) -> Option<Vec<(String, String)>> {
    let (mut rest, mut fields) = (block, Vec::new());
    while let Some(first) = rest.first() {
        // In order: a field of the table, a literal field that is also added to the table, a new
        // size of the table, another literal field.
        let (prefix, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let index = read_integer(&mut rest, prefix)?;
        if !is_literal {
            continue;
        }
        let name = if index == 0 { read_text(&mut rest)? } else { None };
        let value = read_text(&mut rest)?;
        fields.extend(name.zip(value));
    }
    Some(fields)
}

/// Reads a text; the inner `None` means that it cannot be decoded, as with bytes that [`CODES`] omits.
fn read_text(rest: &mut &[u8]) -> Option<Option<String>> {
    let is_huffman = rest.first()? & 0x80 != 0;
    let length = read_integer(rest, 7)?;
    let (bytes, more) = rest.split_at_checked(length)?;
    *rest = more;
    Some(if is_huffman { decode(bytes) } else { String::from_utf8(bytes.to_vec()).ok() })
}

/// Reads an integer from the low bits of the first byte and, if it does not fit there, from the
/// following bytes (RFC 7541, 5.1).
fn read_integer(rest: &mut &[u8], prefix: u32) -> Option<usize> {
    let (&first, more) = rest.split_first()?;
    *rest = more;
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(first) & most;
    if value < most {
        return Some(value);
    }
    for shift in (0..28).step_by(7) {
        let (&byte, more) = rest.split_first()?;
        *rest = more;
        value += usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Writes a length as an integer with a prefix of 7 bits.
fn write_length(block: &mut Vec<u8>, length: usize) {
    let Some(mut rest) = length.checked_sub(127) else {
        block.push(u8::try_from(length).unwrap_or(0));
        return;
    };
    block.push(127);
    while rest >= 128 {
        block.push(u8::try_from(rest & 127).unwrap_or(0) | 128);
        rest >>= 7;
    }
    block.push(u8::try_from(rest).unwrap_or(0));
}

fn decode(bytes: &[u8]) -> Option<String> {
    let (mut text, mut code, mut length) = (String::new(), 0_u32, 0);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)) {
        (code, length) = (code << 1 | u32::from(bit), length + 1);
        if let Some(byte) = symbol(code, length) {
            text.push(char::from(byte));
            (code, length) = (0, 0);
        }
        if length > LONGEST_CODE {
            return None;
        }
    }
    // The last byte is padded with ones.
    (length < 8 && code == (1 << length) - 1).then_some(text)
}

/// Returns the byte of a code. Codes of one length are consecutive, and precede longer ones.
fn symbol(code: u32, length: u32) -> Option<u8> {
    let (mut first, mut before) = (0_u32, 0);
    for (bits, bytes) in CODES {
        first <<= bits - before;
        if bits == length {
            let at = usize::try_from(code.checked_sub(first)?).ok()?;
            return bytes.get(at).copied();
        }
        first += u32::try_from(bytes.len()).unwrap_or(0);
        before = bits;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
        let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16);
        digits.chunks(2).map(|pair| byte(pair).unwrap()).collect()
    }

    /// RFC 7541, C.4 and C.6.
    #[test]
    fn the_examples_of_the_specification_are_decoded() {
        for (code, text) in [
            ("f1e3 c2e5 f23a 6ba0 ab90 f4ff", "www.example.com"),
            ("a8eb 1064 9cbf", "no-cache"),
            ("25a8 49e9 5ba9 7d7f", "custom-key"),
            ("25a8 49e9 5bb8 e8b4 bf", "custom-value"),
            (
                "d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff",
                "Mon, 21 Oct 2013 20:13:21 GMT",
            ),
            ("9d29 ad17 1863 c78f 0b97 c8e9 ae82 ae43 d3", "https://www.example.com"),
            (
                "94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            ),
        ] {
            assert_eq!(decode(&hex(code)).as_deref(), Some(text));
        }
    }

    #[test]
    fn each_printable_character_has_its_huffman_code() {
        let all = CODES.iter().flat_map(|(_, bytes)| bytes.iter());
        let mut printable: Vec<u8> = all.copied().filter(|byte| *byte != 0).collect();
        printable.sort_unstable();
        assert_eq!(printable, (b' '..=b'~').collect::<Vec<_>>());
        for (code, length, byte) in [(0x7ffd, 15, b'`'), (0x7fff0, 19, b'\\'), (0x1ffa, 13, b'@')] {
            assert_eq!(symbol(code, length), Some(byte));
        }
    }

    #[test]
    fn only_fields_with_a_literal_name_are_returned() {
        // :status 200 from the table, a new size, content-type by its index, two names, one coded.
        let mut block = hex("88 20 5f 01 78");
        write_field(&mut block, "grpc-status", "5");
        block.extend(hex("40 88 25a8 49e9 5ba9 7d7f 89 25a8 49e9 5bb8 e8b4 bf"));
        let wanted = [("grpc-status", "5"), ("custom-key", "custom-value")];
        let wanted = wanted.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read_fields(&block).unwrap(), wanted);
    }

    #[test]
    fn a_block_that_ends_too_early_is_malformed() {
        for block in ["00", "00 03 61", "7f", "ff ff ff ff ff ff 01", "00 01 61 05 62"] {
            assert_eq!(read_fields(&hex(block)), None, "{block}");
        }
    }

    #[test]
    fn a_text_that_cannot_be_decoded_leaves_the_other_fields() {
        // ff ff ff ff contains the end-of-text code, which must not occur.
        let mut block = hex("00 01 61 84 ffff ffff");
        write_field(&mut block, "b", "c");
        assert_eq!(read_fields(&block).unwrap(), [("b".to_owned(), "c".to_owned())]);
    }

    #[test]
    fn a_long_text_has_a_length_in_several_bytes() {
        let mut block = Vec::new();
        write_length(&mut block, 1337 + 127);
        assert_eq!(block, [127, 0xb9, 0x0a]);
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(name in "[a-z-]{1,200}", value in "[ -~]{0,300}") {
            let mut block = Vec::new();
            write_field(&mut block, &name, &value);
            assert_eq!(read_fields(&block).unwrap(), [(name, value)]);
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(read_fields(&bytes));
        }
    }
}
