// SPDX-License-Identifier: Apache-2.0
//! A line that says what takes so long, for a person who waits at a terminal. It is written to
//! standard error only, after a second, and is gone before anything else is printed. Into a pipe or
//! a file it never writes.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::termios::tcgetwinsize;

use crate::text::{printable, span};

use super::paint;

/// Whoever waits this long is told why.
const SILENT: Duration = Duration::from_secs(1);

/// How often the line is written anew.
const INTERVAL: Duration = Duration::from_millis(500);

/// The width of a terminal that does not tell.
const USUAL_WIDTH: usize = 80;

const CLEAR_LINE: &str = "\r\u{1b}[K";

/// What is being waited for.
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

/// From now on this is what takes so long; without a terminal nothing happens.
pub(super) fn begin(what: &str) {
    if !paint::understands_escapes(std::io::stderr()) {
        return;
    }
    clear();
    let mut progress = progress();
    let builder = std::thread::Builder::new().name("progress".to_owned());
    // Without a thread there is no line, and nothing else is missing.
    let thread = builder.spawn(show_until_cleared).ok();
    let what = what.to_owned();
    *progress = Some(Progress { what, begun: Instant::now(), is_shown: false, thread });
}

/// The same wait goes on with this step; before `begin` and after `clear` it does nothing.
pub(super) fn step(what: &str) {
    if let Some(progress) = progress().as_mut() {
        what.clone_into(&mut progress.what);
    }
}

/// Takes the line away, and the thread: afterwards this process may fork.
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
    // `begin` holds the lock until there is something to show.
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

/// Shorter than the terminal is wide: a line that wraps could not be taken away.
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
    fn the_line_fits_the_terminal_and_is_no_command_to_it() {
        let waited = Duration::from_secs(61);
        assert_eq!(line("checking plugins", waited, 80), "checking plugins (1m1s) ...");
        assert_eq!(line("checking plugins", waited, 9), "checking");
        assert!(!line("a\u{1b}[2J", waited, 80).contains('\u{1b}'));
    }

    #[test]
    fn a_step_without_a_beginning_shows_nothing() {
        step("x");
        assert!(progress().is_none());
        clear();
    }
}
