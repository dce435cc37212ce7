// SPDX-License-Identifier: Apache-2.0
//! Line and column of any offset in a text, without reading the text from its start each time.
//! Pure.

use std::cell::OnceCell;

/// Number of bytes between two offsets whose line and column are stored.
const STEP: usize = 1024;

/// The lines and columns of one text.
pub(super) struct Places<'t> {
    text: &'t str,
    /// Line and column at each [`STEP`], computed by the first call of `at`.
    kept: OnceCell<Vec<(usize, usize)>>,
}

impl<'t> Places<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, kept: OnceCell::new() }
    }

    /// Returns the line and column of `offset`, both from 1, the column in characters.
    pub(super) fn at(&self, offset: usize) -> (usize, usize) {
        let bytes = self.text.as_bytes();
        let kept = self.kept.get_or_init(|| {
            let steps = bytes
                .chunks(STEP)
                .scan((1, 1), |place, step| Some(std::mem::replace(place, behind(*place, step))));
            steps.collect()
        });
        let offset = offset.min(bytes.len());
        let step = (offset / STEP).min(kept.len().saturating_sub(1));
        let start = kept.get(step).copied().unwrap_or((1, 1));
        behind(start, &bytes[step * STEP..offset])
    }
}

/// Returns the line and column after these bytes, which begin at `place`.
fn behind(place: (usize, usize), bytes: &[u8]) -> (usize, usize) {
    bytes.iter().fold(place, |(line, column), byte| match byte {
        b'\n' => (line + 1, 1),
        // A continuation byte of a character.
        0x80..0xc0 => (line, column),
        _ => (line, column + 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_offset_has_its_line_and_its_column_in_characters() {
        let text = "ä = 1\n\nx".to_owned() + &"é".repeat(STEP) + "\n" + &"y\n".repeat(STEP) + "z";
        let places = Places::new(&text);
        for (offset, _) in text.char_indices() {
            let before = &text[..offset];
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap().chars().count() + 1;
            assert_eq!(places.at(offset), (line, column), "{offset}");
        }
        assert_eq!(places.at(text.len() + 1), (STEP + 4, 2), "an offset beyond it is its end");
        assert_eq!(Places::new("").at(7), (1, 1));
    }
}
