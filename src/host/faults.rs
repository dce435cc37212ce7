// SPDX-License-Identifier: Apache-2.0
//! Faults that tests set at a [`Point`](super::Point): a failure, a stall, a panic, SIGKILL. Only
//! builds with the feature `faults`, which the test crate enables, contain this module.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::presence::IfThere;

/// The length of a stall: longer than every time limit.
const STALL_TIME: Duration = Duration::from_secs(600);

/// A fault at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Kill,
    Fail,
    Stall,
    Panic,
}

/// The value of `[debug] fault`.
#[derive(Debug, Clone, Default)]
pub(super) enum Faults {
    /// No fault.
    #[default]
    None,
    /// This fault, each time the point is reached.
    At(String, Fault),
    /// The fault that this file contains, once.
    File(PathBuf),
}

impl Faults {
    /// Reads `POINT:kill`, `:fail`, `:stall` or `:panic`, or `@FILE`.
    pub(super) fn read(fault: &str) -> Self {
        match fault.strip_prefix('@') {
            Some(file) => Self::File(PathBuf::from(file)),
            None => match fault.split_once(':') {
                Some((name, kind)) => {
                    kind_of(kind).map_or(Self::None, |kind| Self::At(name.to_owned(), kind))
                }
                None => Self::None,
            },
        }
    }

    /// Triggers the fault that is set for this point.
    ///
    /// # Errors
    /// Fails if a failure is set.
    pub(super) fn strike(&self, name: &str) -> Result<()> {
        let fault = match self {
            Self::None => return Ok(()),
            Self::At(at, fault) => (at == name).then_some(*fault),
            Self::File(file) => armed(file, name),
        };
        match fault {
            None => {}
            Some(Fault::Fail) => return Err(Error::new(format!("fault injected at {name}"))),
            Some(Fault::Stall) => std::thread::sleep(STALL_TIME),
            Some(Fault::Panic) => panicking(name),
            Some(Fault::Kill) => nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL)?,
        }
        Ok(())
    }
}

#[expect(clippy::panic, reason = "a test asked for it")]
fn panicking(name: &str) {
    panic!("fault injected at {name}");
}

fn kind_of(word: &str) -> Option<Fault> {
    match word {
        "kill" => Some(Fault::Kill),
        "fail" => Some(Fault::Fail),
        "stall" => Some(Fault::Stall),
        "panic" => Some(Fault::Panic),
        _ => None,
    }
}

/// Returns the file's fault and removes the file, if the fault is for this point and no pass is left
/// before it; else only counts a pass of this point. If the file contains `trace`, records the pass.
fn armed(file: &Path, name: &str) -> Option<Fault> {
    let text = crate::files::read_kernel(file).or_absent()?;
    if text.trim() == "trace" {
        let mut trace = file.as_os_str().to_owned();
        trace.push(".trace");
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(trace);
        let _only_a_test =
            opened.and_then(|mut trace| trace.write_all(format!("{name}\n").as_bytes()));
        return None;
    }
    let mut words = text.trim().split(':');
    if words.next() != Some(name) {
        return None;
    }
    let (word, passings) = (words.next().unwrap_or_default(), words.next());
    match passings.and_then(|passings| passings.parse::<u32>().ok()).unwrap_or(0) {
        0 => std::fs::remove_file(file).ok().and_then(|()| kind_of(word)),
        left => {
            let text = format!("{name}:{word}:{}", left - 1);
            let _only_a_test = crate::files::replace(file, text.as_bytes());
            None
        }
    }
}
