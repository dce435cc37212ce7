// SPDX-License-Identifier: Apache-2.0
//! Text for people, on a terminal or in a log: escapes for every character that a terminal would
//! interpret or hide, and the forms of times, ages, ids and counts. JSON documents are not escaped
//! here: JSON has its own escapes.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use nri_api::text::printable;

use crate::limits;

/// Makes a whole page printable; line ends and tabs stay.
pub(crate) fn printable_page(page: &str) -> String {
    let mut shown = String::with_capacity(page.len());
    let mut left = page.chars().peekable();
    while let Some(c) = left.next() {
        let is_line_end = c == '\n' || c == '\r' && left.peek() == Some(&'\n');
        if is_line_end || c == '\t' {
            shown.push(c);
        } else {
            shown.push_str(&printable(c.encode_utf8(&mut [0; 4])));
        }
    }
    shown
}

/// Formats a time as UTC in whole seconds, the form that containerd's shim can read.
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{}Z", date_and_time(seconds))
}

/// Formats a Unix time in nanoseconds with all digits; `None` unless it is positive.
pub fn rfc3339_nanos(nanos: i64) -> Option<String> {
    let nanos = u64::try_from(nanos).ok().filter(|nanos| *nanos > 0)?;
    let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    Some(format!("{}.{rest:09}Z", date_and_time(seconds)))
}

fn date_and_time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01 in 400-year eras of 146097 days (proleptic Gregorian calendar).
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + carry;
    let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}")
}

/// Formats a time span in at most two units, much as `kubectl` shows ages: `42s`, `3m7s`, `5h`, `12d`.
pub(crate) fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600, seconds / 60);
    let mut shown = String::new();
    let _infallible = match (days, hours, minutes) {
        (2.., _, _) => write!(shown, "{days}d"),
        (_, 10.., _) => write!(shown, "{hours}h"),
        (_, 1.., _) if !minutes.is_multiple_of(60) => write!(shown, "{hours}h{}m", minutes % 60),
        (_, 1.., _) => write!(shown, "{hours}h"),
        (_, _, 10..) => write!(shown, "{minutes}m"),
        (_, _, 1..) if !seconds.is_multiple_of(60) => write!(shown, "{minutes}m{}s", seconds % 60),
        (_, _, 1..) => write!(shown, "{minutes}m"),
        _ => write!(shown, "{seconds}s"),
    };
    shown
}

/// Formats the time since `nanos` (Unix time) as text; a dash unless `nanos` is positive.
pub(crate) fn age(nanos: i64, now: SystemTime) -> String {
    let Some(nanos) = u64::try_from(nanos).ok().filter(|nanos| *nanos > 0) else {
        return "-".to_owned();
    };
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    span(now.saturating_sub(nanos / 1_000_000_000))
}

/// Formats a number with its noun: `1 pod`, `2 pods`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

/// Lists the first [`limits::NAMES`] names, and the number of others.
pub(crate) fn first_of<T: AsRef<str>>(names: &[T]) -> String {
    let first: Vec<&str> = names.iter().take(limits::NAMES).map(AsRef::as_ref).collect();
    match names.len().checked_sub(limits::NAMES) {
        None | Some(0) => first.join(", "),
        Some(more) => format!("{} and {more} more", first.join(", ")),
    }
}

/// Shortens an ID of 32 or more hexadecimal digits, as engines generate them, to 13 characters, as
/// crictl does; returns any other ID whole.
pub fn short_id(id: &str) -> &str {
    let is_made = id.len() >= 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_made { &id[..13] } else { id }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_page_keeps_tabs_and_line_ends_and_escapes_the_rest() {
        assert_eq!(printable_page("a\tb\r\n\u{1b}c\rd\n"), "a\tb\r\n\\u{1b}c\\rd\n");
    }

    #[test]
    fn times_equal_the_output_of_date() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_795_221_600, "2026-11-21T00:40:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        let nanos = rfc3339_nanos(951_827_696_000_000_042).unwrap_or_default();
        assert_eq!(nanos, "2000-02-29T12:34:56.000000042Z");
        assert_eq!((rfc3339_nanos(0), rfc3339_nanos(-1)), (None, None));
    }

    #[test]
    fn spans_have_at_most_two_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (61, "1m1s"),
            (600, "10m"),
            (3599, "59m"),
            (3600, "1h"),
            (3660, "1h1m"),
            (36_000, "10h"),
            (172_799, "47h"),
            (172_800, "2d"),
        ] {
            assert_eq!(span(seconds), text);
        }
        let now = UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!((age(0, now).as_str(), age(40_000_000_000, now).as_str()), ("-", "1m"));
        assert_eq!(age(400_000_000_000, now), "0s", "a clock that was set back");
    }

    #[test]
    fn a_count_of_one_is_singular() {
        let shown = [0, 1, 2].map(|count| counted(count, "pod"));
        assert_eq!(shown, ["0 pods", "1 pod", "2 pods"]);
    }

    #[test]
    fn a_long_list_is_cut_and_counted() {
        let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(first_of(&names[..2]), "0, 1");
        assert_eq!(first_of(&names[..8]), "0, 1, 2, 3, 4, 5, 6, 7");
        assert_eq!(first_of(&names), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
    }

    #[test]
    fn ids_of_engines_are_shortened_and_names_are_not() {
        assert_eq!(short_id(&"b1".repeat(32)), "b1b1b1b1b1b1b");
        assert_eq!(short_id("nginx-frontend-1"), "nginx-frontend-1");
    }
}
