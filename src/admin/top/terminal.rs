// SPDX-License-Identifier: Apache-2.0
//! The terminal while `top` runs: the alternate screen, no echo, no cursor. The terminal is restored
//! when `top` ends, unless it is killed by a signal that [`Screen::enter`] does not block. While the
//! terminal's output is stopped (Ctrl-S), the terminal may stay on the alternate screen.

use std::fs::File;
use std::io::{ErrorKind, Read, Stdin, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use nix::libc::{O_NOCTTY, O_NONBLOCK};
use nix::poll::PollFlags;
use nix::sys::signal::Signal;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetwinsize,
    tcsetattr,
};

use crate::admin::signals::Signals;
use crate::error::{Context, Error, Result};

/// Enters the alternate screen and hides the cursor.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l";
/// Shows the cursor and leaves the alternate screen.
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";

/// Moves the cursor to the upper left.
const HOME: &str = "\u{1b}[H";
/// Clears the rest of the line.
const CLEAR_LINE: &str = "\u{1b}[K";
/// Clears the rest of the screen.
const CLEAR_REST: &str = "\u{1b}[J";

/// Columns and rows assumed for a terminal of unknown size.
const USUAL: (usize, usize) = (80, 24);

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// The time has passed.
    Time,
    /// The terminal was resized.
    Resized,
    /// The operator quit.
    Quit,
}

/// The terminal in the state that `top` needs; dropping this restores it.
pub(super) struct Screen {
    input: Stdin,
    /// The terminal, opened a second time as non-blocking, because the shell shares standard
    /// output. A user who may not open another user's terminal (`su`) uses standard output.
    output: File,
    before: Option<Termios>,
    signals: Signals,
    /// The request of a signal that arrived while a page was written; the next wait returns it.
    woken: Option<Woken>,
}

/// Whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    isatty(std::io::stdout())
}

impl Screen {
    /// Takes over the terminal.
    pub(super) fn enter() -> Result<Self> {
        // Blocked before the first escape sequence: from here on signals do not end the process
        // directly. Ctrl-Z does nothing: a stop would leave the shell on this screen.
        let signals = Signals::block([
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGHUP,
            Signal::SIGQUIT,
            Signal::SIGTSTP,
            Signal::SIGWINCH,
        ])?;
        let mut output = File::options();
        output.write(true).custom_flags(O_NONBLOCK | O_NOCTTY);
        let output = output
            .open("/proc/self/fd/1")
            .or_else(|_is_anothers| std::io::stdout().as_fd().try_clone_to_owned().map(File::from));
        let output = output.doing(|| "opening the terminal")?;
        let input = std::io::stdin();
        let before = tcgetattr(&input).ok();
        if let Some(before) = &before {
            let mut quiet = before.clone();
            quiet.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            // These values make a read return at once.
            quiet.special_codes[SpecialCodeIndex::VMIN] = 0;
            quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(&input, OptionalActions::Now, &quiet)
                .map_err(|error| Error::from(std::io::Error::from(error)))?;
        }
        let mut screen = Self { input, output, before, signals, woken: None };
        screen.write(ENTER)?;
        Ok(screen)
    }

    /// Returns columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(&self.output) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            Ok(_) | Err(_) => USUAL,
        }
    }

    /// Replaces the shown page.
    pub(super) fn show(&mut self, page: &str) -> Result<()> {
        let mut text = HOME.to_owned();
        let mut lines = page.lines().peekable();
        while let Some(line) = lines.next() {
            text.push_str(line);
            text.push_str(CLEAR_LINE);
            if lines.peek().is_some() {
                text.push_str("\r\n");
            }
        }
        text.push_str(CLEAR_REST);
        self.write(&text)
    }

    /// Waits for `time`, a signal or `q`.
    pub(super) fn wait(&mut self, time: Duration) -> Result<Woken> {
        let deadline = Instant::now() + time;
        let mut takes_keys = self.before.is_some();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(woken) = self.woken.take() {
                return Ok(woken);
            }
            if left.is_zero() {
                return Ok(Woken::Time);
            }
            let keys = takes_keys.then(|| (self.input.as_fd(), PollFlags::POLLIN));
            let has_key = self.signals.wait(keys, Some(left))?;
            if let Some(woken) = self.take_signal() {
                return Ok(woken);
            }
            if has_key {
                let mut keys = [0; 64];
                match self.input.read(&mut keys) {
                    Ok(0) | Err(_) => takes_keys = false, // The terminal is gone.
                    Ok(read) if keys[..read].contains(&b'q') => return Ok(Woken::Quit),
                    Ok(_) => {}
                }
            }
        }
    }

    /// Takes the next pending signal and returns what it requests; Ctrl-Z requests nothing.
    fn take_signal(&self) -> Option<Woken> {
        let mut signals = std::iter::from_fn(|| self.signals.take());
        let signal = signals.find(|signal| *signal != Signal::SIGTSTP)?;
        Some(if signal == Signal::SIGWINCH { Woken::Resized } else { Woken::Quit })
    }

    /// Writes at the terminal's pace; a signal that ends `top` ends the write too.
    fn write(&mut self, text: &str) -> Result<()> {
        let mut rest = text.as_bytes();
        while !rest.is_empty() && self.woken != Some(Woken::Quit) {
            match self.output.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let room = Some((self.output.as_fd(), PollFlags::POLLOUT));
                    self.signals.wait(room, None)?;
                    self.woken = self.take_signal().or(self.woken);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).doing(|| "writing to the terminal"),
            }
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Only one attempt: a stopped terminal must not delay the exit.
        let _terminal_is_gone_or_full = self.output.write(LEAVE.as_bytes());
        if let Some(before) = &self.before {
            let _terminal_is_gone = tcsetattr(&self.input, OptionalActions::Now, before);
        }
    }
}
