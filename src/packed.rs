// SPDX-License-Identifier: Apache-2.0
//! Older lines of text, compressed together: lines of one kind resemble each other, so each takes a
//! fraction of its length.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use tracing::error;

/// Some lines, oldest first. Each line ends with a line feed and contains no other.
#[derive(Debug)]
pub(crate) struct PackedLines {
    /// The length of each line in bytes.
    pub(crate) lengths: Box<[usize]>,
    deflated: Box<[u8]>,
}

impl PackedLines {
    pub(crate) fn of<L: AsRef<str>>(lines: impl IntoIterator<Item = L>) -> Self {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        let mut lengths = Vec::new();
        for line in lines {
            let line = line.as_ref();
            // Writing to memory does not fail; if it does, the lines are missing.
            if let Err(error) = encoder.write_all(line.as_bytes()) {
                error!("compressing lines: {error}");
            }
            lengths.push(line.len());
        }
        let deflated = encoder.finish().unwrap_or_default();
        Self { lengths: lengths.into(), deflated: deflated.into() }
    }

    /// Returns the length of all lines in bytes.
    pub(crate) fn size(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Returns the lines as one text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::with_capacity(self.size());
        if let Err(error) = DeflateDecoder::new(&*self.deflated).read_to_string(&mut text) {
            error!("reading compressed lines: {error}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_lines_are_unpacked_unchanged() {
        let lines: Vec<String> =
            (0..64).map(|n| format!("{{\"event\": {n}, \"ü\": 1}}\n")).collect();
        let packed = PackedLines::of(&lines);
        assert_eq!(packed.text(), lines.concat());
        assert_eq!((packed.size(), packed.lengths.len()), (lines.concat().len(), 64));
        assert!(packed.deflated.len() < packed.size() / 4, "{}", packed.deflated.len());
        assert_eq!(PackedLines::of([""; 0]).text(), "");
    }
}
