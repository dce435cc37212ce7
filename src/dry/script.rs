// SPDX-License-Identifier: Apache-2.0
//! A script's lines as they are read, and the count of valid ones.

use std::cell::{Cell, RefCell};
use std::io::BufRead;
use std::path::Path;

use tokio::sync::mpsc;

use crate::error::{Context, Error, Result};

/// Lines that are read ahead.
const READ_AHEAD: usize = 64;

/// One line, or why reading ended before the end of the script.
pub(super) type RawLine = Result<Vec<u8>>;

/// Opens a script; none, or `-`, is standard input.
///
/// # Errors
/// Fails when the file cannot be opened.
pub(super) fn open(file: Option<&Path>) -> Result<Box<dyn BufRead + Send>> {
    match file {
        Some(path) if path.as_os_str() != "-" => {
            let file = std::fs::File::open(path);
            let file = file.doing(|| format!("opening {}", path.display()))?;
            Ok(Box::new(std::io::BufReader::new(file)))
        }
        _ => Ok(Box::new(std::io::BufReader::new(std::io::stdin()))),
    }
}

/// Reads in a thread: standard input may be anything, and block.
///
/// # Errors
/// Fails when no thread can be started.
pub(super) fn read(mut script: Box<dyn BufRead + Send>) -> Result<mpsc::Receiver<RawLine>> {
    let (sender, lines) = mpsc::channel(READ_AHEAD);
    let reader = move || {
        loop {
            let mut line = Vec::new();
            let is_over = match script.read_until(b'\n', &mut line) {
                Ok(0) => return,
                Ok(_) => sender.blocking_send(Ok(line)).is_err(),
                Err(error) => {
                    let _ended = sender.blocking_send(Err(Error::from(error)));
                    true
                }
            };
            if is_over {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("script".to_owned())
        .spawn(reader)
        .map(|_detached| lines)
        .doing(|| "reading the script")
}

/// Counts the valid and malformed lines of a script.
#[derive(Debug, Default)]
pub(super) struct Tally {
    understood: Cell<u64>,
    malformed: Cell<u64>,
    first_fault: RefCell<String>,
}

impl Tally {
    /// Counts a line that was understood.
    pub(super) fn count_understood(&self) {
        self.understood.set(self.understood.get() + 1);
    }

    /// Counts a malformed line, and keeps the reason of the first.
    pub(super) fn count_malformed(&self, why: &str) {
        if self.malformed.get() == 0 {
            why.clone_into(&mut self.first_fault.borrow_mut());
        }
        self.malformed.set(self.malformed.get() + 1);
    }

    /// Accepts an empty script, and one with at least one valid line.
    ///
    /// # Errors
    /// Fails where there were lines and none was understood.
    pub(super) fn verdict(&self) -> Result<()> {
        let malformed = self.malformed.get();
        if malformed == 0 || self.understood.get() > 0 {
            return Ok(());
        }
        let (lines, fault) = (if malformed == 1 { "line" } else { "lines" }, &self.first_fault);
        let what = format!("the script has {malformed} {lines} and none is valid: ");
        Err(Error::new(what + &fault.borrow())
            .hint("a script is one JSON object per line, as replay --record writes them"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_script_of_which_nothing_was_understood_is_an_error() {
        let tally = Tally::default();
        assert!(tally.verdict().is_ok(), "an empty script asks for nothing");
        tally.count_malformed("line 1: odd");
        tally.count_malformed("line 2: odder");
        let line = tally.verdict().unwrap_err().to_string();
        assert!(line.contains("2 lines") && line.contains("line 1: odd"), "{line}");
        tally.count_understood();
        assert!(tally.verdict().is_ok());
    }
}
