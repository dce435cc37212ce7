// SPDX-License-Identifier: Apache-2.0
//! Reads the audit log while it grows: its files, oldest first, then new lines. A rotated file is
//! read to its end before the next one.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};
use crate::limits;
use crate::presence::IfThere;

use super::search::open_files;

/// Maximum bytes of one read; longer than a line.
const CHUNK: u64 = 1 << 20;

/// The files still to read, oldest first; the last may grow.
#[derive(Debug)]
pub(crate) struct AuditTail {
    path: PathBuf,
    files: VecDeque<File>,
    /// Whether the beginning of a line that is too long was read, but not its end.
    is_cut: bool,
    may_have_missed: bool,
}

impl AuditTail {
    /// Opens the files of the log. A log without files is empty.
    ///
    /// # Errors
    /// Fails when a file cannot be read.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let files = open_files(path)?.into();
        Ok(Self { path: path.to_owned(), files, is_cut: false, may_have_missed: false })
    }

    /// Returns the next batch of lines, each with a line feed; empty if there are none yet.
    ///
    /// # Errors
    /// Fails when a file cannot be read.
    pub(crate) fn read(&mut self) -> Result<Vec<u8>> {
        loop {
            let Some(file) = self.files.front_mut() else {
                self.files = open_files(&self.path)?.into();
                if self.files.is_empty() {
                    return Ok(Vec::new());
                }
                continue;
            };
            let reading = || format!("reading {}", self.path.display());
            let mut bytes = Vec::new();
            file.take(CHUNK).read_to_end(&mut bytes).doing(reading)?;
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let unfinished = bytes.len() - whole;
            if whole == 0 && unfinished > limits::AUDIT_LINE {
                if let Some(line) = self.cut(bytes) {
                    return Ok(line);
                }
                continue;
            }
            // An unfinished line is read again once it is complete; the daemon may also remove it.
            let back = i64::try_from(unfinished).unwrap_or_default();
            file.seek(SeekFrom::Current(-back)).doing(reading)?;
            bytes.truncate(whole);
            if self.is_cut && whole > 0 {
                self.is_cut = false;
                let end = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                bytes.drain(..end);
            } else if whole == 0 {
                match self.end_of_file()? {
                    AtEnd::Wait => return Ok(Vec::new()),
                    AtEnd::ReadOn => {}
                    AtEnd::Unfinished(line) => return Ok(line),
                }
            }
            if !bytes.is_empty() {
                return Ok(bytes);
            }
        }
    }

    /// Whether lines may be missing since the last call, because files were removed before they
    /// were read.
    pub(crate) fn take_gap(&mut self) -> bool {
        std::mem::take(&mut self.may_have_missed)
    }

    /// Returns the first part of an overlong line as a line; drops the rest.
    fn cut(&mut self, mut part: Vec<u8>) -> Option<Vec<u8>> {
        part.push(b'\n');
        (!std::mem::replace(&mut self.is_cut, true)).then_some(part)
    }

    fn end_of_file(&mut self) -> Result<AtEnd> {
        if self.files.len() > 1 {
            let mut line = Vec::new();
            if let Some(mut file) = self.files.pop_front() {
                file.read_to_end(&mut line)?;
            }
            let was_cut = std::mem::take(&mut self.is_cut);
            if line.is_empty() || was_cut {
                return Ok(AtEnd::ReadOn);
            }
            // A crash cut the line off.
            line.push(b'\n');
            return Ok(AtEnd::Unfinished(line));
        }
        let Some(file) = self.files.front_mut() else { return Ok(AtEnd::Wait) };
        let open = file.metadata()?;
        // The file was cut in place, as by logrotate's copytruncate.
        if open.len() < file.stream_position()? {
            file.seek(SeekFrom::Start(0))?;
            return Ok(AtEnd::ReadOn);
        }
        let is_open = |other: &Metadata| (other.dev(), other.ino()) == (open.dev(), open.ino());
        if std::fs::symlink_metadata(&self.path)
            .or_absent()
            .is_some_and(|present| is_open(&present))
        {
            return Ok(AtEnd::Wait);
        }
        // The file was rotated. Its last lines are read before the next file.
        let newer = self.newer_than(&open, is_open)?;
        self.files.extend(newer);
        Ok(if self.files.len() > 1 { AtEnd::ReadOn } else { AtEnd::Wait })
    }

    /// Returns the files after the open one, which was rotated.
    fn newer_than(
        &mut self,
        open: &Metadata,
        is_open: impl Fn(&Metadata) -> bool,
    ) -> Result<Vec<File>> {
        let mut newer = open_files(&self.path)?;
        let of_each: Vec<Metadata> =
            newer.iter().map(File::metadata).collect::<std::io::Result<_>>()?;
        let first = of_each.iter().position(is_open).map(|open| open + 1).unwrap_or_else(|| {
            // The open file was removed. Files that were rotated before it were also written before
            // it.
            let written = |file: &Metadata| (file.mtime(), file.mtime_nsec());
            let first = of_each.iter().position(|file| written(file) >= written(open));
            let first = first.unwrap_or(of_each.len());
            self.may_have_missed |= of_each.len() - first > 1;
            first
        });
        newer.drain(..first);
        Ok(newer)
    }
}

/// The next step at the end of a file without a further whole line.
enum AtEnd {
    /// Wait for more lines: this is the current file.
    Wait,
    /// Read further lines, of this file or of the next.
    ReadOn,
    /// Return this unfinished line, the last of a rotated file, and then read the next file.
    Unfinished(Vec<u8>),
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::file::{RotatedFile, rotated};
    use super::*;

    fn text(tail: &mut AuditTail) -> String {
        let mut all = Vec::new();
        loop {
            match tail.read().unwrap() {
                lines if lines.is_empty() => return String::from_utf8(all).unwrap(),
                lines => all.extend(lines),
            }
        }
    }

    fn append(path: &Path, bytes: &[u8]) {
        File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
    }

    fn put(path: &Path, text: &str) {
        crate::files::replace(path, text.as_bytes()).unwrap();
    }

    #[test]
    fn each_line_is_read_once_over_any_number_of_rotations() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        let mut tail = AuditTail::open(&path).unwrap();
        assert_eq!(text(&mut tail), "", "there is no file yet");
        let mut log = RotatedFile::new(&path, 40, 4);
        let (mut written, mut read) = (String::new(), String::new());
        for number in 0..60 {
            let line = format!("line {number:02} ab\n");
            log.append(line.as_bytes()).unwrap();
            written.push_str(&line);
            if number % 7 == 0 {
                read.push_str(&text(&mut tail));
            }
        }
        read.push_str(&text(&mut tail));
        assert_eq!(read, written);
        assert!(!tail.take_gap());
    }

    #[test]
    fn files_removed_unread_are_reported_as_a_gap() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        let mut log = RotatedFile::new(&path, 10, 3);
        log.append(b"number 0\n").unwrap();
        let mut tail = AuditTail::open(&path).unwrap();
        assert_eq!(text(&mut tail), "number 0\n");
        (1..9).for_each(|number| log.append(format!("number {number}\n").as_bytes()).unwrap());
        assert_eq!(text(&mut tail), "number 6\nnumber 7\nnumber 8\n");
        assert!(tail.take_gap() && !tail.take_gap());
    }

    #[test]
    fn existing_lines_are_read_oldest_first_then_new_ones() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        let mut log = RotatedFile::new(&path, 10, 3);
        for line in ["one\n", "four...\n", "seven..\n"] {
            log.append(line.as_bytes()).unwrap();
        }
        assert!(rotated(&path, 2).exists());
        let mut tail = AuditTail::open(&path).unwrap();
        assert_eq!(text(&mut tail), "one\nfour...\nseven..\n");
        log.append(b"ten\n").unwrap();
        assert_eq!(text(&mut tail), "ten\n");
    }

    #[test]
    fn a_partial_line_waits_for_its_end_or_the_end_of_its_file() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        put(&path, "whole\nhal");
        let mut tail = AuditTail::open(&path).unwrap();
        assert_eq!(text(&mut tail), "whole\n");
        append(&path, b"f\nlo");
        assert_eq!(text(&mut tail), "half\n");
        std::fs::rename(&path, rotated(&path, 1)).unwrap();
        put(&path, "next\n");
        assert_eq!(text(&mut tail), "lo\nnext\n");
    }

    #[test]
    fn a_removed_partial_line_is_ignored() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        put(&path, "whole\nhalf of a li");
        let mut tail = AuditTail::open(&path).unwrap();
        assert_eq!(text(&mut tail), "whole\n");
        File::options().write(true).open(&path).unwrap().set_len(6).unwrap();
        assert_eq!(text(&mut tail), "");
        append(&path, b"next\n");
        assert_eq!(text(&mut tail), "next\n");
    }

    #[test]
    fn an_overlong_line_counts_as_one() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        let endless = vec![b'x'; usize::try_from(3 * CHUNK).unwrap()];
        crate::files::replace(&path, &endless).unwrap();
        let mut tail = AuditTail::open(&path).unwrap();
        assert_eq!(text(&mut tail).lines().count(), 1);
        append(&path, b"its end\nnext\n");
        assert_eq!(text(&mut tail), "next\n");
    }

    #[test]
    fn an_emptied_removed_or_replaced_file_is_read_from_its_start() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        put(&rotated(&path, 1), "set aside\n");
        put(&path, "a long line\n");
        let mut tail = AuditTail::open(&path).unwrap();
        assert_eq!(text(&mut tail), "set aside\na long line\n");
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert_eq!(text(&mut tail), "");
        // Makes the next file newer than the rotated one by the file system's clock.
        std::thread::sleep(std::time::Duration::from_millis(20));
        append(&path, b"anew\n");
        assert_eq!(text(&mut tail), "anew\n");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text(&mut tail), "");
        put(&path, "another\n");
        assert_eq!(text(&mut tail), "another\n", "and what was set aside before is not read again");
        assert!(!tail.take_gap());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(tail.read().is_err(), "a link is not followed");
    }
}
