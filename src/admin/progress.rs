// SPDX-License-Identifier: Apache-2.0
//! A line on standard error that names a slow step, for a person at a terminal. It appears after a
//! second, and is erased before any other output. It is never written to a pipe or a file.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::termios::tcgetwinsize;

use crate::text::{printable, span};

use super::paint;

/// Time after which the line appears.
const SILENT: Duration = Duration::from_secs(1);

/// Interval at which the line is rewritten.
const INTERVAL: Duration = Duration::from_millis(500);

/// Columns assumed for a terminal of unknown size.
const USUAL_WIDTH: usize = 80;

const CLEAR_LINE: &str = "\r\u{1b}[K";

struct Progress {
    what: String,
    begun: Instant,
    is_shown: bool,
    /// The thread that writes the line.
    thread: Option<JoinHandle<()>>,
}

static PROGRESS: Mutex<Option<Progress>> = Mutex::new(None);
static CLEARED: Condvar = Condvar::new();

fn progress() -> MutexGuard<'static, Option<Progress>> {
    PROGRESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows this step after [`SILENT`]; does nothing if standard error is not a terminal.
pub(super) fn begin(what: &str) {
    if !paint::understands_escapes(std::io::stderr()) {
        return;
    }
    clear();
    let mut progress = progress();
    let builder = std::thread::Builder::new().name("progress".to_owned());
    // If the thread cannot be started, only the line is missing.
    let thread = builder.spawn(show_until_cleared).ok();
    let what = what.to_owned();
    *progress = Some(Progress { what, begun: Instant::now(), is_shown: false, thread });
}

/// Renames the step in progress; does nothing before `begin` and after `clear`.
pub(super) fn step(what: &str) {
    if let Some(progress) = progress().as_mut() {
        what.clone_into(&mut progress.what);
    }
}

/// Erases the line and joins the thread; afterwards this process may fork.
pub(super) fn clear() {
    let Some(progress) = progress().take() else { return };
    CLEARED.notify_all();
    if let Some(thread) = progress.thread {
        let _panicked = thread.join();
    }
    if progress.is_shown {
        write(CLEAR_LINE);
    }
}

fn show_until_cleared() {
    let mut progress = progress();
    let mut pause = SILENT;
    // `begin` holds the lock until the step is set.
    while progress.is_some() {
        let waited = CLEARED.wait_timeout(progress, pause);
        progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        if let Some(progress) = progress.as_mut() {
            let waited = progress.begun.elapsed();
            if waited >= SILENT {
                progress.is_shown = true;
                write(&format!("{CLEAR_LINE}{}", line(&progress.what, waited, width())));
            }
        }
        pause = INTERVAL;
    }
}

/// Formats the line, cut to less than the terminal's width, because a wrapped line could not be
/// erased.
fn line(what: &str, waited: Duration, width: usize) -> String {
    let line = format!("{} ({}) ...", printable(what), span(waited.as_secs()));
    line.chars().take(width.saturating_sub(1)).collect()
}

fn width() -> usize {
    match tcgetwinsize(std::io::stderr()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        Ok(_) | Err(_) => USUAL_WIDTH,
    }
}

fn write(text: &str) {
    let mut err = std::io::stderr().lock();
    let _terminal_is_gone = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_the_terminal_and_cannot_control_it() {
        let waited = Duration::from_secs(61);
        assert_eq!(line("checking plugins", waited, 80), "checking plugins (1m1s) ...");
        assert_eq!(line("checking plugins", waited, 9), "checking");
        assert!(!line("a\u{1b}[2J", waited, 80).contains('\u{1b}'));
    }

    #[test]
    fn a_step_shows_nothing_before_progress_has_begun() {
        step("x");
        assert!(progress().is_none());
        clear();
    }
}
