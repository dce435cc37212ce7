// SPDX-License-Identifier: Apache-2.0
//! Determines whether a file, folder or process exists. "It does not exist" and "this cannot be
//! determined now" (no descriptor left, no memory, a bad disk) are different results; only the
//! first is a reason to remove or stop something. `Ok(None)`, and `Ok(false)` of [`exists`], mean
//! that the kernel reports absence; an error means unknown, and the caller retries or chooses the
//! outcome that loses no container.

use std::io;
use std::path::Path;
use std::time::Duration;

use nix::libc::{
    EINTR, EINVAL, EISDIR, ELOOP, EMFILE, ENAMETOOLONG, ENFILE, ENOBUFS, ENOENT, ENOMEM, ENOTDIR,
    ESRCH,
};

use crate::error::Error;

/// Whether this OS error means absence; a name that is too long cannot exist.
pub(crate) fn is_absence(os: i32) -> bool {
    matches!(os, ENOENT | ENOTDIR | ENAMETOOLONG | ESRCH)
}

/// Whether this OS error is a shortage of the process or the host, or an interruption, not a fact
/// about the object of the call.
pub(crate) fn is_shortage(os: i32) -> bool {
    matches!(os, EMFILE | ENFILE | ENOMEM | ENOBUFS | EINTR)
}

/// Whether a retry may have another outcome, because the error does not mean that the object is
/// absent or of the wrong kind.
pub(crate) fn may_pass(os: i32) -> bool {
    os != 0 && !is_absence(os) && !matches!(os, EINVAL | EISDIR | ELOOP)
}

/// The result of a call about an object that may be absent.
pub(crate) trait IfThere<T, E> {
    /// Returns `None` if the object does not exist.
    ///
    /// # Errors
    /// Fails when its existence cannot be determined.
    fn if_there(self) -> Result<Option<T>, E>;

    /// Returns `None` also if the existence cannot be determined: for values that are shown or read
    /// again, never as a reason to end or permit something.
    fn or_absent(self) -> Option<T>;
}

impl<T> IfThere<T, io::Error> for io::Result<T> {
    fn if_there(self) -> io::Result<Option<T>> {
        match self {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.raw_os_error().is_some_and(is_absence) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn or_absent(self) -> Option<T> {
        self.ok()
    }
}

impl<T> IfThere<T, Error> for Result<T, Error> {
    fn if_there(self) -> Result<Option<T>, Error> {
        match self {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_absence() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn or_absent(self) -> Option<T> {
        self.ok()
    }
}

/// Whether anything exists at this path, following links.
///
/// # Errors
/// Fails when the path cannot be examined.
pub(crate) fn exists(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path).if_there()?.is_some())
}

/// Whether the kernel reports that nothing, not even a link, is at this path; false if the path
/// cannot be examined.
pub(crate) fn is_absent(path: &Path) -> bool {
    matches!(std::fs::symlink_metadata(path).if_there(), Ok(None))
}

/// Whether there is a folder at this path, following links.
///
/// # Errors
/// Fails when the path cannot be examined.
pub(crate) fn is_dir(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path).if_there()?.is_some_and(|meta| meta.is_dir()))
}

/// Lists a folder; empty if the folder does not exist.
///
/// # Errors
/// Fails when the list may be incomplete.
pub(crate) fn entries(folder: &Path) -> io::Result<Vec<std::fs::DirEntry>> {
    match std::fs::read_dir(folder).if_there()? {
        Some(entries) => entries.collect(),
        None => Ok(Vec::new()),
    }
}

/// The first pause before a retry, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(5)];

/// The pauses between attempts: each is twice as long as the last, up to the longest.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(PAUSES[0])
    }
}

impl Backoff {
    /// Returns the length of the next pause.
    pub(crate) fn next(&mut self) -> Duration {
        let longer = PAUSES[1].min(self.0 * 2);
        std::mem::replace(&mut self.0, longer)
    }
}

/// Number of attempts; the pauses between them take 0.3 s in all.
const ATTEMPTS: usize = 5;

/// An error that may come from the operating system.
pub(crate) trait MayPass {
    /// Whether a retry may have another outcome.
    fn may_pass(&self) -> bool;
}

impl MayPass for io::Error {
    fn may_pass(&self) -> bool {
        may_pass(self.raw_os_error().unwrap_or(0))
    }
}

impl MayPass for Error {
    fn may_pass(&self) -> bool {
        Self::may_pass(self)
    }
}

/// Attempts a call up to [`ATTEMPTS`] times, while a retry may have another outcome; blocks the
/// calling thread.
///
/// # Errors
/// Fails with the error of the last attempt.
pub(crate) fn insist<T, E: MayPass>(mut attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let mut backoff = Backoff::default();
    for _more in 1..ATTEMPTS {
        match attempt() {
            Err(error) if error.may_pass() => std::thread::sleep(backoff.next()),
            done => return done,
        }
    }
    attempt()
}

/// Retries like [`insist`], but does not block the daemon's loop during the pauses.
///
/// # Errors
/// Fails with the error of the last attempt.
pub(crate) async fn insist_on_loop<T, E: MayPass>(
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut backoff = Backoff::default();
    for _more in 1..ATTEMPTS {
        match attempt() {
            Err(error) if error.may_pass() => tokio::time::sleep(backoff.next()).await,
            done => return done,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(os: i32) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(os))
    }

    #[test]
    fn only_objects_the_kernel_reports_missing_are_absent() {
        for os in [ENOENT, ENOTDIR, ESRCH] {
            assert!(matches!(failed(os).if_there(), Ok(None)), "{os}");
            assert!(matches!(failed(os).map_err(Error::from).if_there(), Ok(None)), "{os}");
        }
        for os in [EMFILE, ENFILE, ENOMEM, EINTR, nix::libc::EIO, nix::libc::EACCES] {
            assert!(failed(os).if_there().is_err(), "{os}");
            let error = failed(os).map_err(Error::from).if_there().unwrap_err();
            assert!(error.may_pass() && !error.is_absence(), "{os}");
        }
        assert!(!Error::new("a line of ours").may_pass());
    }

    #[test]
    fn a_file_is_not_a_folder_and_a_missing_folder_is_empty() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("file");
        crate::files::replace(&file, b"").unwrap();
        assert!(exists(&file).unwrap() && !is_dir(&file).unwrap());
        for none in [temp.path().join("none"), file.join("none")] {
            assert!(!exists(&none).unwrap() && entries(&none).unwrap().is_empty());
            assert!(is_absent(&none));
        }
        let link = temp.path().join("link");
        std::os::unix::fs::symlink("link", &link).unwrap();
        assert!(!is_absent(&link) && !is_absent(&file));
        assert!(exists(&link).is_err() && is_dir(&link).is_err() && entries(&link).is_err());
        assert!(!exists(&temp.path().join("x".repeat(300))).unwrap());
    }

    #[test]
    fn failed_look_ups_are_repeated_a_limited_number_of_times() {
        let mut left = 3;
        let found = insist(|| {
            left -= 1;
            if left == 0 { Ok(()) } else { failed(EMFILE) }
        });
        assert!(found.is_ok());
        let mut count = 0;
        let never = insist(|| {
            count += 1;
            failed(EMFILE)
        });
        assert!(never.is_err() && count == ATTEMPTS);
        count = 0;
        let none = insist(|| {
            count += 1;
            failed(ENOENT)
        });
        assert!(none.is_err() && count == 1, "that there is none is an outcome");
        let mut backoff = Backoff::default();
        let longest = (0..20).map(|_| backoff.next()).max();
        assert_eq!(longest, Some(PAUSES[1]));
    }
}
