// SPDX-License-Identifier: Apache-2.0
//! Reads a script's lines.

use std::io::{BufRead, Read};
use std::path::Path;

use tokio::sync::mpsc;

use crate::error::{Context, Error, Result};
use crate::limits;

/// Number of lines that are read ahead.
const READ_AHEAD: usize = 64;

/// One line, or why reading ended before the end of the script.
pub(super) type RawLine = Result<Vec<u8>>;

/// Opens a script; standard input for `None` and for `-`.
///
/// # Errors
/// Fails when the file cannot be opened, or is a folder.
pub(super) fn open(file: Option<&Path>) -> Result<Box<dyn BufRead + Send>> {
    match file {
        Some(path) if path.as_os_str() != "-" => {
            let doing = || format!("opening {}", path.display());
            let file = std::fs::File::open(path).doing(doing)?;
            let meta = file.metadata().doing(doing)?;
            if meta.is_dir() {
                return Err(std::io::Error::from(std::io::ErrorKind::IsADirectory)).doing(doing);
            }
            Ok(Box::new(std::io::BufReader::new(file)))
        }
        _ => Ok(Box::new(std::io::BufReader::new(std::io::stdin()))),
    }
}

/// Reads lines in a thread, because a read of standard input may block.
///
/// # Errors
/// Fails when no thread can be started.
pub(super) fn read(mut script: Box<dyn BufRead + Send>) -> Result<mpsc::Receiver<RawLine>> {
    let (sender, lines) = mpsc::channel(READ_AHEAD);
    let reader = move || {
        loop {
            let Some(line) = next_line(&mut script).transpose() else { return };
            let is_last = line.is_err();
            if sender.blocking_send(line).is_err() || is_last {
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

/// Reads a line with its line feed; `None` after the last.
///
/// # Errors
/// Fails if the line is longer than any line of a recording, or cannot be read.
pub(super) fn next_line(script: &mut (impl BufRead + ?Sized)) -> Result<Option<Vec<u8>>> {
    line_up_to(script, limits::SCRIPT_LINE)
}

fn line_up_to(script: &mut (impl BufRead + ?Sized), limit: usize) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    // Reads one byte more, to distinguish a line of the maximum length from a longer one.
    let read = script.take(limit as u64 + 1).read_until(b'\n', &mut line)?;
    if read > limit {
        return Err(Error::new(format!("a line has more than {limit} bytes")));
    }
    Ok(Some(line).filter(|line| !line.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_an_end_is_read_up_to_its_limit() {
        let mut script = "four\n12345\n123456\nrest".as_bytes();
        let mut next = || line_up_to(&mut script, 6);
        assert_eq!(next().unwrap().unwrap(), b"four\n");
        assert_eq!(next().unwrap().unwrap(), b"12345\n");
        let error = next().unwrap_err().to_string();
        assert_eq!(error, "a line has more than 6 bytes");
        let mut endless = std::io::BufReader::new(std::io::repeat(b'x'));
        assert!(line_up_to(&mut endless, 1 << 20).is_err());
        assert_eq!(line_up_to(&mut "".as_bytes(), 6).unwrap(), None);
        assert_eq!(line_up_to(&mut "last".as_bytes(), 6).unwrap().unwrap(), b"last");
    }
}
