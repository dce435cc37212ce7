// SPDX-License-Identifier: Apache-2.0
//! The known name that is nearest to a mistyped one. Pure.

/// The one of `names` with the smallest edit distance, letters in another case counting least.
pub(super) fn nearest<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> &'n str {
    let by_distance = |name: &&str| {
        let meant = meant(wrong, name);
        (distance_to_key(wrong, name), distance(wrong.as_bytes(), meant.as_bytes()))
    };
    names.min_by_key(by_distance).unwrap_or_default()
}

/// How many letters differ between what was written and a key, whatever their case.
pub(super) fn distance_to_key(wrong: &str, key: &str) -> usize {
    distance(wrong.to_lowercase().as_bytes(), meant(wrong, key).to_lowercase().as_bytes())
}

/// `key` with the words of `wrong` where the operator chooses them.
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
