// SPDX-License-Identifier: Apache-2.0
//! Finds the known name that is nearest to a mistyped one. Pure.

use crate::limits;

/// Returns the name with the smallest edit distance, ignoring case; among equal distances, the smallest with case.
pub(super) fn nearest<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> &'n str {
    nearest_within(usize::MAX, wrong, names).unwrap_or_default()
}

/// Suggests the closest name as ` (did you mean NAME?)`; empty if every name is too different.
/// In a short word two letters may differ, in a longer one half of them.
pub(super) fn did_you_mean<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> String {
    let near = nearest(wrong, names);
    let length = wrong.chars().count().max(near.chars().count());
    match distance_to_key(wrong, near) <= (length / 2).max(2) && !near.is_empty() {
        true => format!(" (did you mean {near}?)"),
        false => String::new(),
    }
}

/// Like [`nearest`], but `None` if every edit distance exceeds `most`.
pub(super) fn nearest_within<'n>(
    mut most: usize,
    wrong: &str,
    names: impl Iterator<Item = &'n str>,
) -> Option<&'n str> {
    let wrong =
        wrong.char_indices().nth(limits::SPELLED_WORD).map_or(wrong, |(end, _)| &wrong[..end]);
    let (lower, mut best) = (wrong.to_lowercase(), None);
    for name in names {
        let meant = meant(wrong, name);
        let lower_meant = meant.to_lowercase();
        // The edit distance is at least the difference in length.
        if lower.len().abs_diff(lower_meant.len()) > most {
            continue;
        }
        let letters = distance(lower.as_bytes(), lower_meant.as_bytes());
        if letters <= most {
            let found = (letters, distance(wrong.as_bytes(), meant.as_bytes()));
            best = Some((found, name)).filter(|_| best.is_none_or(|(b, _)| found < b)).or(best);
            most = letters;
        }
    }
    best.map(|(_, name)| name)
}

/// Returns the edit distance between the written name and a key, ignoring case; a `*` in the key
/// stands for any word.
pub(super) fn distance_to_key(wrong: &str, key: &str) -> usize {
    distance(wrong.to_lowercase().as_bytes(), meant(wrong, key).to_lowercase().as_bytes())
}

/// Returns `key` with the words of `wrong` in place of each `*`.
fn meant(wrong: &str, key: &str) -> String {
    let mut words = wrong.split('.');
    let parts = key.split('.').map(|part| match (part, words.next()) {
        ("*", Some(word)) => word,
        (part, _) => part,
    });
    parts.collect::<Vec<_>>().join(".")
}

fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_name_is_suggested() {
        let names = ["runtime", "log.level", "plugin.*.strikes", "env"];
        for (wrong, wanted) in [
            ("runtme", " (did you mean runtime?)"),
            ("Runtime", " (did you mean runtime?)"),
            ("log.lvl", " (did you mean log.level?)"),
            ("plugin.a.strike", " (did you mean plugin.*.strikes?)"),
            ("nev", " (did you mean env?)"),
            ("bogus.a", ""),
            ("x", ""),
            ("plugin.averylongname.zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz", ""),
        ] {
            assert_eq!(did_you_mean(wrong, names.into_iter()), wanted, "{wrong}");
        }
        assert_eq!(did_you_mean("a", std::iter::empty()), "");
    }
}
