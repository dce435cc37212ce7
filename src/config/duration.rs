// SPDX-License-Identifier: Apache-2.0
//! Durations in containerd's spelling (Go's): `1m30s`, `2s`, `500ms`. A bare number other
//! than 0 is refused, because its unit would be a guess.

use std::time::Duration;

const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// Parses a Go-style duration; `None` if it is malformed, negative, or too long for a [`Duration`].
pub(crate) fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (_, factor) = UNITS.iter().find(|(unit, _)| *unit == &rest[..letters])?;
        seconds += number * factor;
        rest = &rest[letters..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

/// Formats a duration as [`parse`] reads it, without fractions of a millisecond.
pub(crate) fn show(duration: Duration) -> String {
    let millis = duration.as_millis();
    match (millis % 1000, millis / 1000) {
        (0, seconds) if seconds >= 60 && seconds % 60 == 0 => format!("{}m", seconds / 60),
        (0, seconds) => format!("{seconds}s"),
        _ => format!("{millis}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_style_durations_are_read() {
        for (text, millis) in [("2s", 2000), ("1m30s", 90_000), ("1.5s", 1500), ("20ms", 20)] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn durations_in_other_forms_are_refused() {
        for text in ["", "5", "s", "-1s", "1 s", "1x", "1..2s", "99999999999999999999999h"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_shown_duration_is_parsed_to_itself() {
        for millis in [20, 1000, 1500, 60_000, 90_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&show(duration)), Some(duration));
        }
    }
}
