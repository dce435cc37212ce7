// SPDX-License-Identifier: Apache-2.0
//! The codes of messages: each message of `docs/errors.md` has one, printed at the end of its line,
//! as `… [NR042]`. The table is `messages.txt`.
//!
//! The code is looked up by the text of a finished line when the line is printed, so that errors,
//! the daemon's response and the log need not pass codes on.

use std::ops::Range;
use std::sync::LazyLock;

use crate::limits;

/// The table, as `messages.txt` describes it.
const TABLE: &str = include_str!("messages.txt");

/// The mark of a message whose last `…` may be another message.
const WRAPS: char = '+';
/// The mark of a code whose message is no longer printed.
const RETIRED: char = '-';

/// Texts that may follow a message within its line: before the next step, an error, an effect.
const ENDS: [&str; 3] = [" (", ": ", "; it was"];

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// `NR042`.
    pub code: &'static str,
    /// The text, with `…` for each part that is filled in.
    pub text: &'static str,
    /// Whether its last `…` may be another message.
    pub wraps: bool,
    /// Whether the program no longer prints it.
    pub is_retired: bool,
}

impl Message {
    /// The longest text between two `…`: a line without it does not contain the message.
    fn longest_part(&self) -> &'static str {
        self.text.split('…').max_by_key(|part| part.len()).unwrap_or_default()
    }
}

struct Found {
    message: Message,
    /// The part of the line from the message's first fixed text to its last one.
    at: Range<usize>,
    /// The length of the message's fixed parts, in bytes.
    own: usize,
}

/// The rows with their longest parts, read once: each line of the log is looked up.
static ROWS: LazyLock<Vec<(Message, &str)>> =
    LazyLock::new(|| read_table().map(|row| (row, row.longest_part())).collect());

/// Returns the rows of the table.
pub fn table() -> impl Iterator<Item = Message> {
    ROWS.iter().map(|(message, _)| *message)
}

fn read_table() -> impl Iterator<Item = Message> {
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (code, text) = line.split_once(' ')?;
        let (wraps, is_retired) = (code.ends_with(WRAPS), code.ends_with(RETIRED));
        Some(Message { code: code.trim_end_matches([WRAPS, RETIRED]), text, wraps, is_retired })
    })
}

/// The pairs of adjacent bytes of a line, one bit for each hash of a pair. A text with a pair that the
/// line lacks is not in the line. This rules out nearly all messages in a tenth of the time that
/// searching the line for each of them takes.
struct Pairs([u64; 64]);

impl Pairs {
    fn of(line: &str) -> Self {
        let mut pairs = Self([0; 64]);
        for pair in line.as_bytes().windows(2) {
            let (word, bit) = Self::place(pair);
            pairs.0[word] |= bit;
        }
        pairs
    }

    fn place(pair: &[u8]) -> (usize, u64) {
        let hash = pair.iter().fold(0, |hash, byte| (hash << 5) ^ usize::from(*byte));
        ((hash / 64) % 64, 1 << (hash % 64))
    }

    fn may_contain(&self, text: &str) -> bool {
        text.as_bytes().windows(2).map(Self::place).all(|(word, bit)| self.0[word] & bit != 0)
    }
}

/// Adds the code of the message in this line, unless the line has one or contains no known message.
pub(crate) fn with_code(line: &str) -> String {
    match code_of(line) {
        Some(code) => format!("{line} [{code}]"),
        None => line.to_owned(),
    }
}

/// Returns the code of the message in a line that has no code yet. Of several messages, the one
/// with the longest fixed text wins, because it is the most specific; one that wraps others is
/// chosen only if no other is found.
pub fn code_of(line: &str) -> Option<&'static str> {
    if line.len() > limits::LINE_WITH_CODE || line.contains(" [NR") {
        return None;
    }
    let inner = line.match_indices(": ").map(|(at, colon)| at + colon.len());
    let starts: Vec<usize> =
        std::iter::once(0).chain(inner).take(limits::PARTS_WITH_CODE).collect();
    let pairs = Pairs::of(line);
    let known = ROWS.iter().filter(|(row, part)| !row.is_retired && pairs.may_contain(part));
    let found: Vec<Found> = known.filter_map(|(row, _)| find(*row, line, &starts)).collect();
    let found: Vec<&Found> = found.iter().filter(|one| !is_refined(one, &found)).collect();
    // A message that ends with `…`, unless it wraps another, ends with a text of a plugin or
    // another program, which may look like one of nri-runc's messages.
    let is_quoted = |inner: &Found| {
        let mut open = found.iter().filter(|outer| outer.message.text.ends_with('…'));
        open.any(|outer| !outer.message.wraps && inner.at.start >= outer.at.end)
    };
    let own = found.iter().filter(|found| !is_quoted(found));
    own.max_by_key(|found| (!found.message.wraps, found.own)).map(|found| found.message.code)
}

/// Whether a message with more fixed text ends at the same place.
fn is_refined(one: &Found, all: &[Found]) -> bool {
    all.iter().any(|other| other.at.end == one.at.end && other.own > one.own)
}

/// Finds a message in the line: at one of the positions `starts`, or anywhere if the message begins
/// with `…`.
fn find(message: Message, line: &str, starts: &[usize]) -> Option<Found> {
    let mut parts = message.text.split('…');
    let first = parts.next()?;
    if first.is_empty() {
        return find_rest(message, line, None, parts);
    }
    let begins = |start: &&usize| line[**start..].starts_with(first);
    let mut starts = starts.iter().filter(begins);
    starts.find_map(|start| {
        find_rest(message, line, Some(*start..*start + first.len()), parts.clone())
    })
}

/// Finds the other parts of a message, each after the previous one; `at` is the first part, if it
/// has text.
fn find_rest<'t>(
    message: Message,
    line: &str,
    at: Option<Range<usize>>,
    parts: impl Iterator<Item = &'t str>,
) -> Option<Found> {
    let mut own = at.as_ref().map_or(0, Range::len);
    let (mut begin, mut end) = at.map_or((None, 0), |at| (Some(at.start), at.end));
    let has_end = |end: usize| {
        let rest = &line[end..];
        rest.is_empty() || ENDS.iter().any(|next| rest.starts_with(next))
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() && !has_end(end) {
        return None;
    }
    while let Some(part) = parts.next() {
        let mut places = line[end..].match_indices(part).map(|(offset, _)| end + offset);
        let is_last = parts.peek().is_none() && !part.is_empty();
        let start = if is_last {
            places.find(|start| has_end(start + part.len()))?
        } else {
            places.next()?
        };
        begin = begin.or(Some(start));
        end = start + part.len();
        own += part.len();
    }
    Some(Found { message, at: begin?..end, own })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_found_by_its_own_code() {
        let mut wrong = Vec::new();
        for Message { code, text, .. } in table().filter(|message| !message.is_retired) {
            let line = text.replace('…', "x1");
            for line in
                [line.clone(), format!("cannot create c1: {line}"), format!("c1: {line} (do it)")]
            {
                let found = code_of(&line);
                wrong.extend((found != Some(code)).then(|| format!("{line}: {found:?}")));
            }
        }
        assert!(wrong.is_empty(), "these have the code of another message: {wrong:#?}");
    }

    fn message(line: &str) -> &'static str {
        let code = code_of(line);
        table().find(|message| Some(message.code) == code).map_or("", |message| message.text)
    }

    #[test]
    fn the_most_specific_message_has_the_code() {
        for (line, wanted) in [
            (
                "cannot create c1: MemLimit cannot be applied: an annotation needs a key (plugin 10-a)",
                "an annotation needs a key",
            ),
            ("cannot create c1: MemLimit cannot be applied: new (x)", "… cannot be applied: …"),
            ("cannot create c1: reading /b: it is missing (ENOENT)", "it is missing (ENOENT)"),
            ("config.json cannot be read: it is missing (ENOENT)", "config.json cannot be read: …"),
            (
                "10-a did not answer CreateContainer in time; it was skipped",
                "… did not answer … in time",
            ),
            (
                "the daemon took too long, and 10-a is required; nothing was changed or started",
                "…, and …; nothing was changed or started",
            ),
            ("10-a was refused: its connection was closed", "its connection was closed"),
        ] {
            assert_eq!(message(line), wanted, "{line}");
        }
    }

    #[test]
    fn a_plugins_text_is_not_mistaken_for_our_message() {
        let said = "an annotation needs a key";
        assert_eq!(message(&format!("cannot create c1: 10-a refused: {said}")), "… refused: …");
        let line = format!("validator 10-a rejected the adjustment: {said}");
        assert_eq!(message(&line), "validator … rejected the adjustment: …");
        let ours = "plugin \"10-a\" attempted restricted OCI hook injection";
        let line = format!("validator 00-default-validator rejected the adjustment: {ours}");
        assert_eq!(message(&line), "… \"…\" attempted restricted OCI hook injection");
    }

    #[test]
    fn lines_without_a_message_or_with_a_code_stay_unchanged() {
        let long = format!("it is missing (ENOENT){}", " ".repeat(limits::LINE_WITH_CODE));
        for line in ["", ": ", "10-a is synchronized with 1 pod", "no: it is odd [NR042]", &long] {
            assert_eq!(with_code(line), line);
        }
        let line = "an empty frame";
        assert!(with_code(line).starts_with("an empty frame [NR"), "{}", with_code(line));
        assert_eq!(with_code(&with_code(line)), with_code(line));
        assert_eq!(message("an empty frames"), "", "a word goes on");
    }
}
