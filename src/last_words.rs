// SPDX-License-Identifier: Apache-2.0
//! The last output of a daemon that a wrapper started: its standard error, in a file of the run
//! directory. A daemon prints only a failure to start, or a panic.
//!
//! The next start sets the file aside, and the next daemon reports its content as a failure.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::quoted;
use crate::limits;
use crate::presence::IfThere;

/// The file with the standard error of the latest daemon, in the run directory.
const FILE: &str = "daemon.err";
/// The file with the standard error of the daemon before the latest.
const SET_ASIDE: &str = "daemon.err.old";

/// Opens [`FILE`], emptied, for the standard error of a daemon that is about to start; the previous
/// daemon's output moves to [`SET_ASIDE`]. Returns `None` if [`FILE`] is not a regular file or cannot
/// be opened; the daemon's output is then lost. Follows no link, and never blocks.
pub(crate) fn open(run_dir: &Path) -> Option<File> {
    let path = run_dir.join(FILE);
    match path.symlink_metadata().if_there().ok()? {
        Some(meta) if !meta.is_file() => return None,
        Some(meta) if meta.len() > 0 => {
            let _or_it_is_lost = std::fs::rename(&path, run_dir.join(SET_ASIDE));
        }
        Some(_) | None => {}
    }
    let mut options = OpenOptions::new();
    // Appends, so that an earlier daemon that still writes leaves no hole in the emptied file.
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    options.create(true).append(true).mode(0o600).custom_flags(flags);
    let file = options.open(path).ok()?;
    file.metadata().or_absent().filter(std::fs::Metadata::is_file)?;
    file.set_len(0).ok()?;
    Some(file)
}

/// Returns the last output of the latest daemon as one line, if it printed anything.
pub(crate) fn read(run_dir: &Path) -> Option<String> {
    words_in(&run_dir.join(FILE))
}

/// Returns the last output of the previous daemon and removes its file. With `is_launched`, this
/// daemon's standard error goes to [`FILE`], so the previous daemon's is in [`SET_ASIDE`].
pub(crate) fn take(run_dir: &Path, is_launched: bool) -> Option<String> {
    let before = |name: &str| -> Option<String> {
        let path: PathBuf = run_dir.join(name);
        let words = words_in(&path);
        let _gone = std::fs::remove_file(&path);
        words
    };
    let old = before(SET_ASIDE);
    if is_launched { old } else { before(FILE).or(old) }
}

fn words_in(path: &Path) -> Option<String> {
    let mut options = OpenOptions::new();
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let mut file = options.read(true).custom_flags(flags).open(path).ok()?;
    let length = file.metadata().or_absent().filter(std::fs::Metadata::is_file)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limits::LAST_WORDS_TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.take(limits::LAST_WORDS_TAIL).read_to_end(&mut bytes).ok()?;
    of_output(&String::from_utf8_lossy(&bytes))
}

/// Returns the last line of a program's output, or its last panic, as one line.
pub(crate) fn of_output(text: &str) -> Option<String> {
    // The standard library's advice about backtraces does not help an operator.
    let lines = text.lines().map(str::trim).take_while(|line| *line != "stack backtrace:");
    let lines: Vec<&str> =
        lines.filter(|line| !line.is_empty() && !line.starts_with("note: ")).collect();
    let panic = lines.iter().rposition(|line| line.contains("panicked at"));
    let from = panic.unwrap_or(lines.len().saturating_sub(1));
    let words = lines.get(from..)?.join(" ");
    let words: String = quoted(&words).chars().take(limits::LAST_WORDS).collect();
    (!words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_reported_once_after_the_next_start() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = temp.path();
        drop(open(run_dir).unwrap());
        assert_eq!((read(run_dir), take(run_dir, true)), (None, None));
        let text = "thread 'main' (7) panicked at src/x.rs:1:2:\nboom\u{1b}[2J\nnote: run with\n";
        crate::files::replace(&run_dir.join(FILE), text.as_bytes()).unwrap();
        let wanted = "thread 'main' (7) panicked at src/x.rs:1:2: boom\\u{1b}[2J";
        assert_eq!(read(run_dir).as_deref(), Some(wanted));
        drop(open(run_dir).unwrap());
        assert_eq!(read(run_dir), None, "the next daemon has said nothing");
        assert_eq!(take(run_dir, true).as_deref(), Some(wanted));
        assert_eq!(take(run_dir, true), None, "it is reported once");
    }

    #[test]
    fn last_output_is_read_only_from_a_regular_file_and_bounded() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(read(temp.path()), None);
        std::os::unix::fs::symlink("/etc/passwd", temp.path().join(FILE)).unwrap();
        assert_eq!(read(temp.path()), None, "no link is followed");
        assert!(open(temp.path()).is_none());
        assert!(temp.path().join(FILE).is_symlink(), "it is not set aside");
        let fifo = temp.path().join("fifo");
        std::fs::create_dir(&fifo).unwrap();
        nix::unistd::mkfifo(&fifo.join(FILE), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(open(&fifo).is_none());
        assert_eq!(of_output("\n  \n"), None);
        assert_eq!(of_output(&"x".repeat(9000)).map(|words| words.len()), Some(limits::LAST_WORDS));
    }
}
