// SPDX-License-Identifier: Apache-2.0
//! Names with wildcards: `*`, `?`, `[a-z]`, `[^x]`; after `\`, a character stands for itself.
//! Wildcards match `/` too, except in [`matches_path`]. Pure.
//!
//! Reference: glob(7), and the syntax of Go's `filepath.Match`, which other readers of these
//! patterns use.

/// The characters that make a name a pattern.
const SPECIAL: [char; 4] = ['*', '?', '[', '\\'];

/// Whether a name has wildcards.
pub(crate) fn is_pattern(name: &str) -> bool {
    name.contains(SPECIAL)
}

/// Whether `name` matches `pattern`; a malformed pattern matches nothing.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    if !is_pattern(pattern) {
        return pattern == name;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    // The positions after the last star, and after the part of the name that it has matched so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p + 1, n));
            p += 1;
            continue;
        }
        match match_one(&pattern, p, name[n]) {
            Some(next) => (p, n) = (next, n + 1),
            None => match star {
                Some((after, eaten)) => {
                    star = Some((after, eaten + 1));
                    (p, n) = (after, eaten + 1);
                }
                None => return false,
            },
        }
    }
    pattern.get(p..).is_some_and(|rest| rest.iter().all(|c| *c == '*'))
}

/// Whether a path matches, element by element: no wildcard matches `/`.
pub(crate) fn matches_path(pattern: &str, path: &str) -> bool {
    let (mut patterns, mut parts) = (pattern.split('/'), path.split('/'));
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return true,
            (Some(pattern), Some(part)) if matches(pattern, part) => {}
            _ => return false,
        }
    }
}

/// Matches one character with the pattern at `at`; returns the position of the pattern's next part.
fn match_one(pattern: &[char], at: usize, c: char) -> Option<usize> {
    match pattern.get(at)? {
        '?' => Some(at + 1),
        '\\' => (*pattern.get(at + 1)? == c).then_some(at + 2),
        '[' => match_set(pattern, at + 1, c),
        literal => (*literal == c).then_some(at + 1),
    }
}

fn match_set(pattern: &[char], at: usize, c: char) -> Option<usize> {
    let CharacterSet { ranges, is_negated, end } = CharacterSet::at(pattern, at)?;
    let is_in = ranges.into_iter().any(|(low, high)| (low..=high).contains(&c));
    (is_in != is_negated).then_some(end)
}

struct CharacterSet {
    ranges: Vec<(char, char)>,
    is_negated: bool,
    /// The position after the set's `]`.
    end: usize,
}

impl CharacterSet {
    /// Parses the set that begins at `at`, after its `[`; `None` if it has no end.
    fn at(pattern: &[char], mut at: usize) -> Option<Self> {
        let is_negated = pattern.get(at) == Some(&'^');
        at += usize::from(is_negated);
        let (mut ranges, first) = (Vec::new(), at);
        while at == first || *pattern.get(at)? != ']' {
            let (low, next) = literal(pattern, at)?;
            let (high, next) = match pattern.get(next) {
                Some('-') => literal(pattern, next + 1)?,
                _ => (low, next),
            };
            ranges.push((low, high));
            at = next;
        }
        Some(Self { ranges, is_negated, end: at + 1 })
    }
}

fn literal(pattern: &[char], at: usize) -> Option<(char, usize)> {
    match pattern.get(at)? {
        '\\' => Some((*pattern.get(at + 1)?, at + 2)),
        c => Some((*c, at + 1)),
    }
}

/// Returns what is wrong with a pattern that is malformed or has an empty range.
pub(crate) fn mistake(pattern: &str) -> Option<&'static str> {
    let pattern: Vec<char> = pattern.chars().collect();
    let mut at = 0;
    while at < pattern.len() {
        at = match pattern[at] {
            '\\' if at + 1 == pattern.len() => return Some("ends with \\"),
            '\\' => at + 2,
            '[' => match CharacterSet::at(&pattern, at + 1) {
                Some(set) if set.ranges.iter().all(|(low, high)| low <= high) => set.end,
                Some(_) | None => return Some("has a [ without its ], or an empty range"),
            },
            _ => at + 1,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_the_names_that_they_describe() {
        for (pattern, name) in [
            ("sda", "sda"),
            ("sd*", "sda"),
            ("sd*", "sd"),
            ("*SSD*", "ata-VendorSSD-1"),
            ("sd[a-c]", "sdb"),
            ("sd[^a]", "sdb"),
            ("nvme?n1", "nvme0n1"),
            ("a\\*b", "a*b"),
            ("*a*b", "xaxbxb"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn wildcards_match_no_other_names() {
        for (pattern, name) in [
            ("sda", "sdab"),
            ("sd?", "sd"),
            ("sd[a-c]", "sdd"),
            ("sd[^a]", "sda"),
            ("sd[a", "sda"),
            ("a\\", "a"),
            ("a\\*b", "axb"),
            ("*a*b", "xbxa"),
            ("", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_that_can_match_nothing_is_a_mistake() {
        for pattern in ["kube-[a", "[", "[]", "a\\", "[a\\", "[a-]", "x[z-a]"] {
            assert!(mistake(pattern).is_some(), "{pattern}");
        }
        for (pattern, name) in [
            ("kube-*", "kube-a"),
            ("[]a]", "]"),
            ("[^]]x?", "axb"),
            ("a\\*", "a*"),
            ("[a-c-]", "-"),
        ] {
            assert!(mistake(pattern).is_none() && matches(pattern, name), "{pattern}");
        }
    }
}
