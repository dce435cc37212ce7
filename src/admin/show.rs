// SPDX-License-Identifier: Apache-2.0
//! Tables, and the forms of values in them, for the pages that operators read.

use std::time::SystemTime;

use rustix::termios::{isatty, tcgetwinsize};
use serde_json::Value;

use super::output::{Answer, Format};
use crate::answers::MetricsText;
use crate::limits;
use crate::text::{age, printable};

impl Answer for MetricsText {
    /// Returns the metrics text, which is printed unchanged.
    fn page(&self, _: Format) -> String {
        self.text.clone()
    }
}

/// Placeholder for the value of an environment variable (decision D27).
pub(super) const REDACTED: &str = "(hidden; --show-env shows it)";

/// Columns to which text is wrapped, and the least width assumed for a terminal.
pub(super) const TERMINAL_WIDTH: usize = 80;

/// Replaces the removed middle of a shortened string.
const LEFT_OUT: &str = "...";

/// Formats a value on one line. Characters that control a terminal are escaped, because tenants choose names.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(" "),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => printable(&value.to_string()),
    }
}

/// Renders a table. Each column is as wide as its widest cell, at most [`limits::COLUMN`].
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let widths = widths_of(head, &rows.iter().collect::<Vec<_>>());
    let head: Vec<String> = head.iter().map(|word| word.to_uppercase()).collect();
    std::iter::once(&head).chain(rows).map(|row| line_of(row, &widths)).collect()
}

/// Computes the widths of a table's columns.
pub(super) fn widths_of(head: &[&str], rows: &[&Vec<String>]) -> Vec<usize> {
    let width = |(column, word): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        // A longer cell overflows its column; the formatter refuses widths above 65,535.
        cells.chain([word.len()]).max().unwrap_or(0).min(limits::COLUMN)
    };
    head.iter().enumerate().map(width).collect()
}

/// Renders a row of a table, with its line feed.
pub(super) fn line_of(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
}

/// Formats a value, `-` without one.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| printable(&value.to_string()))
}

/// Formats the time since `at`, a Unix time in nanoseconds.
pub(super) fn ago(at: i64) -> String {
    age(at, SystemTime::now())
}

/// Formats a duration given in milliseconds, with at most one decimal; from one second on, in
/// seconds.
pub(super) fn milliseconds(millis: f64) -> String {
    match millis {
        _ if millis >= 9950.0 => format!("{:.0}s", millis / 1000.0),
        _ if millis >= 1000.0 && millis % 1000.0 == 0.0 => format!("{:.0}s", millis / 1000.0),
        _ if millis >= 1000.0 => format!("{:.1}s", millis / 1000.0),
        _ if millis >= 9.95 => format!("{millis:.0}ms"),
        _ => format!("{millis:.1}ms"),
    }
}

/// Wraps a title and words to [`TERMINAL_WIDTH`]; lines after the first are indented.
pub(super) fn wrapped(title: &str, words: &str) -> String {
    lines_of(title, words, TERMINAL_WIDTH, "    ").join("\n") + "\n"
}

/// Wraps `title` and the words at this width; lines after the first begin with `indent`. A word that is
/// longer than the width is on a separate line.
pub(super) fn lines_of(title: &str, words: &str, width: usize, indent: &str) -> Vec<String> {
    let mut lines = vec![title.to_owned()];
    for word in words.split(' ') {
        let Some(line) = lines.last_mut() else { break };
        let is_full = line.chars().count() + 1 + word.chars().count() > width;
        match line.is_empty() {
            true => line.push_str(word),
            false if is_full => lines.push(format!("{indent}{word}")),
            false => line.extend([" ", word]),
        }
    }
    lines
}

/// Returns the width of standard output, at least [`TERMINAL_WIDTH`]; `None` if it is not a terminal, so that
/// nothing is shortened.
pub(super) fn screen() -> Option<usize> {
    let out = std::io::stdout();
    if !isatty(&out) {
        return None;
    }
    let width = tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
    Some(width.max(TERMINAL_WIDTH))
}

/// Shortens the cells of these columns, always the widest first, until the table fits the screen;
/// shortens none if it cannot fit.
pub(super) fn fit(
    head: &[&str],
    rows: &mut [Vec<String>],
    columns: &[usize],
    screen: Option<usize>,
) {
    let mut widths = widths_of(head, &rows.iter().collect::<Vec<_>>());
    let gaps = 2 * widths.len().saturating_sub(1);
    let screen = screen.unwrap_or(usize::MAX);
    while widths.iter().sum::<usize>() + gaps > screen {
        let widest = columns.iter().copied().max_by_key(|column| widths.get(*column));
        let Some(width) = widest.and_then(|column| widths.get_mut(column)) else { return };
        if *width <= limits::SHORTEST_COLUMN {
            return;
        }
        *width -= 1;
    }
    for row in rows {
        for column in columns {
            if let (Some(cell), Some(width)) = (row.get_mut(*column), widths.get(*column)) {
                *cell = shortened(cell, *width);
            }
        }
    }
}

/// Shortens a string to `width` characters by replacing its middle, because names differ at their ends.
pub(super) fn shortened(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(LEFT_OUT.len());
    let begin: String = text.chars().take(kept / 2).collect();
    let end: String = text.chars().skip(count - (kept - kept / 2)).collect();
    format!("{begin}{LEFT_OUT}{end}")
}

/// Formats NAMESPACE/NAME, or the name alone without a namespace.
pub(super) fn name_of_pod(namespace: &str, name: &str) -> String {
    match namespace {
        "" | "-" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_any_length_keeps_its_row_and_widens_no_other() {
        let long = "x".repeat(70_000);
        let rows = [(&*long, "a"), ("short", "b")];
        let rows = rows.map(|(name, state)| vec![name.to_owned(), state.to_owned()]);
        let page = table(&["name", "state"], &rows);
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1], format!("{long}  a"));
        assert_eq!(lines[2].len(), limits::COLUMN + 3, "{}", lines[2]);
    }

    #[test]
    fn text_is_wrapped_at_words_and_a_longer_word_stays_whole() {
        let lines = |words: &str, width| lines_of("", words, width, "");
        assert_eq!(lines("a bc def", 4), ["a bc", "def"]);
        assert_eq!(lines("a", usize::MAX), ["a"]);
        assert_eq!(lines("", 0), [""]);
        assert_eq!(lines("long words stay", 1), ["long", "words", "stay"]);
        assert_eq!(lines_of("  of:", "a bcd", 7, "  "), ["  of: a", "  bcd"]);
    }

    #[test]
    fn a_table_fits_the_screen_and_keeps_both_ends_of_its_names() {
        let head = ["name", "state", "id"];
        let long = "kube-system/coredns-5d78c9869d-x2xk9".repeat(2);
        let rows = || vec![vec![long.clone(), "ready".to_owned(), "short".to_owned()]];
        let (mut cut, mut whole) = (rows(), rows());
        fit(&head, &mut cut, &[0, 2], Some(40));
        let page = table(&head, &cut);
        assert!(page.lines().all(|line| line.chars().count() <= 40), "{page}");
        assert!(cut[0][0].starts_with("kube-system") && cut[0][0].ends_with("-x2xk9"), "{page}");
        assert_eq!(cut[0][2], "short", "the widest column alone is cut");
        fit(&head, &mut whole, &[0, 2], None);
        assert_eq!(whole, rows(), "a pipe gets whole names");
        // A screen that is too narrow for the table.
        fit(&head, &mut cut, &[0, 2], Some(1));
        assert_eq!(shortened("\u{e4}bcdefgh", 5), "\u{e4}...h");
        assert_eq!((shortened("abc", 3).as_str(), shortened("abcd", 0).as_str()), ("abc", "..."));
    }
}
