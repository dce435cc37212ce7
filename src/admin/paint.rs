// SPDX-License-Identifier: Apache-2.0
//! Colours, only on a terminal: not with `NO_COLOR`, on a dumb terminal, or in a pipe or a file. A
//! colour only repeats what the text says. Colours are added to escaped text, so that no other
//! escape sequence reaches the terminal, and change no character.

use std::env::var_os;
use std::os::fd::AsFd;

use rustix::termios::isatty;

const RED: &str = "\u{1b}[31m";
const GREEN: &str = "\u{1b}[32m";
const YELLOW: &str = "\u{1b}[33m";
const CYAN: &str = "\u{1b}[36m";
const BOLD: &str = "\u{1b}[1m";
const PLAIN: &str = "\u{1b}[0m";

/// Paints a page for standard output.
pub(super) fn for_stdout(page: &str, painter: impl Fn(&str) -> String) -> String {
    if takes_colours(std::io::stdout()) { painter(page) } else { page.to_owned() }
}

/// Paints a page for standard error.
pub(super) fn for_stderr(page: &str, painter: impl Fn(&str) -> String) -> String {
    if takes_colours(std::io::stderr()) { painter(page) } else { page.to_owned() }
}

/// Whether this is a terminal that understands colours, and its user has not disabled them.
fn takes_colours(stream: impl AsFd) -> bool {
    // An empty value is ignored: https://no-color.org.
    let refuses = var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refuses && understands_escapes(stream)
}

/// Whether this is a terminal that understands escape sequences.
pub(super) fn understands_escapes(stream: impl AsFd) -> bool {
    isatty(stream) && var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns a page without colours.
pub(super) fn plain(page: &str) -> String {
    page.to_owned()
}

/// Paints the mark at the beginning of each row of `check`.
pub(super) fn check(page: &str) -> String {
    by_beginning(page, &[("ok ", GREEN), ("NO ", RED), ("!! ", YELLOW)])
}

/// Paints states, and the titles of lines of `status`, `explain` and `top` that report trouble.
pub(super) fn trouble(page: &str) -> String {
    let page = states(page);
    by_beginning(
        &page,
        &[
            ("failure:", RED),
            ("refused:", RED),
            ("unwritten:", RED),
            ("set aside:", RED),
            ("switched on:    NO", RED),
            ("PLUGINS ARE DISABLED", RED),
            ("not read:", YELLOW),
            ("skipped:", YELLOW),
            ("ignored:", YELLOW),
            ("audit:", YELLOW),
            ("warning:", YELLOW),
        ],
    )
}

/// Paints a unified diff, and the notes below it.
pub(super) fn diff(page: &str) -> String {
    by_line(page, |line| match line.as_bytes() {
        [b'+', b'+', b'+', b' ', ..] | [b'-', b'-', b'-', b' ', ..] => Some(BOLD),
        [b'+', ..] => Some(GREEN),
        [b'-', ..] => Some(RED),
        [b'@', b'@', ..] => Some(CYAN),
        _ if line.starts_with("note:") || line.starts_with("warning:") => Some(YELLOW),
        _ => None,
    })
}

/// Paints the first word of an error line.
pub(super) fn complaint(line: &str) -> String {
    by_beginning(line, &[("nri-runc:", RED)])
}

/// Paints help and command line errors.
pub(super) fn help(page: &str) -> String {
    let page = by_beginning(page, &[("error:", RED), ("  tip:", GREEN)]);
    by_line(&page, |line| {
        let is_title = !line.starts_with(' ') && line.ends_with(':') && line.len() > 1;
        is_title.then_some(BOLD)
    })
}

/// Paints the words of a column `STATE`.
pub(super) fn states(page: &str) -> String {
    let mut column = None;
    let mut painted = String::with_capacity(page.len());
    for line in page.split_inclusive('\n') {
        let is_heading = !line.starts_with(' ') && line.contains(" STATE ");
        if is_heading {
            column = line.find("STATE").map(|at| line[..at].chars().count());
        } else if line.trim().is_empty() {
            column = None;
        }
        match column.filter(|_| !is_heading) {
            None => painted.push_str(line),
            Some(column) => painted.push_str(&state_in(line, column)),
        }
    }
    painted
}

/// Paints the state that begins in this column of a row, counted in characters.
pub(super) fn state_in(line: &str, column: usize) -> String {
    let found = word_at(line, column).and_then(|(at, word)| Some((at, word, colour_of(word)?)));
    match found {
        None => line.to_owned(),
        Some((at, word, colour)) => {
            let (before, after) = (&line[..at], &line[at + word.len()..]);
            format!("{before}{colour}{word}{PLAIN}{after}")
        }
    }
}

/// Returns the word that begins in this column, with its offset in bytes.
fn word_at(line: &str, column: usize) -> Option<(usize, &str)> {
    let (at, _) = line.char_indices().nth(column)?;
    let is_begin = line[..at].ends_with(' ') && !line[at..].starts_with(' ');
    let word = line[at..].split_whitespace().next()?;
    is_begin.then_some((at, word))
}

fn colour_of(state: &str) -> Option<&'static str> {
    match state {
        "ready" | "running" | "synchronized" => Some(GREEN),
        "gone" | "refused" => Some(RED),
        "creating" | "created" | "paused" | "registering" | "configuring" | "synchronizing" => {
            Some(YELLOW)
        }
        _ => None,
    }
}

/// Colours the beginning of each line that starts with one of these strings.
fn by_beginning(page: &str, beginnings: &[(&str, &str)]) -> String {
    let mut painted = String::with_capacity(page.len());
    for line in page.split_inclusive('\n') {
        match beginnings.iter().find(|(beginning, _)| line.starts_with(beginning)) {
            None => painted.push_str(line),
            Some((beginning, colour)) => {
                painted.push_str(&format!("{colour}{beginning}{PLAIN}"));
                painted.push_str(&line[beginning.len()..]);
            }
        }
    }
    painted
}

fn by_line(page: &str, colour: impl Fn(&str) -> Option<&'static str>) -> String {
    let mut painted = String::with_capacity(page.len());
    for line in page.split_inclusive('\n') {
        let text = line.trim_end_matches(['\r', '\n']);
        match colour(text) {
            None => painted.push_str(line),
            Some(colour) => {
                painted.push_str(&format!("{colour}{text}{PLAIN}{}", &line[text.len()..]));
            }
        }
    }
    painted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare(page: &str) -> String {
        [RED, GREEN, YELLOW, CYAN, BOLD, PLAIN]
            .iter()
            .fold(page.to_owned(), |page, code| page.replace(code, ""))
    }

    #[test]
    fn colours_do_not_change_the_text() {
        let pages = [
            "NAME   STATE  AGE\ngröße  ready  2s\n  ready  gone\nx\n\nready\n",
            "ok  a  b\nNO  c\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\nnote: n\r\n",
            "error: no\n\n  tip: try\n\nUsage: x\nCommands:\n  a\nfailure: f",
            "",
        ];
        let painters: [fn(&str) -> String; 7] =
            [plain, check, trouble, diff, complaint, help, states];
        for page in pages {
            for painter in painters {
                assert_eq!(bare(&painter(page)), page);
            }
        }
    }

    #[test]
    fn a_state_is_coloured_in_its_column_and_nowhere_else() {
        let page = states("NAME     STATE  AGE\nready-1  ready  2s\nрunning  gone   1s\n");
        let wanted = format!(
            "NAME     STATE  AGE\nready-1  {GREEN}ready{PLAIN}  2s\nрunning  {RED}gone{PLAIN}   1s\n"
        );
        assert_eq!(page, wanted);
        assert_eq!(states("ready\n"), "ready\n", "there is no such column");
    }

    #[test]
    fn failed_checks_and_diffs_are_coloured() {
        assert_eq!(check("NO  a\nNOT  b\n"), format!("{RED}NO {PLAIN} a\nNOT  b\n"));
        let page = diff("--- a\n-x\n+y\n z\n");
        assert_eq!(page, format!("{BOLD}--- a{PLAIN}\n{RED}-x{PLAIN}\n{GREEN}+y{PLAIN}\n z\n"));
    }

    #[test]
    fn a_pipe_gets_no_colours() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(!takes_colours(&reader) && !understands_escapes(&reader));
    }
}
