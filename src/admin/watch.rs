// SPDX-License-Identifier: Apache-2.0
//! `--watch`: prints a list, then each row that is new, changed or gone, until Ctrl-C. It asks the
//! daemon once a second, and continues if the daemon restarts.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answers::AdminRequest;
use crate::config::Config;
use crate::error::Result;
use crate::text::printable;

use super::ask;
use super::exit::DONE;
use super::output::{Format, complain, print, print_json, print_page};
use super::show::{line_of, widths_of};
use super::{paint, yaml};

/// Interval between two requests.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(super) struct ListRow {
    /// The identity of the row.
    pub(super) key: String,
    /// The values whose change prints the row again, without values that change continuously, such as ages.
    pub(super) compared: String,
    pub(super) cells: Vec<String>,
    pub(super) name: String,
    pub(super) document: Value,
}

/// A list that can be watched.
pub(super) struct WatchedList<'l, T> {
    pub(super) request: AdminRequest,
    pub(super) head: Vec<&'static str>,
    pub(super) rows: &'l dyn Fn(T) -> Result<Vec<ListRow>>,
    /// The state to print for a row that disappeared; with `None`, nothing is printed.
    pub(super) gone: Option<&'static str>,
}

/// Prints until a signal ends the process, or standard output is closed.
///
/// # Errors
/// Fails when the first request fails, or the output cannot be written.
pub(super) fn watch<T: DeserializeOwned>(
    config: &Config,
    list: &WatchedList<'_, T>,
    format: Format,
) -> Result<u8> {
    let rows = (list.rows)(ask(config, &list.request)?)?;
    let mut seen = Seen::new(&list.head, &rows, format);
    if format.is_page() {
        let head: Vec<String> = list.head.iter().map(|word| word.to_uppercase()).collect();
        print_page(&line_of(&head, &seen.widths), paint::plain)?;
    }
    for row in seen.take(rows, None) {
        seen.print(&row)?;
    }
    let mut is_away = false;
    while has_reader(INTERVAL)? {
        match ask(config, &list.request).and_then(|answer| (list.rows)(answer)) {
            Ok(rows) => {
                is_away = false;
                for row in seen.take(rows, list.gone) {
                    seen.print(&row)?;
                }
            }
            // A failure is reported only once until the daemon answers again: it may be restarting.
            Err(_) if is_away => {}
            Err(error) => {
                is_away = true;
                complain(&format!("{error}; waiting for it"));
            }
        }
    }
    Ok(DONE)
}

/// Waits for `wait`; returns false once standard output is closed.
pub(super) fn has_reader(wait: Duration) -> Result<bool> {
    let out = std::io::stdout();
    let mut fds = [PollFd::new(out.as_fd(), PollFlags::empty())];
    match poll(&mut fds, PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)) {
        Ok(0) | Err(Errno::EINTR) => Ok(true),
        Ok(_) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until `input` is readable; returns false once standard output is closed.
pub(super) fn wait_for_lines(input: &impl AsFd) -> Result<bool> {
    let out = std::io::stdout();
    loop {
        let input = PollFd::new(input.as_fd(), PollFlags::POLLIN);
        let mut fds = [PollFd::new(out.as_fd(), PollFlags::empty()), input];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => return Ok(fds[0].any() != Some(true)),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Appends bytes to `unfinished`; removes the complete lines from it and returns them.
pub(super) fn whole_lines(unfinished: &mut Vec<u8>, bytes: &[u8]) -> Vec<u8> {
    unfinished.extend_from_slice(bytes);
    let whole = unfinished.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    unfinished.drain(..whole).collect()
}

/// The rows of the last answer.
struct Seen {
    rows: HashMap<String, ListRow>,
    order: Vec<String>,
    state: Option<usize>,
    widths: Vec<usize>,
    format: Format,
}

impl Seen {
    fn new(head: &[&str], rows: &[ListRow], format: Format) -> Self {
        let cells: Vec<&Vec<String>> = rows.iter().map(|row| &row.cells).collect();
        let widths = widths_of(head, &cells);
        let state = head.iter().position(|word| *word == "state");
        Self { rows: HashMap::new(), order: Vec::new(), state, widths, format }
    }

    /// Compares the rows with the last answer's; returns those to print.
    fn take(&mut self, rows: Vec<ListRow>, gone: Option<&str>) -> Vec<ListRow> {
        let mut news = Vec::new();
        let order: Vec<String> = rows.iter().map(|row| row.key.clone()).collect();
        let now: HashMap<String, ListRow> =
            rows.into_iter().map(|row| (row.key.clone(), row)).collect();
        for key in &self.order {
            if let (Some(gone), Some(row)) = (gone, self.rows.get(key))
                && !now.contains_key(key)
            {
                news.push(self.ended(row, gone));
            }
        }
        let is_news = |row: &&ListRow| {
            self.rows.get(&row.key).is_none_or(|before| before.compared != row.compared)
        };
        news.extend(order.iter().filter_map(|key| now.get(key)).filter(is_news).cloned());
        (self.rows, self.order) = (now, order);
        news
    }

    fn ended(&self, row: &ListRow, state: &str) -> ListRow {
        let mut row = row.clone();
        if let Some(cell) = self.state.and_then(|at| row.cells.get_mut(at)) {
            state.clone_into(cell);
        }
        if row.document.is_object() {
            row.document["state"] = state.into();
        }
        row
    }

    fn print(&self, row: &ListRow) -> Result<()> {
        match self.format {
            Format::Json => print_json(&row.document)?,
            Format::Yaml => print(format!("---\n{}", yaml::yaml(&row.document)).as_bytes())?,
            Format::Name => print(format!("{}\n", printable(&row.name)).as_bytes())?,
            Format::Page | Format::Wide | Format::Junit => {
                let column: Option<usize> =
                    self.state.map(|at| self.widths[..at].iter().map(|w| w + 2).sum());
                let painter = |line: &str| match column {
                    Some(column) => paint::state_in(line, column),
                    None => line.to_owned(),
                };
                print_page(&line_of(&row.cells, &self.widths), painter)?
            }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(key: &str, state: &str, age: &str) -> ListRow {
        ListRow {
            key: key.to_owned(),
            compared: state.to_owned(),
            cells: [key, state, age].map(ToOwned::to_owned).to_vec(),
            name: key.to_owned(),
            document: json!({"id": key, "state": state}),
        }
    }

    fn told(rows: &[ListRow]) -> Vec<String> {
        rows.iter().map(|row| format!("{} {}", row.cells[0], row.document["state"])).collect()
    }

    #[test]
    fn a_watch_prints_each_change_once_and_ignores_ages() {
        let mut seen = Seen::new(&["name", "state", "age"], &[], Format::Page);
        let first = seen.take(vec![row("a", "ready", "1s"), row("b", "ready", "1s")], None);
        assert_eq!(told(&first), ["a \"ready\"", "b \"ready\""]);
        assert!(
            seen.take(vec![row("a", "ready", "2s"), row("b", "ready", "2s")], Some("x")).is_empty()
        );
        let rows = vec![row("b", "stopped", "3s"), row("c", "ready", "0s")];
        let news = seen.take(rows.clone(), Some("removed"));
        assert_eq!(told(&news), ["a \"removed\"", "b \"stopped\"", "c \"ready\""]);
        assert_eq!(news[0].cells[1], "removed");
        assert!(seen.take(rows, Some("removed")).is_empty());
        assert!(seen.take(Vec::new(), None).is_empty(), "nothing is said of what goes unmentioned");
    }
}
